//! Arithmetic on plain numbers, strings and lists: traces contain the arithmetic of sizes.
//!
//! Three crates do so: `graph` to know sizes, `tracer` to know how often a loop runs, `codegen` to write and read Python.

/// The function of plain operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names say it.
pub enum Arithmetic {
    /// It takes tensors only, or its numbers are never needed.
    Nothing,
    Add,
    Subtract,
    /// The second less the first.
    SubtractFrom,
    Multiply,
    Divide,
    TrueDivide,
    FloorDivide,
    /// The same, of numbers alone.
    FloorDivideNumbers,
    /// With the sign of the second operand, as Python's.
    Remainder,
    /// With the sign of the first operand, as C's.
    TruncatedRemainder,
    Maximum,
    Minimum,
    Power,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Xor,
    LogicalAnd,
    LogicalOr,
    Contains,
    /// Whether two are one object, as far as `None` tells.
    Is,
    IsNot,
    Not,
    LogicalNot,
    Negate,
    Absolute,
    Floor,
    Ceiling,
    Truncate,
    /// To the even neighbour.
    Round,
    SquareRoot,
    Exponential,
    Logarithm,
    ReciprocalRoot,
    Reciprocal,
    /// The operand itself.
    Same,
    Sum,
    Any,
    All,
    Length,
    Size,
    ToInt,
    ToIntImplicitly,
    ToFloat,
    ToFloatImplicitly,
    ToBool,
    ToComplex,
    ToText,
    /// An integer or a float.
    ToNumberImplicitly,
    Item,
    ToTensor,
}

/// Python's signs of two operands, each with the operator that it means.
const SIGNS: [(&str, Arithmetic, &str); 15] = [
    ("+", Arithmetic::Add, "add"),
    ("-", Arithmetic::Subtract, "sub"),
    ("*", Arithmetic::Multiply, "mul"),
    ("/", Arithmetic::Divide, "div"),
    ("//", Arithmetic::FloorDivideNumbers, "floordiv"),
    ("%", Arithmetic::Remainder, "remainder"),
    ("&", Arithmetic::And, "__and__"),
    ("|", Arithmetic::Or, "__or__"),
    ("^", Arithmetic::Xor, "__xor__"),
    ("==", Arithmetic::Equal, "eq"),
    ("!=", Arithmetic::NotEqual, "ne"),
    ("<", Arithmetic::Less, "lt"),
    ("<=", Arithmetic::LessOrEqual, "le"),
    (">", Arithmetic::Greater, "gt"),
    (">=", Arithmetic::GreaterOrEqual, "ge"),
];

impl Arithmetic {
    /// Returns Python's sign for it; `None` where there is none between two operands.
    pub fn sign(self) -> Option<&'static str> {
        let alike = if self == Self::FloorDivide { Self::FloorDivideNumbers } else { self };
        SIGNS.iter().find(|(_, meant, _)| *meant == alike).map(|(sign, ..)| *sign)
    }

    /// Tells whether it is a comparison by size or equality.
    pub fn compares(self) -> bool {
        matches!(
            self,
            Self::Equal
                | Self::NotEqual
                | Self::Less
                | Self::LessOrEqual
                | Self::Greater
                | Self::GreaterOrEqual
        )
    }
}

/// Returns the name, without name space, of the operator that a sign of Python between two operands means.
pub fn signed(sign: &str) -> Option<&'static str> {
    SIGNS.iter().find(|(known, ..)| *known == sign).map(|(.., name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_and_its_operator_lead_to_each_other() {
        for (sign, meant, name) in SIGNS {
            assert_eq!((Arithmetic::of(name), signed(sign)), (meant, Some(name)), "{sign}");
            assert_eq!(meant.sign(), Some(sign));
        }
        assert_eq!((Arithmetic::FloorDivide.sign(), Arithmetic::Round.sign()), (Some("//"), None));
    }
}
