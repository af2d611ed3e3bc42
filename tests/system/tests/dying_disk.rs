//! A real guest on a disk that hangs, fails, vanishes and comes back: the guest sees a pause or an
//! error, never wrong data; flushed data is there afterwards; and a volume on another disk is not
//! affected.

#![cfg(feature = "full")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::disk_support::dying::DyingDisk;
use crate::disk_support::{DEADLINE, Mounts, await_any_log, await_condition, condition};
use serde_json::Value;
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};
use strongroom_system_tests::{
    CommandLine, Exercise, Exposure, Guest, GuestPlan, Protection, Scratch, Volume, run,
};

const GUEST_DEADLINE: Duration = Duration::from_secs(300);
/// The duration of a typical failover of a storage path. Virtio disks have no timeout, so a guest
/// only waits.
const HANG: Duration = Duration::from_secs(30);
/// Timeout for ending a server whose disk hangs: its frontend's time to drain, and a margin for the
/// kill of its worker.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(55);
/// The longest time that the neighbour may wait for an answer, on a busy machine. It is far below
/// the delays of the dying disk.
const NEIGHBOUR_STALL: Duration = Duration::from_secs(15);

/// Verified load on another volume of another datastore, served by another worker.
struct Neighbour<'test> {
    volume: Volume<'test>,
    exposure: Exposure,
    done: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
    load: JoinHandle<Result<Report, LoadError>>,
}

impl<'test> Neighbour<'test> {
    fn start(scratch: &'test Scratch) -> Self {
        let volume = Volume::create(scratch, "neighbour", "64M", Protection::Encrypted);
        let exposure = volume.expose_vhost_user();
        let (done, operations) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let load = std::thread::spawn({
            let (done, operations) = (Arc::clone(&done), Arc::clone(&operations));
            let socket: PathBuf = exposure.socket().to_owned();
            move || {
                let front_end = FrontEnd::connect(&socket, Settings::new(1, 8))?;
                let config = LoadConfig { area_bytes: 32 << 20, ..LoadConfig::new(5) };
                let mut load = Load::new(front_end, config)?;
                while !done.load(Ordering::SeqCst) {
                    load.run(Until::Operations(20))?;
                    operations.store(load.report().operations(), Ordering::SeqCst);
                }
                load.finish()
            }
        });
        Self { volume, exposure, done, operations, load }
    }

    /// Checks for this time that it keeps completing requests.
    #[track_caller]
    fn goes_on_for(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let (before, deadline) = (self.operations.load(Ordering::SeqCst), Instant::now() + DEADLINE);
            while self.operations.load(Ordering::SeqCst) < before + 100 {
                assert!(!self.load.is_finished() && Instant::now() < deadline, "the neighbour stands still");
                std::thread::park_timeout(Duration::from_millis(10));
            }
        }
    }

    /// Its control commands are answered at once.
    #[track_caller]
    fn answers(&self, scratch: &Scratch) -> Duration {
        let asked = Instant::now();
        assert_eq!(condition(&self.volume)["state"], "running");
        let datastore = self.volume.datastore();
        let datastore = datastore.to_str().expect("a test's path is text");
        let listed = CommandLine::new(scratch).json(&["volume", "list", datastore]);
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
        asked.elapsed()
    }

    /// Checks that all of its data is right, and nothing took long.
    #[track_caller]
    fn stop(self) -> Report {
        self.done.store(true, Ordering::SeqCst);
        let report = self.load.join().expect("the load does not panic");
        let report = report.unwrap_or_else(|error| panic!("the neighbour: {error}"));
        assert!(report.longest_stall < NEIGHBOUR_STALL, "{report}");
        assert!(self.exposure.close().success());
        report
    }
}

/// The answer of the control socket: the supervisor's, which does not touch the disk.
#[track_caller]
fn control(volume: &Volume<'_>) -> Value {
    let socket = volume.path().join("control");
    let mut stream =
        UnixStream::connect(&socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket has a timeout");
    writeln!(stream, r#"{{"format":1,"request":"status"}}"#).expect("the supervisor hears");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("the supervisor answers");
    let answer: Value = serde_json::from_str(&line).expect("the answer is JSON");
    answer["answer"]["status"]["condition"].clone()
}

fn volume_on<'test>(scratch: &'test Scratch, mounts: &Mounts<'_>, disk: &DyingDisk<'_>) -> Volume<'test> {
    let datastore = disk.place().join("ds");
    mounts.run(&format!("mkdir '{}'", datastore.display())).success();
    mounts.place("vm1", &datastore);
    Volume::create(scratch, "vm1", "128M", Protection::Encrypted)
}

