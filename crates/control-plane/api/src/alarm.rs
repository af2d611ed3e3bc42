//! Alarms: the troubles that exist now. They are raised and cleared automatically.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::object::ObjectRef;

/// An alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alarm {
    /// The kind of trouble.
    pub kind: AlarmKind,
    /// Its severity.
    pub severity: Severity,
    /// The object that is in trouble.
    pub object: ObjectRef,
    /// One sentence for people.
    pub message: String,
    /// The next step for an operator.
    pub next_step: String,
    /// When the trouble began, in milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlarmKind {
    /// A VM's key is unavailable.
    KeyUnavailable,
    /// A key is close to its replacement date, or past it.
    KeyExpiry,
    /// A certificate expires soon, or has expired.
    CertificateExpiry,
    /// The key server has no recent backup.
    KeyServerUnbacked,
    /// The inventory has no recent backup.
    InventoryUnbacked,
    /// A VM's record is from a backup of the inventory, and its host has something else.
    VmOutdated,
    /// A key provider does not answer.
    KeyProviderDown,
    /// A datastore is full or almost full.
    DatastoreFull,
    /// A datastore cannot be read or written.
    DatastoreUnavailable,
    /// The VMs have been promised more than the host or datastore has.
    Overcommit,
    /// A host does not answer.
    HostDown,
    /// A host is in maintenance.
    HostMaintenance,
    /// The clock of a host differs from the control plane's.
    ClockOff,
    /// A host runs a VM that belongs to another one.
    RunsElsewhere,
    /// Memory of a host can reach a disk although its owner demanded that it cannot.
    HostNotCryptoSafe,
    /// A host cannot give a processor that a policy demands.
    HostLacksProcessor,
    /// A VM crashed and is not restarted automatically.
    VmCrashed,
    /// A VM runs with a failed TPM.
    TpmLost,
    /// A VM runs with a disconnected network card.
    NetworkLost,
    /// The file systems of a VM's guest were frozen for a snapshot, and its agent has not confirmed
    /// that they are thawed.
    GuestMayBeFrozen,
    /// A disk of a VM has requests in flight and has completed none for a while.
    DiskStalled,
    /// A disk of a VM is slower than the VM's policy, or the default, allows.
    DiskSlow,
    /// A scheduled snapshot of a VM failed, or could not be made in time.
    SnapshotMissed,
    /// The cryptoperiod of a VM's data keys is over, and they were not renewed.
    DataKeysOverdue,
    /// A host runs a VM, or a datastore holds one, that is not in the inventory.
    Orphan,
    /// The inventory has a VM that its host cannot find.
    VmMissing,
    /// The access log is full or almost full of entries that have to be kept.
    AccessLogFull,
    /// The chain of the access log is broken: entries were changed, removed or added.
    AccessLogBroken,
    /// A VM deviates from the rules of its policy.
    PolicyViolated,
    /// A recipient does not take messages about alarms.
    RecipientUnreachable,
    /// Somebody used an emergency credential, and nobody has acknowledged it.
    EmergencyAccess,
    /// A kind that this version of the program does not know.
    #[serde(other)]
    Unknown,
}

impl AlarmKind {
    /// Its name in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyUnavailable => "key_unavailable",
            Self::KeyExpiry => "key_expiry",
            Self::CertificateExpiry => "certificate_expiry",
            Self::KeyServerUnbacked => "key_server_unbacked",
            Self::InventoryUnbacked => "inventory_unbacked",
            Self::VmOutdated => "vm_outdated",
            Self::KeyProviderDown => "key_provider_down",
            Self::DatastoreFull => "datastore_full",
            Self::TpmLost => "tpm_lost",
            Self::NetworkLost => "network_lost",
            Self::GuestMayBeFrozen => "guest_may_be_frozen",
            Self::DiskStalled => "disk_stalled",
            Self::DiskSlow => "disk_slow",
            Self::DatastoreUnavailable => "datastore_unavailable",
            Self::Overcommit => "overcommit",
            Self::HostDown => "host_down",
            Self::HostMaintenance => "host_maintenance",
            Self::ClockOff => "clock_off",
            Self::RunsElsewhere => "runs_elsewhere",
            Self::HostNotCryptoSafe => "host_not_crypto_safe",
            Self::HostLacksProcessor => "host_lacks_processor",
            Self::VmCrashed => "vm_crashed",
            Self::SnapshotMissed => "snapshot_missed",
            Self::DataKeysOverdue => "data_keys_overdue",
            Self::Orphan => "orphan",
            Self::VmMissing => "vm_missing",
            Self::AccessLogFull => "access_log_full",
            Self::AccessLogBroken => "access_log_broken",
            Self::PolicyViolated => "policy_violated",
            Self::RecipientUnreachable => "recipient_unreachable",
            Self::EmergencyAccess => "emergency_access",
            Self::Unknown => "unknown",
        }
    }
}

/// The severity of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something will go wrong.
    Warning,
    /// Something is wrong.
    Critical,
}

impl Severity {
    /// Its name in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}
