//! The state of a host.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_types::{CephMount, CephUser, DatastoreId, Redundancy};
use strongroom_vm::Capabilities;
use strongroom_wire::Formats;

use super::change::Epoch;
use super::term::FIRST_FORMATS;

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The version of hostd.
    pub version: String,
    /// The formats of requests that it reads.
    #[serde(default = "first_formats")]
    pub formats: Formats,
    /// The epoch of this run of hostd.
    pub epoch: Epoch,
    /// The id of the machine's last start, as its kernel makes it; absent from a hostd that does
    /// not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Its clock as it answers, in milliseconds since 1970; absent from a hostd that does not
    /// report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now_unix_ms: Option<u64>,
    /// The processors that hostd may use.
    pub cpus: u32,
    /// The model of its processors, as the kernel names it; absent from a hostd that does not
    /// report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// What its QEMU can give to guests; absent if there is none, and from a hostd that does not
    /// report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Total memory, in bytes.
    pub memory_bytes: u64,
    /// Available memory, in bytes: what a process can get without swapping.
    pub memory_available_bytes: u64,
    /// Its processors and memory nodes.
    pub topology: Topology,
    /// The accelerator for guests.
    pub accelerator: Accelerator,
    /// The programs that VMs are started with; absent from a hostd that does not report them.
    #[serde(default)]
    pub programs: Option<Programs>,
    /// Whether it keeps TPMs of VMs whose directories are on clusters; absent from a hostd that
    /// does not.
    #[serde(default)]
    pub tpms_on_clusters: bool,
    /// Whether VMs with a TPM move from and to it while they run; absent from a hostd whose do not.
    #[serde(default)]
    pub live_tpms: bool,
    /// Whether consoles are taken over, and screens are shown to who only looks.
    #[serde(default)]
    pub consoles_change_hands: bool,
    /// The directories that may hold kernels, initial ram disks and CD-ROM images.
    #[serde(default)]
    pub boot_directories: Vec<PathBuf>,
    /// Its datastores.
    pub datastores: Vec<Datastore>,
    /// Whether memory can reach a disk.
    pub crypto_safe: CryptoSafe,
    /// The number of VMs that are not off.
    pub vms_running: u32,
    /// The number of operations in progress.
    pub operations_running: u32,
    /// The number of operations in the queue.
    pub operations_queued: u32,
}

fn first_formats() -> Formats {
    FIRST_FORMATS
}

/// The programs and the firmware that VMs are started with; one that is not installed is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// QEMU.
    pub qemu: Option<QemuFound>,
    /// The code image of UEFI.
    pub uefi: Option<PathBuf>,
    /// passt, which connects guests to the network `user`.
    pub passt: Option<PathBuf>,
    /// swtpm, which emulates TPMs.
    pub swtpm: Option<PathBuf>,
}

/// The installed QEMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QemuFound {
    /// Its path.
    pub path: PathBuf,
    /// Its version, as `7.2`.
    pub version: String,
}

/// The processors and memory nodes of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The number of sockets.
    pub sockets: u32,
    /// The number of cores in all sockets.
    pub cores: u32,
    /// The number of threads in all cores.
    pub threads: u32,
    /// Memory of each NUMA node, in bytes.
    pub node_memory_bytes: Vec<u64>,
}

/// The accelerator for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// KVM.
    Kvm,
    /// Emulation, which is slow.
    Tcg,
}

/// A directory for volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datastore {
    /// Its directory.
    pub path: PathBuf,
    /// Its id; unknown while it is missing.
    pub id: Option<DatastoreId>,
    /// The size of its file system, in bytes.
    pub total_bytes: u64,
    /// Free space for volumes, in bytes.
    pub free_bytes: u64,
    /// Whether it can be used.
    pub state: DatastoreState,
    /// The reason if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many losses its data outlives, if it is on a cluster. Earlier hosts do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<Redundancy>,
}

/// The state of a datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatastoreState {
    /// It can be used.
    Ready,
    /// It can be read, but is full.
    Full,
    /// It is missing, or another datastore is in its place.
    Missing,
}

/// A request to use a directory as a datastore. It gets an id if it has none, and is created if
/// only its last component is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatastoreRequest {
    /// Its directory: an absolute path.
    pub path: PathBuf,
    /// The id that it must have already. The directory is then neither marked nor created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<DatastoreId>,
    /// For a datastore on a Ceph cluster: where it lies there. Its path is then `CLUSTERS` of the
    /// room `datastore` in the request, and that of its id in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph: Option<CephMount>,
}

/// A request about another host of a datastore on a cluster, which is lost, or back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FencingRequest {
    /// The datastore, which this host reaches.
    pub datastore: DatastoreId,
    /// The user that the other host is to the cluster.
    pub user: CephUser,
    /// What becomes of it.
    pub fencing: Fencing,
}

/// What becomes of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fencing {
    /// No write of it can land any more, its locks are free, and it cannot connect.
    Fence,
    /// It can connect again. What it had open stays refused.
    Admit,
}

/// Whether secrets in the host's memory stay off its disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CryptoSafe {
    /// The state.
    pub state: CryptoSafeState,
    /// The reasons, unless it is safe.
    pub reasons: Vec<String>,
    /// Whether this host refuses VMs with encrypted disks unless it is safe.
    #[serde(default)]
    pub required: bool,
}

/// Whether a host may run VMs whose memory must not reach a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CryptoSafeState {
    /// It may not: something on it writes memory to a disk.
    Incapable,
    /// It could, but is not configured to.
    Prepared,
    /// It may.
    Safe,
    /// It was safe, and has changed: running VMs go on, but none is started.
    PendingIncapable,
}
