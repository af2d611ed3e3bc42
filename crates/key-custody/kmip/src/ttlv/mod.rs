//! TTLV, the binary encoding of KMIP (KMIP 1.4, section 9.1): every field is a three-byte tag, a
//! one-byte type, a four-byte length and a value that is padded with zeroes to a multiple of eight
//! bytes.
//!
//! Reading has two steps. [`Structure::parse`] walks everything once and checks the rules of any
//! TTLV: types, exact lengths, zero padding, and the [`Limits`], before it allocates memory. Its
//! result borrows from the input and needs no further checks of form; the `protocol` and `message`
//! modules check which fields a structure has.
//!
//! This module does not know KMIP's messages. No input makes it panic.

mod bytes;
mod error;
mod item;
mod kind;
mod limits;
mod reader;
mod tag;
mod tag_table;
mod writer;

#[cfg(test)]
mod tests;

pub use bytes::{BigInteger, ByteString, SecretText};
pub use error::TtlvError;
pub use item::{Item, Value};
pub use kind::{DateTime, Interval, Type};
pub use limits::{
    BIG_INTEGER_MAX_BYTES, DEPTH_MAX, ITEMS_MAX, Limits, MESSAGE_MAX_BYTES, MESSAGE_MAX_BYTES_CEILING,
    TEXT_MAX_BYTES,
};
pub use reader::{Field, HEADER_BYTES, Structure, message_length_bytes};
pub use tag::Tag;
pub use writer::{Writer, write_exactly};
