//! The compute-only CSV that stock `torch.distributed.pipelining` loads: a row a rank, a cell an operation.
//!
//! A cell is `<stage><F|I|W|B><micro-batch>` or `(0F3;7B1)OVERLAP_F_B`. Empty cells are PyTorch's idle slots: they
//! mean nothing to its runtime, so they are dropped when read and never written.

use std::fmt::Write as _;

use thiserror::Error;

use super::{Kind, Op, Order};

/// Longest text that is read: far more than any schedule, and a bound on memory.
const MAX_BYTES: usize = 1 << 30;

/// A text that is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CsvError {
    /// A cell cannot be read.
    #[error("row {row}, cell {cell}: `{text}` is not an operation, expected `<stage><F|I|W|B><micro-batch>`")]
    Cell {
        /// Row, from 1.
        row: usize,
        /// Cell, from 1.
        cell: usize,
        /// What stands there, cut to a readable length.
        text: String,
        /// Where it stands in the text, in bytes.
        span: std::ops::Range<usize>,
    },
    /// A communication of a lowered schedule.
    #[error("row {row}, cell {cell}: `{text}` is not a computation; a compute-only schedule is expected")]
    Communication {
        /// Row, from 1.
        row: usize,
        /// Cell, from 1.
        cell: usize,
        /// What stands there, cut to a readable length.
        text: String,
        /// Where it stands in the text, in bytes.
        span: std::ops::Range<usize>,
    },
    /// No operation at all.
    #[error("the schedule has no operations")]
    Empty,
    /// More than is read.
    #[error("the schedule has {bytes} bytes, the most that is read is {MAX_BYTES}")]
    TooLong {
        /// Length of the text.
        bytes: usize,
    },
    /// A stage or micro-batch number that no complete schedule of this length can have.
    #[error("row {row}: `{op}` is out of reach: the whole schedule has only {n_ops} operations")]
    Number {
        /// Row, from 1.
        row: usize,
        /// The operation.
        op: Op,
        /// Operations in the schedule.
        n_ops: usize,
    },
    /// The stages do not divide into copies of the model.
    #[error("the schedule has stages up to {last}, which is not a whole number of copies of {chain} stages")]
    Chain {
        /// Largest stage.
        last: u32,
        /// Stages of one copy.
        chain: u32,
    },
}

/// Reads an order; `chain` is the number of stages in one copy of the model, all of them when absent.
///
/// # Errors
/// Names the first cell that is not a computation, or says that there is none.
pub fn from_csv(text: &str, chain: Option<u32>) -> Result<Order, CsvError> {
    if text.len() > MAX_BYTES {
        return Err(CsvError::TooLong { bytes: text.len() });
    }
    let mut ranks = Vec::new();
    let mut start = 0;
    // The byte-order mark that spreadsheets write is not part of the first cell.
    let bom = '\u{feff}'.len_utf8();
    // Old Macs end lines with a carriage return alone, as Python's reader takes them as well.
    let newline = if text.contains('\n') { '\n' } else { '\r' };
    for (row_idx, row) in text.split(newline).enumerate() {
        let row_start = start;
        start += row.len() + 1;
        let (row, row_start) = match row.strip_prefix('\u{feff}') {
            Some(rest) if row_idx == 0 => (rest, row_start + bom),
            _ => (row, row_start),
        };
        let mut ops = Vec::new();
        let mut cell_start = row_start;
        for (cell_idx, cell) in row.split(',').enumerate() {
            let span = cell_start..cell_start + cell.len();
            cell_start = span.end + 1;
            let cell = cell.trim().trim_matches('"').trim();
            if cell.is_empty() {
                continue;
            }
            if !read_cell(cell, &mut ops) {
                return Err(cell_error(cell, row_idx + 1, cell_idx + 1, span));
            }
        }
        ranks.push(ops);
    }
    // The newline at the end of the file is not one more rank; a row of commas alone is an idle one.
    while ranks.last().is_some_and(Vec::is_empty) && ranks.len() > 1 {
        ranks.pop();
    }
    let n_ops = ranks.iter().map(Vec::len).sum();
    for (row_idx, ops) in ranks.iter().enumerate() {
        // Each stage and micro-batch up to the largest has an operation of its own: tables stay as small as the text.
        let reach = |op: &&Op| op.stage as usize >= n_ops || op.micro_batch as usize >= n_ops;
        if let Some(op) = ops.iter().find(reach) {
            return Err(CsvError::Number { row: row_idx + 1, op: *op, n_ops });
        }
    }
    let last = ranks.iter().flatten().map(|op| op.stage).max().ok_or(CsvError::Empty)?;
    let n_stages = last + 1;
    let chain = chain.filter(|chain| *chain > 0).unwrap_or(n_stages);
    if n_stages % chain != 0 {
        return Err(CsvError::Chain { last, chain });
    }
    Ok(Order { ranks, chain })
}

