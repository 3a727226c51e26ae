//! Rows of text in columns, and the format of rates.

use crate::terminal::{self, EMPHASIS};

/// On a narrow terminal, names and other words are never shortened below this width.
const SHORTEST_NAME: usize = 24;
const SHORTEST_WORDS: usize = 12;

/// Lays rows out in columns as wide as their widest cell: words left-aligned, numbers right-aligned.
pub fn columns<R: AsRef<[String]>>(rows: &[R], indent: &str, is_number: impl Fn(usize) -> bool) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.as_ref().to_vec()).collect();
    laid_out(&rows, indent, &is_number)
}

/// Lays out a table, whose first row is its header: as [`columns`], but if the terminal is too narrow, words are
/// shortened, and columns at the right are left out and named below.
pub fn table<R: AsRef<[String]>>(rows: &[R], indent: &str, is_number: impl Fn(usize) -> bool) -> String {
    fitted(rows, indent, is_number, terminal::width())
}

fn fitted<R: AsRef<[String]>>(
    rows: &[R],
    indent: &str,
    is_number: impl Fn(usize) -> bool,
    width: Option<usize>,
) -> String {
    let mut rows: Vec<Vec<String>> = rows.iter().map(|row| row.as_ref().to_vec()).collect();
    let mut left_out = Vec::new();
    if let Some(width) = width {
        let whole = rows.clone();
        let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        for n in (2..=n_columns).rev() {
            rows = whole.iter().map(|row| row.iter().take(n).cloned().collect()).collect();
            shorten(&mut rows, indent, &is_number, width);
            if total(&rows, indent) <= width {
                break;
            }
        }
        let n = rows.iter().map(Vec::len).max().unwrap_or(0);
        left_out = whole.first().map_or(Vec::new(), |head| head.iter().skip(n).cloned().collect());
        left_out.retain(|name: &String| !name.is_empty());
    }
    let mut text = laid_out(&rows, indent, &is_number);
    text.insert(0, EMPHASIS);
    if !left_out.is_empty() {
        text.push_str(&format!("{indent}(a wider terminal also shows {})\n", left_out.join(", ")));
    }
    text
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

fn total(rows: &[Vec<String>], indent: &str) -> usize {
    let widths = widths(rows);
    indent.len() + widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// Shortens the widest words until everything fits, or nothing more can be shortened.
fn shorten(rows: &mut [Vec<String>], indent: &str, is_number: &impl Fn(usize) -> bool, width: usize) {
    let before: Vec<Vec<String>> = rows.to_vec();
    let mut most = widths(rows);
    // The widest column of words names the rows.
    let names = (0..most.len()).filter(|column| !is_number(*column)).max_by_key(|column| most[*column]);
    let least = |column: usize| if Some(column) == names { SHORTEST_NAME } else { SHORTEST_WORDS };
    loop {
        let excess = total(rows, indent).saturating_sub(width);
        let shrinks = |column: &usize| !is_number(*column) && most[*column] > least(*column);
        let Some(column) = (0..most.len()).filter(shrinks).max_by_key(|column| most[*column]) else { return };
        if excess == 0 {
            return;
        }
        // Not below the next widest, so that two wide columns shrink evenly.
        let next =
            (0..most.len()).filter(|other| *other != column && !is_number(*other)).map(|other| most[other]);
        let next = next.max().unwrap_or(0).min(most[column] - 1);
        most[column] = (most[column] - excess.min(most[column])).max(next).max(least(column));
        for (row, before) in rows.iter_mut().zip(&before) {
            if let (Some(cell), Some(name)) = (row.get_mut(column), before.get(column)) {
                let inset = name.len() - name.trim_start_matches(' ').len();
                let inset = inset.min(most[column] / 2);
                *cell = format!(
                    "{}{}",
                    " ".repeat(inset),
                    terminal::shortened(name.trim_start_matches(' '), most[column] - inset)
                );
            }
        }
    }
}

fn laid_out(rows: &[Vec<String>], indent: &str, is_number: &impl Fn(usize) -> bool) -> String {
    let widths = widths(rows);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| {
            let is_right = is_number(column);
            if is_right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = format!("{indent}{}", cells.collect::<Vec<_>>().join("  "));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Writes a rate for people: three digits, with thousands separators.
pub fn rate(per_second: f64) -> String {
    if per_second <= 0.0 {
        return "0".into();
    }
    if per_second < 100.0 {
        let decimals = 2 - per_second.max(1e-6).log10().floor() as i32;
        return format!("{per_second:.*}", decimals as usize);
    }
    let digits = format!("{per_second:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right() {
        let rows = [["ä", "10"], ["name", "5"], ["", ""]].map(|row| row.map(String::from));
        assert_eq!(columns(&rows, " ", |column| column == 1), " ä     10\n name   5\n\n");
    }

    #[test]
    fn a_table_gives_way_to_a_narrow_terminal() {
        let rows = [
            ["block", "kind", "time", "memory"],
            ["model.layers.0.mlp.gate_proj", "Linear", "5 ms", "7 GiB"],
        ];
        let rows = rows.map(|row| row.map(String::from));
        let at = |width| fitted(&rows, "", |column| column > 1, width);
        let whole = "\u{1}block                         kind    time  memory\nmodel.layers.0.mlp.gate_proj  Linear  5 ms   7 GiB\n";
        assert_eq!(at(None), whole);
        assert_eq!(at(Some(50)), whole);
        assert_eq!(
            at(Some(45)),
            "\u{1}block                  kind    time  memory\nmodel…0.mlp.gate_proj  Linear  5 ms   7 GiB\n"
        );
        assert_eq!(
            at(Some(38)),
            "\u{1}block                  kind    time\nmodel…0.mlp.gate_proj  Linear  5 ms\n(a wider terminal also shows memory)\n"
        );
    }

    #[test]
    fn rates_have_three_digits_or_more() {
        let shown = [0.0, 0.0123, 1.7391, 36.44, 100.2, 3722.4, 1234567.0].map(rate);
        assert_eq!(shown, ["0", "0.0123", "1.74", "36.4", "100", "3,722", "1,234,567"]);
    }
}
