//! `[NAME=]SHAPE[:DTYPE][:LOW..HIGH|:VALUE,...]`, one example input.

use std::ops::Range;

use serde_json::{Value, json};

/// No tensor of a trace needs more; a typing error in a shape must not fill the memory.
const MAX_ELEMENTS: u64 = 1 << 40;

const DTYPES: [&str; 17] = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
];

/// An example input.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Its keyword, if it is passed by keyword.
    pub name: Option<String>,
    /// Sizes; empty for a scalar.
    pub shape: Vec<u64>,
    /// Element type, by torch's name.
    pub dtype: String,
    /// Range of values, without the second for integers.
    pub range: Option<(f64, f64)>,
    /// The numbers themselves, row by row.
    pub values: Option<Vec<f64>>,
}

/// Why a text is not an input, with the position.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("--input {text}: {fault}")]
pub struct InputError {
    text: String,
    fault: String,
    found: &'static str,
    span: Range<usize>,
}

impl InputError {
    /// Returns the position of the fault in the text.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns a short label for the place.
    pub fn found(&self) -> &'static str {
        self.found
    }
}

impl InputSpec {
    /// Parses one `--input`.
    ///
    /// ```text
    /// input = [ NAME "=" ] shape [ ":" DTYPE ] [ ":" NUMBER ".." NUMBER | ":" values ] ;
    /// shape = "scalar" | SIZE { "x" SIZE } ;
    /// values = NUMBER { "," NUMBER } ;
    /// ```
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let fail = |span: Range<usize>, found, fault: String| {
            Err(InputError { text: text.to_owned(), fault, found, span })
        };
        let (name, start) = match text.find('=') {
            Some(end) => (Some(&text[..end]), end + 1),
            None => (None, 0),
        };
        if let Some(name) = name.filter(|name| !is_identifier(name)) {
            return fail(
                0..name.len(),
                "not a Python name",
                format!("`{name}` cannot be an argument's name"),
            );
        }
        let mut parts = Vec::new();
        let mut at = start;
        for part in text[start..].split(':') {
            parts.push((at, part));
            at += part.len() + 1;
        }
        let (at, sizes) = parts[0];
        let mut shape = Vec::new();
        if sizes != "scalar" {
            let mut size_at = at;
            for size in sizes.split('x') {
                let span = size_at..size_at + size.len();
                let Ok(size) = size.parse::<u64>() else {
                    let fault = match size {
                        "" => "a size is missing".to_owned(),
                        other => format!("`{other}` is not a size"),
                    };
                    return fail(span, "expected a whole number", fault);
                };
                if size == 0 {
                    return fail(
                        span,
                        "must be at least 1",
                        "a tensor with a size of 0 holds nothing".to_owned(),
                    );
                }
                shape.push(size);
                size_at = span.end + 1;
            }
        }
        let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
        let Some(elements) = elements.filter(|elements| *elements <= MAX_ELEMENTS) else {
            let fault = format!("a tensor of {sizes} has more than 2^40 elements");
            return fail(at..at + sizes.len(), "too large", fault);
        };
        let name = name.map(str::to_owned);
        let mut spec = Self { name, shape, dtype: "float32".to_owned(), range: None, values: None };
        let mut has_dtype = false;
        for &(at, part) in &parts[1..] {
            let span = at..at + part.len();
            if let Some((low, high)) = part.split_once("..") {
                let bounds = (low.parse::<f64>(), high.parse::<f64>());
                let (Ok(low), Ok(high)) = bounds else {
                    return fail(span, "expected LOW..HIGH", format!("`{part}` is not a range of numbers"));
                };
                if !(low.is_finite() && high.is_finite() && low < high) {
                    return fail(span, "empty range", format!("`{part}` holds no number"));
                }
                if spec.values.is_some() || spec.range.replace((low, high)).is_some() {
                    return fail(span, "a second range", "there are two ranges".to_owned());
                }
            } else if let Some(values) = numbers(part) {
                if spec.range.is_some() || spec.values.is_some() {
                    return fail(span, "a second range", "there are two ranges".to_owned());
                }
                if values.len() as u64 != elements {
                    let fault = format!("a tensor of {sizes} holds {elements} numbers, not {}", values.len());
                    return fail(span, "another number of values", fault);
                }
                spec.values = Some(values);
            } else if DTYPES.contains(&part) {
                if has_dtype {
                    return fail(span, "a second dtype", "there are two dtypes".to_owned());
                }
                has_dtype = true;
                spec.dtype = part.to_owned();
            } else {
                let fault = format!("`{part}` is not a dtype; known are {}", DTYPES.join(", "));
                return fail(span, "unknown dtype", fault);
            }
        }
        Ok(spec)
    }

    /// Returns the form that `trace.py` reads.
    pub fn to_json(&self) -> Value {
        let mut value = json!({ "shape": self.shape, "dtype": self.dtype });
        if let Some(name) = &self.name {
            value["name"] = json!(name);
        }
        if let Some((low, high)) = self.range {
            value["low"] = json!(low);
            value["high"] = json!(high);
        }
        if let Some(values) = &self.values {
            value["values"] = json!(values);
            value["is_fixed"] = json!(true);
        }
        value
    }
}

