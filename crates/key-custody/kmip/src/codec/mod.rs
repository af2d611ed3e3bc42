//! Converts between TTLV fields and typed values: the fields of each structure, by
//! [version](ProtocolVersion).
//!
//! A [`Codec`] is a type that is one field. [`Member`] states how often a field may occur in a
//! structure: a `Codec` itself exactly once, `Option` at most once, `Vec` any number of times. The
//! `structure!` macro makes both directions of a structure from one list, so that request and
//! response types serve client and server alike.

mod error;
mod fields;
mod primitives;
mod structure;
mod version;

pub use error::{DecodeError, Problem};
pub use fields::Fields;
pub use primitives::RawStructure;
pub(crate) use structure::structure;
pub use version::ProtocolVersion;

use crate::ttlv::{Field, Tag, Writer};

/// The decoding rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The version in the message's header. The message cannot have fields of a later version.
    pub version: ProtocolVersion,
    /// The treatment of a field that a structure does not have.
    pub unknown_fields: UnknownFields,
}

/// The treatment of a field that a structure does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// Requests: a condition that is not understood must not be passed over.
    Refuse,
    /// Responses: a server that adds fields has still answered.
    Skip,
}

/// A type that is one field of any tag.
pub trait Codec: Sized {
    /// Reads the value.
    ///
    /// # Errors
    /// [`DecodeError`] if the field has another type or a value that it cannot have.
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError>;

    /// Writes the value under that tag, leaving out what `version` does not have.
    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer);
}

/// A type that can stand in a structure once, at most once, or often.
pub trait Member: Sized {
    /// Takes the value out of the fields of its structure.
    ///
    /// # Errors
    /// [`DecodeError`] if it is missing, occurs too often, or cannot be read.
    fn take(tag: Tag, fields: &mut Fields<'_>) -> Result<Self, DecodeError>;

    /// The value in a structure that is older than this field.
    ///
    /// # Errors
    /// [`DecodeError`] if the field is required, so that no such structure can exist.
    fn absent(tag: Tag, fields: &Fields<'_>) -> Result<Self, DecodeError>;

    /// Writes the field or fields.
    fn put(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer);
}

impl<T: Codec> Member for T {
    fn take(tag: Tag, fields: &mut Fields<'_>) -> Result<Self, DecodeError> {
        match fields.take_one(tag)? {
            Some(field) => T::decode(field, fields.rules()),
            None => Err(fields.missing(tag)),
        }
    }

    fn absent(tag: Tag, fields: &Fields<'_>) -> Result<Self, DecodeError> {
        Err(fields.missing(tag))
    }

    fn put(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        self.encode(tag, version, writer);
    }
}

impl<T: Codec> Member for Option<T> {
    fn take(tag: Tag, fields: &mut Fields<'_>) -> Result<Self, DecodeError> {
        fields.take_one(tag)?.map(|field| T::decode(field, fields.rules())).transpose()
    }

    fn absent(_: Tag, _: &Fields<'_>) -> Result<Self, DecodeError> {
        Ok(None)
    }

    fn put(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        if let Some(value) = self {
            value.encode(tag, version, writer);
        }
    }
}

impl<T: Codec> Member for Vec<T> {
    fn take(tag: Tag, fields: &mut Fields<'_>) -> Result<Self, DecodeError> {
        let rules = fields.rules();
        // Its exact size: values can be large, and room for several would be wiped with them.
        let mut values = Self::with_capacity(fields.count(tag));
        for field in fields.take_all(tag) {
            values.push(T::decode(field, rules)?);
        }
        Ok(values)
    }

    fn absent(_: Tag, _: &Fields<'_>) -> Result<Self, DecodeError> {
        Ok(Vec::new())
    }

    fn put(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        for value in self {
            value.encode(tag, version, writer);
        }
    }
}
