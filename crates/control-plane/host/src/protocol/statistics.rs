//! Disk counters of VMs.

use serde::{Deserialize, Serialize};
use strongroom_statistics::Snapshot;
use strongroom_types::VmId;
use strongroom_vm::DiskName;

/// The counters of a VM's disks. They are reset at each start of the VM, and when another
/// supervisor takes over from one that died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmStatistics {
    /// The VM.
    pub vm: VmId,
    /// Its disks, and its own volumes that its guest reaches; empty while it is off.
    pub disks: Vec<DiskStatistics>,
}

/// The counters of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatistics {
    /// The disk.
    pub disk: DiskName,
    /// The counters.
    pub snapshot: Snapshot,
}
