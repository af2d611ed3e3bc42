//! Alarms: what is wrong now. They are raised and cleared by themselves.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::object::ObjectRef;

/// An alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alarm {
    /// What kind of trouble.
    pub kind: AlarmKind,
    /// How bad it is.
    pub severity: Severity,
    /// Of what.
    pub object: ObjectRef,
    /// One sentence.
    pub message: String,
    /// What to do.
    pub next_step: String,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlarmKind {
    /// A VM's key cannot be had.
    KeyUnavailable,
    /// A key should be replaced soon, or should have been.
    KeyExpiry,
    /// A certificate ends soon, or has ended.
    CertificateExpiry,
    /// The key server has no backup that is new enough.
    KeyServerUnbacked,
    /// A key provider does not answer.
    KeyProviderDown,
    /// A datastore has no room, or hardly any.
    DatastoreFull,
    /// A datastore cannot be read or written.
    DatastoreUnavailable,
    /// VMs have been promised more than there is.
    Overcommit,
    /// A host does not answer.
    HostDown,
    /// Memory of a host can come to a disk, where its owner asked that it does not.
    HostNotCryptoSafe,
    /// A VM ended without being told to, and is not started again by itself.
    VmCrashed,
    /// A VM runs with a TPM that fails.
    TpmLost,
    /// A VM runs with a network card that reaches nothing.
    NetworkLost,
    /// A disk of a VM has completed nothing for a while, with requests in flight.
    DiskStalled,
    /// A disk of a VM is slower than its VM's policy, or what is usual, allows.
    DiskSlow,
    /// A host runs a VM, or a datastore holds one, that the inventory does not know.
    Orphan,
    /// The inventory has a VM that its host does not find.
    VmMissing,
    /// One that this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl AlarmKind {
    /// Its name as in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyUnavailable => "key_unavailable",
            Self::KeyExpiry => "key_expiry",
            Self::CertificateExpiry => "certificate_expiry",
            Self::KeyServerUnbacked => "key_server_unbacked",
            Self::KeyProviderDown => "key_provider_down",
            Self::DatastoreFull => "datastore_full",
            Self::TpmLost => "tpm_lost",
            Self::NetworkLost => "network_lost",
            Self::DiskStalled => "disk_stalled",
            Self::DiskSlow => "disk_slow",
            Self::DatastoreUnavailable => "datastore_unavailable",
            Self::Overcommit => "overcommit",
            Self::HostDown => "host_down",
            Self::HostNotCryptoSafe => "host_not_crypto_safe",
            Self::VmCrashed => "vm_crashed",
            Self::Orphan => "orphan",
            Self::VmMissing => "vm_missing",
            Self::Unknown => "unknown",
        }
    }
}

/// How bad an alarm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something will go wrong.
    Warning,
    /// Something is wrong.
    Critical,
}
