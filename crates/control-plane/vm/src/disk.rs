//! Properties of disks, apart from their volumes and keys.

use serde::{Deserialize, Serialize};

/// The purpose of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// Data that is kept.
    #[default]
    Data,
    /// Swap space. It is recreated at each start, with an empty swap area labelled with the disk's
    /// name, and does not exist while the VM is off.
    Swap,
}

/// What a disk becomes that is being encrypted or decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiskBecomes {
    /// It is being encrypted.
    Encrypted,
    /// It is being decrypted.
    Clear,
}

impl DiskBecomes {
    /// What it becomes if the change is taken back.
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::Encrypted => Self::Clear,
            Self::Clear => Self::Encrypted,
        }
    }
}

/// How a disk is attached to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Frontend))]
#[serde(rename_all = "snake_case")]
pub enum DiskFrontend {
    /// vhost-user-blk, over shared memory.
    #[default]
    VhostUser,
    /// NBD, through QEMU's block layer.
    Nbd,
}
