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
