//! The statistics at one moment.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// The operations that clients request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
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

impl Operation {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// Its name in JSON and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write_zeroes",
        }
    }
}

/// The reasons why requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The datastore is full.
    NoSpace,
    /// The device failed, or an earlier flush did.
    Device,
    /// A block is damaged, or sealed under a key that the volume does not have.
    Integrity,
    /// The request is invalid: beyond the end, not aligned, or a write to a read-only disk.
    Refused,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 5] = [Self::NoSpace, Self::Device, Self::Integrity, Self::Refused, Self::Other];

    /// Its name in JSON and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSpace => "no_space",
            Self::Device => "device",
            Self::Integrity => "integrity",
            Self::Refused => "refused",
            Self::Other => "other",
        }
    }
}

/// Failed requests, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Errors {
    /// [`ErrorKind::NoSpace`].
    pub no_space: u64,
    /// [`ErrorKind::Device`].
    pub device: u64,
    /// [`ErrorKind::Integrity`].
    pub integrity: u64,
    /// [`ErrorKind::Refused`].
    pub refused: u64,
    /// [`ErrorKind::Other`].
    pub other: u64,
}

impl Errors {
    /// The count of a kind.
    pub fn of(&self, kind: ErrorKind) -> u64 {
        match kind {
            ErrorKind::NoSpace => self.no_space,
            ErrorKind::Device => self.device,
            ErrorKind::Integrity => self.integrity,
            ErrorKind::Refused => self.refused,
            ErrorKind::Other => self.other,
        }
    }

    pub(crate) fn add(&mut self, kind: ErrorKind, count: u64) {
        let counted = match kind {
            ErrorKind::NoSpace => &mut self.no_space,
            ErrorKind::Device => &mut self.device,
            ErrorKind::Integrity => &mut self.integrity,
            ErrorKind::Refused => &mut self.refused,
            ErrorKind::Other => &mut self.other,
        };
        *counted = counted.saturating_add(count);
    }

    /// The count of all failed requests.
    pub fn total(&self) -> u64 {
        ErrorKind::ALL.iter().fold(0, |sum, kind| sum.saturating_add(self.of(*kind)))
    }
}

/// The requests of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Bytes of the requests that succeeded.
    pub bytes: u64,
    /// The sum of all latencies, in nanoseconds. Its growth over time is the mean queue depth.
    pub time_ns: u64,
    /// The requests that failed.
    pub errors: Errors,
    /// The latencies of all answered requests, including failed ones, but not those refused at
    /// once.
    pub latency: Histogram,
}

impl Counters {
    /// How many requests were answered, including failed ones, but not those refused at once.
    pub fn requests(&self) -> u64 {
        self.latency.total()
    }

    /// The requests since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut errors = Errors::default();
        for kind in ErrorKind::ALL {
            errors.add(kind, self.errors.of(kind).saturating_sub(before.errors.of(kind)));
        }
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            time_ns: self.time_ns.saturating_sub(before.time_ns),
            errors,
            latency: self.latency.since(&before.latency),
        }
    }

    /// Adds all requests of another.
    pub fn merge(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.time_ns = self.time_ns.saturating_add(other.time_ns);
        ErrorKind::ALL.iter().for_each(|kind| self.errors.add(*kind, other.errors.of(*kind)));
        self.latency.merge(&other.latency);
    }
}

/// The reads and writes that clients have had answered, and the sum of their latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Their number.
    pub requests: u64,
    /// The sum of their latencies, in nanoseconds.
    pub time_ns: u64,
}

impl Answered {
    /// What was answered since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            time_ns: self.time_ns.saturating_sub(before.time_ns),
        }
    }
}

/// The statistics of a volume since its page was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// When all counters were zero: milliseconds since 1970-01-01 00:00 UTC. Another value means
    /// that they were reset.
    pub since_unix_ms: u64,
    /// When this was read, in the same unit.
    pub read_unix_ms: u64,
    /// Requests that are being worked on now.
    pub in_flight: u64,
    /// How long some queue or connection has had requests in flight without completing any, in
    /// milliseconds; 0 while nothing is in flight.
    pub stalled_ms: u64,
    /// Requests that have waited for the limits of the disk or its VM.
    pub throttled_requests: u64,
    /// The sum of their waits, in nanoseconds.
    pub throttled_ns: u64,
    /// Reads.
    pub read: Counters,
    /// Writes.
    pub write: Counters,
    /// Flushes.
    pub flush: Counters,
    /// Discards.
    pub discard: Counters,
    /// Zeroings.
    pub write_zeroes: Counters,
}

impl Snapshot {
    /// The reads and writes that were answered.
    pub fn answered(&self) -> Answered {
        let [read, write] = [&self.read, &self.write];
        Answered {
            requests: read.requests().saturating_add(write.requests()),
            time_ns: read.time_ns.saturating_add(write.time_ns),
        }
    }

    /// The counters of an operation.
    pub fn of(&self, operation: Operation) -> &Counters {
        match operation {
            Operation::Read => &self.read,
            Operation::Write => &self.write,
            Operation::Flush => &self.flush,
            Operation::Discard => &self.discard,
            Operation::WriteZeroes => &self.write_zeroes,
        }
    }

    pub(crate) fn of_mut(&mut self, operation: Operation) -> &mut Counters {
        match operation {
            Operation::Read => &mut self.read,
            Operation::Write => &mut self.write,
            Operation::Flush => &mut self.flush,
            Operation::Discard => &mut self.discard,
            Operation::WriteZeroes => &mut self.write_zeroes,
        }
    }

    /// The requests since `before`; all of them if the counters were reset meanwhile.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        if self.since_unix_ms == before.since_unix_ms {
            since.throttled_requests = self.throttled_requests.saturating_sub(before.throttled_requests);
            since.throttled_ns = self.throttled_ns.saturating_sub(before.throttled_ns);
            for operation in Operation::ALL {
                *since.of_mut(operation) = self.of(operation).since(before.of(operation));
            }
        }
        since
    }
}
