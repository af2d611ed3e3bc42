//! `strongroom vm stats`: live statistics of a VM's disks and processors.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use strongroom_api::vm::{DiskOperation, DiskStats, OperationStats, ProcessorStats, VmStats};
use strongroom_processes::Signals;
use strongroom_statistics::{Counters, Errors, Histogram, Operation, Summary, bucket_of, display_latency};
use strongroom_types::display_bytes;

use crate::api::{ApiArguments, segment};
use crate::error::CliError;
use crate::output::{Output, Table};

/// The arguments of `stats`.
#[derive(Debug, Args)]
#[command(after_help = "Prints one line per disk every second: the requests completed in that second, and \
those in flight at its end. Latencies are measured from when the disk's worker took a request until it \
answered; the columns are the 50th, 99th and 99.9th percentile and the maximum. QUEUE is the average \
number of requests in flight, with those that had to wait for a limit ('vm limit', 'vm disk limit'). The \
line CPU is the part of the time in which the VM's processors ran, of all of them together, and in which they \
waited for a processor of the host.

Examples:
  strongroom vm stats web1
  strongroom vm stats web1 --interval 10
  strongroom vm stats web1 --once
  strongroom vm stats web1 --json | head -n 3 | jq -c '.disks[] | [.disk, .operations.read.p99_ns]'")]
pub struct StatsArguments {
    /// Name or id of the VM
    vm: String,

    /// Show the totals since the VM's start once, and exit
    #[arg(long, conflicts_with = "interval")]
    once: bool,

    /// Interval between lines, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,

    #[command(flatten)]
    api: ApiArguments,
}

/// The requests of an interval. Latencies are in nanoseconds.
#[derive(Serialize)]
struct Interval {
    /// Its end, in milliseconds since 1970.
    at_unix_ms: u64,
    /// The VM's disks.
    disks: Vec<DiskInterval>,
    /// The sum of all disks.
    total: Option<DiskInterval>,
    /// The VM's processors, if two samples of them are known.
    processors: Option<ProcessorInterval>,
}

/// What a VM's processors did, as parts of the time of all of them.
#[derive(Serialize)]
struct ProcessorInterval {
    vcpus: u32,
    /// In which they ran, in percent.
    run_percent: f64,
    /// In which they could have run and waited for a processor of the host, in percent.
    wait_percent: f64,
}

impl ProcessorInterval {
    /// The interval between two samples of one QEMU.
    fn between(before: Option<ProcessorStats>, now: Option<ProcessorStats>) -> Option<Self> {
        let (before, now) = (before?, now?);
        let run_ns = now.run_ns.checked_sub(before.run_ns)?;
        let wait_ns = now.wait_ns.checked_sub(before.wait_ns)?;
        let time_ms = now.read_unix_ms.checked_sub(before.read_unix_ms).filter(|time_ms| *time_ms > 0)?;
        let all_ns = time_ms as f64 * 1e6 * f64::from(now.vcpus.max(1));
        let percent = |time_ns: u64| time_ns as f64 / all_ns * 100.0;
        Some(Self { vcpus: now.vcpus, run_percent: percent(run_ns), wait_percent: percent(wait_ns) })
    }
}

impl fmt::Display for ProcessorInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vcpus, run_percent, wait_percent } = self;
        write!(f, "CPU   {run_percent:.0}% of {vcpus} ran, {wait_percent:.0}% waited for the host")
    }
}

#[derive(Serialize)]
struct DiskInterval {
    disk: String,
    /// Its length; the first one begins at the VM's start.
    seconds: f64,
    /// Requests in flight at its end.
    in_flight: u64,
    /// The mean count of requests in flight.
    queue_depth: f64,
    /// How long requests have been in flight without a completion, at its end.
    stalled_ms: u64,
    /// Requests that have waited for a limit of the disk or its VM.
    throttled_requests: u64,
    /// The sum of their waits, in nanoseconds.
    throttled_ns: u64,
    operations: BTreeMap<Operation, Summary>,
    #[serde(skip)]
    counters: BTreeMap<Operation, Counters>,
}

