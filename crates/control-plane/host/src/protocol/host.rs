//! How a host is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_types::DatastoreId;

use super::change::Epoch;

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The version of hostd.
    pub version: String,
    /// Of this run of hostd.
    pub epoch: Epoch,
    /// The processors that hostd may use.
    pub cpus: u32,
    /// All memory, in bytes.
    pub memory_bytes: u64,
    /// Memory that can be had without taking it from anyone, in bytes.
    pub memory_available_bytes: u64,
    /// How processors and memory lie.
    pub topology: Topology,
    /// What guests run on.
    pub accelerator: Accelerator,
    /// What VMs are started with; nothing of a hostd that does not say.
    #[serde(default)]
    pub programs: Option<Programs>,
    /// Where kernels, initial ram disks and CD-ROM images may be.
    #[serde(default)]
    pub boot_directories: Vec<PathBuf>,
    /// Where volumes are.
    pub datastores: Vec<Datastore>,
    /// Whether what is in memory stays there.
    pub crypto_safe: CryptoSafe,
    /// VMs that are not off.
    pub vms_running: u32,
    /// Operations that are being done.
    pub operations_running: u32,
    /// Operations that wait for their turn.
    pub operations_queued: u32,
}

/// The programs and the firmware that VMs are started with; nothing for what is not installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// QEMU.
    pub qemu: Option<QemuFound>,
    /// UEFI's code.
    pub uefi: Option<PathBuf>,
    /// What connects guests by the network `user`.
    pub passt: Option<PathBuf>,
    /// What emulates TPMs.
    pub swtpm: Option<PathBuf>,
}

/// QEMU, as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QemuFound {
    /// The program.
    pub path: PathBuf,
    /// Its version, as `7.2`.
    pub version: String,
}

/// How processors and memory lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Sockets.
    pub sockets: u32,
    /// Cores of all sockets.
    pub cores: u32,
    /// Threads of all cores.
    pub threads: u32,
    /// Memory of each NUMA node, in bytes.
    pub node_memory_bytes: Vec<u64>,
}

/// What guests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// The processors.
    Kvm,
    /// An emulation of them, which is slow.
    Tcg,
}

/// A place for volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datastore {
    /// Its directory.
    pub path: PathBuf,
    /// Which it is; unknown while it is not there.
    pub id: Option<DatastoreId>,
    /// All space, in bytes.
    pub total_bytes: u64,
    /// Space that volumes can still take, in bytes.
    pub free_bytes: u64,
    /// Whether it can be used.
    pub state: DatastoreState,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a datastore can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatastoreState {
    /// It can.
    Ready,
    /// It can be read, and nothing new fits.
    Full,
    /// It is not there, or is another one than it was.
    Missing,
}

/// What is to be used as a datastore. It is marked with an id, if it has none, and its directory
/// made, if only that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatastoreRequest {
    /// Its directory: an absolute path.
    pub path: PathBuf,
}

/// Whether what is in the host's memory stays there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CryptoSafe {
    /// Whether.
    pub state: CryptoSafeState,
    /// Why not.
    pub reasons: Vec<String>,
    /// Whether VMs with encrypted disks are refused where it does not.
    #[serde(default)]
    pub required: bool,
}

/// Whether a host may run VMs that must stay secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CryptoSafeState {
    /// It cannot: something writes memory out.
    Incapable,
    /// It could, and was not told to.
    Prepared,
    /// It does.
    Safe,
    /// It was, and something has changed: VMs that run go on, none is started.
    PendingIncapable,
}
