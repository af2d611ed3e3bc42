//! One managed object: its metadata and its secret.
//!
//! In a record its metadata are `JSON length (4, big-endian), JSON, TTLV`: the server's own facts
//! as JSON, and the parts from KMIP (attributes, the key block without its value) as TTLV, encoded
//! for KMIP 1.4.

use serde::{Deserialize, Serialize};
use strongroom_keys::ProviderKey;
use strongroom_kmip::codec::{Codec, DecodeError, Fields, Member, Rules, UnknownFields};
use strongroom_kmip::protocol::{
    Attribute, KeyBlock, ObjectType, OpaqueDataType, ProtocolVersion, RevocationReasonCode, SecretDataType,
    UsageLimitsUnit,
};
use strongroom_kmip::ttlv::{Limits, Structure, Tag, write_exactly};
use strongroom_memory::secret::{SecretBytes, SecretError};

use super::attributes::AttributeSet;
use super::clock::UnixSeconds;
pub use super::content::{Content, Material};
use super::id::ObjectId;
use super::lifecycle::{LifeCycle, LifeCycleError};
use crate::access::ClientId;

/// Metadata are written for the newest version, which has every field.
const RECORD_VERSION: ProtocolVersion = ProtocolVersion::V1_4;
const LENGTH_BYTES: usize = 4;

/// A managed object of the server.
#[derive(Debug)]
pub struct Object {
    /// Its Unique Identifier.
    pub id: ObjectId,
    /// The client that owns it.
    pub owner: ClientId,
    /// Its type.
    pub object_type: ObjectType,
    /// State and dates.
    pub life: LifeCycle,
    /// Attributes set by clients.
    pub attributes: AttributeSet,
    /// Its value.
    pub content: Content,
    /// SHA-256 of the value as it was made or registered.
    pub digest: Option<[u8; 32]>,
    /// Whether its value has never left the server.
    pub fresh: bool,
    /// Why it was revoked.
    pub revocation: Option<Revocation>,
    /// Its usage limits.
    pub usage: Option<Usage>,
    /// Whether the server generated it.
    pub made_here: bool,
    /// Whether it has always been Sensitive.
    pub always_sensitive: bool,
    /// Whether it has never been Extractable.
    pub never_extractable: bool,
    /// The key's place, if an external provider keeps it: [`broker`](crate::broker).
    pub upstream: Option<ProviderKey>,
}

/// Why an object was revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    code: u32,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}

impl Revocation {
    /// A revocation for that reason.
    pub fn new(code: RevocationReasonCode, message: Option<String>) -> Self {
        Self { code: code.number(), message }
    }

    /// The reason.
    pub fn code(&self) -> RevocationReasonCode {
        RevocationReasonCode::from_number(self.code)
    }
}

/// A key's usage limits (KMIP 1.4, 3.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The total.
    pub total: i64,
    /// The remaining amount.
    pub left: i64,
    unit: u32,
    /// Whether any was allocated; then the limits can no longer be changed.
    pub begun: bool,
}

impl Usage {
    /// An unused limit.
    pub fn new(total: i64, unit: UsageLimitsUnit) -> Self {
        Self { total, left: total, unit: unit.number(), begun: false }
    }

    /// The unit of the limit.
    pub fn unit(&self) -> UsageLimitsUnit {
        UsageLimitsUnit::from_number(self.unit)
    }

    /// Allocates `count` of the remaining amount. Returns `false`, and allocates nothing, if too
    /// little is left.
    pub fn allocate(&mut self, count: i64) -> bool {
        let enough = count >= 0 && count <= self.left;
        if enough {
            self.left -= count;
            self.begun = true;
        }
        enough
    }
}

