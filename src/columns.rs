//! Rows of text in columns, and rates in them.

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

/// A rate for people: three digits, thousands apart.
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
    fn rates_have_three_digits_or_more() {
        let shown = [0.0, 0.0123, 1.7391, 36.44, 100.2, 3722.4, 1234567.0].map(rate);
        assert_eq!(shown, ["0", "0.0123", "1.74", "36.4", "100", "3,722", "1,234,567"]);
    }
}
