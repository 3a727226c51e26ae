//! The types of results that are no tensors: numbers, lists, strings, devices.

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
    /// All sizes, or with a dimension given one of them.
    Size,
    /// A float.
    Float,
    /// A truth value.
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

    // -- of tensors a tensor, of plain values what stands here --
    /// An item of a list, or what arithmetic makes of the operands.
    ItemOrArithmetic,
    /// A truth value.
    BoolOfNumbers,
    /// An integer where one is among the operands, else a truth value.
    BitsOfNumbers,
    /// The type that arithmetic gives for its operands.
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
    /// An item that leaves a list.
    Popped,
}
