//! Many VMs are started and stopped at once: the queue runs at most sixteen operations at a time,
//! and all VMs reach the requested state.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::{Scratch, Serving};

/// A smaller number in CI.
const VMS: usize = if cfg!(feature = "full") { 120 } else { 12 };
/// hostd's own limit (RUNNING_MAX in crates/control-plane/hostd/src/daemon/queue.rs).
const AT_ONCE_MAX: u64 = 16;
/// Timeout on a machine that is busy with other things.
const ALL_WITHIN: Duration = Duration::from_secs(300);

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn many_vms_go_on_and_off_through_the_queue() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    ask_all(&serving, "vm create $vm --memory 32M --net none --disk 1M --machine pc");

    ask_all(&serving, "vm start $vm --paused --no-wait");
    let at_once = most_at_once_until_all_are(&scratch, &serving, "paused");
    // With this many VMs, an operation is always queued while another runs.
    assert!((2..=AT_ONCE_MAX).contains(&at_once), "{at_once} at once");
    let running = serving.processes().iter().filter(|(_, line)| line.contains("vm-supervisor")).count();
    assert_eq!(running, 2 * VMS, "a supervisor and its starter each");

    ask_all(&serving, "vm stop $vm --force --no-wait");
    let at_once = most_at_once_until_all_are(&scratch, &serving, "stopped");
    assert!(at_once <= AT_ONCE_MAX, "{at_once} at once");
}

/// Sends the request for all VMs, faster than they are carried out.
#[track_caller]
fn ask_all(serving: &Serving<'_>, of_each: &str) {
    let script = format!(
        r#"export STRONGROOM_HOME="$PWD/home"
           seq {VMS} | xargs -P {AT_ONCE_MAX} -I {{}} sh -c 'vm=vm{{}}; "$STRONGROOM" {of_each}' >>asked.log"#
    );
    serving.strongroom.run_shell(&script).success();
}

/// The greatest number of operations that the host ran at once, until all VMs have this state and
/// the host is idle.
#[track_caller]
fn most_at_once_until_all_are(scratch: &Scratch, serving: &Serving<'_>, power: &str) -> u64 {
    let until = Instant::now() + ALL_WITHIN;
    let mut most = 0;
    loop {
        let host = ask_hostd(scratch);
        let count = |what: &str| host[what].as_u64().unwrap();
        most = most.max(count("operations_running"));
        if count("operations_running") + count("operations_queued") == 0 {
            let listed = serving.json("vm list");
            let powers: Vec<&Value> =
                listed["items"].as_array().unwrap().iter().map(|vm| &vm["power"]).collect();
            if powers.len() == VMS && powers.iter().all(|found| *found == power) {
                return most;
            }
            assert!(Instant::now() < until, "not all are {power} within {ALL_WITHIN:?}: {powers:?}");
        }
    }
}

/// Queries hostd directly, without the control plane's cache.
#[track_caller]
fn ask_hostd(scratch: &Scratch) -> Value {
    let mut socket = UnixStream::connect(scratch.path("run/hostd/control.sock")).unwrap();
    socket.write_all(b"GET /v1/host HTTP/1.1\r\nHost: hostd\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}
