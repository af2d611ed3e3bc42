//! Changes since a client's last request.

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;

use super::names::OperationId;
use super::operation::Operation;

/// One run of hostd. Change numbers belong to an epoch; after a restart, with a new epoch, a client
/// reads everything again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub uuid::Uuid);

/// What has changed. It names the changed objects, not their new state. An object that changes
/// often is listed once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// The epoch of the numbers.
    pub epoch: Epoch,
    /// The number of the last change: the next request asks for those after it.
    pub number: u64,
    /// Whether hostd no longer has some of the requested changes. The client then reads everything.
    pub read_all: bool,
    /// The changes, oldest first.
    pub changes: Vec<Change>,
    /// Of the operations among them, some that have ended: who waits for one need not ask for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Operation>,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its number, counted from 1.
    pub number: u64,
    /// The changed object.
    #[serde(flatten)]
    pub object: ChangedObject,
}

/// An object that changes.
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
