//! Key blocks: key material with the parameters for its use (KMIP 1.4, sections 2.1.3 and 2.1.4).

use zeroize::Zeroizing;

use super::{
    Attribute, CryptographicAlgorithm, KeyCompressionType, KeyFormatType, KeyWrappingData, ProtocolVersion,
};
use crate::codec::{Codec, DecodeError, Fields, Member, RawStructure, Rules};
use crate::ttlv::{ByteString, Field, Limits, Structure, Tag, Type, Writer, write_exactly};

/// A key, plain or wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyBlock {
    /// How the material is encoded.
    pub key_format_type: KeyFormatType,
    /// How a point of a curve in it is encoded.
    pub key_compression_type: Option<KeyCompressionType>,
    /// The key itself. Absent only if a server keeps just the attributes of a key (KMIP 1.2).
    pub key_value: Option<KeyValue>,
    /// The key's algorithm.
    pub cryptographic_algorithm: Option<CryptographicAlgorithm>,
    /// Its length in bits.
    pub cryptographic_length: Option<i32>,
    /// How it is wrapped, if it is.
    pub key_wrapping_data: Option<KeyWrappingData>,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue {
    /// Material in a readable structure. With Key Wrapping Data beside it, only the material is
    /// wrapped (the encoding option "no encoding").
    Content(KeyContent),
    /// A whole encoded [`KeyContent`] under a wrap: nothing in it can be read before it is
    /// unwrapped.
    WrappedContent(ByteString),
}

/// Key material with attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyContent {
    /// The material.
    pub material: KeyMaterial,
    /// Attributes that travel with it.
    pub attributes: Vec<Attribute>,
}

/// Key material.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyMaterial {
    /// Bytes: raw, opaque, PKCS#1, PKCS#8, X.509 …
    Bytes(ByteString),
    /// The one field of a transparent symmetric key.
    TransparentSymmetricKey(ByteString),
    /// The fields of any other transparent key, as received.
    Structure(RawStructure),
}

impl KeyBlock {
    /// A plain key of raw bytes.
    pub fn raw(algorithm: CryptographicAlgorithm, material: impl Into<ByteString>) -> Self {
        let material = material.into();
        Self {
            key_format_type: KeyFormatType::Raw,
            key_compression_type: None,
            cryptographic_length: i32::try_from(material.len().saturating_mul(8)).ok(),
            key_value: Some(KeyValue::Content(KeyContent {
                material: KeyMaterial::Bytes(material),
                attributes: Vec::new(),
            })),
            cryptographic_algorithm: Some(algorithm),
            key_wrapping_data: None,
        }
    }

    /// The bytes of a key that is not wrapped and has a single field.
    pub fn plain_bytes(&self) -> Option<&ByteString> {
        match (&self.key_wrapping_data, &self.key_value) {
            (None, Some(KeyValue::Content(content))) => content.material.bytes(),
            _ => None,
        }
    }
}

impl KeyMaterial {
    /// The bytes, unless the material has several fields.
    pub fn bytes(&self) -> Option<&ByteString> {
        match self {
            Self::Bytes(bytes) | Self::TransparentSymmetricKey(bytes) => Some(bytes),
            Self::Structure(_) => None,
        }
    }

    fn decode(field: Field<'_>, format: KeyFormatType, rules: Rules) -> Result<Self, DecodeError> {
        match (field.kind(), format) {
            (Type::Structure, KeyFormatType::TransparentSymmetricKey) => {
                let mut fields = Fields::of(field, rules)?;
                let key = Member::take(Tag::KEY, &mut fields)?;
                fields.finish()?;
                Ok(Self::TransparentSymmetricKey(key))
            }
            (Type::Structure, _) => RawStructure::decode(field, rules).map(Self::Structure),
            _ => ByteString::decode(field, rules).map(Self::Bytes),
        }
    }

