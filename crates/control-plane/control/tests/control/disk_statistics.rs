//! Disk counters of guests in the API, the metrics and the alarms.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::server::Server;
use crate::support::{Site, caller, create, settle_down};
use serde_json::json;
use strongroom_api::alarm::AlarmKind;
use strongroom_api::vm::StartVm;
use strongroom_control::engine::Control;
use strongroom_host::protocol::{DiskStatistics, ProcessorStatistics, VmStatistics};
use strongroom_statistics::Snapshot;
use strongroom_types::VmId;

const MS: u64 = 1_000_000;

/// The counters of a VM with one disk.
fn told(vm: VmId, snapshot: Snapshot) -> VmStatistics {
    let processors =
        ProcessorStatistics { read_unix_ms: 1, vcpus: 2, run_ns: 3_500_000_000, wait_ns: 250_000_000 };
    let disks = vec![DiskStatistics { disk: "disk0".parse().unwrap(), snapshot }];
    VmStatistics { vm, disks, processors: Some(processors) }
}

fn snapshot(reads: u64, latency_ns: u64) -> Snapshot {
    let mut snapshot = Snapshot { since_unix_ms: 1_700_000_000_000, in_flight: 3, ..Snapshot::default() };
    (0..reads).for_each(|_| snapshot.read.latency.record(latency_ns));
    (snapshot.read.bytes, snapshot.read.time_ns) = (reads * 4096, reads * latency_ns);
    snapshot.write.errors.no_space = 2;
    snapshot
}

/// A control plane with one running VM.
fn with_running_vm(site: &Site) -> (Control, VmId) {
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(1), &datastore).unwrap();
    control.create_vm(&caller(2), &create("web1", false)).unwrap();
    assert!(settle_down(site, &control));
    control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(site, &control));
    let vm = *site.host.lock().vms.keys().next().unwrap();
    (control, vm)
}

fn alarms(control: &Control) -> Vec<AlarmKind> {
    control.review().unwrap();
    control.inventory.read().alarms.iter().map(|alarm| alarm.kind).collect()
}

#[test]
fn a_disk_that_is_slow_for_five_minutes_or_stands_still_has_an_alarm() {
    let site = Site::new();
    let (control, vm) = with_running_vm(&site);
    let before = alarms(&control);
    let tell = |latency_ms: u64, stalled_ms: u64, minutes: u64| {
        let mut all = site
            .host
            .lock()
            .statistics
            .remove(&vm)
            .map_or_else(Snapshot::default, |vm| vm.disks[0].snapshot.clone());
        for _ in 0..minutes {
            (0..100).for_each(|_| all.read.latency.record(latency_ms * MS));
            all.stalled_ms = stalled_ms;
            site.host.lock().statistics.insert(vm, told(vm, all.clone()));
            site.pass(Duration::from_secs(60));
            control.sample();
        }
        alarms(&control)
    };
    assert_eq!(tell(1, 0, 1), before);
    assert_eq!(tell(900, 0, 4), before);
    let slow = tell(900, 0, 1);
    assert!(slow.contains(&AlarmKind::DiskSlow), "{slow:?}");
    assert!(tell(1, 0, 4).contains(&AlarmKind::DiskSlow), "not yet");
    assert_eq!(tell(1, 0, 1), before);
    assert_eq!(tell(1, 29_000, 1), before);
    let stalled = tell(1, 31_000, 1);
    assert!(stalled.contains(&AlarmKind::DiskStalled), "{stalled:?}");
    assert_eq!(tell(1, 0, 1), before);
    // A host without counters has no disks to raise an alarm about.
    assert!(tell(1, 31_000, 1).contains(&AlarmKind::DiskStalled));
    site.host.lock().statistics.clear();
    control.sample();
    assert_eq!(alarms(&control), before);
    let index = control.inventory.read();
    let events: Vec<_> = index.events().iter().filter(|event| event.kind.starts_with("alarm.")).collect();
    assert!(events.iter().any(|event| event.message.contains("disk0 has completed nothing for 31 seconds")));
    assert!(events.iter().any(|event| event.message.contains("one of 100 requests to disk0 takes")));
}

