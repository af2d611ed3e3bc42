//! The requests of an exposed volume's clients, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use strongroom_statistics::{Operation, Snapshot, Summary, display_latency};
use strongroom_types::display_bytes;

use crate::output::utc;

/// The requests since the volume was exposed. Latencies are in nanoseconds.
#[derive(Serialize)]
pub struct StatisticsFacts {
    /// When counting began.
    since_unix_ms: u64,
    /// Requests in flight.
    in_flight: u64,
    /// How long some queue or connection has had requests in flight without completing any.
    stalled_ms: u64,
    /// Requests that have waited for a limit.
    throttled_requests: u64,
    /// The sum of their waits.
    throttled_ns: u64,
    /// By operation: `read`, `write`, `flush`, `discard`, `write_zeroes`.
    operations: BTreeMap<Operation, Summary>,
}

impl From<&Snapshot> for StatisticsFacts {
    fn from(snapshot: &Snapshot) -> Self {
        let summary = |operation| (operation, Summary::from(snapshot.of(operation)));
        Self {
            since_unix_ms: snapshot.since_unix_ms,
            in_flight: snapshot.in_flight,
            stalled_ms: snapshot.stalled_ms,
            throttled_requests: snapshot.throttled_requests,
            throttled_ns: snapshot.throttled_ns,
            operations: Operation::ALL.into_iter().map(summary).collect(),
        }
    }
}

impl fmt::Display for StatisticsFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = utc(self.since_unix_ms / 1000);
        write!(f, "  requests      {} in flight, counted since {since}", self.in_flight)?;
        if self.stalled_ms >= 1000 {
            write!(f, "; NONE completed for {} seconds", self.stalled_ms / 1000)?;
        }
        writeln!(f)?;
        if self.throttled_requests > 0 {
            let waited = display_latency(self.throttled_ns);
            writeln!(f, "    limited       {} have waited, {waited} together", self.throttled_requests)?;
        }
        for (operation, summary) in &self.operations {
            let Summary { requests, bytes, errors, p50_ns, p99_ns, max_ns, .. } = *summary;
            let failed = errors.total();
            if requests == 0 && failed == 0 {
                continue;
            }
            let name = operation.as_str().replace('_', " ");
            write!(f, "    {name:<13} {requests}, {}", display_bytes(bytes))?;
            let [p50, p99, max] = [p50_ns, p99_ns, max_ns].map(display_latency);
            write!(f, "; half within {p50}, 99% within {p99}, all within {max}")?;
            if failed > 0 {
                write!(f, "; {failed} FAILED")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
