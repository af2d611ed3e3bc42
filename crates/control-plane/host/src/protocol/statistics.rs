//! Disk counters of VMs, and their processor time.

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
    /// Its virtual processors; absent while it is off, and if the host does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<ProcessorStatistics>,
}

/// The time of a VM's virtual processors, since the start of its QEMU. It is lower than before if
/// another QEMU has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorStatistics {
    /// When it was read, in milliseconds since 1970.
    pub read_unix_ms: u64,
    /// The number of virtual processors.
    pub vcpus: u32,
    /// For how long they have run, all together, in nanoseconds.
    pub run_ns: u64,
    /// For how long they could have run and had to wait for a processor of the host, all together,
    /// in nanoseconds: what a guest sees as stolen.
    pub wait_ns: u64,
}

/// The counters of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatistics {
    /// The disk.
    pub disk: DiskName,
    /// The counters.
    pub snapshot: Snapshot,
}
