//! Whether a VM's own supervisor wrote the configuration that is in a datastore.

use serde::{Deserialize, Serialize};

use super::{Grant, VmSpec};

/// The configuration to judge, and grants for the keys that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeRequest {
    /// The configuration, as the VM's directory was read.
    pub spec: Box<VmSpec>,
    /// One grant for each key.
    #[serde(default)]
    pub grants: Vec<Grant>,
}

/// The result of a judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// The objections to the configuration. If there are none, its author had all of the VM's keys.
    pub doubts: Vec<String>,
}
