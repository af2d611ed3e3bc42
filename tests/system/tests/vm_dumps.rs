//! Dumps of guests: sealed on disk, a core file when they are opened, complete or absent.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::key_server::audit_lines;
use strongroom_system_tests::{Console, Scratch, Serving, datastore};

/// A text that is only in the guest's memory: the command that makes it contains two halves.
const MARKER: &str = "strongroom-dump-marker-of-a-guest-71c4";
const REMEMBER: &str = "half=strongroom-dump-marker; whole=${half}-of-a-guest-71c4";
const MEMORY_BYTES: u64 = 256 << 20;
/// Timeout for a dump to begin, or to be gone.
const SOON: Duration = Duration::from_secs(60);

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_dump_is_sealed_and_opened_whole() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let id = create(&scratch, &serving);
    let refused = serving.is_refused("vm dump create web1");
    assert!(refused.contains("web1 is stopped"), "{refused}");
    assert!(serving.runs("vm dump list web1").contains("there are no dumps"));

    let _place = serving.take_place();
    let mut console = boot(&serving);
    console.session.run(REMEMBER);
    assert!(serving.is_refused("vm dump create web1 --label \"$(printf 'a\\nb')\"").contains("label"));
    let made = serving.json("vm dump create web1 --label 'it hangs'");
    assert_eq!((made["number"].as_u64(), made["label"].as_str()), (Some(1), Some("it hangs")));
    let bytes = made["bytes"].as_u64().unwrap();
    assert!(bytes > MEMORY_BYTES, "{made}");
    assert!(made["sealed_bytes"].as_u64().unwrap() < bytes / 2, "most of a new guest is zeroes: {made}");
    assert!(datastore::allocated_bytes(&scratch.path("ds/web1/dump-1")) < bytes / 2);
    // The guest continues.
    assert_eq!(serving.vm("web1")["power"], "running");
    assert_eq!(console.session.run("echo the guest goes on"), "the guest goes on\n");
    let names = MARKER.strip_suffix("-of-a-guest-71c4").unwrap();
    assert!(console.session.run("echo $half").contains(names));

    // A paused guest is dumped too, and stays paused.
    serving.runs("vm pause web1");
    assert!(serving.runs("vm dump create web1").contains("dump 2 of web1"));
    let vm = serving.vm("web1");
    assert_eq!((vm["power"].as_str(), vm["dumps"].as_array().map(Vec::len)), (Some("paused"), Some(2)));
    serving.runs("vm resume web1");
    assert!(serving.runs("vm show web1").contains("it hangs"));

    open(&serving, 1, "running.core");
    let core = scratch.path("running.core");
    assert_eq!(core.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(core.metadata().unwrap().len(), bytes);
    expect_core_file(&core);
    assert!(
        datastore::occurrences_in(&core, MARKER.as_bytes()) > 0,
        "it is what the guest had in its memory"
    );
    assert!(serving.is_refused("vm dump open web1 1 --to running.core").contains("exists already"));
    serving.runs("vm dump open web1 1 --to - | cmp - running.core");
    assert!(serving.is_refused("vm dump open web1 9 --to no.core").contains("no dump 9"));
    assert!(!scratch.path("no.core").exists());
    drop(console);
    serving.runs("vm stop web1 --force");

    // The key server's log records every access to guest data.
    let lines = audit_lines(&scratch.path("home/keyserver/audit"));
    let uses: Vec<_> = lines.iter().filter(|line| line["action"] == "use of guest data").collect();
    for used in
        ["a dump of VM web1 is asked for", "dump 1 of VM web1 is opened", "the console of VM web1 is opened"]
    {
        let named = |line: &&&Value| line["fields"]["use"] == used && line["objects"][0] == id;
        assert!(uses.iter().any(|line| named(&line)), "'{used}' is not on record: {uses:?}");
    }

    // While the VM is off: after a restart of everything, and after the inventory has lost it.
    serving.kill();
    serving.start_again();
    serving
        .wait_until("web1", "has its dumps", |vm| vm["dumps"].as_array().is_some_and(|all| all.len() == 2));
    open(&serving, 1, "off.core");
    serving.strongroom.peer("cmp", &["off.core", "running.core"]);
    serving.runs("vm unregister web1");
    serving.runs("datastore rebuild ds");
    serving.wait_until("web1", "is found with its dumps", |vm| {
        vm["id"] == id && vm["dumps"].as_array().is_some_and(|all| all.len() == 2)
    });

    // The error names a changed record, and no file is left.
    let layer = File::options().read(true).write(true).open(layer(&scratch.path("ds/web1/dump-1"))).unwrap();
    let (place, mut byte) = (4096 + 2 * (1 << 20) + 70_000, [0]);
    layer.read_exact_at(&mut byte, place).unwrap();
    layer.write_all_at(&[byte[0] ^ 1], place).unwrap();
    let refused = serving.is_refused("vm dump open web1 1 --to damaged.core");
    assert!(
        refused.contains("dump 1 of VM web1") && refused.contains("record 2 of its stream is damaged"),
        "{refused}"
    );
    assert!(!scratch.path("damaged.core").exists());
    layer.write_all_at(&byte, place).unwrap();
    // The same for a dump that was put in another one's place.
    let dumps = ["dump-1", "aside", "dump-2"].map(|name| scratch.path(&format!("ds/web1/{name}")));
    let exchange = || {
        fs::rename(&dumps[0], &dumps[1]).unwrap();
        fs::rename(&dumps[2], &dumps[0]).unwrap();
        fs::rename(&dumps[1], &dumps[2]).unwrap();
    };
    exchange();
    let refused = serving.is_refused("vm dump open web1 1 --to other.core");
    assert!(refused.contains("it is volume") && !scratch.path("other.core").exists(), "{refused}");
    exchange();

    assert!(serving.is_refused("vm dump delete web1 2 < /dev/null").contains("--yes"));
    serving.runs("vm dump delete web1 2 --yes");
    assert!(!dumps[2].exists());
    assert!(!serving.runs("vm dump list web1").contains("\n2 "));
    let events = serving.runs("event list");
    for told in [
        "dump 1 of VM web1 was made",
        "dump 1 of VM web1 is opened, by admin",
        "dump 2 of VM web1 was deleted, by admin",
    ] {
        assert!(events.contains(told), "{told}: {events}");
    }
    for name in ["running.core", "off.core"] {
        fs::remove_file(scratch.path(name)).unwrap();
    }
    is_nowhere(&scratch);
    serving.runs("vm delete web1 --yes");
    let left = datastore::files_under(&scratch.path("ds"));
    assert!(left.iter().all(|path| !path.to_string_lossy().contains("web1")), "{left:?}");
    serving.end();
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn whoever_is_killed_leaves_a_guest_that_goes_on_and_no_half_of_a_dump() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let id = create(&scratch, &serving);
    let _place = serving.take_place();
    let mut console = boot(&serving);
    console.session.run(REMEMBER);
    // Makes the dump take longer.
    console.session.run("dd if=/dev/urandom of=/dev/much bs=1M count=80 2>/dev/null");
    drop(console);

    // The supervisor is killed.
    let task = begin(&serving);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    goes_on(&serving, &id);
    serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
    let failed = serving.json(&format!("task show {task}"));
    assert_eq!(failed["state"], "failed", "{failed}");
    is_gone(&scratch);

    // The dump is cancelled.
    let task = begin(&serving);
    serving.runs(&format!("task cancel {task}"));
    serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
    assert_eq!(serving.json(&format!("task show {task}"))["state"], "cancelled");
    goes_on(&serving, &id);
    is_gone(&scratch);

    // hostd and the control plane are killed: the dump continues without them.
    for role in ["host", "control"] {
        let task = begin(&serving);
        kill_process(serving.process(&["serve", &format!("--role {role}")]), Signal::KILL).unwrap();
        serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
        let done = serving.json(&format!("task show {task}"));
        assert_eq!(done["state"], "done", "{role}: {done}");
        goes_on(&serving, &id);
    }
    let dumps = serving.json("vm dump list web1");
    assert_eq!(dumps["total"], 2, "{dumps}");
    let number = dumps["items"][1]["number"].as_u64().unwrap();
    open(&serving, number, "whole.core");
    let core = scratch.path("whole.core");
    expect_core_file(&core);
    assert!(datastore::occurrences_in(&core, MARKER.as_bytes()) > 0);
    fs::remove_file(core).unwrap();

    // QEMU is killed. Its restart does not wait for the dump.
    begin(&serving);
    kill_process(serving.processes_of(&id)[1], Signal::KILL).unwrap();
    serving.wait_until("web1", "is started again", |vm| vm["generation"] == 2 && vm["power"] == "running");
    assert_eq!(serving.json("vm dump list web1")["total"], 2);
    is_gone(&scratch);
    serving.runs("vm stop web1 --force");
    is_nowhere(&scratch);
}

