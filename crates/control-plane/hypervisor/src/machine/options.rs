//! Writes QEMU options so that a value stays a value, whatever it contains.
//!
//! Options that take JSON (`-device`, `-blockdev`, `-object`, `-netdev`) get JSON. The others are
//! lists of `key=value`, in which only the comma is special: it ends a value unless it is doubled
//! (QEMU `util/qemu-option.c`, `util/keyval.c`). Each list is one argument, which QEMU takes for a
//! value even if it begins with a dash.

use std::fmt::Display;
use std::path::Path;

use serde_json::Value;

/// A list of `key=value`.
#[derive(Clone, Debug, Default)]
pub struct Options(String);

impl Options {
    /// A list that begins with a value without a key.
    pub fn new(first: &str) -> Self {
        Self(doubled(first))
    }

    /// Adds a value. The key is a constant of the program.
    pub fn with(mut self, key: &'static str, value: impl Display) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(key);
        self.0.push('=');
        self.0.push_str(&doubled(&value.to_string()));
        self
    }

    /// Adds a path, which was [validated](super::validate) to be UTF-8.
    pub fn with_path(self, key: &'static str, path: &Path) -> Self {
        self.with(key, path.to_string_lossy())
    }
}

fn doubled(value: &str) -> String {
    value.replace(',', ",,")
}

/// The arguments of a program.
#[derive(Clone, Debug, Default)]
pub struct Arguments(Vec<String>);

impl Arguments {
    /// Adds an option without a value.
    pub fn flag(&mut self, option: &'static str) {
        self.0.push(option.to_owned());
    }

    /// Adds an option whose value has no syntax.
    pub fn plain(&mut self, option: &'static str, value: impl Display) {
        self.0.extend([option.to_owned(), value.to_string()]);
    }

    /// Adds an option with a list.
    pub fn list(&mut self, option: &'static str, options: Options) {
        self.plain(option, options.0);
    }

    /// Adds an option with JSON.
    pub fn json(&mut self, option: &'static str, value: &Value) {
        self.plain(option, value);
    }

    /// The arguments as a list.
    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}
