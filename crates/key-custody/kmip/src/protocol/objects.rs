//! Managed objects (KMIP 1.4, section 2.2).

use super::{CertificateType, KeyBlock, ObjectType, OpaqueDataType, ProtocolVersion, SecretDataType};
use crate::codec::{Codec, DecodeError, Fields, Member, RawStructure, Rules, structure};
use crate::ttlv::{ByteString, Field, Tag, Writer};

structure! {
    /// A certificate.
    pub struct Certificate {
        /// The kind of certificate.
        certificate_type: CertificateType = CERTIFICATE_TYPE,
        /// The certificate, DER for X.509.
        value: ByteString = CERTIFICATE_VALUE,
    }
}

structure! {
    /// A secret that is not a key: a password, a seed.
    pub struct SecretData {
        /// The kind of secret.
        secret_data_type: SecretDataType = SECRET_DATA_TYPE,
        /// The secret.
        key_block: KeyBlock = KEY_BLOCK,
    }
}

structure! {
    /// Bytes that the server does not interpret.
    pub struct OpaqueObject {
        /// Their type.
        opaque_data_type: OpaqueDataType = OPAQUE_DATA_TYPE,
        /// The bytes.
        value: ByteString = OPAQUE_DATA_VALUE,
    }
}

/// An object of an unsupported type, kept as received so that it can be refused by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawObject {
    /// Its declared type.
    pub object_type: ObjectType,
    /// The tag of its field.
    pub tag: Tag,
    /// Its fields.
    pub content: RawStructure,
}

/// A managed object with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagedObject {
    /// A certificate.
    Certificate(Certificate),
    /// A symmetric key.
    SymmetricKey(KeyBlock),
    /// A public key.
    PublicKey(KeyBlock),
    /// A private key.
    PrivateKey(KeyBlock),
    /// A secret that is not a key.
    SecretData(SecretData),
    /// Bytes.
    OpaqueObject(OpaqueObject),
    /// Any other.
    Raw(RawObject),
}

impl ManagedObject {
    /// The object's type.
    pub fn object_type(&self) -> ObjectType {
        match self {
            Self::Certificate(_) => ObjectType::Certificate,
            Self::SymmetricKey(_) => ObjectType::SymmetricKey,
            Self::PublicKey(_) => ObjectType::PublicKey,
            Self::PrivateKey(_) => ObjectType::PrivateKey,
            Self::SecretData(_) => ObjectType::SecretData,
            Self::OpaqueObject(_) => ObjectType::OpaqueObject,
            Self::Raw(raw) => raw.object_type,
        }
    }

    /// Its key block, if it is of a supported type that has one.
    pub fn key_block(&self) -> Option<&KeyBlock> {
        match self {
            Self::SymmetricKey(key) | Self::PublicKey(key) | Self::PrivateKey(key) => Some(key),
            Self::SecretData(secret) => Some(&secret.key_block),
            Self::Certificate(_) | Self::OpaqueObject(_) | Self::Raw(_) => None,
        }
    }

    /// Takes the object of that type out of the fields of a payload, after all other fields have
    /// been taken.
    pub(crate) fn take(object_type: ObjectType, fields: &mut Fields<'_>) -> Result<Self, DecodeError> {
        let rules = fields.rules();
        let field = match tag_of(object_type) {
            Some(tag) => fields.take_one(tag)?.ok_or_else(|| fields.missing(tag))?,
            None => fields.take_any().ok_or_else(|| fields.missing(Tag::OPAQUE_OBJECT))?,
        };
        Ok(match object_type {
            ObjectType::Certificate => Self::Certificate(Codec::decode(field, rules)?),
            ObjectType::SymmetricKey => Self::SymmetricKey(key_block(field, rules)?),
            ObjectType::PublicKey => Self::PublicKey(key_block(field, rules)?),
            ObjectType::PrivateKey => Self::PrivateKey(key_block(field, rules)?),
            ObjectType::SecretData => Self::SecretData(Codec::decode(field, rules)?),
            ObjectType::OpaqueObject => Self::OpaqueObject(Codec::decode(field, rules)?),
            _ => {
                Self::Raw(RawObject { object_type, tag: field.tag(), content: Codec::decode(field, rules)? })
            }
        })
    }

    pub(crate) fn put(&self, version: ProtocolVersion, writer: &mut Writer) {
        let mut key = |tag, block: &KeyBlock| {
            writer.structure(tag, |writer| block.encode(Tag::KEY_BLOCK, version, writer));
        };
        match self {
            Self::SymmetricKey(block) => key(Tag::SYMMETRIC_KEY, block),
            Self::PublicKey(block) => key(Tag::PUBLIC_KEY, block),
            Self::PrivateKey(block) => key(Tag::PRIVATE_KEY, block),
            Self::Certificate(certificate) => certificate.encode(Tag::CERTIFICATE, version, writer),
            Self::SecretData(secret) => secret.encode(Tag::SECRET_DATA, version, writer),
            Self::OpaqueObject(opaque) => opaque.encode(Tag::OPAQUE_OBJECT, version, writer),
            Self::Raw(raw) => raw.content.encode(raw.tag, version, writer),
        }
    }
}

fn key_block(field: Field<'_>, rules: Rules) -> Result<KeyBlock, DecodeError> {
    let mut fields = Fields::of(field, rules)?;
    let block = Member::take(Tag::KEY_BLOCK, &mut fields)?;
    fields.finish()?;
    Ok(block)
}

/// The tag of the field that holds an object of that type.
fn tag_of(object_type: ObjectType) -> Option<Tag> {
    Some(match object_type {
        ObjectType::Certificate => Tag::CERTIFICATE,
        ObjectType::SymmetricKey => Tag::SYMMETRIC_KEY,
        ObjectType::PublicKey => Tag::PUBLIC_KEY,
        ObjectType::PrivateKey => Tag::PRIVATE_KEY,
        ObjectType::SplitKey => Tag::SPLIT_KEY,
        ObjectType::Template => Tag::TEMPLATE,
        ObjectType::SecretData => Tag::SECRET_DATA,
        ObjectType::OpaqueObject => Tag::OPAQUE_OBJECT,
        ObjectType::PgpKey => Tag::PGP_KEY,
        ObjectType::Other(_) => return None,
    })
}