/// Writes an order; the inverse of [`from_csv`] but for idle slots.
pub fn to_csv(order: &Order) -> String {
    let mut text = String::new();
    for ops in &order.ranks {
        let mut ops = ops.iter().peekable();
        let mut is_first = true;
        while let Some(op) = ops.next() {
            if !std::mem::take(&mut is_first) {
                text.push(',');
            }
            // Writing to a string cannot fail.
            let _ = match op.joined.then(|| ops.next()).flatten() {
                Some(other) => write!(text, "({op};{other})OVERLAP_F_B"),
                None => write!(text, "{op}"),
            };
        }
        text.push('\n');
    }
    text
}

fn read_cell(cell: &str, ops: &mut Vec<Op>) -> bool {
    if let Some(pair) = cell.strip_prefix('(').and_then(|rest| rest.strip_suffix(")OVERLAP_F_B")) {
        let Some((first, second)) = pair.split_once(';') else { return false };
        let (Some(first), Some(second)) = (read_op(first.trim()), read_op(second.trim())) else {
            return false;
        };
        ops.extend([first.join(), second]);
        return true;
    }
    match read_op(cell) {
        Some(op) => {
            ops.push(op);
            true
        }
        None => false,
    }
}

fn read_op(text: &str) -> Option<Op> {
    let at = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (stage, rest) = text.split_at(at);
    let mut letters = rest.chars();
    let kind = Kind::from_letter(letters.next()?)?;
    let micro_batch = letters.as_str();
    if micro_batch.is_empty() || !micro_batch.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Op::new(stage.parse().ok()?, kind, micro_batch.parse().ok()?))
}

fn cell_error(cell: &str, row: usize, number: usize, span: std::ops::Range<usize>) -> CsvError {
    const COMMUNICATIONS: [&str; 7] =
        ["SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"];
    let text: String = cell.chars().take(40).collect();
    if COMMUNICATIONS.iter().any(|name| cell.contains(name)) {
        return CsvError::Communication { row, cell: number, text, span };
    }
    CsvError::Cell { row, cell: number, text, span }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_torch_writes() {
        let text = "0F0,,0F1,\"0B0\",(1F3;0B1)OVERLAP_F_B\r\n,1F0,1I0,1W0\r\n";
        let order = from_csv(text, None).unwrap();
        assert_eq!(order.chain, 2);
        assert_eq!(
            order.ranks[0],
            [
                Op::forward(0, 0),
                Op::forward(0, 1),
                Op::backward(0, 0),
                Op::forward(1, 3).join(),
                Op::backward(0, 1)
            ]
        );
        assert_eq!(to_csv(&order), "0F0,0F1,0B0,(1F3;0B1)OVERLAP_F_B\n1F0,1I0,1W0\n");
        assert_eq!(from_csv(&to_csv(&order), None).unwrap(), order);
    }

    #[test]
    fn names_the_cell_that_is_wrong() {
        let check = |text: &str, expected: &str| {
            assert_eq!(from_csv(text, None).unwrap_err().to_string(), expected);
        };
        check("", "the schedule has no operations");
        check(",,\n\n", "the schedule has no operations");
        check(
            "0F0,0X0",
            "row 1, cell 2: `0X0` is not an operation, expected `<stage><F|I|W|B><micro-batch>`",
        );
        check("0F0\n1F", "row 2, cell 1: `1F` is not an operation, expected `<stage><F|I|W|B><micro-batch>`");
        check("0F-1", "row 1, cell 1: `0F-1` is not an operation, expected `<stage><F|I|W|B><micro-batch>`");
        check(
            "0F0,0SEND_F0",
            "row 1, cell 2: `0SEND_F0` is not a computation; a compute-only schedule is expected",
        );
        check(
            "99999999999F0",
            "row 1, cell 1: `99999999999F0` is not an operation, expected `<stage><F|I|W|B><micro-batch>`",
        );
        check("0F0,7F0", "row 1: `7F0` is out of reach: the whole schedule has only 2 operations");
        assert!(matches!(from_csv("0F0,1F0,2F0", Some(2)), Err(CsvError::Chain { last: 2, chain: 2 })));
    }

    #[test]
    fn the_span_is_the_cell() {
        let text = "0F0,0F1\n1F0, zzz ,1F1";
        let Err(CsvError::Cell { span, .. }) = from_csv(text, None) else { panic!("expected a wrong cell") };
        assert_eq!(&text[span], " zzz ");
    }
}
