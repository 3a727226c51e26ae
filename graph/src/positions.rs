//! Positions that a table of embeddings does not have: a sequence longer than the table of a model that learnt its positions.
//!
//! Sizes alone do not show it, for a lookup gives as many rows as it has indices. Followed are views of a range of numbers, and
//! what is added to them, into which nothing is written. Linear in operators.

use std::collections::HashSet;

use operators::{Arithmetic, ShapeRule};
use tracer::{Constant, Operand, Program};

use crate::{
    error::BuildError,
    fact::{Fact, Number, StorageId, TensorFact},
    model::{Flow, ModelGraph, Operator, Origin},
};

/// The most additions that are followed: an offset of a cache, and one of a table whose first rows mean something else.
const ADDITIONS: u32 = 4;

/// Returns an error for each lookup of a row that its table lacks.
pub fn missing_rows(graph: &ModelGraph, program: &Program) -> Vec<BuildError> {
    let order = graph.flow.raw_edges().iter();
    let written: HashSet<StorageId> = order
        .filter_map(|edge| match edge.weight {
            Flow::Order(storage) => Some(storage),
            Flow::Value(_) => None,
        })
        .collect();
    let known = Known { graph, program, written };
    let lookups = graph.operators.iter().filter(|operator| {
        // Devices that share a table look up their own rows, and give zeros for the others.
        operator.shape_rule() == ShapeRule::Embedding && !operator.name.starts_with("shard::")
    });
    let missing = lookups.filter_map(|operator| {
        let (table, indices) = (tensor(graph, operator, "weight")?, tensor(graph, operator, "indices")?);
        let rows = (*table.shape.as_ref()?.first()?)?;
        let (first, last) = known.ends(&indices, ADDITIONS)?;
        let largest = first.max(last);
        (largest >= i64::try_from(rows).ok()?).then(|| BuildError::Rejected {
            operator: operator.id,
            name: operator.name.clone(),
            path: graph.block(operator.block).path.clone(),
            shapes: vec![table.to_string(), indices.to_string()],
            reason: format!("row {largest} is looked up in a table of {rows} rows"),
            span: operator.span,
        })
    });
    missing.collect()
}

/// What is known of values.
struct Known<'a> {
    graph: &'a ModelGraph,
    program: &'a Program,
    /// Memory into which something is written in place.
    written: HashSet<StorageId>,
}

impl Known<'_> {
    /// Returns the first and the last number of a view of a whole range, perhaps with a number added; `None` if it is none, or
    /// may be of a part.
    fn ends(&self, view: &TensorFact, depth: u32) -> Option<(i64, i64)> {
        let graph = self.graph;
        let storage = view.storage.filter(|storage| !self.written.contains(storage))?;
        let Origin::Made(maker) = graph.storage(storage).origin else { return None };
        let maker = graph.operator(maker);
        let all = graph.value(*maker.outputs.first()?).fact.tensor()?;
        let length = all.elements().filter(|length| *length > 0)?;
        let sizes = view.sizes()?;
        let is_whole = sizes.iter().zip(view.strides.as_ref()?).any(|own| own == (&length, &1));
        if !is_whole || maker.is_writing {
            return None;
        }
        let number = |name: &str, otherwise: i64| match maker.argument(name) {
            None | Some(Operand::Constant(Constant::None)) => Some(otherwise),
            Some(operand) => self.integer(operand),
        };
        if maker.shape_rule() == ShapeRule::Range {
            let (start, step) = (number("start", 0)?, number("step", 1)?);
            let last = i64::try_from(length).ok()?.checked_sub(1)?.checked_mul(step)?.checked_add(start)?;
            return Some((start, last));
        }
        let adds = maker.row().is_some_and(|row| row.numbers == Arithmetic::Add);
        let more = maker.argument("other").filter(|_| adds && depth > 0)?;
        let more = self.integer(more)?.checked_mul(number("alpha", 1)?)?;
        let (first, last) = self.ends(&tensor(graph, maker, "self")?, depth - 1)?;
        Some((first.checked_add(more)?, last.checked_add(more)?))
    }

    /// Returns a known integer, which an archive may hold as a tensor.
    fn integer(&self, operand: &Operand) -> Option<i64> {
        match operand {
            Operand::Constant(Constant::Int(value)) => Some(*value),
            Operand::Value(value) => match &self.graph.value(*value).fact {
                Fact::Int(value) => *value,
                Fact::Tensor(TensorFact { number: Some(Number::Int(value)), .. }) => Some(*value),
                _ => None,
            },
            Operand::Tensor(tensor) => match self.program.literals.get(tensor)? {
                Constant::Int(value) => Some(*value),
                _ => None,
            },
            _ => None,
        }
    }
}

fn tensor(graph: &ModelGraph, operator: &Operator, name: &str) -> Option<TensorFact> {
    match operator.argument(name)? {
        Operand::Value(value) => graph.value(*value).fact.tensor().cloned(),
        Operand::Tensor(id) => Some(graph.tensor(*id).fact()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    fn check(end: u32, body: &str, expected: &[&str]) {
        let text = format!(
            "graph(%e : Float(16, 4, strides=[4, 1], requires_grad=0, device=cpu)):
  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %m1 : int = prim::Constant[value=-1]()
  %c0 : int = prim::Constant[value=0]()
  %c1 : int = prim::Constant[value=1]()
  %c2 : int = prim::Constant[value=2]()
  %c4 : int = prim::Constant[value=4]()
  %end : int = prim::Constant[value={end}]()
  %sizes : int[] = prim::ListConstruct(%c2, %m1)
  %r : Tensor = aten::arange(%end, %c4, %none, %none, %none)
{body}  %o : Tensor = aten::embedding(%e, %i, %m1, %no, %no)
  return (%o)
"
        );
        let program = tracer::ir::read_ir(&text).expect("a graph");
        let found = crate::build(&program, &crate::BuildOptions::default()).map(|_| ());
        let found = found.err().map_or_else(Vec::new, |errors| errors.0);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    fn beyond(sizes: &str) -> String {
        format!(
            "`aten::embedding` in the root rejects its inputs: row 16 is looked up in a table of 16 rows (given float32 16x4, \
             int64 {sizes})"
        )
    }

    #[test]
    fn positions_beyond_a_table_are_refused() {
        let row = "  %i : Tensor = aten::unsqueeze(%r, %c0)\n";
        check(16, row, &[]);
        check(17, row, &[&beyond("1x17")]);
        let rows =
            "  %u : Tensor = aten::unsqueeze(%r, %c0)\n  %i : Tensor = aten::expand(%u, %sizes, %no)\n";
        check(16, rows, &[]);
        check(17, rows, &[&beyond("2x17")]);
    }

    #[test]
    fn what_is_added_to_positions_counts() {
        let added = "  %s : Tensor = aten::add(%r, %c2, %c1)\n  %i : Tensor = aten::unsqueeze(%s, %c0)\n";
        check(14, added, &[]);
        check(15, added, &[&beyond("1x15")]);
    }

    #[test]
    fn what_is_not_known_to_be_the_whole_range_is_left_alone() {
        check(17, "  %i : Tensor = aten::slice(%r, %c0, %c0, %c4, %c1)\n", &[]);
        check(17, "  %i : Tensor = aten::sub(%r, %c2, %c1)\n", &[]);
        check(
            17,
            "  %s : Tensor = aten::sub_(%r, %c2, %c1)\n  %i : Tensor = aten::unsqueeze(%s, %c0)\n",
            &[],
        );
    }
}
