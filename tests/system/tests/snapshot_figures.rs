//! A small run of the lab's study of snapshots: its figures come out, what its guests wrote is
//! verified, and everything that it started is ended.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::Value;
use strongroom_lab::programs::make_secret;
use strongroom_lab::snapshots::config::{Part, Sizes, SnapshotsConfig};
use strongroom_lab::snapshots::run::{Found, run};
use strongroom_lab::study::SubjectError;
use strongroom_system_tests::{CommandLine, Scratch};

const MIB: u64 = 1 << 20;

fn config(scratch: &Scratch) -> SnapshotsConfig {
    let secret = scratch.path("secret");
    make_secret(&secret).expect("a key");
    SnapshotsConfig {
        program: CommandLine::new(scratch).program().to_owned(),
        scratch: scratch.make_directory("disks"),
        sockets: scratch.make_directory("s"),
        secret,
        sizes: Sizes {
            group: 16 * MIB,
            created: 64 * MIB,
            created_content: MIB,
            chain: 4 * MIB,
            after: 16 * MIB,
            after_log: Some(MIB),
            // The merge of so much takes longer than a measurement.
            merge: 128 * MIB,
        },
        volumes: vec![1, 3],
        depths: vec![2],
        // Layers are merged between the pairs.
        pairs: 2,
        snapshots_max: 2,
        window: Duration::from_millis(20),
        rounds: 1,
        duration: Duration::from_millis(20),
        has_peers: true,
        stop: Arc::default(),
    }
}

#[track_caller]
fn measure(scratch: &Scratch, config: &SnapshotsConfig, part: Part) -> Found {
    let results = scratch.make_directory("results");
    let found = run(part, config, &results, &|text| println!("{text}"));
    let found = found.unwrap_or_else(|error: SubjectError| panic!("{error}"));
    println!("{}", found.markdown);
    assert!(!found.goals.is_empty());
    assert!(found.directory.join("report.md").exists() && found.directory.join("report.json").exists());
    assert_nothing_runs_in(scratch);
    found
}

/// No process has a path of the test in its command line.
#[track_caller]
fn assert_nothing_runs_in(scratch: &Scratch) {
    let root = scratch.path("");
    let root = root.to_str().expect("a test's path is text").trim_end_matches('/');
    for process in fs::read_dir("/proc").expect("processes").flatten() {
        // A process that has ended meanwhile has no command line.
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains(root), "{} is left", line);
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn guests_write_on_over_snapshots_of_one_instant() {
    let scratch = Scratch::new();
    let found = measure(&scratch, &config(&scratch), Part::Gap);
    // The study itself fails if content is wrong, or if the same process serves a guest afterwards.
    let pairs = lines(&found.directory.join("pairs.jsonl"));
    let of = |line: &Value| (line["workload"].clone(), line["subject"].clone());
    assert_eq!(pairs.len(), 5, "{pairs:?}");
    assert_eq!(lines(&found.directory.join("samples.jsonl")).len(), 5);
    for line in &pairs {
        let measured = line["pairs"].as_array().expect("pairs");
        assert_eq!(measured.len(), 2, "{line}");
        for pair in measured {
            for figure in ["control_ms", "snapshot_ms", "told_ms", "command_ms"] {
                assert!(pair[figure].as_f64() > Some(0.0), "{:?}: {pair}", of(line));
            }
        }
    }
    for row in
        ["1 volume, depth 2, encrypted |", "3 volumes, depth 2, clear |", "one volume after the other |"]
    {
        assert!(found.markdown.contains(row), "{}", found.markdown);
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn making_a_snapshot_is_timed_beside_images() {
    let scratch = Scratch::new();
    let found = measure(&scratch, &config(&scratch), Part::Create);
    assert_eq!(lines(&found.directory.join("samples.jsonl")).len(), 4);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn chains_are_read_and_written_and_merged_beside_others() {
    let scratch = Scratch::new();
    let config = config(&scratch);
    let found = measure(&scratch, &config, Part::Chains);
    assert_eq!(lines(&found.directory.join("samples.jsonl")).len(), 8);
    let found = measure(&scratch, &config, Part::After);
    assert_eq!(found.goals.len(), 4);
    let found = measure(&scratch, &config, Part::Merge);
    assert_eq!(lines(&found.directory.join("samples.jsonl")).len(), 4);
    for part in [Part::Reencrypt, Part::Move] {
        let found = measure(&scratch, &config, part);
        assert_eq!(lines(&found.directory.join("samples.jsonl")).len(), 4);
        assert_eq!(found.goals.len(), 2);
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn rewriting_is_measured_beside_copies() {
    let scratch = Scratch::new();
    let config = config(&scratch);
    let config = SnapshotsConfig { sizes: Sizes { merge: 16 * MIB, ..config.sizes }, ..config };
    let found = measure(&scratch, &config, Part::Rewrite);
    assert_eq!(lines(&found.directory.join("samples.jsonl")).len(), 3);
    assert_eq!(found.goals.len(), 1);
}

#[test]
fn a_signal_ends_the_study_with_all_that_it_started() {
    let scratch = Scratch::new();
    let config = SnapshotsConfig { stop: Arc::new(AtomicBool::new(true)), ..config(&scratch) };
    let results = scratch.make_directory("results");
    for part in [Part::Gap, Part::Chains, Part::After] {
        let stopped = run(part, &config, &results, &|_| {});
        assert!(stopped.is_err_and(|error| error.to_string().contains("signal")), "{part:?}");
        assert_nothing_runs_in(&scratch);
    }
}
