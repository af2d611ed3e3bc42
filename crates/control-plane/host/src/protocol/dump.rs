//! Descriptions of guest dumps, without their content.

use serde::{Deserialize, Serialize};
use strongroom_types::VolumeId;

use super::names::OperationId;
use super::problem::Problem;

/// The memory of a guest as a core file (ELF), sealed in the VM's own volume `dump-NUMBER`. All of
/// it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// Its number, unique among the dumps of the VM.
    pub number: u32,
    /// The volume that holds it.
    pub volume: VolumeId,
    /// The size of the core file, in bytes.
    pub bytes: u64,
    /// The bytes that it takes sealed; pages of zeroes take none.
    pub sealed_bytes: u64,
    /// When it was made: seconds since 1970-01-01 00:00 UTC.
    pub at_unix_seconds: u64,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The operation that made it. A repeated request does not make it again.
    pub operation: OperationId,
}

/// The end of a dump's stream, after its last chunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestEnd {
    /// The whole dump was verified and sent.
    Done,
    /// The dump is damaged, or cannot be read.
    Error(Problem),
}
