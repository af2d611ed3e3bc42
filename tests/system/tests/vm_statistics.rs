//! The requests of a VM's guest to its disk are counted, and the time of its processors, whichever
//! of the serving processes is killed.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{Scratch, Serving};

const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until the output of `vm stats --once` for the disk satisfies `is_so`. A process that was
/// just killed may be missing meanwhile.
#[track_caller]
fn wait_for(serving: &Serving<'_>, awaited: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + DEADLINE;
    loop {
        let told = serving
            .strongroom
            .run_shell("STRONGROOM_HOME=\"$PWD/home\" \"$STRONGROOM\" --json vm stats web1 --once || true");
        let told: Value = serde_json::from_str(&told.stdout).unwrap_or(Value::Null);
        let disk = told["disks"][0].clone();
        if disk.is_object() && is_so(&disk) {
            return disk;
        }
        assert!(Instant::now() < until, "{awaited}: not within {DEADLINE:?}: {told}");
    }
}

fn reads(disk: &Value) -> u64 {
    disk["operations"]["read"]["requests"].as_u64().unwrap()
}

/// The age of the counters, to the second.
fn age(disk: &Value) -> f64 {
    disk["seconds"].as_f64().unwrap()
}

/// For how long the VM's processors have run, in nanoseconds; `None` if it is not known.
fn run_ns(serving: &Serving<'_>) -> Option<u64> {
    serving.reads("/v1/vms/web1/stats")["processors"]["run_ns"].as_u64()
}

/// Waits until the VM's processors have run for longer.
#[track_caller]
fn has_run_on(serving: &Serving<'_>, before: u64) -> u64 {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(now) = run_ns(serving).filter(|now| *now > before) {
            return now;
        }
        assert!(Instant::now() < until, "its processors have not run on since {before} ns");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn counters_outlive_all_but_the_supervisor() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 64M --disk 8M --net none");
    serving.runs("vm start web1");
    // The firmware looks for a boot sector.
    let booted = wait_for(&serving, "the firmware reads", |disk| reads(disk) > 0);
    let ran = has_run_on(&serving, 0);
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();

    let kill = |pid| kill_process(pid, Signal::KILL).unwrap();
    let worker = serving.workers_of(&id)[0];
    kill(worker);
    let is_another = |_: &Value| serving.workers_of(&id).first().is_some_and(|other| *other != worker);
    let restarted = wait_for(&serving, "has another worker", is_another);
    assert!(reads(&restarted) >= reads(&booted) && age(&restarted) > age(&booted), "{restarted}");

    kill(serving.process(&["serve", "--role host"]));
    let again = wait_for(&serving, "is counted by another hostd", |disk| age(disk) > age(&restarted));
    assert!(reads(&again) >= reads(&restarted), "{again}");

    kill(serving.processes_of(&id)[0]);
    wait_for(&serving, "begins anew", |disk| age(disk) < age(&again));
    // It is the same QEMU.
    has_run_on(&serving, ran);
    serving.runs("vm stop web1 --force");
    assert_eq!(serving.json("vm stats web1 --once")["disks"], serde_json::json!([]));
    assert_eq!(run_ns(&serving), None);
    serving.end();
}
