//! Names that people give to objects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::limits::NAME_MAX_BYTES;

/// A name: 1 to 63 letters, digits, `.`, `_` or `-`, beginning with a letter or digit, and not of the form of an id.
///
/// It is a directory's name in a datastore and a part of a socket's path, hence the characters and the length.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
pub struct Name(String);

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty or too long.
    #[error("a name has 1 to {NAME_MAX_BYTES} characters, and this one {0}")]
    Length(usize),
    /// A character that has no place in it.
    #[error(
        "{0:?} cannot be in a name here; letters, digits, '.', '_' and '-' can, and the first is a letter or digit"
    )]
    Character(char),
    /// It reads as an id.
    #[error("a name cannot look like an id")]
    Id,
}

impl Name {
    /// The name that `text` is.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        if text.is_empty() || text.len() > NAME_MAX_BYTES {
            return Err(NameError::Length(text.chars().count()));
        }
        let allowed = |(at, letter): (usize, char)| {
            letter.is_ascii_alphanumeric() || (at > 0 && matches!(letter, '.' | '_' | '-'))
        };
        if let Some((_, other)) = text.char_indices().find(|found| !allowed(*found)) {
            return Err(NameError::Character(other));
        }
        if Uuid::parse_str(&text).is_ok() { Err(NameError::Id) } else { Ok(Self(text)) }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_directory_names_and_never_ids() {
        for good in ["web1", "a", "0.9_x-y", &"n".repeat(63)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        assert_eq!(Name::new("a/b"), Err(NameError::Character('/')));
        assert_eq!(Name::new(".."), Err(NameError::Character('.')));
        assert_eq!(Name::new("-f"), Err(NameError::Character('-')));
        assert_eq!(Name::new(""), Err(NameError::Length(0)));
        assert_eq!(Name::new("n".repeat(64)), Err(NameError::Length(64)));
        assert_eq!(Name::new(Uuid::nil().to_string()), Err(NameError::Id));
        assert_eq!(Name::new(Uuid::nil().simple().to_string()), Err(NameError::Id));
    }

    #[test]
    fn a_wrong_name_is_not_deserialised() {
        assert!(serde_json::from_str::<Name>("\"a b\"").is_err());
        assert_eq!(serde_json::from_str::<Name>("\"web1\"").unwrap().as_str(), "web1");
    }
}
