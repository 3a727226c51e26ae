//! The code dialect's tree. Every part keeps the slice of text that it was read from; a span is where that
//! slice lies in its file.

use std::cell::OnceCell;

use indexmap::IndexMap;

use crate::error::TraceError;

/// One `code/**.py` record.
#[derive(Debug, Default)]
pub(crate) struct File<'a> {
    pub(crate) classes: IndexMap<&'a str, Class<'a>>,
    pub(crate) functions: IndexMap<&'a str, Function<'a>>,
}

/// A class of the trace.
#[derive(Debug)]
pub(crate) struct Class<'a> {
    pub(crate) name: &'a str,
    /// `Module`, `NamedTuple`, …
    pub(crate) base: Option<&'a str>,
    pub(crate) parameters: Vec<String>,
    pub(crate) buffers: Vec<String>,
    /// Attribute names with their types, in order.
    pub(crate) attributes: Vec<(String, Expr<'a>)>,
    pub(crate) methods: IndexMap<&'a str, Function<'a>>,
}

/// A method or a free function. It is parsed when it is first called.
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    /// From `def` to the end of its body, with the spaces before `def` on its line.
    pub(crate) text: &'a str,
    pub(crate) body: OnceCell<Result<Definition<'a>, Box<TraceError>>>,
}

/// A parsed function.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Definition<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: Vec<Parameter<'a>>,
    pub(crate) returns: Option<Expr<'a>>,
    pub(crate) block: Vec<Statement<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameter<'a> {
    pub(crate) name: &'a str,
    pub(crate) type_: Option<Expr<'a>>,
    pub(crate) default: Option<Expr<'a>>,
}

/// One statement. Two are equal when they say the same, wherever they stand.
#[derive(Clone, Debug)]
pub(crate) struct Statement<'a> {
    pub(crate) kind: StatementKind<'a>,
    pub(crate) text: &'a str,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StatementKind<'a> {
    /// `a = x`, `a, b = x`, `a, b, = x` (the trailing comma unpacks), `a : T = x`.
    Assign {
        targets: Vec<Expr<'a>>,
        unpack: bool,
        type_: Option<Expr<'a>>,
        value: Expr<'a>,
    },
    /// `a : T`.
    Declare {
        target: Expr<'a>,
        type_: Expr<'a>,
    },
    Expression(Expr<'a>),
    Return(Expr<'a>),
    Pass,
    If {
        condition: Expr<'a>,
        then: Vec<Statement<'a>>,
        otherwise: Vec<Statement<'a>>,
    },
    While {
        condition: Expr<'a>,
        block: Vec<Statement<'a>>,
    },
    For {
        target: &'a str,
        iterable: Expr<'a>,
        block: Vec<Statement<'a>>,
    },
    With {
        context: Expr<'a>,
        target: Option<&'a str>,
        block: Vec<Statement<'a>>,
    },
    Function(Definition<'a>),
}

/// One expression. Two are equal when they say the same, wherever they stand.
#[derive(Clone, Debug)]
pub(crate) struct Expr<'a> {
    pub(crate) kind: ExprKind<'a>,
    pub(crate) text: &'a str,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExprKind<'a> {
    Name(&'a str),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Complex(f64, f64),
    Str(String),
    Tuple(Vec<Expr<'a>>),
    List(Vec<Expr<'a>>),
    Dict(Vec<(Expr<'a>, Expr<'a>)>),
    Negative(Box<Expr<'a>>),
    Attribute(Box<Expr<'a>>, &'a str),
    Call(Box<Expr<'a>>, Vec<CallArgument<'a>>),
    Index(Box<Expr<'a>>, Vec<Expr<'a>>),
    Slice(Box<Expr<'a>>, Option<Box<Expr<'a>>>, Option<Box<Expr<'a>>>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallArgument<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) value: Expr<'a>,
}

impl PartialEq for Statement<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl PartialEq for Expr<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}
