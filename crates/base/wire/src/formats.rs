//! The formats of a message that a program reads.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The range of format numbers that a program reads. It writes the newest one, or that of the
/// message that it answers. A message has its format in a member `format`. Readers ignore unknown
/// members, so only a change of meaning makes a new format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formats {
    /// The oldest format.
    pub oldest: u32,
    /// The newest format, which this program writes.
    pub newest: u32,
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.oldest, self.newest) {
            (oldest, newest) if oldest == newest => write!(f, "format {newest}"),
            (oldest, newest) => write!(f, "formats {oldest} to {newest}"),
        }
    }
}

/// The reasons why a message is not read.
#[derive(Debug, Error)]
pub enum FormatError {
    /// It comes from a program that is too new or too old.
    #[error("the other program speaks format {found}; this one reads {known}. Upgrade one release at a time")]
    Unknown {
        /// The message's format.
        found: u32,
        /// The formats that this program reads.
        known: Formats,
    },
    /// It is not JSON, or does not have a format.
    #[error("a message cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Head {
    format: u32,
}

/// A message and its format.
#[derive(Serialize, Deserialize)]
struct Envelope<M> {
    format: u32,
    message: M,
}

/// Encodes a message of this format as [`Formats::decode`] reads it.
///
/// # Errors
/// If JSON cannot express it.
pub fn encode<M: Serialize>(format: u32, message: &M) -> Result<Vec<u8>, FormatError> {
    Ok(serde_json::to_vec(&Envelope { format, message })?)
}

impl Formats {
    /// The format of a JSON message, if it is one of these.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn of(self, message: &[u8]) -> Result<u32, FormatError> {
        let Head { format } = serde_json::from_slice(message)?;
        match self.has(format) {
            true => Ok(format),
            false => Err(FormatError::Unknown { found: format, known: self }),
        }
    }

    /// Decodes a message of one of these formats, `{"format": 1, "message": ...}`. Returns it with
    /// its format.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn decode<M: DeserializeOwned>(self, bytes: &[u8]) -> Result<(u32, M), FormatError> {
        let format = self.of(bytes)?;
        let Envelope { format: _, message } = serde_json::from_slice(bytes)?;
        Ok((format, message))
    }

    /// Whether the program reads this format.
    pub fn has(self, format: u32) -> bool {
        (self.oldest..=self.newest).contains(&format)
    }

    /// The newest format that two programs have in common.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (self.has(newest) && other.has(newest)).then_some(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_speak_the_newest_format_that_both_read() {
        let formats = |oldest, newest| Formats { oldest, newest };
        for (one, other, common) in [
            (formats(1, 2), formats(2, 3), Some(2)),
            (formats(1, 1), formats(1, 2), Some(1)),
            (formats(1, 3), formats(2, 2), Some(2)),
            (formats(1, 2), formats(3, 4), None),
            (formats(2, 2), formats(3, 1), None),
        ] {
            assert_eq!((one.common(other), other.common(one)), (common, common), "{one}, {other}");
        }
    }

    #[test]
    fn a_format_in_the_range_is_read_whatever_else_is_said() {
        let formats = Formats { oldest: 2, newest: 3 };
        assert_eq!(formats.of(br#"{"format":2,"new":{"deep":[1]}}"#).unwrap(), 2);
        assert_eq!(formats.of(br#"{"x":1,"format":3}"#).unwrap(), 3);
        for other in [1, 4] {
            let refused = formats.of(format!(r#"{{"format":{other}}}"#).as_bytes()).unwrap_err();
            assert!(matches!(refused, FormatError::Unknown { found, .. } if found == other));
            assert!(refused.to_string().ends_with("reads formats 2 to 3. Upgrade one release at a time"));
        }
        let alone = Formats { oldest: 1, newest: 1 }.of(br#"{"format":2}"#).unwrap_err();
        assert!(alone.to_string().contains("this one reads format 1."), "{alone}");
        for text in ["", "{}", r#"{"format":"2"}"#, r#"{"format":-1}"#] {
            assert!(matches!(formats.of(text.as_bytes()), Err(FormatError::Malformed(_))), "{text}");
        }
    }
}