/// Why metadata cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// Truncated.
    #[error("its metadata are cut short")]
    Short,
    /// The server's own part.
    #[error("its metadata: {0}")]
    Json(#[from] serde_json::Error),
    /// The part from KMIP.
    #[error("its attributes: {0}")]
    Kmip(#[from] DecodeError),
    /// A record of one kind with the state of the other.
    #[error("its record is a tombstone's and it is not destroyed, or the other way round")]
    Kind,
    /// No protected memory for the secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// The server's own part of the metadata.
#[derive(Serialize, Deserialize)]
struct Facts {
    owner: ClientId,
    object_type: u32,
    life: LifeCycle,
    value: Value,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    subtype: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    digest: Option<[u8; 32]>,
    fresh: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    revocation: Option<Revocation>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    usage: Option<Usage>,
    made_here: bool,
    always_sensitive: bool,
    never_extractable: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    upstream: Option<ProviderKey>,
}

#[derive(Debug, Serialize, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Value {
    Present,
    WrappedContent,
    Absent,
}

impl Object {
    /// Whether its material is gone for good.
    pub fn is_destroyed(&self) -> bool {
        self.life.destroyed().is_some()
    }

    /// Its names, which no other live object of its owner has.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.attributes.names()
    }

    /// Its secret as stored in the record.
    pub fn material(&self) -> Option<&SecretBytes> {
        match self.content.material()? {
            Material::Present(secret) | Material::WrappedContent(secret) => Some(secret),
            Material::Absent => None,
        }
    }

    /// The key itself, if the server has it and it is not wrapped.
    pub fn plain_key(&self) -> Option<&SecretBytes> {
        match &self.content {
            Content::Key { block, material: Material::Present(key) } if block.key_wrapping_data.is_none() => {
                Some(key)
            }
            _ => None,
        }
    }

    /// Destroys the object: its state changes, its secret is dropped, and the rest is its
    /// tombstone.
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::NoTransition`] if it is active or destroyed already.
    pub fn destroy(&mut self, now: UnixSeconds) -> Result<(), LifeCycleError> {
        self.life.destroy(now)?;
        if let Some(material) = self.content.material_mut() {
            *material = Material::Absent;
        }
        Ok(())
    }

    /// Updates Always Sensitive and Never Extractable after a change of Sensitive or Extractable.
    pub fn note_protection(&mut self) {
        self.always_sensitive &= self.is_sensitive();
        self.never_extractable &= !self.is_extractable();
    }

    /// A copy of the object, including its secret.
    ///
    /// # Errors
    ///
    /// [`SecretError`] if there is no protected memory.
    pub fn duplicate(&self) -> Result<Self, SecretError> {
        Ok(Self {
            id: self.id,
            owner: self.owner,
            object_type: self.object_type,
            life: self.life.clone(),
            attributes: self.attributes.clone(),
            content: self.content.duplicate()?,
            digest: self.digest,
            fresh: self.fresh,
            revocation: self.revocation.clone(),
            usage: self.usage,
            made_here: self.made_here,
            always_sensitive: self.always_sensitive,
            never_extractable: self.never_extractable,
            upstream: self.upstream.clone(),
        })
    }

    /// Records that it has changed.
    pub fn touch(&mut self, now: UnixSeconds) {
        self.life.touch(now);
    }

    /// Everything except the secret, for its record.
    pub fn metadata(&self) -> Vec<u8> {
        let value = match self.content.material() {
            Some(Material::Present(_)) => Value::Present,
            Some(Material::WrappedContent(_)) => Value::WrappedContent,
            Some(Material::Absent) | None => Value::Absent,
        };
        let subtype = match &self.content {
            Content::Secret { kind, .. } => Some(kind.number()),
            Content::Opaque { kind, .. } => Some(kind.number()),
            Content::Template { .. } | Content::Key { .. } => None,
        };
        let facts = Facts {
            owner: self.owner,
            object_type: self.object_type.number(),
            life: self.life.clone(),
            value,
            subtype,
            digest: self.digest,
            fresh: self.fresh,
            revocation: self.revocation.clone(),
            usage: self.usage,
            made_here: self.made_here,
            always_sensitive: self.always_sensitive,
            never_extractable: self.never_extractable,
            upstream: self.upstream.clone(),
        };
        // Numbers, booleans and texts without maps: serde_json cannot fail.
        let json = serde_json::to_vec(&facts).unwrap_or_default();
        let ttlv = write_exactly(|writer| {
            writer.structure(Tag::TEMPLATE_ATTRIBUTE, |writer| {
                self.attributes.to_attributes().put(Tag::ATTRIBUTE, RECORD_VERSION, writer);
                if let Some(block) = self.content.block() {
                    block.encode(Tag::KEY_BLOCK, RECORD_VERSION, writer);
                }
                if let Content::Template { attributes } = &self.content {
                    writer.structure(Tag::TEMPLATE, |writer| {
                        attributes.to_attributes().put(Tag::ATTRIBUTE, RECORD_VERSION, writer);
                    });
                }
            });
        });
        let mut metadata = Vec::with_capacity(LENGTH_BYTES + json.len() + ttlv.len());
        metadata.extend_from_slice(&(json.len() as u32).to_be_bytes());
        metadata.extend_from_slice(&json);
        metadata.extend_from_slice(&ttlv);
        metadata
    }

    /// Decodes an object from its record.
    ///
    /// # Errors
    ///
    /// [`MetadataError`].
    pub fn from_metadata(id: ObjectId, metadata: &[u8], secret: SecretBytes) -> Result<Self, MetadataError> {
        Ok(Sketch::read(id, metadata)?.with(secret)?)
    }
}

/// An object from its metadata, without its secret.
#[derive(Debug)]
pub struct Sketch {
    object: Object,
    value: Value,
}

impl Sketch {
    /// Reads metadata.
    ///
    /// # Errors
    ///
    /// [`MetadataError`].
    pub fn read(id: ObjectId, metadata: &[u8]) -> Result<Self, MetadataError> {
        let (length, rest) = metadata.split_first_chunk::<LENGTH_BYTES>().ok_or(MetadataError::Short)?;
        let (json, ttlv) =
            rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(MetadataError::Short)?;
        let facts: Facts = serde_json::from_slice(json)?;

        let rules = Rules { version: RECORD_VERSION, unknown_fields: UnknownFields::Refuse };
        let structure =
            Structure::parse(ttlv, Tag::TEMPLATE_ATTRIBUTE, &Limits::default()).map_err(DecodeError::from)?;
        let mut fields = Fields::new(structure, rules);
        let attributes: Vec<Attribute> = Member::take(Tag::ATTRIBUTE, &mut fields)?;
        let block: Option<KeyBlock> = Member::take(Tag::KEY_BLOCK, &mut fields)?;
        let template = fields.take_one(Tag::TEMPLATE)?.map(|field| Fields::of(field, rules)).transpose()?;
        let template: Option<Vec<Attribute>> =
            template.map(|mut fields| Member::take(Tag::ATTRIBUTE, &mut fields)).transpose()?;
        fields.finish()?;

        let material = Material::Absent;
        let object_type = ObjectType::from_number(facts.object_type);
        let content = match (object_type, block, facts.subtype, template) {
            (ObjectType::SymmetricKey, Some(block), None, None) => Content::Key { block, material },
            (ObjectType::SecretData, Some(block), Some(kind), None) => {
                Content::Secret { kind: SecretDataType::from_number(kind), block, material }
            }
            (ObjectType::OpaqueObject, None, Some(kind), None) => {
                Content::Opaque { kind: OpaqueDataType::from_number(kind), material }
            }
            (ObjectType::Template, None, None, Some(attributes)) => {
                Content::Template { attributes: AttributeSet::from_attributes(attributes) }
            }
            _ => return Err(MetadataError::Kind),
        };
        let object = Object {
            id,
            owner: facts.owner,
            object_type,
            life: facts.life,
            attributes: AttributeSet::from_attributes(attributes),
            content,
            digest: facts.digest,
            fresh: facts.fresh,
            revocation: facts.revocation,
            usage: facts.usage,
            made_here: facts.made_here,
            always_sensitive: facts.always_sensitive,
            never_extractable: facts.never_extractable,
            upstream: facts.upstream,
        };
        Ok(Self { object, value: facts.value })
    }

    /// The object with its secret, if the server has its value.
    ///
    /// # Errors
    ///
    /// [`SecretError`] if there is no protected memory.
    pub fn with(&self, secret: SecretBytes) -> Result<Object, SecretError> {
        let mut object = self.object.duplicate()?;
        if let Some(material) = object.content.material_mut() {
            *material = match self.value {
                Value::Present => Material::Present(secret),
                Value::WrappedContent => Material::WrappedContent(secret),
                Value::Absent => Material::Absent,
            };
        }
        Ok(object)
    }
}
