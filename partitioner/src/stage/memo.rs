//! The memo table of the planner: results of a function by its arguments.
//!
//! For functions that a search calls with a few of far too many arguments to fill a table beforehand. Behind a `RefCell`, so that
//! a search that only borrows its problem can fill it. A hash map: O(1) a look-up; a full table is emptied. Keys are mostly numbers and
//! looked up by the million, so that the standard library's hash, which withstands chosen keys, would take longer than the search.

use std::{
    cell::RefCell,
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

/// Results by arguments.
pub(crate) struct Memo<K, V> {
    results: RefCell<HashMap<K, V, BuildHasherDefault<Words>>>,
    /// The most results that are kept.
    most: usize,
}

impl<K: Eq + Hash, V: Clone> Memo<K, V> {
    /// Makes a table of at most `most` results.
    pub(crate) fn with_most(most: usize) -> Self {
        Self { results: RefCell::default(), most }
    }

    /// Returns the result for these arguments; computes it on the first call.
    pub(crate) fn get(&self, key: K, compute: impl FnOnce() -> V) -> V {
        self.get_if(key, |_| true, |_| compute())
    }

    /// Returns the result for these arguments; computes it again if it is not good enough, from the earlier one.
    pub(crate) fn get_if(
        &self,
        key: K,
        is_enough: impl FnOnce(&V) -> bool,
        compute: impl FnOnce(Option<V>) -> V,
    ) -> V {
        let before = self.results.borrow().get(&key).cloned();
        if let Some(result) = before.as_ref().filter(|before| is_enough(before)) {
            return result.clone();
        }
        let result = compute(before);
        let results = &mut *self.results.borrow_mut();
        if results.len() >= self.most {
            results.clear();
        }
        results.insert(key, result.clone());
        result
    }
}

impl<K: Eq + Hash, V: Clone> Default for Memo<K, V> {
    fn default() -> Self {
        Self::with_most(usize::MAX)
    }
}

/// The hash of rustc's own tables: a product and a sum for each word.
#[derive(Default)]
struct Words(u64);

impl Words {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.wrapping_add(word)).wrapping_mul(0xf135_7aea_2e62_a9c5);
    }
}

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            self.add(u64::from_le_bytes(whole));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.add(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.add(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    fn finish(&self) -> u64 {
        // Products mix upwards, and tables look at the lowest bits first.
        self.0.rotate_left(26)
    }
}

/// Numbers distinct values that cannot be keys of a hash map.
pub(crate) struct Numbers<T>(RefCell<Vec<T>>);

impl<T> Numbers<T> {
    /// Returns the number of a value, searching from the latest: O(values).
    pub(crate) fn of(&self, is_same: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> usize {
        let values = &mut *self.0.borrow_mut();
        values.iter().rposition(is_same).unwrap_or_else(|| {
            values.push(make());
            values.len() - 1
        })
    }
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_computed_once_until_the_table_is_full() {
        let (squares, mut n_computed) = (Memo::with_most(2), 0);
        for key in [3, 3, 4, 3, 5, 5, 3] {
            let square = squares.get(key, || {
                n_computed += 1;
                key * key
            });
            assert_eq!(square, key * key);
        }
        // Computed for 3, 4, 5, and again for 3: the table was full at 5.
        assert_eq!(n_computed, 4);
    }

    #[test]
    fn what_is_not_enough_is_computed_again() {
        let bounds: Memo<(), f64> = Memo::default();
        let ask = |enough: f64| {
            bounds.get_if((), |known| *known >= enough, |known| known.unwrap_or(0.0).max(enough) + 1.0)
        };
        assert_eq!([ask(1.0), ask(2.0), ask(1.5), ask(2.5)], [2.0, 2.0, 2.0, 3.5]);
    }
}
