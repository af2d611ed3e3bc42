//! The one record of a snapshot of several VMs.

use serde::{Deserialize, Serialize};
use strongroom_api::Name;
use strongroom_types::{SnapshotId, SnapshotName, VmId};

/// A snapshot of several VMs at one instant. Without this record, or before it says so, no VM has
/// its part: the hosts' reports decide nothing about that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The id of the snapshot in each of the VMs.
    pub snapshot: SnapshotId,
    /// Its name.
    pub name: SnapshotName,
    /// The VMs, and holders of volumes, in the order of the request.
    pub members: Vec<GroupMember>,
    /// Its state.
    pub state: GroupState,
}

/// A VM of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMember {
    /// The VM.
    pub vm: VmId,
    /// Its name at that time.
    pub name: Name,
}

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupState {
    /// A task is making it.
    Making,
    /// It exists: every VM has its part, durably. Their hosts are being told to list it.
    Made,
    /// Callers see it.
    Listed,
    /// It was given up, and a VM may have a part of it until its next change.
    Void,
}

impl GroupRecord {
    /// Whether callers see the snapshot in its VMs: in all of them from the same moment on.
    pub fn is_listed(&self) -> bool {
        self.state == GroupState::Listed
    }
}
