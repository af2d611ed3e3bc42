//! Whether a VM that lies in a datastore is what its own supervisor wrote there.

use serde::{Deserialize, Serialize};

use super::{Grant, VmSpec};

/// Which configuration is judged, and leave to fetch the keys that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeRequest {
    /// The configuration, as the VM's directory was read.
    pub spec: Box<VmSpec>,
    /// One for each key.
    #[serde(default)]
    pub grants: Vec<Grant>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// What speaks against the configuration. With nothing, whoever wrote it had all of the VM's
    /// keys.
    pub doubts: Vec<String>,
}