/// Returns the numbers of a list of them; none where a part is not a number.
fn numbers(text: &str) -> Option<Vec<f64>> {
    text.split(',').map(|part| part.parse::<f64>().ok().filter(|number| number.is_finite())).collect()
}

fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let shown = match InputSpec::parse(text) {
            Ok(spec) => spec.to_json().to_string(),
            Err(error) => format!("{} [{}]", error, &text[error.span()]),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn inputs_are_read() {
        check("8x3x224x224", r#"{"shape":[8,3,224,224],"dtype":"float32"}"#);
        check("scalar", r#"{"shape":[],"dtype":"float32"}"#);
        check("5:bool", r#"{"shape":[5],"dtype":"bool"}"#);
        check(
            "ids=8x128:int64:0..50257",
            r#"{"shape":[8,128],"dtype":"int64","name":"ids","low":0.0,"high":50257.0}"#,
        );
        check("2x2:-1..1", r#"{"shape":[2,2],"dtype":"float32","low":-1.0,"high":1.0}"#);
        check(
            "grid=1x3:int64:1,8,-8",
            r#"{"shape":[1,3],"dtype":"int64","name":"grid","values":[1.0,8.0,-8.0],"is_fixed":true}"#,
        );
        check("scalar:5", r#"{"shape":[],"dtype":"float32","values":[5.0],"is_fixed":true}"#);
    }

    #[test]
    fn wrong_inputs_show_their_place() {
        check("8x3xx4", "--input 8x3xx4: a size is missing []");
        check("8x-3", "--input 8x-3: `-3` is not a size [-3]");
        check("8,3", "--input 8,3: `8,3` is not a size [8,3]");
        check("", "--input : a size is missing []");
        check("1-a=3", "--input 1-a=3: `1-a` cannot be an argument's name [1-a]");
        check("3:0..0", "--input 3:0..0: `0..0` holds no number [0..0]");
        check("3:a..b", "--input 3:a..b: `a..b` is not a range of numbers [a..b]");
        check("3:1,2", "--input 3:1,2: a tensor of 3 holds 3 numbers, not 2 [1,2]");
        check("2:1,2:0..9", "--input 2:1,2:0..9: there are two ranges [0..9]");
        check("2:0..9:1,2", "--input 2:0..9:1,2: there are two ranges [1,2]");
        check("3:int32:int64", "--input 3:int32:int64: there are two dtypes [int64]");
        check(
            "99999999999x99999999999",
            "--input 99999999999x99999999999: a tensor of 99999999999x99999999999 has more than 2^40 elements [99999999999x99999999999]",
        );
        let error = InputSpec::parse("8:float23").expect_err("an unknown dtype");
        assert!(
            error.to_string().starts_with("--input 8:float23: `float23` is not a dtype; known are float32,")
        );
    }
}
