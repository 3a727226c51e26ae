//! Arithmetic on plain numbers, strings and lists: traces contain the arithmetic of sizes.
//!
//! Three crates use it: `graph` to compute sizes, `tracer` to find the number of iterations of a loop, `codegen` to
//! write and read Python.

/// The function of plain operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names say it.
pub enum Arithmetic {
    /// It only takes tensors, or its numbers are never needed.
    Nothing,
    Add,
    Subtract,
    /// The second minus the first.
    SubtractFrom,
    Multiply,
    Divide,
    TrueDivide,
    FloorDivide,
    /// The same, only for numbers.
    FloorDivideNumbers,
    /// With the sign of the second operand, as in Python.
    Remainder,
    /// With the sign of the first operand, as in C.
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
    /// Whether both are the same object, as far as `None` is concerned.
    Is,
    IsNot,
    Not,
    LogicalNot,
    Negate,
    Absolute,
    Floor,
    Ceiling,
    Truncate,
    /// To the nearest even number at ties.
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

/// Python's binary operators, each with the corresponding operator of torch.
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
    /// Returns Python's binary operator for it, if there is one.
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

/// Returns the name, without name space, of the operator for a Python binary operator.
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
