//! Classifies failed requests for the statistics, and traces the end of requests.

use strongroom_io::{IoError, Slot};
use strongroom_ring::points;
use strongroom_statistics::{ErrorKind, Operation};

/// The kind that an error is counted as.
pub fn kind_of(error: &IoError) -> ErrorKind {
    match error {
        IoError::NoSpace => ErrorKind::NoSpace,
        IoError::Device(_) | IoError::Short { .. } | IoError::FlushFailed => ErrorKind::Device,
        IoError::UnknownEpoch { .. } | IoError::Integrity { .. } => ErrorKind::Integrity,
        IoError::OutOfRange { .. }
        | IoError::Misaligned { .. }
        | IoError::TooLong { .. }
        | IoError::ReadOnly => ErrorKind::Refused,
        IoError::FilesFull { .. } | IoError::Cipher | IoError::Injected | IoError::Closed => ErrorKind::Other,
    }
}

/// Reports to a tracer that a request is answered.
#[inline]
pub fn tell_completed(slot: Slot, operation: Operation, latency_ns: u64, failed: bool) {
    points::request_completed(slot.tag(), operation as u32, latency_ns, failed);
    if operation == Operation::Flush {
        points::flush_completed(latency_ns, failed);
    }
}
