//! The IR as torch prints it: a tree that loses nothing but white space.
//!
//! Numbers stay text: torch prints `1.0000000000000001e-05` and `1.`, and printing must give that back.

use crate::Span;

/// `graph(…): … return (…)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Inputs, `self` among them.
    pub inputs: Vec<Binding>,
    /// Nodes in execution order.
    pub nodes: Vec<Node>,
    /// Its results.
    pub outputs: Vec<Use>,
    /// `with prim::FusionGroup_0 = graph(…)`, below the graph that uses them.
    pub subgraphs: Vec<(String, Graph)>,
}

/// `%name : type`, where a value is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Name without `%`.
    pub name: String,
    /// Type as printed.
    pub type_: IrType,
    /// Its source location.
    pub span: Span,
}

/// `%name`, where a value is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Name without `%`.
    pub name: String,
    /// Its source location.
    pub span: Span,
}

/// `outputs = kind[attributes](inputs), scope: … # file:line:column`, and the blocks below it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Values it makes.
    pub outputs: Vec<Binding>,
    /// `aten::relu`; `^Name` for a Python operator.
    pub kind: String,
    /// `[name=literal, …]`.
    pub attributes: Vec<(String, Literal)>,
    /// `(scalars)` of a Python operator, as written.
    pub scalars: Option<String>,
    /// Values it takes.
    pub inputs: Vec<Use>,
    /// The text after `scope: `.
    pub scope: Option<String>,
    /// The text after `# `.
    pub place: Option<String>,
    /// Nested blocks.
    pub blocks: Vec<Block>,
    /// The location of its first line.
    pub span: Span,
}

/// `block0(…): … -> (…)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Values it takes.
    pub inputs: Vec<Binding>,
    /// Nodes in execution order.
    pub nodes: Vec<Node>,
    /// Values it gives.
    pub outputs: Vec<Use>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// `3`, `1.`, `1e-05`, `inf`, `3.+4.j`, as written.
    Number(String),
    /// `"text"`.
    Str(String),
    /// `None`, `True`, an enum's member, as written.
    Word(String),
    /// `{2}`: a tensor of one element.
    Boxed(String),
    /// ` 1  2 [ CPUFloatType{2} ]`: a small tensor, rounded by the printer, as written.
    Elements(String),
    /// `<Tensor>`, `<Graph>`: left out by the printer.
    Omitted(String),
    /// `[a, b]`.
    List(Vec<Literal>),
    /// `(a, b)`.
    Tuple(Vec<Literal>),
    /// `{a: b}`.
    Dict(Vec<(Literal, Literal)>),
    /// `annotate(List[int], [])`; the type is Python's and stays text.
    Annotated(String, Box<Literal>),
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum IrType {
    /// `Tensor`, `Float(2, 3, strides=[3, 1], requires_grad=0, device=cpu)`.
    Tensor(IrTensorType),
    /// `T[]`.
    List(Box<IrType>),
    /// `T?`.
    Optional(Box<IrType>),
    /// `(T, U)`; `NamedTuple(x : T, y : U)`.
    Tuple {
        /// Whether `NamedTuple` stands before it.
        is_named: bool,
        /// Elements, with their names in a named tuple.
        elements: Vec<(Option<String>, IrType)>,
    },
    /// `Dict(K, V)`.
    Dict(Box<IrType>, Box<IrType>),
    /// `Future[T]`, `Union[T, U]`.
    Applied(String, Vec<IrType>),
    /// `int`, `NoneType`, `__torch__.Model`.
    Named(String),
}

/// A tensor's type as it is printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IrTensorType {
    /// `Float`; `None` for a plain `Tensor`.
    pub dtype: Option<String>,
    /// Sizes; `None` where not even their number is known.
    pub dims: Option<Vec<Dim>>,
    /// Strides in elements.
    pub strides: Option<Vec<i64>>,
    /// `requires_grad=0`.
    pub requires_grad: Option<bool>,
    /// `device=cuda:0`.
    pub device: Option<String>,
    /// `[Undefined]` at the end.
    pub is_undefined: bool,
}

/// One size.
#[derive(Clone, Debug, PartialEq)]
pub enum Dim {
    /// `3`.
    Known(u64),
    /// `*`.
    Unknown,
    /// `SS(-1)`.
    Symbol(String),
}
