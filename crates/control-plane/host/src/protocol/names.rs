//! What operations and starts of VMs are called. VMs and disks have their names of `strongroom_vm`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_types::{IdError, parse_id};

/// Names one operation, by whoever asks for it: asked again with the same id, it is the same
/// operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(uuid::Uuid);

impl OperationId {
    /// A new one.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4())
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({})", self.0.hyphenated())
    }
}

impl FromStr for OperationId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        parse_id(text).map(Self)
    }
}

/// Which start of a VM this is. The control plane counts them from 1, for life; a host starts none
/// that is not above the last one, so that no order of before starts a VM again. Grants name it
/// too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmGeneration(pub u64);

impl fmt::Display for VmGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
