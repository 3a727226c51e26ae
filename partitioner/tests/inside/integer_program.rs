//! The least cost of a graph of operators by an integer program, which others' solver solves.
//!
//! The program is Alpa's (Zheng et al. 2022, §4.2): a binary variable for each strategy of an operator, of which one is 1, and a
//! variable for each cell of an edge, whose rows and columns add up to the variables of its two operators.

use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};

use super::{Choices, Cost};

/// Returns the least sum of prices and edges within so many bytes, if any strategies go together within them.
pub fn solved(choices: &Choices, price: impl Fn(&Cost) -> f64, bytes: f64) -> Option<f64> {
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let nodes: Vec<Vec<Variable>> = choices
        .nodes
        .iter()
        .map(|node| node.iter().map(|cost| program.add_binary_var(price(cost))).collect())
        .collect();
    for node in &nodes {
        program.add_constraint(node.iter().map(|&pick| (pick, 1.0)), ComparisonOp::Eq, 1.0);
    }
    for (a, b, matrix) in &choices.edges {
        let cell = |program: &mut Problem, row, column| {
            let seconds = matrix.at(row, column);
            seconds.is_finite().then(|| program.add_var(seconds, (0.0, 1.0)))
        };
        let cells: Vec<Vec<Option<Variable>>> = (0..matrix.rows())
            .map(|row| (0..matrix.columns()).map(|column| cell(&mut program, row, column)).collect())
            .collect();
        let mut adds_up = |pick: Variable, along: &mut dyn Iterator<Item = Option<Variable>>| {
            let mut sum = LinearExpr::empty();
            along.flatten().for_each(|cell| sum.add(cell, 1.0));
            sum.add(pick, -1.0);
            program.add_constraint(sum, ComparisonOp::Eq, 0.0);
        };
        for (row, &pick) in nodes[*a].iter().enumerate() {
            adds_up(pick, &mut cells[row].iter().copied());
        }
        for (column, &pick) in nodes[*b].iter().enumerate() {
            adds_up(pick, &mut cells.iter().map(|row| row[column]));
        }
    }
    if bytes.is_finite() {
        let picks = nodes.iter().flatten().zip(choices.nodes.iter().flatten());
        program.add_constraint(picks.map(|(&pick, cost)| (pick, cost.bytes)), ComparisonOp::Le, bytes);
    }
    match program.solve() {
        Ok(outcome) => Some(outcome.into_solution().expect("an optimum").objective()),
        Err(microlp::Error::Infeasible) => None,
        Err(other) => panic!("{other}"),
    }
}
