//! How a VM is, as hostd sees it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_types::{KekId, LeaseStatus, ProviderKey, VmId, VolumeId};
use strongroom_vm::{DiskName, VmName};

use super::change::Epoch;
use super::dump::Dump;
use super::names::VmGeneration;
use super::spec::VmSpec;

/// All VMs of a host: those whose directories are in its datastores, and those that run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedVms {
    /// The epoch of `number`.
    pub epoch: Epoch,
    /// The last change that is in here; ask for those after it.
    pub number: u64,
    /// The VMs, by id.
    pub vms: Vec<ObservedVm>,
}

/// How a VM is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedVm {
    /// Which.
    pub vm: VmId,
    /// Its name.
    pub name: VmName,
    /// Its directory.
    pub directory: PathBuf,
    /// The last start that this host knows of; 0 if it never was started.
    pub generation: VmGeneration,
    /// Whether it runs.
    pub power: PowerState,
    /// Since when: seconds since 1970-01-01 00:00 UTC.
    pub since_unix_seconds: u64,
    /// What answers for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor_pid: Option<u32>,
    /// How many of those that answered for this start of it have died.
    #[serde(default)]
    pub supervisor_deaths: u64,
    /// What it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_pid: Option<u32>,
    /// Whether its TPM has ended, and its guest sees one that fails.
    #[serde(default)]
    pub tpm_lost: bool,
    /// Whether what its network `user` goes through has ended, and its guest reaches nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_lost: bool,
    /// Its volumes; empty while it is off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<ObservedVolume>,
    /// Why it is as it is, where there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<VmReason>,
    /// Keys that it needs and does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<WaitingFor>,
    /// The memory with which it goes on at its next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<SuspendedMemory>,
    /// The dumps of its guest; nothing if whoever tells of it knows of no dumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dumps: Option<Vec<Dump>>,
    /// What its directory says that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Box<VmSpec>>,
}

/// The memory of a VM that was suspended, sealed in its own volume `memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedMemory {
    /// The volume that holds it.
    pub volume: VolumeId,
    /// Memory and devices' state, in bytes.
    pub bytes: u64,
    /// When it was suspended: seconds since 1970-01-01 00:00 UTC.
    pub at_unix_seconds: u64,
}

/// Whether a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerState {
    /// Off, as it should be.
    Stopped,
    /// Its volumes are opened, and QEMU is started.
    Starting,
    /// Its processors run.
    Running,
    /// They are halted.
    Paused,
    /// Its guest was asked to end, or it is cut off.
    Stopping,
    /// Off, and nobody asked for it.
    Crashed,
    /// Off, with its memory sealed: its next start goes on with it.
    Suspended,
    /// It was started and waits for a key; it goes on by itself.
    KeyUnavailable,
}

impl PowerState {
    /// Whether nothing of it runs.
    pub fn is_off(self) -> bool {
        matches!(self, Self::Stopped | Self::Crashed | Self::Suspended)
    }
}

/// Why a VM is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmReason {
    /// A stable name for programs; of [`OffReason`] for a VM that is off, else `paused_by_request`,
    /// `no_space`, `io_error`, `guest_panicked`, `suspending`, `dumping`, `key_unavailable`,
    /// `worker_down`, `adopting`, `tpm_lost`.
    pub code: String,
    /// A sentence.
    pub message: String,
}

/// Why a VM is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OffReason {
    /// It never ran, as far as this host knows.
    NeverStarted,
    /// Its guest shut down.
    GuestShutdown,
    /// Somebody asked for it.
    Stopped,
    /// It was cut off: somebody asked for it, or the guest did not end in time.
    ForcedOff,
    /// It could not be started.
    StartFailed,
    /// QEMU ended by itself, or was killed.
    QemuDied,
    /// A volume could not be served any more.
    VolumeLost,
    /// A key was revoked, and its provider is set up so that this ends what uses it.
    KeyRevoked,
    /// Its memory was sealed, and it goes on with it at its next start.
    Suspended,
    /// Its supervisor died, and so did QEMU: the host lost power, or somebody killed them.
    HostLost,
}

impl OffReason {
    /// Its name in JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::NeverStarted => "never_started",
            Self::GuestShutdown => "guest_shutdown",
            Self::Stopped => "stopped",
            Self::ForcedOff => "forced_off",
            Self::StartFailed => "start_failed",
            Self::QemuDied => "qemu_died",
            Self::VolumeLost => "volume_lost",
            Self::KeyRevoked => "key_revoked",
            Self::Suspended => "suspended",
            Self::HostLost => "host_lost",
        }
    }

    /// What the VM is then.
    pub fn power(self) -> PowerState {
        match self {
            Self::NeverStarted | Self::GuestShutdown | Self::Stopped | Self::ForcedOff => PowerState::Stopped,
            Self::StartFailed | Self::QemuDied | Self::VolumeLost | Self::KeyRevoked | Self::HostLost => {
                PowerState::Crashed
            }
            Self::Suspended => PowerState::Suspended,
        }
    }
}

/// A key that a VM needs and does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// Which.
    pub key: ProviderKey,
    /// Why it cannot be had.
    pub reason: String,
    /// Whether there is no grant left to ask with: bring one
    /// ([`SupplyGrants`](super::OperationKind::SupplyGrants)).
    pub grant_wanted: bool,
}

/// How a volume of a running VM is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedVolume {
    /// The disk.
    pub disk: DiskName,
    /// Whether it is served.
    pub state: VolumeState,
    /// What serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_pid: Option<u32>,
    /// How often a worker died and another one took its place.
    #[serde(default)]
    pub restarts: u64,
    /// How the last worker that died ended, as in `was killed by signal 9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<String>,
    /// Requests that the device failed.
    #[serde(default)]
    pub device_errors: u64,
    /// The KEK that it is under; none for a clear one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kek: Option<KekId>,
    /// How that one stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseStatus>,
}

/// Whether a volume is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Not yet.
    Opening,
    /// It is.
    Serving,
    /// Requests of the guest wait for room in the datastore.
    Parked,
    /// A flush failed, and none succeeds until the VM is started anew.
    FlushFailed,
    /// Its worker died, and another one is on its way.
    Restarting,
    /// Its worker died, and the key for another one cannot be had.
    KeyUnavailable,
    /// Not any more.
    Closed,
}
