//! Units as types: no number crosses a crate's boundary without its unit.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Div, Mul, Sub},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty) $(, $derive:ident)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema, $($derive),*)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::default(), Add::add)
            }
        }
    };
}

unit!(
    /// A span of time.
    Seconds(f64)
);
unit!(
    /// A number of bytes.
    Bytes(u64), Eq, Ord, Hash
);
unit!(
    /// A transfer or memory rate.
    BytesPerSecond(f64)
);
unit!(
    /// Floating-point operations; one multiply-add counts as two.
    Flops(u64), Eq, Ord, Hash
);
unit!(
    /// A compute rate.
    FlopsPerSecond(f64)
);

impl Mul<f64> for Seconds {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }
}

impl Div<f64> for Seconds {
    type Output = Self;
    fn div(self, divisor: f64) -> Self {
        Self(self.0 / divisor)
    }
}

impl Bytes {
    /// Parses a size: `2GiB`, `500 MB`, `1024`.
    ///
    /// # Errors
    /// The expected form.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (number, unit) =
            text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
        let unit = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            "kib" | "k" => 1024.0,
            "mib" | "m" => 1024.0_f64.powi(2),
            "gib" | "g" => 1024.0_f64.powi(3),
            "tib" | "t" => 1024.0_f64.powi(4),
            _ => f64::NAN,
        };
        let bytes = number.trim().parse::<f64>().map(|number| number * unit);
        match bytes.ok().filter(|bytes| (0.0..1e18).contains(bytes)) {
            Some(bytes) => Ok(Self(bytes as u64)),
            None => Err(format!("`{text}` is not a size: write 2GiB, 500MB or 1024")),
        }
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0 * factor)
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.0 as f64 / rate.0)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds(self.0 as f64 / rate.0)
    }
}

/// Writes a value with three significant digits and the largest prefix that keeps it at or above one.
fn scaled(f: &mut fmt::Formatter<'_>, value: f64, step: f64, units: &[&str]) -> fmt::Result {
    let mut value = value;
    let mut unit = 0;
    // 999.5 would round to 1000 of this unit: use the next.
    while value.abs() >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value.abs() {
        v if unit == 0 && v.fract() == 0.0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    write!(f, "{value:.digits$} {}", units[unit])
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.abs() < 59.95 {
            scaled(f, self.0 * 1e9, 1e3, &["ns", "µs", "ms", "s"])
        } else if self.0.abs() < 3600.0 {
            write!(f, "{:.1} min", self.0 / 60.0)
        } else {
            write!(f, "{:.1} h", self.0 / 3600.0)
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0 as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1e3, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0 as f64, 1e3, &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"])
    }
}

impl fmt::Display for FlopsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1e3, &["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_read_well() {
        let check = |shown: String, expected: &str| assert_eq!(shown, expected);
        check(Seconds(0.0).to_string(), "0 ns");
        check(Seconds(0.012_34).to_string(), "12.3 ms");
        check(Seconds(0.999_9).to_string(), "1.00 s");
        check(Seconds(90.0).to_string(), "1.5 min");
        check(Bytes(512).to_string(), "512 B");
        check(Bytes(97_493_664).to_string(), "93.0 MiB");
        check(Flops(8_178_000_000).to_string(), "8.18 GFLOP");
        check(BytesPerSecond(3.125e9).to_string(), "3.12 GB/s");
    }
}
