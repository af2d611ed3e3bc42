//! Disks, apart from their volumes and keys.

use serde::{Deserialize, Serialize};

/// What a disk is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// To keep data.
    #[default]
    Data,
    /// To swap memory out to: made anew at each start, with an empty swap area labelled with the
    /// disk's name. There is none while the VM is off.
    Swap,
}

/// How the guest gets at a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Frontend))]
#[serde(rename_all = "snake_case")]
pub enum DiskFrontend {
    /// vhost-user-blk: over shared memory.
    #[default]
    VhostUser,
    /// NBD, through QEMU's block layer.
    Nbd,
}
