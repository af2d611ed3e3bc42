//! The state of VMs as hostd sees it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_types::{KekId, LeaseStatus, ProviderKey, ProviderName, VmId, VolumeId};
use strongroom_vm::{DiskName, VmName};

use super::change::Epoch;
use super::dump::Dump;
use super::names::VmGeneration;
use super::snapshot::VmSnapshots;
use super::spec::VmSpec;

/// All VMs of a host: those with a directory in one of its datastores, and those that run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedVms {
    /// The epoch of `number`.
    pub epoch: Epoch,
    /// The last change that the list includes; the client asks for later ones.
    pub number: u64,
    /// The VMs, by id.
    pub vms: Vec<ObservedVm>,
}

/// The most VMs of a [`VmReadingsRequest`].
pub const VM_READINGS_MAX: usize = 256;

/// A request for the states of some VMs of a host (format 3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmReadingsRequest {
    /// The VMs.
    pub vms: Vec<VmId>,
}

/// The states of those of the VMs that the host has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmReadings {
    /// The VMs, in the order of the request.
    pub vms: Vec<ObservedVm>,
}

/// The state of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedVm {
    /// Its id.
    pub vm: VmId,
    /// Its name.
    pub name: VmName,
    /// Its directory.
    pub directory: PathBuf,
    /// The last start that this host knows of; 0 if it was never started.
    pub generation: VmGeneration,
    /// Its power state.
    pub power: PowerState,
    /// When that state began: seconds since 1970-01-01 00:00 UTC.
    pub since_unix_seconds: u64,
    /// The process id of its supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor_pid: Option<u32>,
    /// The number of supervisors of this start that have died.
    #[serde(default)]
    pub supervisor_deaths: u64,
    /// The process id of its QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_pid: Option<u32>,
    /// Whether its swtpm has ended, so that its guest sees a failed TPM.
    #[serde(default)]
    pub tpm_lost: bool,
    /// Whether the process behind its network `user` has ended, so that its guest is disconnected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_lost: bool,
    /// Its volumes; empty while it is off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<ObservedVolume>,
    /// The reason for its state, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<VmReason>,
    /// The keys that it needs and does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<WaitingFor>,
    /// The saved memory that its next start resumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<SavedMemory>,
    /// The dumps of its guest; absent if the sender does not support dumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dumps: Option<Vec<Dump>>,
    /// Its snapshots; absent if the sender does not support snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<VmSnapshots>,
    /// The configuration in its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Box<VmSpec>>,
}

/// A guest's memory and devices' state, sealed in one of the VM's own volumes: those of a suspended
/// VM in `memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMemory {
    /// The volume that holds it.
    pub volume: VolumeId,
    /// Memory and devices' state, in bytes.
    pub bytes: u64,
    /// When it was saved: seconds since 1970-01-01 00:00 UTC.
    pub at_unix_seconds: u64,
}

/// The power state of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerState {
    /// Off, as it should be.
    Stopped,
    /// Its volumes are being opened, or its QEMU is being started.
    Starting,
    /// Its processors run.
    Running,
    /// Its processors are paused.
    Paused,
    /// Its guest was asked to shut down, or it is being stopped by force.
    Stopping,
    /// Off, without a request.
    Crashed,
    /// Off, with its memory sealed: its next start resumes it.
    Suspended,
    /// It was started and waits for a key. It continues automatically.
    KeyUnavailable,
}

impl PowerState {
    /// Whether none of its processes runs.
    pub fn is_off(self) -> bool {
        matches!(self, Self::Stopped | Self::Crashed | Self::Suspended)
    }
}

/// The reason for a VM's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmReason {
    /// A stable name for programs: the code of an [`OffReason`] for a VM that is off, otherwise
    /// `paused_by_request`, `no_space`, `io_error`, `guest_panicked`, `suspending`, `dumping`,
    /// `key_unavailable`, `worker_down`, `adopting` or `tpm_lost`.
    pub code: String,
    /// A sentence for people.
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
    /// It was stopped on request.
    Stopped,
    /// It was stopped by force, on request or because the guest did not shut down in time.
    ForcedOff,
    /// Its start failed.
    StartFailed,
    /// QEMU ended by itself, or was killed.
    QemuDied,
    /// A volume could no longer be served.
    VolumeLost,
    /// A key was revoked, and its provider is configured to end VMs that use a revoked key.
    KeyRevoked,
    /// Its memory was sealed, and its next start resumes it.
    Suspended,
    /// Its supervisor and QEMU both died: the host lost power, or they were killed.
    HostLost,
}

impl OffReason {
    /// Its code in JSON.
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

    /// The power state that follows from it.
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
    /// The key.
    pub key: ProviderKey,
    /// Why the key is unavailable.
    pub reason: String,
    /// The provider that is unavailable, if it is another one than the key's own, which is its
    /// broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<ProviderName>,
    /// Whether it has no grant left to fetch the key with.
    /// [`SupplyGrants`](super::OperationKind::SupplyGrants) brings one.
    pub grant_wanted: bool,
}

/// The state of a running VM's volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedVolume {
    /// The disk.
    pub disk: DiskName,
    /// Its state.
    pub state: VolumeState,
    /// The process id of its worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_pid: Option<u32>,
    /// How often a worker died and was replaced.
    #[serde(default)]
    pub restarts: u64,
    /// How the last worker that died ended, as in `was killed by signal 9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<String>,
    /// The number of requests that the device failed.
    #[serde(default)]
    pub device_errors: u64,
    /// The KEK that it is under; absent for a clear volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kek: Option<KekId>,
    /// The state of that KEK's lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseStatus>,
}

/// The state of a served volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// It is not served yet.
    Opening,
    /// It is served.
    Serving,
    /// Requests of the guest wait for room in the datastore.
    Parked,
    /// A flush failed. All later flushes fail until the VM is restarted.
    FlushFailed,
    /// Its worker died, and another is starting.
    Restarting,
    /// Its worker died, and the key for another is unavailable.
    KeyUnavailable,
    /// It is no longer served.
    Closed,
}
