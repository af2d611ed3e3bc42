//! Any TTLV as an owned tree: for structures without a type, and for tests that build messages
//! field by field.

use super::{
    BigInteger, ByteString, DateTime, Field, Interval, Limits, Structure, Tag, TtlvError, Type, Writer,
};

/// A field with a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The field's tag.
    pub tag: Tag,
    /// Its value.
    pub value: Value,
}

/// The value of a field, of any type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Fields.
    Structure(Vec<Item>),
    /// See [`Type::Integer`].
    Integer(i32),
    /// See [`Type::LongInteger`].
    LongInteger(i64),
    /// See [`Type::BigInteger`].
    BigInteger(BigInteger),
    /// See [`Type::Enumeration`].
    Enumeration(u32),
    /// See [`Type::Boolean`].
    Boolean(bool),
    /// See [`Type::TextString`].
    TextString(String),
    /// See [`Type::ByteString`].
    ByteString(ByteString),
    /// See [`Type::DateTime`].
    DateTime(DateTime),
    /// See [`Type::Interval`].
    Interval(Interval),
}

impl Item {
    /// A structure.
    pub fn structure(tag: Tag, fields: impl IntoIterator<Item = Self>) -> Self {
        Self { tag, value: Value::Structure(fields.into_iter().collect()) }
    }

    /// A text string.
    pub fn text(tag: Tag, value: impl Into<String>) -> Self {
        Self { tag, value: Value::TextString(value.into()) }
    }

    /// Parses `bytes` as exactly one structure.
    ///
    /// # Errors
    /// As [`Structure::parse`].
    pub fn parse(bytes: &[u8], expected: Tag, limits: &Limits) -> Result<Self, TtlvError> {
        let structure = Structure::parse(bytes, expected, limits)?;
        Ok(Self { tag: expected, value: Value::of_structure(structure) })
    }

    /// The first field of that tag, if this is a structure that has one.
    pub fn field(&self, tag: Tag) -> Option<&Self> {
        match &self.value {
            Value::Structure(fields) => fields.iter().find(|field| field.tag == tag),
            _ => None,
        }
    }

    /// The encoded bytes.
    pub fn to_bytes(&self) -> zeroize::Zeroizing<Vec<u8>> {
        super::write_exactly(|writer| self.write(writer))
    }

    /// Writes the field.
    pub fn write(&self, writer: &mut Writer) {
        self.value.write(self.tag, writer);
    }
}

impl Value {
    /// The value of a field that has been read.
    pub fn of(field: Field<'_>) -> Self {
        let owned = match field.kind() {
            Type::Structure => field.structure().map(Self::of_structure),
            Type::Integer => field.integer().map(Self::Integer),
            Type::LongInteger => field.long_integer().map(Self::LongInteger),
            Type::BigInteger => {
                field.big_integer().map(|bytes| Self::BigInteger(BigInteger::from_twos_complement(bytes)))
            }
            Type::Enumeration => field.enumeration().map(Self::Enumeration),
            Type::Boolean => field.boolean().map(Self::Boolean),
            Type::TextString => field.text().map(|text| Self::TextString(text.to_owned())),
            Type::ByteString => field.bytes().map(|bytes| Self::ByteString(bytes.into())),
            Type::DateTime => field.date_time().map(Self::DateTime),
            Type::Interval => field.interval().map(Self::Interval),
        };
        // Every arm reads the type that the field has.
        owned.unwrap_or(Self::Structure(Vec::new()))
    }

    fn of_structure(structure: Structure<'_>) -> Self {
        Self::Structure(
            structure.fields().map(|field| Item { tag: field.tag(), value: Self::of(field) }).collect(),
        )
    }

    /// The type of the value.
    pub fn kind(&self) -> Type {
        match self {
            Self::Structure(_) => Type::Structure,
            Self::Integer(_) => Type::Integer,
            Self::LongInteger(_) => Type::LongInteger,
            Self::BigInteger(_) => Type::BigInteger,
            Self::Enumeration(_) => Type::Enumeration,
            Self::Boolean(_) => Type::Boolean,
            Self::TextString(_) => Type::TextString,
            Self::ByteString(_) => Type::ByteString,
            Self::DateTime(_) => Type::DateTime,
            Self::Interval(_) => Type::Interval,
        }
    }

    /// Writes the value as a field of that tag.
    pub fn write(&self, tag: Tag, writer: &mut Writer) {
        match self {
            Self::Structure(fields) => writer.structure(tag, |writer| {
                for field in fields {
                    field.write(writer);
                }
            }),
            Self::Integer(value) => writer.integer(tag, *value),
            Self::LongInteger(value) => writer.long_integer(tag, *value),
            Self::BigInteger(value) => writer.big_integer(tag, value.expose()),
            Self::Enumeration(value) => writer.enumeration(tag, *value),
            Self::Boolean(value) => writer.boolean(tag, *value),
            Self::TextString(value) => writer.text(tag, value),
            Self::ByteString(value) => writer.bytes(tag, value.expose()),
            Self::DateTime(value) => writer.date_time(tag, *value),
            Self::Interval(value) => writer.interval(tag, *value),
        }
    }
}
