//! The machines that run VMs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub state: HostState,
    /// The version of Strongroom on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The number of its processors.
    pub cpus: u32,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Its free memory, in bytes.
    pub memory_free_bytes: u64,
    /// The accelerator that guests run with: `kvm` or `tcg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// The programs and the firmware that VMs are started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<HostPrograms>,
    /// The directories that may hold kernels, initial ram disks and CD-ROM images of VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot_directories: Vec<String>,
    /// Whether secrets can reach one of its disks: `incapable`, `prepared`, `safe` or
    /// `pending-incapable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crypto_safe: Option<String>,
    /// The reasons for that state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crypto_safe_reasons: Vec<String>,
    /// The number of VMs that run on it.
    pub vms_running: u32,
    /// The number of operations in progress.
    pub operations_running: u32,
    /// The number of queued operations.
    pub operations_waiting: u32,
}

/// The programs that a host starts VMs with, each by its path; a program that is not installed is
/// absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostPrograms {
    /// QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// QEMU's version, as `7.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_version: Option<String>,
    /// The UEFI firmware for guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uefi: Option<String>,
    /// passt, which connects guests to the network `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passt: Option<String>,
    /// swtpm, which emulates TPMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swtpm: Option<String>,
}

/// Whether a host answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It answers.
    Connected,
    /// It does not answer.
    Disconnected,
    /// It has not been asked yet.
    #[default]
    #[serde(other)]
    Unknown,
}
