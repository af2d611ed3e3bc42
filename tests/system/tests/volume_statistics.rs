//! Clients' requests to an exposed volume are counted: by real workers, for real clients, across a
//! worker's death.

use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::family::{kill, worker_of};
use strongroom_system_tests::{CommandLine, Scratch};

const KEY: [u8; 32] = [0x29; 32];
const KEY_ARGUMENTS: [&str; 2] = ["--key-file", "vm1.key"];
const DEADLINE: Duration = Duration::from_secs(120);

fn statistics(strongroom: &CommandLine<'_>, volume: &str) -> Value {
    strongroom.json(&["volume", "info", volume])["statistics"].clone()
}

fn requests(statistics: &Value, operation: &str) -> u64 {
    statistics["operations"][operation]["requests"].as_u64().unwrap()
}

#[test]
fn nbd_requests_are_counted_across_the_death_of_a_worker() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    strongroom.json(&[&["volume", "create", "ds/vm1", "--size", "64M"], &KEY_ARGUMENTS[..]].concat());
    assert!(statistics(&strongroom, "ds/vm1").is_null(), "nobody exposes it");
    let (server, uri) = strongroom.expose("ds/vm1", &KEY_ARGUMENTS);
    let first = statistics(&strongroom, "ds/vm1");
    assert_eq!((requests(&first, "read"), requests(&first, "write")), (0, 0));

    let work = ["-c", "write -P 7 0 1M", "-c", "flush", "-c", "discard 1M 1M", "-c", "write -z 2M 64k"];
    let io = |commands: &[&str]| {
        let uri = ["-f", "raw", uri.as_str()];
        strongroom.peer("qemu-io", &[commands, &uri[..]].concat())
    };
    io(&work);
    io(&["-r", "-c", "read -P 7 0 1M"]);
    let second = statistics(&strongroom, "ds/vm1");
    let bytes =
        |statistics: &Value, operation: &str| statistics["operations"][operation]["bytes"].as_u64().unwrap();
    assert_eq!(bytes(&second, "write"), 1 << 20);
    assert!(bytes(&second, "read") >= 1 << 20, "{second}");
    assert_eq!((bytes(&second, "discard"), bytes(&second, "write_zeroes")), (1 << 20, 64 << 10));
    assert!(requests(&second, "flush") >= 1, "{second}");
    let write = &second["operations"]["write"];
    let [p50, p99, max] = ["p50_ns", "p99_ns", "max_ns"].map(|name| write[name].as_u64().unwrap());
    assert!(0 < p50 && p50 <= p99 && p99 <= max, "{write}");
    assert_eq!((&second["in_flight"], &second["stalled_ms"]), (&0.into(), &0.into()));

    let worker = worker_of(server.id());
    kill(worker);
    let until = Instant::now() + DEADLINE;
    loop {
        let exposure = strongroom.json(&["volume", "info", "ds/vm1"])["exposure"].clone();
        if exposure["worker_pid"].as_u64().is_some_and(|pid| pid != u64::from(worker)) {
            break;
        }
        assert!(Instant::now() < until, "no other worker within {DEADLINE:?}");
    }
    io(&["-c", "write -P 8 0 1M"]);
    let third = statistics(&strongroom, "ds/vm1");
    assert_eq!(third["since_unix_ms"], second["since_unix_ms"]);
    assert_eq!(bytes(&third, "write"), 2 << 20);
    assert!(requests(&third, "read") >= requests(&second, "read"));

    let text = strongroom.run(&["volume", "info", "ds/vm1"]).stdout;
    assert!(text.contains("    write         ") && text.contains("; half within "), "{text}");
    assert!(server.terminate(DEADLINE).success());
}