/// What requests of a disk wait for.
struct Waits {
    /// Requests in flight at the end of the interval.
    in_flight: u64,
    /// How long no request has been completed, at its end.
    stalled_ms: u64,
    /// Requests that have waited for a limit.
    throttled_requests: u64,
    /// The sum of their waits.
    throttled_ns: u64,
}

impl DiskInterval {
    /// The interval since `before`, or since the counters were zero.
    fn between(before: Option<&DiskStats>, now: &DiskStats) -> Self {
        let before = before.filter(|before| before.since_unix_ms == now.since_unix_ms);
        let begun = before.map_or(now.since_unix_ms, |before| before.read_unix_ms);
        let throttled = before.map_or((0, 0), |before| (before.throttled_requests, before.throttled_ns));
        let counted = |stats: &DiskStats| -> BTreeMap<Operation, Counters> {
            stats.operations.iter().map(|one| (operation_of(one.operation), counters_of(one))).collect()
        };
        let before = before.map(counted).unwrap_or_default();
        let mut counters = counted(now);
        for (operation, counters) in &mut counters {
            if let Some(before) = before.get(operation) {
                *counters = counters.since(before);
            }
        }
        // Two samples in one millisecond give no rate.
        let seconds = now.read_unix_ms.saturating_sub(begun).max(1) as f64 / 1e3;
        let waits = Waits {
            in_flight: now.in_flight,
            stalled_ms: now.stalled_ms,
            throttled_requests: now.throttled_requests.saturating_sub(throttled.0),
            throttled_ns: now.throttled_ns.saturating_sub(throttled.1),
        };
        Self::of(now.disk.clone(), seconds, waits, counters)
    }

    fn of(disk: String, seconds: f64, waits: Waits, counters: BTreeMap<Operation, Counters>) -> Self {
        let Waits { in_flight, stalled_ms, throttled_requests, throttled_ns } = waits;
        let time_ns: u64 = counters.values().map(|counters| counters.time_ns).fold(0, u64::saturating_add);
        Self {
            disk,
            seconds,
            in_flight,
            queue_depth: time_ns as f64 / 1e9 / seconds,
            stalled_ms,
            throttled_requests,
            throttled_ns,
            operations: counters.iter().map(|(operation, counters)| (*operation, counters.into())).collect(),
            counters,
        }
    }

    fn total(disks: &[Self]) -> Option<Self> {
        let seconds = disks.iter().map(|disk| disk.seconds).fold(0.0, f64::max);
        let sum = |of: fn(&Self) -> u64| disks.iter().map(of).fold(0, u64::saturating_add);
        let waits = Waits {
            in_flight: sum(|disk| disk.in_flight),
            stalled_ms: disks.iter().map(|disk| disk.stalled_ms).max()?,
            throttled_requests: sum(|disk| disk.throttled_requests),
            throttled_ns: sum(|disk| disk.throttled_ns),
        };
        let mut counters: BTreeMap<Operation, Counters> = BTreeMap::new();
        for (operation, counted) in disks.iter().flat_map(|disk| &disk.counters) {
            counters.entry(*operation).or_default().merge(counted);
        }
        (disks.len() > 1).then(|| Self::of("total".to_owned(), seconds, waits, counters))
    }