    fn encode(&self, version: ProtocolVersion, writer: &mut Writer) {
        let tag = Tag::KEY_MATERIAL;
        match self {
            Self::Bytes(bytes) => writer.bytes(tag, bytes.expose()),
            Self::TransparentSymmetricKey(key) => {
                writer.structure(tag, |writer| writer.bytes(Tag::KEY, key.expose()));
            }
            Self::Structure(structure) => structure.encode(tag, version, writer),
        }
    }
}

impl KeyContent {
    /// The encoded Key Value structure, which the encoding option "TTLV encoding" wraps.
    pub fn to_ttlv(&self, version: ProtocolVersion) -> Zeroizing<Vec<u8>> {
        write_exactly(|writer| self.encode(version, writer))
    }

    /// The content of an unwrapped [`KeyValue::WrappedContent`].
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a Key Value structure, as after unwrapping with a wrong
    /// key.
    pub fn from_ttlv(bytes: &[u8], format: KeyFormatType, rules: Rules) -> Result<Self, DecodeError> {
        let structure = Structure::parse(bytes, Tag::KEY_VALUE, &Limits::default())?;
        Self::decode(Fields::new(structure, rules), format)
    }

    fn decode(mut fields: Fields<'_>, format: KeyFormatType) -> Result<Self, DecodeError> {
        let material =
            fields.take_one(Tag::KEY_MATERIAL)?.ok_or_else(|| fields.missing(Tag::KEY_MATERIAL))?;
        let content = Self {
            material: KeyMaterial::decode(material, format, fields.rules())?,
            attributes: Member::take(Tag::ATTRIBUTE, &mut fields)?,
        };
        fields.finish()?;
        Ok(content)
    }

    fn encode(&self, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(Tag::KEY_VALUE, |writer| {
            self.material.encode(version, writer);
            self.attributes.put(Tag::ATTRIBUTE, version, writer);
        });
    }
}

impl KeyValue {
    fn decode(field: Field<'_>, format: KeyFormatType, rules: Rules) -> Result<Self, DecodeError> {
        match field.kind() {
            Type::Structure => KeyContent::decode(Fields::of(field, rules)?, format).map(Self::Content),
            _ => ByteString::decode(field, rules).map(Self::WrappedContent),
        }
    }

    fn encode(&self, version: ProtocolVersion, writer: &mut Writer) {
        match self {
            Self::Content(content) => content.encode(version, writer),
            Self::WrappedContent(bytes) => writer.bytes(Tag::KEY_VALUE, bytes.expose()),
        }
    }
}

impl Codec for KeyBlock {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let key_format_type = Member::take(Tag::KEY_FORMAT_TYPE, &mut fields)?;
        let key_compression_type = Member::take(Tag::KEY_COMPRESSION_TYPE, &mut fields)?;
        let key_value = fields
            .take_one(Tag::KEY_VALUE)?
            .map(|field| KeyValue::decode(field, key_format_type, rules))
            .transpose()?;
        let block = Self {
            key_format_type,
            key_compression_type,
            key_value,
            cryptographic_algorithm: Member::take(Tag::CRYPTOGRAPHIC_ALGORITHM, &mut fields)?,
            cryptographic_length: Member::take(Tag::CRYPTOGRAPHIC_LENGTH, &mut fields)?,
            key_wrapping_data: Member::take(Tag::KEY_WRAPPING_DATA, &mut fields)?,
        };
        if block.key_value.is_none() && rules.version < ProtocolVersion::V1_2 {
            return Err(fields.missing(Tag::KEY_VALUE));
        }
        fields.finish()?;
        Ok(block)
    }

    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            self.key_format_type.encode(Tag::KEY_FORMAT_TYPE, version, writer);
            self.key_compression_type.put(Tag::KEY_COMPRESSION_TYPE, version, writer);
            if let Some(key_value) = &self.key_value {
                key_value.encode(version, writer);
            }
            self.cryptographic_algorithm.put(Tag::CRYPTOGRAPHIC_ALGORITHM, version, writer);
            self.cryptographic_length.put(Tag::CRYPTOGRAPHIC_LENGTH, version, writer);
            self.key_wrapping_data.put(Tag::KEY_WRAPPING_DATA, version, writer);
        });
    }
}
