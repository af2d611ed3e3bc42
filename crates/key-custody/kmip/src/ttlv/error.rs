//! Errors of reading TTLV.

use super::{Tag, Type};

/// Why bytes could not be read as TTLV.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TtlvError {
    /// The bytes end within a field.
    #[error("the bytes end within a field: {needed_bytes} more are needed and {available_bytes} are there")]
    Truncated {
        /// The bytes that the field still needs.
        needed_bytes: usize,
        /// The bytes left.
        available_bytes: usize,
    },
    /// There are bytes behind the outermost structure.
    #[error("{0} bytes follow the message")]
    TrailingBytes(usize),
    /// The outermost field is not the expected one.
    #[error("the message is a {found} of type {kind:?}, not a structure {expected}")]
    NotTheMessage {
        /// The expected tag.
        expected: Tag,
        /// The tag found.
        found: Tag,
        /// The type found.
        kind: Type,
    },
    /// No type has that number.
    #[error("{tag} has the unknown type 0x{kind:02X}")]
    UnknownType {
        /// The field.
        tag: Tag,
        /// The number in place of its type.
        kind: u8,
    },
    /// The length is not one that the type can have.
    #[error("{tag} of type {kind:?} cannot have {length_bytes} bytes")]
    Length {
        /// The field.
        tag: Tag,
        /// Its type.
        kind: Type,
        /// Its length.
        length_bytes: usize,
    },
    /// The bytes that fill a value up to a multiple of eight are not zero.
    #[error("the padding of {0} is not zero")]
    Padding(Tag),
    /// A boolean is neither 0 nor 1.
    #[error("{0} is neither true nor false")]
    Boolean(Tag),
    /// A text string is not UTF-8.
    #[error("{0} is not text in UTF-8")]
    Text(Tag),
    /// The message, or its announced length, is above
    /// [`Limits::message_bytes`](super::Limits::message_bytes).
    #[error("a message of {length_bytes} bytes is longer than the {limit_bytes} bytes that one may have")]
    MessageTooLong {
        /// The length, announced or real.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A value is above [`Limits::text_bytes`](super::Limits::text_bytes) or
    /// [`Limits::big_integer_bytes`](super::Limits::big_integer_bytes).
    #[error("{tag} has {length_bytes} bytes, more than the {limit_bytes} that one may have")]
    ValueTooLong {
        /// The field.
        tag: Tag,
        /// Its length.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// Structures are nested deeper than [`Limits::depth`](super::Limits::depth).
    #[error("structures are nested deeper than {limit}")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// There are more fields than [`Limits::items`](super::Limits::items).
    #[error("the message has more than {limit} fields")]
    TooManyItems {
        /// The limit.
        limit: usize,
    },
}
