//! The report of a run.

use std::fmt;
use std::time::Duration;

use crate::vhost_user::queue::Operation;

/// The counts of a run without wrong sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Answered reads.
    pub reads: u64,
    /// Answered writes.
    pub writes: u64,
    /// Answered flushes.
    pub flushes: u64,
    /// Answered discards.
    pub discards: u64,
    /// Answered zeroings.
    pub zeroings: u64,
    /// Answered identifications.
    pub identifications: u64,
    /// Bytes that were read, all verified.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Requests answered before an earlier one of the same queue.
    pub out_of_order: u64,
    /// Sectors read during a change, with a mixture of old and new content.
    pub mixed_sectors: u64,
    /// The number of kicks.
    pub kicks: u64,
    /// Sessions after the first.
    pub reconnects: u64,
    /// Requests in flight in a server that died, which its successor answered.
    pub replayed: u64,
    /// The longest time without an answer while requests were in flight.
    pub longest_stall: Duration,
    /// The length of the run.
    pub elapsed: Duration,
}

impl Report {
    /// Requests of all kinds.
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.zeroings + self.identifications
    }

    /// Counts an answered request.
    pub fn count(&mut self, operation: &Operation) {
        let bytes = u64::from(operation.content_bytes());
        match operation {
            Operation::Read(_) => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + bytes),
            Operation::Write(_) => {
                (self.writes, self.written_bytes) = (self.writes + 1, self.written_bytes + bytes);
            }
            Operation::Flush => self.flushes += 1,
            Operation::Discard(_) => self.discards += 1,
            Operation::WriteZeroes(..) => self.zeroings += 1,
            Operation::Identify => self.identifications += 1,
        }
    }

    /// Adds another run.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            flushes: self.flushes + other.flushes,
            discards: self.discards + other.discards,
            zeroings: self.zeroings + other.zeroings,
            identifications: self.identifications + other.identifications,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            out_of_order: self.out_of_order + other.out_of_order,
            mixed_sectors: self.mixed_sectors + other.mixed_sectors,
            kicks: self.kicks + other.kicks,
            reconnects: self.reconnects + other.reconnects,
            replayed: self.replayed + other.replayed,
            longest_stall: self.longest_stall.max(other.longest_stall),
            elapsed: self.elapsed + other.elapsed,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "operations={} reads={} writes={} flushes={} discards={} write_zeroes={} read_bytes={} written_bytes={} \
             out_of_order={} mixed_sectors={} kicks={} reconnects={} replayed={} wrong_sectors=0 \
             longest_stall_ms={:.1} elapsed_ms={}",
            self.operations(),
            self.reads,
            self.writes,
            self.flushes,
            self.discards,
            self.zeroings,
            self.read_bytes,
            self.written_bytes,
            self.out_of_order,
            self.mixed_sectors,
            self.kicks,
            self.reconnects,
            self.replayed,
            self.longest_stall.as_secs_f64() * 1e3,
            self.elapsed.as_millis(),
        )
    }
}
