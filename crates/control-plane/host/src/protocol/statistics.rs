//! What the guests of VMs asked of their disks.

use serde::{Deserialize, Serialize};
use strongroom_statistics::Snapshot;
use strongroom_types::VmId;
use strongroom_vm::DiskName;

/// What a VM's guest asked of its disks since they are served: the counters begin anew at each
/// start of the VM, and when its supervisor died and another one took over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmStatistics {
    /// Which VM.
    pub vm: VmId,
    /// Its disks, and those of the VM's own volumes that its guest reaches; empty while it is off.
    pub disks: Vec<DiskStatistics>,
}

/// What was asked of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatistics {
    /// Which.
    pub disk: DiskName,
    /// So much.
    pub snapshot: Snapshot,
}
