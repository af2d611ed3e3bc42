//! Snapshots of VMs.

use serde::{Deserialize, Serialize};
use strongroom_types::{SnapshotId, SnapshotName};
pub use strongroom_vm::QuiesceWithin;
use utoipa::ToSchema;

use super::view::SavedMemory;
use crate::{Name, Reference};

/// The content of a VM's volumes at one instant, as after a power cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its id.
    #[schema(value_type = Uuid)]
    pub id: SnapshotId,
    /// Its name, unique among the snapshots of the VM.
    #[schema(value_type = Name)]
    pub name: SnapshotName,
    /// When it was made, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// Its volumes: the VM's disks at that time, and `nvram` if the VM has UEFI firmware. A volume
    /// that was added to the VM later is not reverted.
    pub volumes: Vec<String>,
    /// The snapshot that the VM's content was based on.
    #[schema(value_type = Option<Uuid>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SnapshotId>,
    /// Whether the VM's present content is based on it.
    pub is_current: bool,
    /// The guest's memory at that time, if the snapshot has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<SavedMemory>,
    /// Whether the file systems of the guest were frozen at that time, as its agent says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiesced: bool,
    /// The others whose snapshots are of the same instant. They have the same id and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<SnapshotGroup>,
}

/// The other VMs and volumes of a snapshot of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotGroup {
    /// Those that have it.
    pub with: Vec<Name>,
    /// Those that had it, and whose part was deleted since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<Name>,
}

/// A request for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Its name.
    #[schema(value_type = Name)]
    pub name: SnapshotName,
    /// Includes the guest's memory: a revert continues the guest where it was. The VM must run. It
    /// continues while its memory is saved, and is paused for the rest of it.
    #[serde(default)]
    pub memory: bool,
    /// Has the agent in a guest that runs freeze the guest's file systems meanwhile, for which it
    /// has so many seconds. Without an agent that does so, no snapshot is made. A VM that is off
    /// has nothing to be frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce_within_s: Option<QuiesceWithin>,
    /// Other VMs, and volumes that no VM has, by name or id: all get the snapshot, of one instant,
    /// or none does. At most 15, with at most 128 disks together, on one host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<Reference>,
}

/// Options for reverting to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevertVm {
    /// The name of the snapshot that keeps the present content; the default is `before-revert-N`.
    #[schema(value_type = Option<Name>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_as: Option<SnapshotName>,
    /// Does not keep the present content.
    #[serde(default)]
    pub discard: bool,
    /// Leaves the snapshot's memory, so that the VM boots at its next start. Without this option, a
    /// snapshot with memory leaves the VM suspended, and the next start continues its guest.
    #[serde(default)]
    pub disks_only: bool,
    /// Puts the state of the VM's TPM back with the memory: counters and lock-outs go back, and
    /// keys that the guest has deleted since come back. A snapshot with memory of a VM with a TPM
    /// needs this option or `disks_only`.
    #[serde(default)]
    pub tpm: bool,
}
