//! What has changed since somebody last asked.

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;

use super::names::OperationId;

/// One run of hostd. Numbers of changes are of one epoch; after a restart there is another one, and
/// all is to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub uuid::Uuid);

/// What has changed. It says what to look at, not how that is: the same thing that changes often is
/// there once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Of these numbers.
    pub epoch: Epoch,
    /// The last one: ask for those after it.
    pub number: u64,
    /// Whether some after the number that was asked for are not known any more: read everything.
    pub read_all: bool,
    /// The changes, oldest first.
    pub changes: Vec<Change>,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its number, from 1, growing.
    pub number: u64,
    /// What has changed.
    #[serde(flatten)]
    pub object: ChangedObject,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangedObject {
    /// A VM.
    Vm(VmId),
    /// An operation.
    Operation(OperationId),
    /// The host: its datastores, or whether it is crypto-safe.
    Host,
}
