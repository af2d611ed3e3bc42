//! What a VM's guest asked of its disks, counted.

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;
use utoipa::ToSchema;

/// What the guest of a VM asked of its disks. Counters only grow, until they begin anew: at each
/// start of the VM, and when its supervisor died and another one took over. The difference of two
/// answers is what came in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmStats {
    /// The VM.
    #[schema(value_type = String, format = Uuid)]
    pub vm: VmId,
    /// Its disks, and the volumes of its own that its guest reaches; none while it is off.
    pub disks: Vec<DiskStats>,
}

/// What was asked of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// The disk.
    pub disk: String,
    /// When its counters were zero, in milliseconds since 1970. Another value than before: they
    /// began anew.
    pub since_unix_ms: u64,
    /// When they were read, in milliseconds since 1970.
    pub read_unix_ms: u64,
    /// Requests that are being worked on.
    pub in_flight: u64,
    /// For how long some queue of it has had requests in flight and completed none, in
    /// milliseconds.
    pub stalled_ms: u64,
    /// What was done, by operation: each of them once.
    pub operations: Vec<OperationStats>,
}

/// The requests of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationStats {
    /// Which.
    pub operation: DiskOperation,
    /// How many were answered, well or not; but for those that were refused at once.
    pub requests: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// The sum of their latencies, in nanoseconds. Its growth over time is the mean queue depth.
    pub time_ns: u64,
    /// Those that failed.
    pub errors: DiskErrors,
    /// How many took how long; what is empty is left out.
    pub latency: Vec<LatencyBucket>,
}

/// What a guest asks of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskOperation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
    /// Zeroings.
    WriteZeroes,
}

/// Failed requests, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskErrors {
    /// The datastore was full.
    pub no_space: u64,
    /// The device failed.
    pub device: u64,
    /// A block was damaged, or sealed under an unknown key.
    pub integrity: u64,
    /// What was asked for cannot be done: beyond the end, not aligned, a write to what is
    /// read-only.
    pub refused: u64,
    /// Others.
    pub other: u64,
}

/// Requests that took about as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// They took less than this, in nanoseconds, and at least four fifths of it; but for the first
    /// bucket (1024), whose took any shorter time. None: 68.7 seconds or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_ns: Option<u64>,
    /// How many.
    pub requests: u64,
}