#[test]
fn a_disk_that_hangs_is_a_pause_to_its_guest_and_nothing_to_others() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let disk = DyingDisk::new(&scratch, &mounts, "disk", 384, "ext4");
    let volume = volume_on(&scratch, &mounts, &disk);
    let neighbour = Neighbour::start(&scratch);
    let mut exposure = volume.expose_vhost_user();
    let mut guest = GuestPlan::new(&scratch, "guest").vhost_user(exposure.socket()).boot();
    let mut exercise = Exercise::start(&mut guest, "/dev/vda", "64M");
    exercise.wait_for_more(200);
    let _ = exercise.take_longest_gap();
    // Queries about a volume on the hanging disk are answered from data that was read before.
    assert_eq!(control(&volume)["state"], "running");

    let answered = disk.hang(|| {
        neighbour.goes_on_for(HANG);
        let asked = Instant::now();
        assert_eq!(control(&volume)["state"], "running", "nothing has failed");
        (asked.elapsed(), neighbour.answers(&scratch))
    });
    exercise.wait_for_more(200);
    let pause = exercise.take_longest_gap();
    assert!(pause >= HANG / 2, "the disk did not hang: {pause:?}");

    // The disk hangs again, and the server is told to end. It does not wait for the disk, and
    // reports that.
    let (gave_up, said) = disk.hang(|| {
        // By then, requests are in the disk.
        neighbour.goes_on_for(Duration::from_secs(2));
        let asked = Instant::now();
        let log = exposure.process().stderr_log().to_owned();
        assert!(!exposure.close().success(), "it was not closed in order");
        (asked.elapsed(), std::fs::read_to_string(log).expect("the log can be read"))
    });
    // Whether the worker can be killed depends on where its requests are in the kernel.
    assert!(
        said.contains("its disk does not answer")
            || said.contains("still had requests in the disk after 30s"),
        "{said}"
    );
    assert!(gave_up < GIVES_UP_WITHIN, "{gave_up:?}");
    // The next server takes over the requests in flight.
    exposure = volume.expose_vhost_user();
    exercise.wait_for_more(200);
    let report = exercise.stop();
    report.assert_clean();
    guest.power_off();
    assert!(exposure.close().success());
    let neighbours = neighbour.stop();
    println!(
        "hung for {HANG:?}: the guest saw a pause of {pause:.1?}, no error and no wrong sector in {} operations; its volume and \
         the neighbour answered a person within {:.1?} and {:.1?}; asked to end, the server gave up after {gave_up:.1?}. The \
         neighbour: {neighbours}",
        report.operations, answered.0, answered.1
    );
}

/// Boots a guest with a file system of its own on the volume and a flushed file in it. Returns the
/// file's checksum.
fn guest_with_a_file(scratch: &Scratch, exposure: &Exposure) -> (Guest, String) {
    let mut guest = GuestPlan::new(scratch, "guest").vhost_user(exposure.socket()).boot();
    guest.run("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt");
    guest.run("dd if=/dev/urandom of=/mnt/flushed bs=1M count=24 conv=fsync 2>/dev/null && sync");
    let sum = guest.run("sha256sum /mnt/flushed");
    (guest, sum)
}

