//! A guest that moves from one real QEMU to another through the relays, and one whose move fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use strongroom_migrate::{MigrateError, Reason};

use crate::site::{Ends, Members, Pair};
use crate::wire::Wire;

/// Timeout of steps that take seconds on a free machine.
const WITHIN: Duration = Duration::from_secs(180);
const MULTIFD_CHANNELS: u16 = 4;

/// Built by scripts/build-guest, unless it is up to date.
fn guest_directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let program = std::env::current_exe().unwrap();
        let directory = std::env::var_os("STRONGROOM_GUEST_DIR")
            .map_or_else(|| program.ancestors().nth(3).unwrap().join("guest"), PathBuf::from);
        let mut build = Command::new(script("build-guest"));
        assert!(build.env("STRONGROOM_GUEST_DIR", &directory).status().unwrap().success());
        directory
    })
}

fn script(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap();
    repository.join("scripts").join(name)
}

/// A QEMU with the test guest, or with room for one that comes.
struct Qemu {
    process: Child,
    qmp: BufReader<UnixStream>,
    console: BufReader<UnixStream>,
    commands: u32,
}

impl Qemu {
    fn start(directory: &Path, name: &str, arguments: &[&str]) -> Self {
        let socket = |of: &str| {
            let path = directory.join(format!("{name}-{of}.sock"));
            (UnixListener::bind(&path).unwrap(), path)
        };
        let ((qmp, qmp_path), (console, console_path)) = (socket("qmp"), socket("console"));
        let process = Command::new(script("run-guest"))
            .env("STRONGROOM_GUEST_DIR", guest_directory())
            .args(["--memory", "192", "--qmp"])
            .arg(qmp_path)
            .arg("--serial")
            .arg(console_path)
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let accept = |listener: UnixListener| {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(WITHIN)).unwrap();
            BufReader::new(stream)
        };
        // QEMU makes its serial lines before its monitor.
        let console = accept(console);
        let mut qemu = Self { process, qmp: accept(qmp), console, commands: 0 };
        let mut greeting = String::new();
        qemu.qmp.read_line(&mut greeting).unwrap();
        qemu.execute("qmp_capabilities", json!({}));
        qemu
    }

    fn try_execute(&mut self, command: &str, arguments: Value) -> Result<Value, Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.qmp.get_mut(), "{request}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.qmp.read_line(&mut line).unwrap(), 0, "{command}: QEMU is gone");
            let mut answer: Value = serde_json::from_str(&line).unwrap();
            if let Some(answer) = answer.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = answer.get_mut("error") {
                return Err(error.take());
            }
        }
    }

    #[track_caller]
    fn execute(&mut self, command: &str, arguments: Value) -> Value {
        self.try_execute(command, arguments).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    fn use_channels(&mut self, multifd: bool) {
        if multifd {
            let capability = json!([{ "capability": "multifd", "state": true }]);
            self.execute("migrate-set-capabilities", json!({ "capabilities": capability }));
            self.execute("migrate-set-parameters", json!({ "multifd-channels": MULTIFD_CHANNELS }));
        }
    }

    /// Waits until the migration of this QEMU has this status.
    #[track_caller]
    fn await_migration(&mut self, status: &str) {
        let until = Instant::now() + WITHIN;
        loop {
            let answer = self.execute("query-migrate", json!({}));
            let found = answer["status"].as_str().unwrap_or("none").to_owned();
            if found == status {
                return;
            }
            let is_over = ["completed", "failed", "cancelled"].contains(&found.as_str());
            assert!(!is_over && Instant::now() < until, "{answer}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn status(&mut self) -> String {
        self.execute("query-status", json!({}))["status"].as_str().unwrap().to_owned()
    }

    fn console_line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.console.read_line(&mut line).unwrap(), 0, "the console is closed");
        line.trim_end().to_owned()
    }

    fn await_boot(&mut self) {
        while !self.console_line().starts_with("STRONGROOM-GUEST READY") {}
    }

    /// Runs a command in the guest, which must succeed. Returns its output.
    #[track_caller]
    fn run(&mut self, command: &str) -> String {
        self.commands += 1;
        let tag = format!("tag-{}-{}", self.process.id(), self.commands);
        writeln!(self.console.get_mut(), "{tag} {command}").unwrap();
        let mut output = Vec::new();
        loop {
            let line = self.console_line();
            if let Some(status) = line.strip_prefix(&format!("{tag} ")) {
                assert_eq!(status, "0", "{command}: {output:?}");
                return output.join("\n").trim().to_owned();
            }
            output.push(line);
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Text that the guest has in its memory. It makes it itself, so no file of it is sent.
const MARKER: &str = "MARKER-OF-A-GUEST-0451";
const FILL: &str = "yes MARKER-OF-A-''GUEST-0451 | head -c 24000000 >/tmp/marker && md5sum </tmp/marker";
/// Dirties memory without an end, and counts.
const WORK: &str = "(n=0; while :; do n=$((n+1)); echo $n >/tmp/count; cat /bin/busybox >/tmp/dirty; done) &";

fn contains(all: &[u8], part: &str) -> bool {
    memchr::memmem::find(all, part.as_bytes()).is_some()
}

/// Stands between QEMU at the source and its relay, and records what passes: so a search for the
/// marker is known to find it where it is.
fn record_plain(at: &Path, to: PathBuf) -> Arc<Mutex<Vec<u8>>> {
    let listener = UnixListener::bind(at).unwrap();
    let recorded: Arc<Mutex<Vec<u8>>> = Arc::default();
    let all = Arc::clone(&recorded);
    thread::spawn(move || {
        for from in listener.incoming() {
            let from = from.unwrap();
            let to = UnixStream::connect(&to).unwrap();
            let (back_from, back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
            let all = Arc::clone(&all);
            thread::spawn(move || copy(from, to, Some(&all)));
            thread::spawn(move || copy(back_from, back_to, None));
        }
    });
    recorded
}

fn copy(mut from: UnixStream, mut to: UnixStream, recorded: Option<&Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 1 << 18];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(recorded) = recorded {
            recorded.lock().extend_from_slice(&buffer[..count]);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn uri(path: &Path) -> Value {
    json!({ "uri": format!("unix:{}", path.display()) })
}

fn moves(multifd: bool) {
    let (members, directory) = (Members::new(), tempfile::tempdir().unwrap());
    let pair = Pair::new(&members);
    let mut source = Qemu::start(directory.path(), "source", &[]);
    let mut target = Qemu::start(directory.path(), "target", &["--incoming"]);
    source.await_boot();
    let sum = source.run(FILL);
    source.run(WORK);

    source.use_channels(multifd);
    target.use_channels(multifd);
    target.execute("migrate-incoming", uri(&pair.target_socket()));
    let wire = Wire::recording(pair.address());
    let relays = pair.start_over(wire.address);
    assert!(relays.source.is_established());
    let tee = directory.path().join("tee.sock");
    let plain = record_plain(&tee, pair.source_socket());
    // What is left is sent while the guest stands still: on a busy machine an emulated guest
    // dirties its memory faster than it is sent.
    source.execute("migrate-set-parameters", json!({ "downtime-limit": 20_000 }));
    source.execute("migrate", uri(&tee));
    source.await_migration("completed");

    // Both relays are complete, and agree on what has passed.
    let sent = relays.source.wait().unwrap();
    let received = relays.target.wait().unwrap();
    assert_eq!(sent, received);
    assert_eq!(sent.channels, if multifd { 1 + MULTIFD_CHANNELS } else { 1 });
    assert!(sent.to_target_bytes > 24_000_000, "{sent:?}");

    // The guest goes on, with its memory, and in one place.
    let until = Instant::now() + WITHIN;
    while target.status() != "running" {
        assert!(Instant::now() < until, "{}", target.status());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(source.status(), "postmigrate");
    assert_eq!(target.run("md5sum </tmp/marker"), sum);
    let count: u64 = target.run("cat /tmp/count").parse().unwrap();
    target.run("sleep 1");
    while target.run("cat /tmp/count").parse::<u64>().unwrap() <= count {}

    let (plain, wire) = (plain.lock().clone(), wire.recorded());
    assert!(contains(&plain, MARKER), "the search finds it in what QEMU sent");
    assert!(wire.len() as u64 > sent.to_target_bytes, "{} bytes were recorded", wire.len());
    assert!(!contains(&wire, MARKER) && !contains(&wire, &MARKER[..12]));
    // Of the kernel's memory, too.
    assert!(contains(&plain, "Linux version") && !contains(&wire, "Linux version"));
}

#[test]
fn a_guest_moves_over_several_channels_and_the_wire_sees_nothing() {
    moves(true);
}

#[test]
#[ignore = "long: make test-guests"]
fn a_guest_moves_over_one_channel_and_the_wire_sees_nothing() {
    moves(false);
}

/// Breaks a migration in the middle, and returns how its relays ended. The guest runs on at the
/// source, and can move afterwards.
fn broken(multifd: bool, breaks: impl FnOnce(&Ends, &Wire, &mut Qemu)) -> [MigrateError; 2] {
    let (members, directory) = (Members::new(), tempfile::tempdir().unwrap());
    let mut pair = Pair::new(&members);
    // Slow enough to be in the middle for as long as this takes.
    pair.options.bytes_per_second = std::num::NonZeroU64::new(4 << 20);
    let mut source = Qemu::start(directory.path(), "source", &[]);
    let mut target = Qemu::start(directory.path(), "target", &["--incoming"]);
    source.await_boot();
    let sum = source.run(FILL);
    source.run(WORK);
    source.use_channels(multifd);
    target.use_channels(multifd);
    target.execute("migrate-incoming", uri(&pair.target_socket()));
    let wire = Wire::recording(pair.address());
    let relays = pair.start_over(wire.address);
    assert!(relays.source.is_established());
    source.execute("migrate", uri(&pair.source_socket()));
    let until = Instant::now() + WITHIN;
    while relays.target.progress().to_target_bytes < 4 << 20 {
        assert!(Instant::now() < until, "{:?}", relays.target.progress());
        thread::sleep(Duration::from_millis(20));
    }
    breaks(&relays, &wire, &mut target);
    let errors = [relays.source.wait().unwrap_err(), relays.target.wait().unwrap_err()];
    source.await_migration("failed");
    assert_eq!(source.status(), "running");
    assert_eq!(source.run("md5sum </tmp/marker"), sum);
    // The target has not taken the guest for whole.
    if let Ok(None) = target.process.try_wait() {
        let answer = target.try_execute("query-status", json!({}));
        assert!(answer.is_err() || answer.unwrap()["status"] != "running");
    }
    errors
}

#[test]
#[ignore = "long: make test-guests"]
fn a_network_that_fails_in_the_middle_leaves_the_guest_where_it_was() {
    for error in broken(true, |_, wire, _| wire.cut()) {
        assert!(!matches!(error, MigrateError::Cancelled), "{error}");
    }
}

#[test]
#[ignore = "long: make test-guests"]
fn a_target_that_is_killed_in_the_middle_leaves_the_guest_where_it_was() {
    let [source, target] = broken(false, |_, _, target| {
        target.process.kill().unwrap();
        target.process.wait().unwrap();
    });
    assert!(matches!(source, MigrateError::PeerEnded(Reason::Qemu { channel: 0 })), "{source}");
    assert!(matches!(target, MigrateError::Qemu { channel: 0, .. }), "{target}");
}

#[test]
#[ignore = "long: make test-guests"]
fn a_cancelled_migration_leaves_the_guest_where_it_was() {
    let [source, target] = broken(true, |relays, _, _| relays.source.cancel());
    assert!(matches!(source, MigrateError::Cancelled), "{source}");
    assert!(matches!(target, MigrateError::PeerEnded(Reason::Cancelled)), "{target}");
}