    fn row(&self) -> [String; 9] {
        let of = |operation| self.operations.get(&operation).copied().unwrap_or_default();
        let (read, write) = (of(Operation::Read), of(Operation::Write));
        let other =
            [Operation::Flush, Operation::Discard, Operation::WriteZeroes].map(|one| of(one).requests);
        let failed = self.operations.values().map(|one| one.errors.total()).fold(0, u64::saturating_add);
        let rate = |count: u64| format!("{:.0}", count as f64 / self.seconds);
        let bytes = |count: u64| display_bytes((count as f64 / self.seconds) as u64);
        let latency = |one: Summary| match one.requests {
            0 => "-".to_owned(),
            _ => [one.p50_ns, one.p99_ns, one.p999_ns, one.max_ns].map(display_latency).join(" "),
        };
        let queue = match self.stalled_ms {
            0..2000 if self.throttled_requests > 0 => {
                format!("{:.1} ({}/s limited)", self.queue_depth, rate(self.throttled_requests))
            }
            0..2000 => format!("{:.1}", self.queue_depth),
            stalled_ms => format!("{} STALLED for {}s", self.in_flight, stalled_ms / 1000),
        };
        [
            self.disk.clone(),
            rate(read.requests),
            bytes(read.bytes),
            rate(write.requests),
            bytes(write.bytes),
            rate(other.into_iter().fold(0, u64::saturating_add)),
            format!("{queue} {failed}"),
            latency(read),
            latency(write),
        ]
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.disks.is_empty() {
            return f.write_str("no disk is served: the VM is off, or starts");
        }
        let head = [
            "DISK",
            "READS/S",
            "BYTES/S",
            "WRITES/S",
            "BYTES/S",
            "OTHER/S",
            "QUEUE ERRORS",
            "READ 50% 99% 99.9% MAX",
            "WRITE 50% 99% 99.9% MAX",
        ];
        let rows = self.disks.iter().chain(&self.total).map(DiskInterval::row).collect();
        Table { head, rows }.fmt(f)?;
        self.processors.iter().try_for_each(|processors| write!(f, "\n{processors}"))
    }
}

/// The interval between two samples of a VM. For a new disk, it has all requests.
fn interval(before: &VmStats, now: &VmStats) -> Interval {
    let known = |name: &str| before.disks.iter().find(|disk| disk.disk == name);
    let disks: Vec<_> = now.disks.iter().map(|disk| DiskInterval::between(known(&disk.disk), disk)).collect();
    let at_unix_ms = now.disks.iter().map(|disk| disk.read_unix_ms).max().unwrap_or(0);
    let total = DiskInterval::total(&disks);
    let processors = ProcessorInterval::between(before.processors, now.processors);
    Interval { at_unix_ms, disks, total, processors }
}

fn operation_of(operation: DiskOperation) -> Operation {
    match operation {
        DiskOperation::Read => Operation::Read,
        DiskOperation::Write => Operation::Write,
        DiskOperation::Flush => Operation::Flush,
        DiskOperation::Discard => Operation::Discard,
        DiskOperation::WriteZeroes => Operation::WriteZeroes,
    }
}

fn counters_of(told: &OperationStats) -> Counters {
    let mut latency = Histogram::default();
    for bucket in &told.latency {
        // A bucket without a bound is the last one.
        let of = bucket.below_ns.map_or(u64::MAX, |below_ns| below_ns.saturating_sub(1));
        latency.add(bucket_of(of), bucket.requests);
    }
    let errors = Errors {
        no_space: told.errors.no_space,
        device: told.errors.device,
        integrity: told.errors.integrity,
        refused: told.errors.refused,
        other: told.errors.other,
    };
    Counters { bytes: told.bytes, time_ns: told.time_ns, errors, latency }
}

impl StatsArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/stats", segment(&self.vm));
        let look = || api.get::<VmStats>(&path);
        let first = look()?;
        if self.once {
            return output
                .answer(&interval(&VmStats { vm: first.vm, disks: Vec::new(), processors: None }, &first));
        }
        let signals = Signals::catch().map_err(CliError::Output)?;
        let mut before = first;
        loop {
            let within = Timespec { tv_sec: self.interval.cast_signed(), tv_nsec: 0 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)], Some(&within));
            if signals.came() {
                return Ok(());
            }
            let now = look()?;
            if !line(*output, &interval(&before, &now))? {
                return Ok(());
            }
            before = now;
        }
    }
}

