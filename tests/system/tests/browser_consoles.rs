//! A console in a browser: a process of its own carries it, and the control plane has nothing of
//! what passes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use strongroom_system_tests::{Process, Scratch, Serving};

use crate::secret_search::Needles;

/// Timeout of each step of the browser's.
const WITHIN: Duration = Duration::from_secs(120);

/// The VM; what is typed, with the number of the command first, and what the guest makes of it.
const VM: &str = "vm-of-a-browser-93ac";
const TYPED: &str = "b1 m=strongroom-typed; echo $m-marker-93ac";
const SHOWN: &str = "strongroom-typed-marker-93ac";

#[test]
fn what_passes_between_a_browser_and_a_guest_is_not_the_control_planes() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create {VM} --memory 256M --net none --disk 16M {guest}"));
    let _place = serving.take_place();
    serving.runs(&format!("vm start {VM}"));
    let mut console = serving.console(VM);
    console.wait_until_ready();
    drop(console);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/websocket/console.py");
    let control = scratch.path("home/control");
    let mut browser = Command::new("/usr/bin/python3");
    browser.arg(script).arg(serving.api_url()).arg(control.join("api.crt")).arg(control.join("token"));
    browser.args([VM, TYPED, SHOWN]);
    let mut browser = Process::start(&scratch, "browser", &browser);
    let told = browser.wait_for_line("what it has", WITHIN, |line| line.starts_with('{'));
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["welcome"]["welcome"]["console"]["writer"], true, "{told}");
    assert_eq!(told["cipher"], "TLS_AES_256_GCM_SHA384");

    let process = |word: &str| {
        let all = serving.processes();
        let found: Vec<_> = all.iter().filter(|(_, line)| line.contains(word)).collect();
        assert_eq!(found.len(), 1, "{word}: {all:?}");
        found[0].0
    };
    let (relay, control) = (process("guest-relay"), process("--role control"));
    if rustix::process::geteuid().is_root() {
        let status = std::fs::read_to_string(format!("/proc/{relay}/status")).unwrap();
        let has = |line: &str| {
            status.lines().any(|one| one.split_whitespace().collect::<Vec<_>>().join(" ") == line)
        };
        assert!(has("CapEff: 0000000000000000") && has("NoNewPrivs: 1") && has("Seccomp: 2"), "{status}");
        assert!(!has("Uid: 0 0 0 0"), "{status}");
        // The search finds what is there.
        let mut known = Needles::default();
        known.add("the name of the VM", VM.as_bytes());
        assert_ne!(known.found_in_memory(control), []);
        let mut passed = Needles::default();
        passed.add("what was typed", TYPED.as_bytes());
        passed.add("what was shown", SHOWN.as_bytes());
        assert_eq!(passed.found_in_memory(control), [], "the control plane has what passed");
    }

    // It ends with the control plane, and takes nobody's console along.
    serving.end();
    let left: Vec<_> =
        serving.processes().into_iter().filter(|(_, line)| line.contains("guest-relay")).collect();
    assert_eq!(left, [], "it outlives the control plane");
    browser.wait_for_line("that it has ended", WITHIN, |line| line == "ended");
}
