//! Ids of operations, and numbers of starts. The names of VMs and disks are those of
//! `strongroom_vm`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_types::{IdError, parse_id};

/// The id of an operation, chosen by the client: a request with the same id is the same operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(uuid::Uuid);

impl OperationId {
    /// Makes a random id.
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

/// An attempt to make a snapshot of several VMs at one instant. An order of one attempt has no
/// effect on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupAttempt(uuid::Uuid);

impl GroupAttempt {
    /// A new attempt.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4())
    }
}

/// A VM's handover from one host to another. The former host writes it into the VM's directory, and
/// the next one finds it there: so both see the same storage, and neither a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HandoverId(uuid::Uuid);

impl HandoverId {
    /// A new handover.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4())
    }
}

impl fmt::Display for HandoverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The number of a VM's start. The control plane counts from 1 for the life of the VM. A host only
/// starts a generation above the last one, so that an old order cannot start a VM again. Grants
/// name it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmGeneration(pub u64);

impl fmt::Display for VmGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
