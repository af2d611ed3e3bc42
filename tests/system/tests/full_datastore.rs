//! A datastore fills up under its clients: a vhost-user guest waits and continues when there is
//! space, an NBD client gets an error, and the user's remedies work meanwhile.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use crate::disk_support::{DEADLINE, Mounts, await_condition, await_log, await_state, condition, log_of};
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};
use strongroom_system_tests::{CommandLine, Protection, Scratch, Volume, run};

const QUEUES: u16 = 2;
const DEPTH: u16 = 16;
/// The area that the guest writes: more than the space at first, including the volume's log.
const AREA_BYTES: u64 = 96 << 20;
const FULL_MIB: u32 = 64;
const ROOMY_MIB: u32 = 256;

#[test]
fn a_guest_waits_while_its_datastore_is_full_and_loses_nothing() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let disk = mounts.tmpfs("disk", FULL_MIB);
    mounts.place("vm1", &disk);
    let volume = Volume::create(&scratch, "vm1", "128M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let operations = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        let load = scope.spawn(|| load_until(exposure.socket(), &done, &operations));
        let steps = catch_unwind(AssertUnwindSafe(|| {
            let parked = await_state(&volume, "parked");
            assert!(parked["parked"]["requests"].as_u64() >= Some(1), "{parked}");
            let sentence = volume.command("info", &[]).success();
            assert!(sentence.contains("wait for room") && sentence.contains("nothing is lost"), "{sentence}");
            await_log(exposure.process(), "nothing is lost, and the guest goes on by itself");

            // The user's remedies work meanwhile: a growth needs a new descriptor, an upgrade a
            // drained guest.
            volume.command("resize", &["--size", "160M"]).success();
            volume.upgrade().success();
            await_state(&volume, "parked");
            let another = volume.datastore().join("vm2");
            let another = another.to_str().expect("a test's path is text");
            let create = ["volume", "create", another, "--size", "64M", "--unencrypted"];
            let refused = CommandLine::new(&scratch).run(&create).failure();
            assert!(refused.contains("is full"), "{refused}");

            mounts.resize_tmpfs(&disk, ROOMY_MIB);
            await_state(&volume, "running");
            await_log(exposure.process(), "there is room again");
            wait_for_more(&load, &operations);
        }));
        done.store(true, Ordering::SeqCst);
        let report = load.join().unwrap_or_else(|panic| resume_unwind(panic));
        steps.unwrap_or_else(|panic| resume_unwind(panic));
        report.unwrap_or_else(|error| panic!("the load: {error}"))
    });
    println!("{report}");
    assert_eq!(report.reconnects, 0, "the front end noticed nothing but a pause");
    assert!(exposure.close().success());
    let found = volume.command("check", &[]).success();
    assert!(!found.contains("descriptor.spare-"), "{found}");
}

fn wait_for_more(load: &ScopedJoinHandle<'_, Result<Report, LoadError>>, operations: &AtomicU64) {
    let (before, until) = (operations.load(Ordering::SeqCst), Instant::now() + DEADLINE);
    while operations.load(Ordering::SeqCst) < before + 200 {
        assert!(!load.is_finished() && Instant::now() < until, "nothing is answered");
        thread::yield_now();
    }
}

/// Verified load until `done`; then everything is read.
fn load_until(socket: &Path, done: &AtomicBool, operations: &AtomicU64) -> Result<Report, LoadError> {
    let front_end = FrontEnd::connect(socket, Settings::new(QUEUES, DEPTH))?;
    let config = LoadConfig { area_bytes: AREA_BYTES, stall_timeout: DEADLINE, ..LoadConfig::new(47) };
    let mut load = Load::new(front_end, config)?;
    while !done.load(Ordering::SeqCst) {
        load.run(Until::Operations(20))?;
        operations.store(load.report().operations(), Ordering::SeqCst);
    }
    load.finish()
}

