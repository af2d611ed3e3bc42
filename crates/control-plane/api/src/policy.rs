//! Policies: rules that VMs must keep.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::name::Name;
use crate::vm::RestartPolicy;

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

/// The rules of a policy. They apply to VMs that are created under it, and are checked again when
/// such a VM is changed.
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
}
