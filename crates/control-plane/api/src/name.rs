//! Names that people give to objects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_types::{NameError, check_name};
use utoipa::ToSchema;

/// A name: 1 to 63 letters, digits, `.`, `_` or `-`, beginning with a letter or digit, and not in
/// the form of an id ([`check_name`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
pub struct Name(String);

impl Name {
    /// Parses a name.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        check_name(&text).map(|()| Self(text))
    }

    /// The name as text.
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
    fn a_wrong_name_is_not_deserialised() {
        assert!(serde_json::from_str::<Name>("\"a b\"").is_err());
        assert_eq!(serde_json::from_str::<Name>("\"web1\"").unwrap().as_str(), "web1");
    }
}
