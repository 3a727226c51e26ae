//! Rows of text in columns.

/// Lays rows out in columns as wide as their widest cell: words to the left, numbers to the right.
pub fn columns<R: AsRef<[String]>>(rows: &[R], indent: &str, is_number: impl Fn(usize) -> bool) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        let row = row.as_ref();
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match is_number(column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        let line = format!("{indent}{}", cells.collect::<Vec<_>>().join("  "));
        text.push_str(line.trim_end());
        text.push('\n');
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
}
