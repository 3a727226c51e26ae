//! Operands as text, as far as Python and TorchScript agree.

use tracer::{Constant, Operand, TensorId, ValueId};

use crate::names::float;

/// A writer of one of the two languages.
pub(crate) trait Operands {
    /// How infinity and NaN are written.
    const NOT_FINITE: [&'static str; 2];

    /// Writes a value's name.
    fn value(&self, value: ValueId) -> String;

    /// Writes the path to a stored tensor: `self.layer1[0].conv1.weight`.
    fn tensor(&self, id: TensorId) -> String;

    /// Writes a string literal.
    fn quoted(text: &str) -> String;

    /// Writes a complex number.
    fn complex(real: f64, imaginary: f64) -> String {
        format!("complex({}, {})", Self::float(real), Self::float(imaginary))
    }

    /// Writes a float.
    fn float(value: f64) -> String {
        let [infinity, nan] = Self::NOT_FINITE;
        float(value, infinity, nan)
    }

    /// Writes an operand.
    fn operand(&self, operand: &Operand) -> String {
        let joined =
            |items: &[Operand]| items.iter().map(|item| self.operand(item)).collect::<Vec<_>>().join(", ");
        match operand {
            Operand::Value(value) => self.value(*value),
            Operand::Tensor(tensor) => self.tensor(*tensor),
            Operand::Constant(constant) => Self::constant(constant),
            Operand::List(items) => format!("[{}]", joined(items)),
            Operand::Tuple(items) if items.len() == 1 => format!("({},)", joined(items)),
            Operand::Tuple(items) => format!("({})", joined(items)),
            Operand::Dict(pairs) => {
                let pair = |(key, value): &(Operand, Operand)| {
                    format!("{}: {}", self.operand(key), self.operand(value))
                };
                format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Writes a constant.
    fn constant(constant: &Constant) -> String {
        match constant {
            Constant::None => "None".into(),
            Constant::Bool(true) => "True".into(),
            Constant::Bool(false) => "False".into(),
            Constant::Int(value) => value.to_string(),
            Constant::Float(value) => Self::float(*value),
            Constant::Complex(real, imaginary) => Self::complex(*real, *imaginary),
            Constant::Str(text) => Self::quoted(text),
            Constant::Device(name) => format!("torch.device({})", Self::quoted(name)),
        }
    }
}
