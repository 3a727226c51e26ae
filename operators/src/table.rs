//! The table of all rows, and the look-up by name.
//!
//! Rows are grouped by family in `rows/`. The index is built at compile time, which refuses a name with two rows; a
//! look-up costs O(length of the name) and nothing at start.

use crate::{Arithmetic, Mark, Operator, rows};

/// Rows by family.
const FAMILIES: [&[Operator]; rows::FAMILIES] = rows::ALL;

const COUNT: usize = {
    let (mut count, mut family) = (0, 0);
    while family < FAMILIES.len() {
        count += FAMILIES[family].len();
        family += 1;
    }
    count
};

static TABLE: [Operator; COUNT] = {
    let mut table = [FAMILIES[0][0]; COUNT];
    let (mut at, mut family) = (0, 0);
    while family < FAMILIES.len() {
        let mut row = 0;
        while row < FAMILIES[family].len() {
            table[at] = FAMILIES[family][row];
            at += 1;
            row += 1;
        }
        family += 1;
    }
    table
};

/// Slots of the index: a power of two, at least twice the number of rows.
const PLACES: usize = (2 * COUNT).next_power_of_two();
const EMPTY: u16 = u16::MAX;

/// Row by hash, with linear probing.
static INDEX: [u16; PLACES] = {
    let mut index = [EMPTY; PLACES];
    let mut row = 0;
    while row < COUNT {
        let mut place = hash(TABLE[row].name) % PLACES;
        while index[place] != EMPTY {
            assert!(!is_same(TABLE[index[place] as usize].name, TABLE[row].name), "a name has two rows");
            place = (place + 1) % PLACES;
        }
        index[place] = row as u16;
        row += 1;
    }
    index
};

/// Returns every row, family by family.
pub fn all() -> &'static [Operator] {
    &TABLE
}

/// Finds an operator by its name without name space; [`plain`](crate::plain) returns that of an in-place form.
pub fn find(name: &str) -> Option<&'static Operator> {
    let mut place = hash(name) % PLACES;
    while INDEX[place] != EMPTY {
        let row = &TABLE[usize::from(INDEX[place])];
        if row.name == name {
            return Some(row);
        }
        place = (place + 1) % PLACES;
    }
    None
}

/// Tells whether an operator has a property, by its name without name space; false without a row.
pub fn has(name: &str, mark: Mark) -> bool {
    find(name).is_some_and(|row| row.has(mark))
}

/// Tells whether an operator of this name, without its name space, writes to its first argument: `add_`, `__ior__`.
///
/// A row whose own name ends in `_` writes no element: `requires_grad_`.
pub fn is_in_place(name: &str) -> bool {
    let is_assignment = matches!(
        name,
        "__iadd__"
            | "__isub__"
            | "__imul__"
            | "__idiv__"
            | "__iand__"
            | "__ior__"
            | "__ixor__"
            | "__ilshift__"
            | "__irshift__"
    );
    is_assignment || (name.ends_with('_') && !name.ends_with("__") && find(name).is_none())
}

impl Arithmetic {
    /// Returns an operator's arithmetic, by its name without name space.
    pub fn of(name: &str) -> Self {
        find(name).map_or(Self::Nothing, |row| row.numbers)
    }
}

/// FNV-1a, in 32 bits on every machine.
const fn hash(name: &str) -> usize {
    let bytes = name.as_bytes();
    let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash as usize
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flops, InPlace, Keeps, Memory, OperatorClass, Python, ShapeRule};

    #[test]
    fn every_row_is_found_by_its_name_and_no_other() {
        for row in all() {
            assert!(std::ptr::eq(find(row.name).unwrap_or_else(|| panic!("{}", row.name)), row));
        }
        for name in ["", "_", "relu_", "Relu", "relu ", "aten::relu", "no_such_operator"] {
            assert!(find(name).is_none(), "{name}");
        }
    }

    /// Consistency of the columns of a row: a forgotten answer shows here.
    #[test]
    fn the_columns_of_a_row_agree() {
        use OperatorClass::{
            Attention, Convolution, Create, Embedding, Matmul, Plumbing, Recurrent, Unknown, View,
        };
        let allowed = |names: &str, row: &Operator| names.split(' ').any(|name| name == row.name);
        for row in all() {
            let check = |holds: bool, what: &str| assert!(holds, "`{}`: {what}", row.name);
            let is_unknown = row.class == Unknown;
            check(
                is_unknown == (row.shape == ShapeRule::Unknown),
                "a class without a shape rule, or the reverse",
            );
            check(
                is_unknown == (row.keeps == Keeps::Unknown),
                "what it keeps is known and its class is not, or the reverse",
            );
            let is_product = matches!(row.class, Matmul | Convolution | Attention | Recurrent);
            check(!is_product || row.flops != Flops::Nothing, "a product without operations");
            let is_attention = row.class == Attention;
            check(
                is_attention == (row.keeps == Keeps::Attention),
                "attention that keeps as others do, or the reverse",
            );
            check(
                row.class != Embedding || row.keeps != Keeps::Nothing || row.name == "_embedding_bag",
                "a table without its indices",
            );
            check(
                !matches!(row.class, Create | Plumbing) || row.keeps == Keeps::Nothing,
                "nothing flows through, and it keeps",
            );
            let is_fresh = row.memory == Memory::Fresh;
            check(
                row.class != View || !is_fresh || allowed("_view_copy lift set_data", row),
                "a view of its own memory",
            );
            check(
                row.in_place != InPlace::Absent || row.in_place_python == Python::Dispatcher,
                "a spelling of no form",
            );
            check(!row.has(Mark::Cheap) || !row.has(Mark::Random), "random, and repeated");
            check(!row.has(Mark::Unset) || row.class == Create, "an operand, and unset memory");
        }
    }
}
