//! Tables in Markdown.

use std::fmt::{self, Write};

/// Writes a table.
pub fn write_table(out: &mut impl Write, head: &[impl AsRef<str>], rows: &[Vec<String>]) -> fmt::Result {
    let head: Vec<&str> = head.iter().map(AsRef::as_ref).collect();
    writeln!(out, "| {} |", head.join(" | "))?;
    writeln!(out, "|{}", "---|".repeat(head.len()))?;
    rows.iter().try_for_each(|row| writeln!(out, "| {} |", row.join(" | ")))
}

/// A whole number with commas, as in 12,345.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits or all before the point, as in 0.42, 4.20, 42.0, 420 and 4,200.
pub fn figure(value: f64) -> String {
    match value {
        0.0..9.995 => format!("{value:.2}"),
        9.995..99.95 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(
            [0.4, 12.0, 123.6, 1234.0, 1_234_567.0].map(thousands),
            ["0", "12", "124", "1,234", "1,234,567"]
        );
        assert_eq!(
            [0.0, 0.424, 9.996, 42.04, 99.96, 1234.5].map(figure),
            ["0.00", "0.42", "10.0", "42.0", "100", "1,234"]
        );
    }

    #[test]
    fn a_table_has_a_head_and_rows() {
        let mut text = String::new();
        write_table(&mut text, &["", "IOPS"], &[vec!["raw".to_owned(), "7".to_owned()]]).unwrap();
        assert_eq!(text, "|  | IOPS |\n|---|---|\n| raw | 7 |\n");
    }
}
