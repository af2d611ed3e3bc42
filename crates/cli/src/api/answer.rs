//! Answers of the API as people see them.

use std::fmt::{self, Display};

use serde::Serialize;
use strongroom_api::Page;

use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// An answer of the API, and how it is shown to people.
#[derive(Serialize)]
#[serde(transparent)]
struct Shown<T> {
    answer: T,
    #[serde(skip)]
    text: String,
}

impl<T> Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Prints an answer: as it is to programs, and this text to people.
pub fn show<T: Serialize>(output: &Output, answer: T, text: impl Display) -> Result<(), CliError> {
    output.answer(&Shown { text: text.to_string(), answer })
}

/// Prints a list: as it is to programs, and a table to people, or `none` if it is empty.
pub fn table<const COLUMNS: usize, T: Serialize>(
    output: &Output,
    answer: Page<T>,
    head: [&str; COLUMNS],
    none: &str,
    row: impl Fn(&T) -> [String; COLUMNS],
) -> Result<(), CliError> {
    let rows: Vec<_> = answer.items.iter().map(row).collect();
    let text = if rows.is_empty() { none.to_owned() } else { Table { head, rows }.to_string() };
    show(output, answer, text)
}

/// The name of a value in JSON.
pub fn word(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().replace('_', "-")
}

/// A time of the API as text.
pub fn time_ms(unix_ms: u64) -> String {
    utc(unix_ms / 1000)
}
