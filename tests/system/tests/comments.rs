//! Comments keep to the width that CONTRIBUTING gives them, and have no examples that are not run.

use std::path::{Path, PathBuf};

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

fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = ["crates", "tests"].map(|place| files_under(&root.join(place))).concat();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    assert!(sources.len() > 1000, "{} sources", sources.len());
    sources
}

#[test]
fn comments_have_at_most_100_columns() {
    let mut found = Vec::new();
    for path in &sources() {
        let wide = wide_lines(&std::fs::read_to_string(path).unwrap());
        found.extend(wide.into_iter().map(|line| format!("{}:{line}", path.display())));
    }
    assert!(found.is_empty(), "comments with more columns:\n{}", found.join("\n"));
}

/// The lines of a doc comment that begin an example of Rust. `make test` does not run those.
fn examples(source: &str) -> Vec<usize> {
    let mut is_in_block = false;
    let mut examples = Vec::new();
    for (at, text) in source.lines().enumerate().filter_map(|(at, line)| Some((at, comment(line)?))) {
        let Some(language) = text.trim_start().strip_prefix("```") else { continue };
        if !is_in_block && matches!(language.split(',').next(), Some("" | "rust" | "no_run" | "should_panic"))
        {
            examples.push(at + 1);
        }
        is_in_block = !is_in_block;
    }
    examples
}

#[test]
fn no_comment_has_an_example_that_nothing_runs() {
    for path in &sources() {
        let examples = examples(&std::fs::read_to_string(path).unwrap());
        assert!(examples.is_empty(), "{}: lines {examples:?}: make it a test", path.display());
    }
}

#[test]
fn an_example_is_found_and_a_picture_is_not() {
    assert_eq!(examples("//! ```text\n//! a\n//! ```\n//!\n//! ```\n//! f();\n//! ```\n"), [5]);
    assert_eq!(examples("    /// ```rust,ignore\n    /// ```\n"), [1]);
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
