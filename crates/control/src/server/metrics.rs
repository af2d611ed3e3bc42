//! Numbers for Prometheus. Names and states only: no VM is named.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Api;

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

/// All of them, in text format 0.0.4.
pub(super) fn text(api: &Api) -> String {
    let mut text = String::with_capacity(4096);
    let control = &api.control;
    let mut family = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        // A string takes all that is written.
        let _ = writeln!(text, "# HELP strongroom_{name} {help}\n# TYPE strongroom_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "strongroom_{name}{labels} {value}");
        }
    };
    let by = |label: &str, counts: BTreeMap<String, u64>| -> Vec<(String, f64)> {
        counts.into_iter().map(|(value, count)| (format!("{{{label}=\"{value}\"}}"), count as f64)).collect()
    };
    let one = |value: f64| vec![(String::new(), value)];
    let index = control.inventory.read();
    let mut powers = BTreeMap::new();
    for seen in index.observed.iter() {
        *powers.entry(seen.power.as_str().to_owned()).or_insert(0) += 1;
    }
    let mut alarms = BTreeMap::new();
    for alarm in index.alarms.iter() {
        *alarms.entry(alarm.kind.as_str().to_owned()).or_insert(0) += 1;
    }
    family("vms", "gauge", "VMs of the inventory.", &one(index.vms.len() as f64));
    family("vms_observed", "gauge", "VMs by what their hosts said last.", &by("power", powers));
    family("volumes", "gauge", "Volumes of the inventory.", &one(index.volumes.len() as f64));
    family("alarms", "gauge", "Alarms that are raised.", &by("kind", alarms));
    family("tasks_open", "gauge", "Tasks that are not over.", &one(index.open_tasks_count() as f64));
    let last = index.events().last().map_or(0, |event| event.id);
    family("events_total", "counter", "Number of the last event.", &one(last as f64));
    drop(index);
    let up = control
        .list_hosts()
        .iter()
        .filter(|host| host.state == strongroom_api::host::HostState::Connected)
        .count();
    family("hosts_up", "gauge", "Hosts that answer.", &one(up as f64));
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
    text
}
