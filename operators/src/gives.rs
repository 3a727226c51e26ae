//! The types of results other than tensors: numbers, lists, strings, devices.

/// The type of an operator's only result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// A tensor.
    Tensor,
    /// A list of tensors.
    Tensors,
    /// An integer.
    Int,
    /// A list of integers.
    Integers,
    /// All sizes, or one of them if a dimension is given.
    Size,
    /// A float.
    Float,
    /// A boolean.
    Bool,
    /// An integer or a float.
    Number,
    /// A string.
    Str,
    /// A device.
    Device,
    /// An item of its first operand.
    Item,
    /// The keys of a dictionary.
    Keys,
    /// A list like its first operand, if that is one.
    SameList,

    // -- of tensors a tensor, of plain values as follows --
    /// An item of a list, or the arithmetic result of the operands.
    ItemOrArithmetic,
    /// A boolean.
    BoolOfNumbers,
    /// An integer if one is among the operands, else a boolean.
    BitsOfNumbers,
    /// The arithmetic result type of its operands.
    Arithmetic,
    /// An integer.
    IntOfNumbers,
    /// An integer, unless the operand may be either.
    Rounded,
    /// A float.
    FloatOfNumbers,
    /// A float, unless an operand may be either.
    FunctionOfNumbers,
    /// The sum of a list.
    Sum,
    /// An item removed from a list.
    Popped,
}
