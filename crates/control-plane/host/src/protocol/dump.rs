//! Dumps of guests, as they are spoken of. Nothing of what is in them is here.

use serde::{Deserialize, Serialize};
use strongroom_types::VolumeId;

use super::names::OperationId;
use super::problem::Problem;

/// The memory of a guest as a core file (ELF), sealed in the VM's own volume `dump-NUMBER`. All of
/// it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// Its number, which no other dump of the VM gets.
    pub number: u32,
    /// The volume that holds it.
    pub volume: VolumeId,
    /// The core file, in bytes.
    pub bytes: u64,
    /// What it takes sealed, in bytes: pages of zeroes take nothing.
    pub sealed_bytes: u64,
    /// When it was made: seconds since 1970-01-01 00:00 UTC.
    pub at_unix_seconds: u64,
    /// What somebody called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What made it: asked for again, it is not made again.
    pub operation: OperationId,
}

/// What follows the last chunk of a dump that is given to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestEnd {
    /// All of it was verified and given.
    Done,
    /// It is not what was written, or cannot be read.
    Error(Problem),
}