/// The disk breaks while a guest writes; then it is brought back, and the volume is exposed for the
/// guest's next boot.
fn breaks_and_comes_back(kind: &str, breaks: impl FnOnce(&mut DyingDisk<'_>)) {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let mut disk = DyingDisk::new(&scratch, &mounts, "disk", 384, kind);
    let volume = volume_on(&scratch, &mounts, &disk);
    let neighbour = Neighbour::start(&scratch);
    let exposure = volume.expose_vhost_user();
    let (mut guest, sum) = guest_with_a_file(&scratch, &exposure);

    breaks(&mut disk);
    // The guest gets an error: its writes are not durable.
    let written = guest.try_run("dd if=/dev/zero of=/mnt/lost bs=1M count=8 conv=fsync", GUEST_DEADLINE);
    assert_ne!(written.status, 0, "{}", written.text);
    let complaints = guest.run("dmesg | grep -iE 'i/o error|aborting|remounting|ext4-fs error' | head -3");
    // Reads return right data, or an error.
    let read = guest.try_run(
        "echo 3 >/proc/sys/vm/drop_caches; sha256sum /mnt/flushed 2>/dev/null || echo error",
        GUEST_DEADLINE,
    );
    let read = read.text.trim().to_owned();
    assert!(read == sum.trim() || read.ends_with("error"), "{read} instead of {sum}");
    // So does the owner, although the volume cannot be queried if its file system has shut down.
    let told = await_any_log(exposure.process(), &["a flush failed", "requests have failed"]);
    let answered = neighbour.answers(&scratch);
    guest.cut_power();
    let closed = exposure.close();

    disk.unmount();
    disk.come_back(kind);
    volume.command("check", &[]).success();
    let exposure = volume.expose_vhost_user();
    let mut guest = GuestPlan::new(&scratch, "again").vhost_user(exposure.socket()).boot();
    let repaired = guest.try_run("e2fsck -f -y /dev/vda", GUEST_DEADLINE);
    assert!(repaired.status <= 1, "{}", repaired.text);
    guest.run("mount /dev/vda /mnt");
    assert_eq!(guest.run("sha256sum /mnt/flushed"), sum, "what was flushed is lost");
    guest.run("dd if=/dev/zero of=/mnt/new bs=1M count=8 conv=fsync 2>/dev/null");
    guest.power_off();
    assert!(exposure.close().success());
    let neighbours = neighbour.stop();
    println!(
        "{kind}: the guest saw {:?}; reading it found {:?}; its owner {told:?}; the server's end was {closed}; neighbour asked \
         within {answered:.1?}: {neighbours}",
        complaints.trim(),
        if read == sum.trim() { "the right data" } else { "an error" }
    );
}

#[test]
fn a_disk_whose_writes_fail_is_an_error_and_what_was_flushed_is_there_afterwards() {
    breaks_and_comes_back("ext4", |disk| disk.fail(&["write", "flush"]));
}

#[test]
fn a_disk_whose_flushes_fail_is_an_error_and_what_was_flushed_is_there_afterwards() {
    breaks_and_comes_back("xfs", |disk| disk.fail(&["flush"]));
}

#[test]
fn a_disk_that_vanishes_and_comes_back_has_all_that_was_flushed() {
    breaks_and_comes_back("xfs", |disk| disk.vanish());
}

#[test]
fn a_disk_whose_reads_fail_is_an_error_until_they_do_not() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let disk = DyingDisk::new(&scratch, &mounts, "disk", 384, "ext4");
    let volume = volume_on(&scratch, &mounts, &disk);
    let neighbour = Neighbour::start(&scratch);
    let exposure = volume.expose_vhost_user();
    let (mut guest, sum) = guest_with_a_file(&scratch, &exposure);
    guest.run("echo 3 >/proc/sys/vm/drop_caches");
    disk.fail(&["read"]);
    let read = guest.try_run("dd if=/mnt/flushed of=/dev/null bs=1M", GUEST_DEADLINE);
    assert!(read.status != 0 && read.text.contains("Input/output error"), "{}", read.text);
    let told = await_condition(&volume, "told", |condition| condition["device_errors"].as_u64() > Some(0));
    assert_eq!(told["state"], "running", "reads that failed are nobody's loss");
    disk.heal();
    assert_eq!(guest.run("sha256sum /mnt/flushed"), sum);
    guest.power_off();
    assert!(exposure.close().success());
    println!("reads: {told}; the neighbour: {}", neighbour.stop());
}

/// Runs `volume check` on the volume. Returns its success and its output.
fn check(volume: &Volume<'_>, arguments: &[&str]) -> (bool, String) {
    let finished = volume.command("check", arguments);
    (finished.status.success(), finished.stdout + &finished.stderr)
}

#[test]
fn a_check_does_not_pass_over_what_the_disk_did_not_give() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let disk = DyingDisk::new(&scratch, &mounts, "disk", 384, "ext4");
    let volume = volume_on(&scratch, &mounts, &disk);
    let exposure = volume.expose();
    let write = ["--format=raw", "-c", "write -P 3 0 8M", "-c", "flush", exposure.uri()];
    run(&scratch, Command::new("qemu-io").args(write), DEADLINE).success();
    assert!(exposure.close().success());
    let (clean, said) = check(&volume, &["--data"]);
    assert!(clean && said.contains("0 blocks unreadable"), "{said}");

    let exposure = volume.expose();
    // Cached data does not fail: here the descriptor is cached, and none of the blocks.
    mounts.run("sync; echo 3 >/proc/sys/vm/drop_caches").success();
    let (clean, said) = check(&volume, &[]);
    assert!(clean, "{said}");
    disk.fail(&["read"]);
    let (clean, said) = check(&volume, &[]);
    assert!(clean && said.contains("its blocks were not read"), "{said}");
    let read = ["--format=raw", "--cache=none", "-c", "read 4M 1M", exposure.uri()];
    let read = run(&scratch, Command::new("qemu-io").args(read), DEADLINE);
    assert!((read.stdout + &read.stderr).contains("Input/output error"));
    await_condition(&volume, "failing", |condition| condition["device_errors"].as_u64() > Some(0));
    let (clean, said) = check(&volume, &[]);
    assert!(!clean && said.contains("requests have failed (") && !said.contains("no errors"), "{said}");
    exposure.close();

    let (clean, said) = check(&volume, &["--data"]);
    assert!(!clean && said.contains("cannot be read") && !said.contains("no errors"), "{said}");
    disk.heal();
    let (clean, said) = check(&volume, &["--data"]);
    assert!(clean && said.contains("0 blocks unreadable"), "{said}");
}