#[test]
fn stats_and_metrics_are_told_over_the_api() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    let added = client.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    client.done(&added);
    let wish =
        json!({ "name": "web1", "memory_bytes": 2u64 << 30, "disks": [{ "size_bytes": 20u64 << 30 }] });
    let created = client.post("/v1/vms", &wish);
    client.done(&created);
    assert_eq!(client.get("/v1/vms/web1/stats").json()["disks"], json!([]));
    assert_eq!(client.get("/v1/vms/none/stats").status, 404);
    let started = client.ask("POST", "/v1/vms/web1/start", &[], None);
    client.done(&started);
    let last = client.get("/v1/events?limit=1").json()["items"][0]["id"].as_u64().unwrap();
    let from = format!("/v1/events/stream?after={last}");
    let vm = *server.site.host.lock().vms.keys().next().unwrap();
    let stalled = Snapshot { stalled_ms: 40_000, ..snapshot(100, 300_000) };
    server.site.host.lock().statistics.insert(vm, told(vm, stalled));

    let shown = client.get("/v1/vms/web1/stats").json();
    assert_eq!(
        shown["processors"],
        json!({ "read_unix_ms": 1, "vcpus": 2, "run_ns": 3_500_000_000_u64, "wait_ns": 250_000_000 })
    );
    let disk = shown["disks"][0].clone();
    assert_eq!(
        (&disk["disk"], &disk["in_flight"], &disk["stalled_ms"]),
        (&json!("disk0"), &json!(3), &json!(40_000))
    );
    let (read, write) = (&disk["operations"][0], &disk["operations"][1]);
    assert_eq!(
        (&read["operation"], &read["requests"], &read["bytes"]),
        (&json!("read"), &json!(100), &json!(409_600))
    );
    assert_eq!(read["latency"], json!([{ "below_ns": 327_680, "requests": 100 }]));
    assert_eq!((&write["operation"], &write["errors"]["no_space"]), (&json!("write"), &json!(2)));

    server.look();
    client.stream(&from, "", |text| text.contains("disk0 has completed nothing for 40 seconds"));
    let text = client.get("/metrics").body;
    let metrics = Metrics::parse(&text);
    let labels = r#"vm="web1",disk="disk0""#;
    assert_eq!(metrics.value(&format!("strongroom_disk_in_flight{{{labels}}}")), 3.0);
    assert_eq!(metrics.value(&format!("strongroom_disk_stalled_seconds{{{labels}}}")), 40.0);
    assert_eq!(metrics.value(&format!(r#"strongroom_disk_errors_total{{{labels},kind="no_space"}}"#)), 2.0);
    assert_eq!(metrics.value(r#"strongroom_vm_cpu_seconds_total{vm="web1"}"#), 3.5);
    assert_eq!(metrics.value(r#"strongroom_vm_cpu_wait_seconds_total{vm="web1"}"#), 0.25);
    let read = format!(r#"{labels},operation="read""#);
    assert_eq!(metrics.value(&format!("strongroom_disk_bytes_total{{{read}}}")), 409_600.0);
    assert_eq!(metrics.value(&format!("strongroom_disk_latency_seconds_count{{{read}}}")), 100.0);
    assert!((metrics.value(&format!("strongroom_disk_latency_seconds_sum{{{read}}}")) - 0.03).abs() < 1e-9);
    let bucket =
        |le: &str| metrics.value(&format!(r#"strongroom_disk_latency_seconds_bucket{{{read},le="{le}"}}"#));
    assert_eq!((bucket("0.000262144"), bucket("0.001048576"), bucket("+Inf")), (0.0, 100.0, 100.0));

    // A captured worker can make its own numbers absurd, and nothing else.
    let mut absurd = snapshot(1, 1);
    for bucket in 0..strongroom_statistics::BUCKETS {
        absurd.read.latency.add(bucket, u64::MAX);
        absurd.write.latency.add(bucket, u64::MAX - 7);
    }
    (absurd.in_flight, absurd.read.bytes, absurd.read.time_ns) = (u64::MAX, u64::MAX, u64::MAX);
    server.site.host.lock().statistics.insert(vm, told(vm, absurd));
    assert_eq!(client.get("/v1/vms/web1/stats").status, 200);
    server.look();
    client.stream(&from, "", |text| text.contains("alarm.cleared") && text.contains("over: VM web1: disk0"));
    Metrics::parse(&client.get("/metrics").body);
}

/// A strict parser of Prometheus's text format 0.0.4 and its rules for histograms.
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'));
        let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
        let (mut help, mut family) = (None, None);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, said) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && !said.is_empty() && families.insert(name.to_owned()), "{line}");
                help = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(help.take().as_deref(), Some(name), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                family = Some((name.to_owned(), kind.to_owned()));
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let value: f64 = value.parse().unwrap();
                assert!(value.is_finite() && value >= 0.0, "{line}");
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let (of, kind) = family.as_ref().unwrap();
                let suffixes: &[&str] =
                    if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(
                    suffixes.iter().any(|suffix| name == format!("{of}{suffix}")),
                    "{line} is not of {of}"
                );
                check_labels(labels.strip_suffix('}').unwrap());
                assert!(samples.insert(series.to_owned(), value).is_none(), "{series} is there twice");
            }
        }
        let metrics = Self(samples);
        metrics.check_histograms();
        metrics
    }

    /// Buckets are cumulative, and the last one equals the count.
    fn check_histograms(&self) {
        let mut buckets: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, value) in self.0.iter().filter(|(series, _)| series.contains("_bucket{")) {
            let (of, le) = series.rsplit_once(",le=\"").unwrap();
            let le = match le.strip_suffix("\"}").unwrap() {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().unwrap(),
            };
            buckets.entry(of).or_default().push((le, *value));
        }
        for (of, mut buckets) in buckets {
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{of}");
            let (last, count) = (buckets.last().unwrap(), format!("{}}}", of.replace("_bucket{", "_count{")));
            assert_eq!((last.0, Some(&last.1)), (f64::INFINITY, self.0.get(&count)), "{of}");
            assert!(self.0.contains_key(&count.replace("_count{", "_sum{")), "{of}");
        }
    }

    #[track_caller]
    fn value(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("{series} is not there"))
    }
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|one| one.is_ascii_alphanumeric() || one == '_')
}

fn check_labels(labels: &str) {
    let mut names = BTreeSet::new();
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (name, value) = label.split_once('=').unwrap();
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
        assert!(is_name(name) && !value.contains(['"', '\\', '\n']) && names.insert(name), "{labels}");
    }
}
