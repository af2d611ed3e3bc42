//! Codecs of the primitive values.

use super::{Codec, DecodeError, ProtocolVersion, Rules};
use crate::ttlv::{
    BigInteger, ByteString, DateTime, Field, Interval, SecretText, Structure, Tag, Type, Value, Writer,
};

/// A type whose field is one of TTLV's own.
macro_rules! primitive {
    ($type:ty, $kind:ident, $read:expr, $write:expr) => {
        impl Codec for $type {
            fn decode(field: Field<'_>, _: Rules) -> Result<Self, DecodeError> {
                let read: fn(Field<'_>) -> Option<$type> = $read;
                read(field).ok_or_else(|| DecodeError::wrong_type(field.tag(), Type::$kind, field.kind()))
            }

            fn encode(&self, tag: Tag, _: ProtocolVersion, writer: &mut Writer) {
                let write: fn(&mut Writer, Tag, &$type) = $write;
                write(writer, tag, self);
            }
        }
    };
}

primitive!(i32, Integer, |field| field.integer(), |writer, tag, value| writer.integer(tag, *value));
primitive!(i64, LongInteger, |field| field.long_integer(), |writer, tag, value| writer
    .long_integer(tag, *value));
primitive!(bool, Boolean, |field| field.boolean(), |writer, tag, value| writer.boolean(tag, *value));
primitive!(DateTime, DateTime, |field| field.date_time(), |writer, tag, value| writer.date_time(tag, *value));
primitive!(Interval, Interval, |field| field.interval(), |writer, tag, value| writer.interval(tag, *value));
primitive!(String, TextString, |field| field.text().map(str::to_owned), |writer, tag, value| writer
    .text(tag, value));
primitive!(SecretText, TextString, |field| field.text().map(SecretText::from), |writer, tag, value| {
    writer.text(tag, value.expose());
});
primitive!(ByteString, ByteString, |field| field.bytes().map(ByteString::from), |writer, tag, value| {
    writer.bytes(tag, value.expose());
});
primitive!(
    BigInteger,
    BigInteger,
    |field| field.big_integer().map(BigInteger::from_twos_complement),
    |writer, tag, value| writer.big_integer(tag, value.expose())
);

impl Codec for Value {
    fn decode(field: Field<'_>, _: Rules) -> Result<Self, DecodeError> {
        Ok(Self::of(field))
    }

    fn encode(&self, tag: Tag, _: ProtocolVersion, writer: &mut Writer) {
        self.write(tag, writer);
    }
}

/// The fields of a structure kept as received: encoded, well formed, and possibly secret.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RawStructure(ByteString);

impl RawStructure {
    /// The fields of a structure.
    pub fn of(structure: Structure<'_>) -> Self {
        Self(structure.content().into())
    }

    /// The encoded fields.
    pub fn expose(&self) -> &[u8] {
        self.0.expose()
    }
}

impl Codec for RawStructure {
    fn decode(field: Field<'_>, _: Rules) -> Result<Self, DecodeError> {
        let wrong = || DecodeError::wrong_type(field.tag(), Type::Structure, field.kind());
        field.structure().map(Self::of).ok_or_else(wrong)
    }

    fn encode(&self, tag: Tag, _: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| writer.encoded(self.expose()));
    }
}
