//! Answers: a JSON document for programs, sentences and tables for people.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{self, Write};

use serde::Serialize;
pub use strongroom_types::utc;

use crate::error::CliError;

/// The form of answers.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// JSON, or text for people.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether answers are JSON.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints a command's answer to stdout.
    pub fn answer(self, answer: &(impl Serialize + Display)) -> Result<(), CliError> {
        let mut text = match self.json {
            true => serde_json::to_string_pretty(answer).map_err(|error| CliError::Output(error.into()))?,
            false => printable(&answer.to_string()).into_owned(),
        };
        text.push('\n');
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::Output)
    }

    /// Prints a remark for people to stderr.
    pub fn remark(self, text: &str) {
        if !self.json {
            // If stderr is closed, the remark is lost.
            let _ = writeln!(io::stderr(), "{}", printable(text));
        }
    }
}

/// The text with control characters escaped: names come from untrusted datastores and images.
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |character: char| character.is_control() && character != '\n';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let escape = |character: char| match steers(character) {
        true => character.escape_default().collect::<String>(),
        false => character.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Columns of text, each as wide as its widest cell, except the last one.
pub struct Table<'a, const COLUMNS: usize> {
    /// The headings of the columns.
    pub head: [&'a str; COLUMNS],
    /// The cells.
    pub rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Display for Table<'_, COLUMNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = self.head.map(str::to_owned);
        let lines: Vec<&[String; COLUMNS]> = std::iter::once(&head).chain(&self.rows).collect();
        let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
        });
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            write!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("vm1\nvm2"), "vm1\nvm2");
        assert_eq!(printable("\u{1b}[2J\r\u{9b}x"), "\\u{1b}[2J\\r\\u{9b}x");
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let rows = vec![["vm1".into(), "20G".into()], ["a-long-name".into(), "1T".into()]];
        let table = Table { head: ["NAME", "SIZE"], rows };
        assert_eq!(table.to_string(), "NAME         SIZE\nvm1          20G\na-long-name  1T");
    }
}
