//! Counters of a guest's disk requests.

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;
use utoipa::ToSchema;

/// Counters of the disk requests of a VM's guest. They grow until they are reset: at each start of
/// the VM, and when another supervisor takes over from one that died. The difference between two
/// answers is the activity between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmStats {
    /// The VM.
    #[schema(value_type = String, format = Uuid)]
    pub vm: VmId,
    /// Its disks, and the internal volumes that its guest reaches; empty while it is off.
    pub disks: Vec<DiskStats>,
    /// Its virtual processors; absent while it is off, and if its host does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<ProcessorStats>,
}

/// The time of a VM's virtual processors, since the start of its QEMU. It is lower than before if
/// another QEMU has begun, after a start or a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessorStats {
    /// When it was read, in milliseconds since 1970.
    pub read_unix_ms: u64,
    /// The number of virtual processors.
    pub vcpus: u32,
    /// For how long they have run, all together, in nanoseconds.
    pub run_ns: u64,
    /// For how long they could have run and had to wait for a processor of the host, all together,
    /// in nanoseconds.
    pub wait_ns: u64,
}

/// Counters of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// The disk's name.
    pub disk: String,
    /// When its counters were zero, in milliseconds since 1970. A changed value means that they
    /// were reset.
    pub since_unix_ms: u64,
    /// When they were read, in milliseconds since 1970.
    pub read_unix_ms: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// For how long one of its queues has had requests in flight and completed none, in
    /// milliseconds.
    pub stalled_ms: u64,
    /// Requests that have waited for the limits of the disk or of the VM.
    #[serde(default)]
    pub throttled_requests: u64,
    /// The sum of their waits, in nanoseconds.
    #[serde(default)]
    pub throttled_ns: u64,
    /// Counters by operation, each operation once.
    pub operations: Vec<OperationStats>,
}

/// Counters of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationStats {
    /// The operation.
    pub operation: DiskOperation,
    /// Answered requests, successful or not, except those that were refused at once.
    pub requests: u64,
    /// Bytes of the successful requests.
    pub bytes: u64,
    /// The sum of their latencies, in nanoseconds. Its growth over time is the mean queue depth.
    pub time_ns: u64,
    /// The failed requests.
    pub errors: DiskErrors,
    /// The latency histogram; empty buckets are left out.
    pub latency: Vec<LatencyBucket>,
}

/// An operation on a disk.
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
    /// The request was invalid: beyond the end, not aligned, or a write to a read-only disk.
    pub refused: u64,
    /// Other errors.
    pub other: u64,
}

/// Requests with a similar latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// The upper bound of their latency, in nanoseconds. The lower bound is four fifths of it; the
    /// first bucket (1024) starts at 0. Absent: 68.7 seconds or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_ns: Option<u64>,
    /// The number of requests.
    pub requests: u64,
}
