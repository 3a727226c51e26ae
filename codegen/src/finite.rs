//! Finds weights that are NaN or infinite.

use tracer::DType;

/// Tells whether whole elements are finite: an exponent of ones is not. Types other than floats are always finite.
pub(crate) fn is_all_finite(dtype: DType, bytes: &[u8]) -> bool {
    // Without a branch inside, so that the compiler vectorises it.
    macro_rules! none_has {
        ($word:ty, $exponent:expr) => {
            !bytes.as_chunks().0.iter().fold(false, |found, element| {
                found | (<$word>::from_le_bytes(*element) & $exponent == $exponent)
            })
        };
    }
    match dtype {
        DType::Float64 | DType::Complex128 => none_has!(u64, 0x7ff0_0000_0000_0000),
        DType::Float32 | DType::Complex64 => none_has!(u32, 0x7f80_0000),
        DType::Float16 => none_has!(u16, 0x7c00),
        DType::BFloat16 => none_has!(u16, 0x7f80),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_floats_without_a_number_are_found() {
        let check = |dtype: DType, element: &[u8], expected: bool| {
            let mut bytes = vec![0_u8; element.len() * 37];
            assert!(is_all_finite(dtype, &bytes), "{dtype:?} zeros");
            let at = element.len() * 19;
            bytes[at..at + element.len()].copy_from_slice(element);
            assert_eq!(is_all_finite(dtype, &bytes), expected, "{dtype:?} {element:?}");
        };
        for (value, is_finite) in
            [(f32::NAN, false), (f32::NEG_INFINITY, false), (f32::MAX, true), (-1e-40, true)]
        {
            check(DType::Float32, &value.to_le_bytes(), is_finite);
            check(DType::Int32, &value.to_le_bytes(), true);
        }
        for (value, is_finite) in
            [(f64::NAN, false), (f64::INFINITY, false), (f64::MIN, true), (5e-324, true)]
        {
            check(DType::Float64, &value.to_le_bytes(), is_finite);
        }
        for (bits, is_finite) in [(0x7c00_u16, false), (0xfe00, false), (0x7bff, true), (0x03ff, true)] {
            check(DType::Float16, &bits.to_le_bytes(), is_finite);
        }
        for (bits, is_finite) in [(0x7f80_u16, false), (0xffc0, false), (0x7f7f, true), (0x7c00, true)] {
            check(DType::BFloat16, &bits.to_le_bytes(), is_finite);
        }
    }
}
