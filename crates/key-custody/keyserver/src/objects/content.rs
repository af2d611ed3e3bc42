//! The value of an object: its kind and its secret.

use strongroom_kmip::protocol::{KeyBlock, KeyFormatType, OpaqueDataType, SecretDataType};
use strongroom_memory::secret::{SecretBytes, SecretError};

use super::attributes::AttributeSet;

/// The value of an object.
#[derive(Debug)]
pub enum Content {
    /// Attributes for other objects, beside its own.
    Template {
        /// The attributes of objects that are made with it.
        attributes: AttributeSet,
    },
    /// A symmetric key.
    Key {
        /// The key block without its value.
        block: KeyBlock,
        /// The key; absent or wrapped if a client registered it so.
        material: Material,
    },
    /// A password or seed.
    Secret {
        /// The kind of secret.
        kind: SecretDataType,
        /// The key block without its value.
        block: KeyBlock,
        /// The secret.
        material: Material,
    },
    /// Bytes that the server does not interpret.
    Opaque {
        /// Their type.
        kind: OpaqueDataType,
        /// The bytes.
        material: Material,
    },
}

/// The secret of an object.
#[derive(Debug)]
pub enum Material {
    /// Present.
    Present(SecretBytes),
    /// Present, but wrapped elsewhere: the whole encoded Key Value, which cannot be read.
    WrappedContent(SecretBytes),
    /// Kept elsewhere (KMIP 1.2, Key Value Location), or destroyed.
    Absent,
}

impl Content {
    /// The secret; templates have none.
    pub fn material(&self) -> Option<&Material> {
        match self {
            Self::Template { .. } => None,
            Self::Key { material, .. } | Self::Secret { material, .. } | Self::Opaque { material, .. } => {
                Some(material)
            }
        }
    }

    pub(super) fn material_mut(&mut self) -> Option<&mut Material> {
        match self {
            Self::Template { .. } => None,
            Self::Key { material, .. } | Self::Secret { material, .. } | Self::Opaque { material, .. } => {
                Some(material)
            }
        }
    }

    /// The key block without its value.
    pub fn block(&self) -> Option<&KeyBlock> {
        match self {
            Self::Key { block, .. } | Self::Secret { block, .. } => Some(block),
            Self::Template { .. } | Self::Opaque { .. } => None,
        }
    }

    /// The format that the value was registered in.
    pub fn format(&self) -> Option<KeyFormatType> {
        self.block().map(|block| block.key_format_type)
    }

    pub(super) fn duplicate(&self) -> Result<Self, SecretError> {
        Ok(match self {
            Self::Template { attributes } => Self::Template { attributes: attributes.clone() },
            Self::Key { block, material } => {
                Self::Key { block: block.clone(), material: material.duplicate()? }
            }
            Self::Secret { kind, block, material } => {
                Self::Secret { kind: *kind, block: block.clone(), material: material.duplicate()? }
            }
            Self::Opaque { kind, material } => Self::Opaque { kind: *kind, material: material.duplicate()? },
        })
    }
}

impl Material {
    /// Whether the server has the secret.
    pub fn is_present(&self) -> bool {
        !matches!(self, Self::Absent)
    }

    pub(super) fn duplicate(&self) -> Result<Self, SecretError> {
        Ok(match self {
            Self::Present(secret) => Self::Present(secret.duplicate()?),
            Self::WrappedContent(secret) => Self::WrappedContent(secret.duplicate()?),
            Self::Absent => Self::Absent,
        })
    }
}
