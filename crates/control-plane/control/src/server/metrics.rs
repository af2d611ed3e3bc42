//! Metrics for Prometheus: names, states and counts. docs/METRICS.md lists them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_api::datastore::Datastore;
use strongroom_api::host::{Host, HostState};
use strongroom_api::vm::PowerState;
use strongroom_host::protocol::ProcessorStatistics;
use strongroom_statistics::{ErrorKind, Operation, Snapshot};

use super::Api;
use crate::engine::Sample;
use crate::inventory::Facet;

/// The most disks with series, and the most VMs with series of processors, which bounds a scrape: a
/// disk has about eighty. The other disks are only counted.
const SERIES_OF_DISKS: usize = 2000;
/// The bounds of a histogram's buckets, as powers of two of nanoseconds: from 65 µs to 17 s, each
/// four times the previous one.
const BOUNDS: [u32; 10] = [16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// Answers by the first digit of their status.
#[derive(Default)]
pub(crate) struct Counts {
    answers: [AtomicU64; 6],
    pub(super) connections: AtomicU64,
}

impl Counts {
    pub(super) fn answered(&self, status: u16) {
        if let Some(count) = self.answers.get(usize::from(status / 100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// All metrics, in text format 0.0.4.
pub(super) fn text(api: &Api) -> String {
    let mut text = String::with_capacity(4096);
    let control = &api.control;
    let mut family = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP strongroom_{name} {help}\n# TYPE strongroom_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "strongroom_{name}{labels} {value}");
        }
    };
    let by = |label: &str, counts: BTreeMap<String, u64>| -> Vec<(String, f64)> {
        counts.into_iter().map(|(value, count)| (format!("{{{label}=\"{value}\"}}"), count as f64)).collect()
    };
    let label = |label: &str, name: &str| format!("{{{label}=\"{name}\"}}");
    let one = |value: f64| vec![(String::new(), value)];
    let index = control.inventory.read();
    let mut alarms: BTreeMap<_, u64> = BTreeMap::new();
    for alarm in index.alarms.iter() {
        *alarms.entry((alarm.kind.as_str(), alarm.severity.as_str())).or_default() += 1;
    }
    let alarms = alarms.into_iter().map(|((kind, severity), count)| {
        (format!("{{kind=\"{kind}\",severity=\"{severity}\"}}"), count as f64)
    });
    family("vms", "gauge", "VMs of the inventory.", &one(index.members(&Facet::Any).vms.len() as f64));
    let powers = PowerState::ALL
        .map(|power| (power.as_str().to_owned(), index.members(&Facet::Power(power)).len() as u64));
    let powers = powers.into_iter().filter(|(_, vms)| *vms > 0).collect();
    family("vms_observed", "gauge", "VMs by what their hosts said last.", &by("power", powers));
    family("volumes", "gauge", "Volumes of the inventory.", &one(index.volumes.len() as f64));
    family("alarms", "gauge", "Alarms that are raised.", &alarms.collect::<Vec<_>>());
    family("tasks_open", "gauge", "Tasks that are not over.", &one(index.open_tasks_count() as f64));
    let read = index.rows_read() as f64;
    family("inventory_rows_read_total", "counter", "Records of VMs and volumes that were read.", &one(read));
    let last = index.events().last().map_or(0, |event| event.id);
    family("events_total", "counter", "Number of the last event.", &one(last as f64));
    drop(index);
    let scheduled = control.scheduled_snapshots().map(|(result, count)| (result.to_owned(), count));
    family(
        "scheduled_snapshots_total",
        "counter",
        "Times at which a scheduled snapshot was due, by what came of it.",
        &by("result", scheduled.into()),
    );
    let up = |host: &Host| match host.state {
        HostState::Connected => 1.0,
        HostState::Disconnected | HostState::Unknown => 0.0,
    };
    let hosts = control.list_hosts();
    let hosts: Vec<_> = hosts.iter().map(|host| (label("host", &host.name), up(host))).collect();
    family("host_up", "gauge", "Whether a host answers.", &hosts);
    let datastores = control.list_datastores();
    let each = |bytes: fn(&Datastore) -> u64| -> Vec<(String, f64)> {
        let all = datastores.iter();
        all.map(|datastore| (label("datastore", datastore.name.as_str()), bytes(datastore) as f64)).collect()
    };
    let size = each(|datastore| datastore.total_bytes);
    family("datastore_bytes", "gauge", "Size of a datastore's file system.", &size);
    let free = each(|datastore| datastore.free_bytes);
    family("datastore_free_bytes", "gauge", "Free bytes of that file system.", &free);
    let age: Vec<_> = control.backup_age_s().map(|age_s| (String::new(), age_s as f64)).into_iter().collect();
    family("inventory_backup_age_seconds", "gauge", "Age of the last backup of the inventory.", &age);
    let store = control.inventory.counters();
    family("store_commits_total", "counter", "Transactions of the store.", &one(store.committed as f64));
    family(
        "store_conflicts_total",
        "counter",
        "Transactions that lost a race.",
        &one(store.conflicts as f64),
    );
    let seconds = store.sync_time.as_secs_f64();
    family("store_sync_seconds_total", "counter", "Time of the store's device for syncs.", &one(seconds));
    let classes = api.counts.answers.iter().enumerate().skip(1);
    let classes = classes.map(|(class, count)| (format!("{class}xx"), count.load(Ordering::Relaxed)));
    family("http_answers_total", "counter", "Answers of the API.", &by("status", classes.collect()));
    let connections = api.counts.connections.load(Ordering::Relaxed) as f64;
    family("http_connections", "gauge", "Connections to the API.", &one(connections));
    let mut disks = Disks::default();
    let mut processors = Processors::default();
    control.each_sample(|vm, samples, times| {
        samples.iter().for_each(|sample| disks.add(vm, sample));
        times.into_iter().for_each(|times| processors.add(vm, times));
    });
    processors.write(&mut text);
    disks.write(&mut text);
    text
}

/// The series of VMs' virtual processors, by family.
#[derive(Default)]
struct Processors {
    vms: usize,
    run: String,
    wait: String,
}

impl Processors {
    fn add(&mut self, vm: &str, times: &ProcessorStatistics) {
        if self.vms == SERIES_OF_DISKS {
            return;
        }
        self.vms += 1;
        let [run, wait] = [times.run_ns, times.wait_ns].map(|time_ns| time_ns as f64 / 1e9);
        // Writing to a string cannot fail.
        let _ = writeln!(self.run, "strongroom_vm_cpu_seconds_total{{vm=\"{vm}\"}} {run}");
        let _ = writeln!(self.wait, "strongroom_vm_cpu_wait_seconds_total{{vm=\"{vm}\"}} {wait}");
    }

    fn write(self, text: &mut String) {
        let families = [
            ("vm_cpu_seconds_total", "How long a VM's virtual processors have run.", self.run),
            (
                "vm_cpu_wait_seconds_total",
                "How long they have waited for a processor of the host.",
                self.wait,
            ),
        ];
        for (name, help, series) in families {
            let _ =
                write!(text, "# HELP strongroom_{name} {help}\n# TYPE strongroom_{name} counter\n{series}");
        }
    }
}

/// The series of VMs' disks, by family.
#[derive(Default)]
struct Disks {
    disks: usize,
    left_out: usize,
    bytes: String,
    errors: String,
    latency: String,
    in_flight: String,
    stalled: String,
    throttled: String,
    throttled_seconds: String,
    since: String,
}

impl Disks {
    fn add(&mut self, vm: &str, sample: &Sample) {
        if self.disks == SERIES_OF_DISKS {
            self.left_out += 1;
            return;
        }
        self.disks += 1;
        let (snapshot, labels) = (&sample.snapshot, format!("vm=\"{vm}\",disk=\"{}\"", sample.disk));
        // Writing to a string cannot fail.
        for operation in Operation::ALL {
            self.add_operation(
                snapshot,
                operation,
                &format!("{labels},operation=\"{}\"", operation.as_str()),
            );
        }
        for kind in ErrorKind::ALL {
            let failed = Operation::ALL.iter().map(|operation| snapshot.of(*operation).errors.of(kind));
            let failed = failed.fold(0, u64::saturating_add);
            let kind = kind.as_str();
            let _ =
                writeln!(self.errors, "strongroom_disk_errors_total{{{labels},kind=\"{kind}\"}} {failed}");
        }
        let _ = writeln!(self.in_flight, "strongroom_disk_in_flight{{{labels}}} {}", snapshot.in_flight);
        let stalled = snapshot.stalled_ms as f64 / 1e3;
        let _ = writeln!(self.stalled, "strongroom_disk_stalled_seconds{{{labels}}} {stalled}");
        let throttled = snapshot.throttled_requests;
        let _ = writeln!(self.throttled, "strongroom_disk_throttled_requests_total{{{labels}}} {throttled}");
        let seconds = snapshot.throttled_ns as f64 / 1e9;
        let _ =
            writeln!(self.throttled_seconds, "strongroom_disk_throttled_seconds_total{{{labels}}} {seconds}");
        let since = snapshot.since_unix_ms as f64 / 1e3;
        let _ = writeln!(self.since, "strongroom_disk_counters_since_seconds{{{labels}}} {since}");
    }

    fn add_operation(&mut self, snapshot: &Snapshot, operation: Operation, labels: &str) {
        let counters = snapshot.of(operation);
        let _ = writeln!(self.bytes, "strongroom_disk_bytes_total{{{labels}}} {}", counters.bytes);
        let name = "strongroom_disk_latency_seconds";
        for exponent in BOUNDS {
            let bound_ns = 1_u64 << exponent;
            let (bound, below) = (bound_ns as f64 / 1e9, counters.latency.total_below(bound_ns));
            let _ = writeln!(self.latency, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let (total, seconds) = (counters.requests(), counters.time_ns as f64 / 1e9);
        let _ = writeln!(self.latency, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}");
        let _ = writeln!(self.latency, "{name}_sum{{{labels}}} {seconds}");
        let _ = writeln!(self.latency, "{name}_count{{{labels}}} {total}");
    }

    fn write(self, text: &mut String) {
        let left_out = format!("strongroom_disks_left_out {}\n", self.left_out);
        let families = [
            ("disk_bytes_total", "counter", "Bytes of requests that succeeded.", self.bytes),
            ("disk_errors_total", "counter", "Requests that failed or were refused.", self.errors),
            ("disk_latency_seconds", "histogram", "How long requests took.", self.latency),
            ("disk_in_flight", "gauge", "Requests that are being worked on.", self.in_flight),
            (
                "disk_stalled_seconds",
                "gauge",
                "How long nothing was completed, with requests in flight.",
                self.stalled,
            ),
            (
                "disk_throttled_requests_total",
                "counter",
                "Requests that have waited for a limit of the disk or its VM.",
                self.throttled,
            ),
            (
                "disk_throttled_seconds_total",
                "counter",
                "How long they have waited, all together.",
                self.throttled_seconds,
            ),
            (
                "disk_counters_since_seconds",
                "gauge",
                "Unix time at which the disk's counters were zero.",
                self.since,
            ),
            ("disks_left_out", "gauge", "Disks that run and have no series here.", left_out),
        ];
        for (name, kind, help, series) in families {
            let _ =
                write!(text, "# HELP strongroom_{name} {help}\n# TYPE strongroom_{name} {kind}\n{series}");
        }
    }
}
