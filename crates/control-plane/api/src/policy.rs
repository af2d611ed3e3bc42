//! Policies: rules that VMs must keep.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use strongroom_types::{IoLimits, MigrationMode};

use crate::name::Name;
use crate::object_only::object_only;
use crate::vm::{ProcessorModel, RestartPolicy, SnapshotRule};

/// A request for a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePolicy {
    /// Its name.
    pub name: Name,
    /// Its purpose, for people.
    #[schema(max_length = 1024)]
    #[serde(default)]
    pub description: String,
    /// Its rules.
    #[serde(default)]
    pub rules: PolicyRules,
}

/// A request to change a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    /// Its rules, in the place of those that it has. VMs that do not keep them stay as they are,
    /// and deviate.
    #[serde(deserialize_with = "object_only")]
    pub rules: PolicyRules,
}

/// A request to end what VMs of a policy deviate in, as far as a request can: disks are encrypted,
/// keys exchanged, limits narrowed, snapshots scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyPolicy {}

/// The rules of a policy. They apply to VMs that are created under it, and no request is accepted
/// with which such a VM would deviate from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRules {
    /// Whether a VM must be encrypted.
    #[serde(default)]
    pub encryption_required: bool,
    /// The key provider of its VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_provider: Option<Name>,
    /// Whether a VM must have a TPM.
    #[serde(default)]
    pub tpm_required: bool,
    /// Whether the encrypted disks of a VM that keep data must have integrity tags. New disks get
    /// them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub integrity_required: bool,
    /// The widest limits of a disk. New disks get them.
    #[serde(default, skip_serializing_if = "IoLimits::is_none", deserialize_with = "object_only")]
    pub disk_limits: IoLimits,
    /// Whether the disks of a VM take their whole space from their datastore when they are made.
    /// New disks do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thick_required: bool,
    /// The losses at one time after which all data of a VM is still there, at least: its datastore
    /// is on a Ceph cluster whose pools outlive as many.
    #[schema(maximum = 16)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses_survived: Option<u8>,
    /// The snapshots that are made of a VM at least: it has each of these rules, or one of the same
    /// period that keeps more. New VMs get them.
    #[schema(max_items = 8)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotRule>,
    /// The processor of its VMs: `host`, a level such as `x86-64-v3`, or a model of QEMU. New VMs
    /// get it. Absent: each VM decides.
    #[schema(value_type = Option<String>, max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<ProcessorModel>,
    /// How the memory of its VMs passes to another host when they move while they run. Absent: as
    /// `required`, which also holds for every VM that is encrypted, or was, whatever is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationMode>,
    /// Whether consoles and screens of its VMs are refused to browsers, and images from there: what
    /// passes is plain text in a process of the control plane's machine. Programs reach them at the
    /// VM's host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub browser_console_denied: bool,
    /// Whether its VMs run only on hosts where no secret can reach a disk.
    #[serde(default)]
    pub crypto_safe_hosts: bool,
    /// Whether its VMs are restarted automatically. Absent: each VM decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
    /// The latency in milliseconds that 99 of 100 requests to a disk should keep below. An alarm is
    /// raised after five minutes above it. The default is 500; 0 turns this alarm off.
    #[schema(maximum = 60_000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_latency_p99_ms: Option<u32>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Its purpose, for people.
    pub description: String,
    /// Its rules.
    pub rules: PolicyRules,
    /// The number of VMs under it.
    pub vms: u64,
    /// Those of them that deviate from its rules, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deviating: Vec<Name>,
}

/// What of a VM its policy does not permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deviation {
    /// The rule.
    pub rule: PolicyRule,
    /// The disk, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// One sentence for people.
    pub message: String,
    /// What ends it.
    pub next_step: String,
}

/// A rule that a VM can deviate from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyRule {
    /// `encryption_required`.
    Encryption,
    /// `key_provider`.
    KeyProvider,
    /// `tpm_required`.
    Tpm,
    /// `integrity_required`.
    Integrity,
    /// `disk_limits`.
    DiskLimits,
    /// `thick_required`.
    Provisioning,
    /// `losses_survived`.
    Redundancy,
    /// `snapshots`.
    Snapshots,
    /// `processor`.
    Processor,
}
