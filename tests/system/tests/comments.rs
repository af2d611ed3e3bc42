//! Comments keep to the width that CONTRIBUTING gives them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::Path;

use strongroom_system_tests::datastore::files_under;

const COLUMNS: usize = 100;

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    let text = text.strip_prefix(['/', '!']).unwrap_or(text);
    Some(text.strip_prefix(' ').unwrap_or(text))
}

/// Whether a comment may be wider: a line of a table, an indented one, a single word.
fn may_be_wide(text: &str) -> bool {
    text.starts_with('|') || text.starts_with("    ") || !text.trim().contains(' ')
}

fn wide_lines(source: &str) -> Vec<usize> {
    let mut is_in_block = false;
    let mut wide = Vec::new();
    for (at, line) in source.lines().enumerate() {
        let Some(text) = comment(line) else {
            is_in_block = false;
            continue;
        };
        is_in_block ^= text.trim_start().starts_with("```");
        if line.chars().count() > COLUMNS && !is_in_block && !may_be_wide(text) {
            wide.push(at + 1);
        }
    }
    wide
}

#[test]
fn comments_have_at_most_100_columns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = ["crates", "tests"].map(|place| files_under(&root.join(place))).concat();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    for path in &sources {
        let wide = wide_lines(&std::fs::read_to_string(path).unwrap());
        assert!(wide.is_empty(), "{}: comments at lines {wide:?} have more columns", path.display());
    }
    assert!(sources.len() > 1000, "{} sources", sources.len());
}

#[test]
fn a_wide_comment_is_found_and_a_table_is_not() {
    let wide = "word ".repeat(30);
    assert_eq!(
        wide_lines(&format!("//! short\n/// {wide}\nlet text = \"{wide}\";\n    // {wide}\n")),
        [2, 4]
    );
    assert!(wide_lines(&format!("//! | {wide} |\n//! ```text\n//! {wide}\n//! ```\n")).is_empty());
}
