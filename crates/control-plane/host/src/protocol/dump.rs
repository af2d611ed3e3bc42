//! Descriptions of guest dumps, without their content.

use serde::{Deserialize, Serialize};
use strongroom_types::VolumeId;

use super::names::OperationId;
use super::problem::Problem;

/// Most dumps that a VM can have at a time: more than people need, and every description of the VM
/// lists all of them.
pub const DUMPS_MAX: usize = 64;
/// The longest label of a dump, in bytes.
pub const DUMP_LABEL_BYTES_MAX: usize = 64;

/// The complete memory of a guest as a core file (ELF), sealed in the VM's own volume
/// `dump-NUMBER`.
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
