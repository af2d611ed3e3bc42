//! Errors of decoding a message or one of its items.

use super::ProtocolVersion;
use crate::ttlv::{Tag, TtlvError, Type};

/// The problem, and the structure that has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not TTLV, or exceed its limits.
    #[error(transparent)]
    Ttlv(#[from] TtlvError),
    /// A field is missing, wrong or too much.
    #[error("{within}: {problem}")]
    Field {
        /// The structure that has the problem.
        within: Tag,
        /// The problem.
        problem: Problem,
    },
    /// The message has an unsupported version of KMIP.
    #[error("KMIP {0} is not spoken here; 1.0 to 1.4 are")]
    Version(ProtocolVersion),
    /// The header's batch count differs from the number of items.
    #[error("the header announces {announced} batch items and {found} are there")]
    BatchCount {
        /// The number in the header.
        announced: i32,
        /// How many there are.
        found: usize,
    },
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A required field is missing.
    #[error("{0} is missing")]
    Missing(Tag),
    /// The structure has no such field in this version.
    #[error("{0} does not belong here in KMIP {1}")]
    Unexpected(Tag, ProtocolVersion),
    /// The field may occur only once.
    #[error("{0} is there more than once")]
    Repeated(Tag),
    /// The field has the wrong type.
    #[error("{tag} is of type {found:?}, not {expected:?}")]
    WrongType {
        /// The field.
        tag: Tag,
        /// The type it must have.
        expected: Type,
        /// The type it has.
        found: Type,
    },
    /// The value is one that the field cannot have.
    #[error("{tag} {complaint}")]
    Value {
        /// The field.
        tag: Tag,
        /// A predicate: what is wrong.
        complaint: &'static str,
    },
}

impl DecodeError {
    /// The error for a value that a field cannot have. The decoder of the structure fills in
    /// `within`.
    pub(crate) fn value(tag: Tag, complaint: &'static str) -> Self {
        Self::Field { within: tag, problem: Problem::Value { tag, complaint } }
    }

    /// The error for a field that is not of type `expected`.
    pub(crate) fn wrong_type(tag: Tag, expected: Type, found: Type) -> Self {
        Self::Field { within: tag, problem: Problem::WrongType { tag, expected, found } }
    }
}