/// Prints one interval: as JSON on one line, or as a table. Returns `false` if the reader has
/// closed stdout, as `head` does.
fn line(output: Output, interval: &Interval) -> Result<bool, CliError> {
    let given = match output.is_json() {
        true => {
            let text = serde_json::to_string(interval).map_err(|error| CliError::Output(error.into()))?;
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(CliError::Output)
        }
        false => output.answer(interval),
    };
    match given {
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        given => given.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use strongroom_api::vm::{DiskErrors, LatencyBucket};
    use strongroom_types::VmId;

    use super::*;

    fn stats(since_unix_ms: u64, read_unix_ms: u64, requests: u64) -> VmStats {
        let latency = vec![
            LatencyBucket { below_ns: Some(114_688), requests },
            LatencyBucket { below_ns: None, requests: 1 },
        ];
        let read = OperationStats {
            operation: DiskOperation::Read,
            requests: requests + 1,
            bytes: requests * 4096,
            time_ns: requests * 100_000,
            errors: DiskErrors::default(),
            latency,
        };
        let disk = |name: &str| DiskStats {
            disk: name.to_owned(),
            since_unix_ms,
            read_unix_ms,
            in_flight: 2,
            stalled_ms: 0,
            throttled_requests: requests / 2,
            throttled_ns: requests * 1000,
            operations: vec![read.clone()],
        };
        let processors = ProcessorStats {
            read_unix_ms,
            vcpus: 2,
            run_ns: read_unix_ms * 500_000,
            wait_ns: requests * 1000,
        };
        VmStats {
            vm: VmId::random(),
            disks: vec![disk("disk0"), disk("disk1")],
            processors: Some(processors),
        }
    }

    #[test]
    fn an_interval_is_what_came_in_it() {
        let (before, now) = (stats(1000, 5000, 100), stats(1000, 7000, 20_100));
        let between = interval(&before, &now);
        let disk = &between.disks[0];
        let read = disk.operations[&Operation::Read];
        assert_eq!(
            (read.requests, read.bytes, read.max_ns, disk.seconds),
            (20_000, 20_000 * 4096, 114_688, 2.0)
        );
        assert!((disk.queue_depth - 1.0).abs() < 1e-9);
        let total = between.total.as_ref().unwrap();
        assert_eq!((total.operations[&Operation::Read].requests, total.in_flight), (40_000, 4));
        assert_eq!((disk.throttled_requests, total.throttled_ns), (10_000, 40_000_000));
        let text = between.to_string();
        assert!(text.contains("disk1  10000"), "{text}");
        assert!(text.contains("1.0 (5000/s limited) 0"), "{text}");
        assert!(text.contains("115us 115us 115us 115us"), "{text}");
        let processors = between.processors.as_ref().unwrap();
        assert!((processors.run_percent - 25.0).abs() < 1e-9, "{}", processors.run_percent);
        assert!((processors.wait_percent - 0.5).abs() < 1e-9, "{}", processors.wait_percent);
        assert!(text.ends_with("\nCPU   25% of 2 ran, 0% waited for the host"), "{text}");
        // Another QEMU has begun.
        assert!(interval(&now, &before).processors.is_none());
    }

    #[test]
    fn counters_that_began_anew_are_counted_from_there() {
        let between = interval(&stats(1000, 5000, 100), &stats(6000, 7000, 50));
        let disk = &between.disks[0];
        assert_eq!((disk.operations[&Operation::Read].requests, disk.seconds), (51, 1.0));
        assert_eq!(disk.operations[&Operation::Read].max_ns, 1 << 36);
        let off = interval(
            &stats(1000, 5000, 100),
            &VmStats { vm: VmId::random(), disks: Vec::new(), processors: None },
        );
        assert!(off.to_string().contains("off"));
    }
}