fn create(scratch: &Scratch, serving: &Serving<'_>) -> String {
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M {guest}"));
    serving.vm("web1")["id"].as_str().unwrap().to_owned()
}

fn boot(serving: &Serving<'_>) -> Console {
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console
}

fn open(serving: &Serving<'_>, number: u64, to: &str) {
    let said = serving.runs(&format!("vm dump open web1 {number} --to {to}"));
    assert!(said.contains("not encrypted"), "{said}");
}

/// Begins a dump. Returns its task when it is in progress. A dump that ends too early is deleted.
fn begin(serving: &Serving<'_>) -> String {
    let until = Instant::now() + SOON;
    loop {
        let task = serving.json("vm dump create web1 --no-wait")["id"].as_str().unwrap().to_owned();
        let over = |vm: &Value| vm["task"].is_null();
        let under_way = |vm: &Value| vm["reason"].as_str().is_some_and(|reason| reason.contains("dumped"));
        let vm = serving.wait_until("web1", "is dumped", |vm| over(vm) || under_way(vm));
        if !over(&vm) {
            assert_eq!(vm["power"], "paused");
            return task;
        }
        assert!(Instant::now() < until, "no dump takes long enough to be seen: {vm}");
        let number = vm["dumps"].as_array().unwrap().last().unwrap()["number"].as_u64().unwrap();
        serving.runs(&format!("vm dump delete web1 {number} --yes"));
    }
}

