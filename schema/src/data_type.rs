//! Data types by the names that people and libraries use.

/// The name used here, and other names.
const NAMES: [(&str, &[&str]); 8] = [
    ("float32", &["fp32", "f32", "float", "single"]),
    ("tf32", &["tensorfloat32"]),
    ("bfloat16", &["bf16"]),
    ("float16", &["fp16", "f16", "half"]),
    ("float64", &["fp64", "f64", "double"]),
    ("float8", &["fp8", "f8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "e4m3", "e5m2"]),
    ("int8", &["i8"]),
    ("int64", &["i64", "long"]),
];

/// Returns the name used here for a data type: `torch.bfloat16`, `BF16` and `bfloat16` are one. Unknown names are
/// unchanged.
pub fn data_type(text: &str) -> String {
    let plain = text.to_ascii_lowercase();
    let plain = plain.strip_prefix("torch.").unwrap_or(&plain);
    let known = NAMES.iter().find(|(name, others)| *name == plain || others.contains(&plain));
    known.map_or_else(|| text.to_string(), |(name, _)| (*name).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_type_are_one() {
        let check = |text: &str, expected: &str| assert_eq!(data_type(text), expected, "{text}");
        check("float32", "float32");
        check("FP32", "float32");
        check("torch.float32", "float32");
        check("torch.half", "float16");
        check("bf16", "bfloat16");
        check("TF32", "tf32");
        check("torch.float8_e4m3fn", "float8");
        check("Posit16", "Posit16");
    }
}
