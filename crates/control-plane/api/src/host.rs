//! Machines that run VMs.

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
    /// The version of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Processors.
    pub cpus: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// What of it is free, in bytes.
    pub memory_free_bytes: u64,
    /// What guests run with: `kvm` or `tcg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// The programs and the firmware that VMs are started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<HostPrograms>,
    /// Where kernels, initial ram disks and CD-ROM images of VMs may be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot_directories: Vec<String>,
    /// Whether secrets can reach a disk of it: `incapable`, `prepared`, `safe` or
    /// `pending-incapable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crypto_safe: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crypto_safe_reasons: Vec<String>,
    /// VMs that run on it.
    pub vms_running: u32,
    /// Operations that it does now.
    pub operations_running: u32,
    /// Operations that wait.
    pub operations_waiting: u32,
}

/// What a host starts VMs with, each by its path; what is not installed is not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostPrograms {
    /// QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// QEMU's version, as `7.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_version: Option<String>,
    /// UEFI for guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uefi: Option<String>,
    /// What connects guests by the network `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passt: Option<String>,
    /// What emulates TPMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swtpm: Option<String>,
}

/// Whether a host answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It does.
    Connected,
    /// It does not.
    Disconnected,
    /// It has not been asked yet.
    #[default]
    #[serde(other)]
    Unknown,
}