/// The guest continues with its memory.
fn goes_on(serving: &Serving<'_>, id: &str) {
    let mut console = serving.console_when_taken_over("web1", id);
    assert!(console.session.run("echo $half").contains("strongroom-dump-marker"));
}

/// Nothing of the unfinished dump is left.
fn is_gone(scratch: &Scratch) {
    let until = Instant::now() + SOON;
    let left = || {
        let names = fs::read_dir(scratch.path("ds/web1")).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().contains("making")).count()
    };
    while left() > 0 {
        assert!(Instant::now() < until, "{:?}", datastore::files_under(&scratch.path("ds/web1")));
        std::thread::yield_now();
    }
}

/// The text is in no file of a VM, nor of the processes that manage it.
fn is_nowhere(scratch: &Scratch) {
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "in {place}");
    }
    for entry in fs::read_dir(scratch.path("")).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            assert_eq!(datastore::occurrences_in(&entry.path(), MARKER.as_bytes()), 0, "{:?}", entry.path());
        }
    }
}

/// Checks an ELF core file (System V ABI) of 64 bits: its segments cover all of the guest's memory,
/// and are within the file.
fn expect_core_file(path: &Path) {
    let file = File::open(path).unwrap();
    let read = |at: u64, bytes: usize| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word[..bytes], at).unwrap();
        u64::from_le_bytes(word)
    };
    assert_eq!(read(0, 6), u64::from_le_bytes(*b"\x7fELF\x02\x01\0\0"));
    assert_eq!(read(16, 2), 4, "ET_CORE");
    let (table, entry_bytes, entries) = (read(32, 8), read(54, 2), read(56, 2));
    let segments: Vec<_> = (0..entries).map(|number| table + number * entry_bytes).collect();
    let of_type = |wanted: u64| segments.iter().copied().filter(move |at| read(*at, 4) == wanted);
    assert_eq!(of_type(4).count(), 1, "PT_NOTE: the processors' registers");
    let (mut memory_bytes, mut end) = (0, 0);
    for at in of_type(1) {
        let (offset, bytes) = (read(at + 8, 8), read(at + 32, 8));
        memory_bytes += bytes;
        end = end.max(offset + bytes);
    }
    assert!(memory_bytes > MEMORY_BYTES * 99 / 100, "{memory_bytes}");
    // At most the names of sections follow them.
    let bytes = file.metadata().unwrap().len();
    assert!((end..end + 4096).contains(&bytes), "{bytes} {end}");
}

fn layer(volume: &Path) -> PathBuf {
    let mut files = fs::read_dir(volume).unwrap().flatten();
    files.find(|file| file.file_name().to_string_lossy().starts_with("layer-")).unwrap().path()
}