#[test]
fn an_nbd_client_is_told_that_the_datastore_is_full_and_goes_on_afterwards() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let disk = mounts.tmpfs("disk", FULL_MIB);
    mounts.place("vm1", &disk);
    let volume = Volume::create(&scratch, "vm1", "128M", Protection::Encrypted);
    let exposure = volume.expose();
    let qemu_io = |commands: &[&str]| {
        let mut command = Command::new("qemu-io");
        command.args(["--format=raw", "--cache=none"]);
        commands.iter().for_each(|text| {
            command.args(["-c", text]);
        });
        // qemu-io's status does not tell whether its commands succeeded.
        let finished = run(&scratch, command.arg(exposure.uri()), DEADLINE);
        finished.stdout + &finished.stderr
    };
    let written = qemu_io(&["write -P 7 0 8M", "flush", "write -P 8 8M 100M", "read -P 7 0 8M"]);
    assert!(written.contains("write failed: No space left on device"), "{written}");
    assert!(!written.contains("verification failed") && !written.contains("read failed"), "{written}");
    let told = await_condition(&volume, "told", |condition| condition["refused_for_room"].as_u64() > Some(0));
    assert_eq!((&told["state"], &told["parked"]), (&"running".into(), &serde_json::Value::Null));
    await_log(exposure.process(), "Its clients have been told so");

    mounts.resize_tmpfs(&disk, ROOMY_MIB);
    let written = qemu_io(&["write -P 8 8M 100M", "flush", "read -P 7 0 8M", "read -P 8 8M 100M"]);
    assert!(!written.contains("failed"), "{written}");
    assert_eq!(condition(&volume)["device_errors"], 0, "{}", log_of(exposure.process()));
    assert!(exposure.close().success());
}

/// `qemu-io`, which takes one command after the other.
struct QemuIo(Child);

impl QemuIo {
    /// Its prompt.
    const PROMPT: &str = "qemu-io> ";

    fn start(uri: &str) -> Self {
        let mut command = Command::new("timeout");
        command.args([&DEADLINE.as_secs().to_string(), "qemu-io", "--format=raw", "--cache=none", uri]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut started = Self(command.spawn().expect("qemu-io starts"));
        started.answer();
        started
    }

    fn tell(&mut self, command: &str) -> String {
        let commands = self.0.stdin.as_mut().expect("its stdin is a pipe");
        writeln!(commands, "{command}").expect("qemu-io listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let (mut answer, mut bytes) = (String::new(), [0; 4096]);
        while !answer.ends_with(Self::PROMPT) {
            let answers = self.0.stdout.as_mut().expect("its stdout is a pipe");
            let count = answers.read(&mut bytes).expect("qemu-io answers");
            assert!(count > 0, "qemu-io has ended: {answer}");
            answer += &String::from_utf8_lossy(&bytes[..count]);
        }
        answer
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        // Its stdin was closed first, so it ends.
        let _ = self.0.wait();
    }
}

#[test]
fn the_first_write_after_room_has_returned_finds_it() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let disk = mounts.tmpfs("disk", FULL_MIB);
    mounts.place("vm1", &disk);
    let volume = Volume::create(&scratch, "vm1", "128M", Protection::Encrypted);
    let exposure = volume.expose();
    let filler = disk.join("filler");
    mounts.run(&format!("dd if=/dev/zero of='{}' bs=4096 2>&1 || true", filler.display())).success();

    // Scattered blocks go through the log, and those without space in the layer stay in the log
    // until it is full.
    let mut client = QemuIo::start(exposure.uri());
    let mut offsets = (0..128 << 20).step_by(16 << 10);
    let refused = offsets.find(|offset| client.tell(&format!("write -P 5 {offset} 4096")).contains("failed"));
    let refused = refused.expect("the log is full before the volume is written to throughout");
    let again = client.tell(&format!("write -P 6 {refused} 4096"));
    assert!(again.contains("write failed: No space left on device"), "{again}");

    mounts.run(&format!("rm '{}'", filler.display())).success();
    let written = client.tell(&format!("write -P 6 {refused} 4096"));
    assert!(written.contains("wrote 4096/4096 bytes"), "{written}");
    for command in [format!("read -P 6 {refused} 4096"), "read -P 5 0 4096".to_owned(), "flush".to_owned()] {
        let answer = client.tell(&command);
        assert!(!answer.contains("failed"), "{command}: {answer}");
    }
    drop(client);
    assert!(exposure.close().success());
    volume.command("check", &[]).success();
}
