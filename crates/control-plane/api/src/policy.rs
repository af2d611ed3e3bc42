//! What VMs must have.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::name::Name;
use crate::vm::RestartPolicy;

/// A policy that is wished for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePolicy {
    /// Its name.
    pub name: Name,
    /// What it is for.
    #[schema(max_length = 1024)]
    #[serde(default)]
    pub description: String,
    /// What it says.
    #[serde(default)]
    pub rules: PolicyRules,
}

/// What a policy says. It holds for VMs that are created under it, and is looked at again when they
/// are changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRules {
    /// Whether a VM must be sealed.
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
    /// Whether its VMs are started again by themselves; none: as each VM says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
    /// The latency in milliseconds that 99 of 100 requests to a disk should keep below; beyond it
    /// for five minutes, an alarm is raised. None: 500. 0: no such alarm.
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
    /// What it is for.
    pub description: String,
    /// What it says.
    pub rules: PolicyRules,
    /// How many VMs it holds for.
    pub vms: u64,
}
