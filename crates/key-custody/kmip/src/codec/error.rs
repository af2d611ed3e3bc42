//! Why a message, or one item of it, is not one that KMIP has.

use crate::protocol::{ProtocolVersion, ResultReason};
use crate::ttlv::{Tag, TtlvError, Type};

/// What is wrong, and in which structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are no TTLV, or too much of it.
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
    /// The message is of a version of KMIP that is not spoken here.
    #[error("KMIP {0} is not spoken here; 1.0 to 1.4 are")]
    Version(ProtocolVersion),
    /// The header announces another number of batch items than there are.
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
    /// The field must be there and is not.
    #[error("{0} is missing")]
    Missing(Tag),
    /// The structure has no such field, or not in this version.
    #[error("{0} does not belong here in KMIP {1}")]
    Unexpected(Tag, ProtocolVersion),
    /// The field may stand there once only.
    #[error("{0} is there more than once")]
    Repeated(Tag),
    /// The field has another type.
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
    /// A value that a field cannot have. The structure is filled in by whoever reads it.
    pub(crate) fn value(tag: Tag, complaint: &'static str) -> Self {
        Self::Field { within: tag, problem: Problem::Value { tag, complaint } }
    }

    /// A field of another type than `expected`.
    pub(crate) fn wrong_type(tag: Tag, expected: Type, found: Type) -> Self {
        Self::Field { within: tag, problem: Problem::WrongType { tag, expected, found } }
    }

    /// The result reason that tells a peer what this is (KMIP 1.4, sections 9.1.3.2.29 and 11).
    pub fn reason(&self) -> ResultReason {
        match self {
            Self::Ttlv(_) | Self::Version(_) | Self::BatchCount { .. } => ResultReason::InvalidMessage,
            Self::Field { problem, .. } => match problem {
                Problem::Missing(_) => ResultReason::MissingData,
                Problem::WrongType { .. } => ResultReason::InvalidMessage,
                Problem::Unexpected(..) | Problem::Repeated(_) | Problem::Value { .. } => {
                    ResultReason::InvalidField
                }
            },
        }
    }
}
