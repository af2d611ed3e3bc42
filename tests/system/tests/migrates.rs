//! A guest with two vhost-user disks moves: into a file and out of it again, and live into a second
//! QEMU beside the first. Its I/O continues without an error or a wrong block, and its memory is
//! complete, including pages that the worker wrote after they had been copied.
//!
//! That last point is the purpose of a dirty log, and direct I/O does not test it: a program that
//! reads a buffer checks it where it was filled. So the guest reads a disk, the *witness*, into its
//! page cache once all memory has been copied. Only the worker writes those pages (run-guest
//! prevents the kernel from zeroing them first), and they are not looked at before the guest has
//! moved. Then they must have the disk's content, and the guest must not have read the disk again.
//! Both tests fail with a worker that does not mark the pages it fills.

#![cfg(feature = "full")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use strongroom_system_tests::family::{kill, worker_of};
use strongroom_system_tests::{
    ExerciseReport, Exposure, Guest, GuestPlan, Protection, Scratch, Session, Volume,
};

/// The size of the witness; it stays in the guest's page cache.
const WITNESS_MEGABYTES: u32 = 48;
/// Lines of progress, of 20 operations each, before and after the move.
const PROGRESS_LINES: u32 = 10;
const EXERCISE: &str = "diskexercise --device /dev/vda --length 64M --threads 4 --progress 20";
/// Timeout of one pass over the guest's memory, or its last part, while two emulated guests keep
/// the processors busy.
const MIGRATION_DEADLINE: Duration = Duration::from_secs(120);
/// Bytes per second: all non-zero memory is copied in some seconds, and the output of [`DIRTY`] in
/// half a second.
const BANDWIDTH: u32 = 16 << 20;
/// Writes new content to eight megabytes of memory without end; pages of zeroes would hardly need
/// to be sent.
const DIRTY: &str = "while :; do cat /bin/busybox /bin/busybox /bin/busybox /bin/busybox >/tmp/dirty; done";
/// Long enough for a guest that always writes to complete its move, in milliseconds.
const DOWNTIME_LIMIT_MS: u32 = 20_000;
/// How often the destination waits half a second for the refusal of the source.
const REFUSAL_TRIES: u32 = 60;

#[test]
fn a_guest_goes_on_from_a_file() {
    println!("through a file, {}", move_through_a_file(|_| {}));
}

#[test]
fn a_guest_goes_on_in_another_qemu_and_not_in_the_first() {
    let scratch = Scratch::new();
    let volumes = Volumes::create(&scratch);
    let disks = volumes.expose();
    let mut source = disks.plan(&scratch, "source").boot();
    let witness = start_work(source.session());
    let mut destination = disks.plan(&scratch, "destination").await_migration();
    let uri = format!("unix:{}", scratch.path("migration.sock").display());
    destination.receive_from(&uri);
    let survives_kills = notices_broken_connections(&mut source);
    let passes = migrate(&mut source, &uri, || {
        if survives_kills {
            disks.kill_workers();
        }
    });
    let mut guest = destination.arrived();
    check_witness(guest.session(), &witness);

    // The source still has the guest's old state. QEMU would let it continue; the worker does not.
    let _ = source.qmp().try_execute("cont", json!({}));
    wait_for_refusal(&disks.exercised, guest.session());
    source.cut_power();
    let report = finish_work(guest.session());
    guest.power_off();
    disks.close();
    println!("alive, {passes} passes: {} operations, {:?}", report.operations, report.longest_stall);
}

#[test]
fn a_guest_goes_on_from_a_file_although_its_workers_were_killed_while_it_was_written() {
    println!("over kills, {}", move_through_a_file(Disks::kill_workers));
}

/// Moves a guest into a file and out of it; `meanwhile` runs while the file is written. Returns an
/// observation.
fn move_through_a_file(meanwhile: impl FnOnce(&Disks)) -> String {
    let scratch = Scratch::new();
    let volumes = Volumes::create(&scratch);
    let disks = volumes.expose();
    let mut source = disks.plan(&scratch, "source").boot();
    let witness = start_work(source.session());
    let file = scratch.path("guest.state");
    let passes = migrate(&mut source, &format!("exec:cat >{}", file.display()), || meanwhile(&disks));
    source.cut_power();
    let report = goes_on_from(&file, &scratch, disks, &witness);
    format!("{passes} passes: {} operations, {:?}", report.operations, report.longest_stall)
}

fn goes_on_from(file: &Path, scratch: &Scratch, disks: Disks, witness: &str) -> ExerciseReport {
    let mut destination = disks.plan(scratch, "destination").await_migration();
    destination.receive_from(&format!("exec:cat {}", file.display()));
    let mut guest = destination.arrived();
    check_witness(guest.session(), witness);
    let report = finish_work(guest.session());
    guest.power_off();
    disks.close();
    report
}

/// Whether this QEMU notices the end of a connection before it has started the device, as for a
/// destination that waits while a worker is killed. Version 7.2 does not, and then talks to the
/// successor without a negotiation.
fn notices_broken_connections(guest: &mut Guest) -> bool {
    let version = guest.qmp().execute("query-version", json!({}));
    version["qemu"]["major"].as_u64() >= Some(10)
}

/// Writes the witness, drops it from the cache, and starts an exercise of the other disk. Returns
/// the checksum of the witness.
fn start_work(session: &mut Session) -> String {
    // A block device without users loses its page cache.
    session.run("exec 9</dev/vdb");
    session.run(&format!("dd if=/dev/urandom of=/dev/vdb bs=1M count={WITNESS_MEGABYTES} conv=fsync"));
    let witness = session.run("md5sum </dev/vdb");
    session.run("echo 3 >/proc/sys/vm/drop_caches");
    // Free memory is copied too, and must not contain the witness by chance.
    session.run(&format!(
        "mount -t tmpfs none /mnt && dd if=/dev/zero of=/mnt/zeroes bs=1M count={} && umount /mnt",
        2 * WITNESS_MEGABYTES
    ));
    session.run(&format!("{EXERCISE} >/tmp/exercise 2>&1 & exercise=$!"));
    session.run(&format!("{DIRTY} & dirty=$!"));
    session.wait_until(&format!("[ $(grep -c ^progress /tmp/exercise) -ge {PROGRESS_LINES} ]"));
    witness
}

/// Moves the guest, which reads the witness after its memory has been copied once. Returns the
/// number of passes over the memory.
fn migrate(source: &mut Guest, uri: &str, meanwhile: impl FnOnce()) -> u64 {
    let (session, qmp) = source.session_and_qmp();
    qmp.execute(
        "migrate-set-capabilities",
        json!({ "capabilities": [{ "capability": "events", "state": true }] }),
    );
    // The guest dirties more than can be sent in the shortest pause, so copying continues as long
    // as wanted.
    qmp.execute("migrate-set-parameters", json!({ "downtime-limit": 1, "max-bandwidth": BANDWIDTH }));
    qmp.execute("migrate", json!({ "uri": uri }));
    qmp.wait_for_event_that("MIGRATION_PASS", MIGRATION_DEADLINE, |data| data["pass"].as_u64() >= Some(2));
    meanwhile();
    let before = sectors_read(session);
    session.run("cat /dev/vdb >/dev/null");
    let sectors = u64::from(WITNESS_MEGABYTES) << 11;
    assert_eq!(
        sectors_read(session) - before,
        sectors,
        "the guest had some of the witness in memory already"
    );
    let status = qmp.execute("query-migrate", json!({}));
    assert_eq!(status["status"], "active", "the guest has moved before it read the witness: {status}");
    qmp.execute(
        "migrate-set-parameters",
        json!({ "downtime-limit": DOWNTIME_LIMIT_MS, "max-bandwidth": 1_u64 << 32 }),
    );
    qmp.wait_for_event_that("MIGRATION", MIGRATION_DEADLINE, |data| data["status"] == "completed");
    let status = qmp.execute("query-migrate", json!({}));
    status["ram"]["dirty-sync-count"].as_u64().expect("QEMU counts its passes")
}

fn check_witness(session: &mut Session, written: &str) {
    session.run("kill $dirty");
    let before = sectors_read(session);
    assert_eq!(session.run("md5sum </dev/vdb"), written, "the page cache is not what the disk was read as");
    assert_eq!(sectors_read(session), before, "the guest has read the disk again instead");
}

/// Sectors read from the witness (Linux `Documentation/block/stat.rst`).
fn sectors_read(session: &mut Session) -> u64 {
    let stat = session.run("cat /sys/block/vdb/stat");
    stat.split_whitespace()
        .nth(2)
        .and_then(|word| word.parse().ok())
        .expect("the third number is sectors read")
}

fn finish_work(session: &mut Session) -> ExerciseReport {
    session.run("before=$(grep -c ^progress /tmp/exercise)");
    session.wait_until(&format!("[ $(grep -c ^progress /tmp/exercise) -ge $((before+{PROGRESS_LINES})) ]"));
    let text = session.run("kill $exercise && wait $exercise; cat /tmp/exercise");
    let report = ExerciseReport::parse(&text);
    report.assert_clean();
    report
}

fn wait_for_refusal(exposure: &Exposure, clock: &mut Session) {
    let log = exposure.process().stderr_log().to_owned();
    for _ in 0..REFUSAL_TRIES {
        let text = fs::read_to_string(&log).expect("the log of the server can be read");
        if text.contains("another front end") {
            return;
        }
        clock.run("usleep 500000");
    }
    panic!("the source was not refused; the server's log is {}", log.display());
}

struct Volumes<'test> {
    exercised: Volume<'test>,
    witness: Volume<'test>,
}

struct Disks {
    exercised: Exposure,
    witness: Exposure,
}

impl<'test> Volumes<'test> {
    fn create(scratch: &'test Scratch) -> Self {
        Self {
            exercised: Volume::create(scratch, "exercised", "128M", Protection::Encrypted),
            witness: Volume::create(
                scratch,
                "witness",
                &format!("{WITNESS_MEGABYTES}M"),
                Protection::Encrypted,
            ),
        }
    }

    fn expose(&self) -> Disks {
        Disks { exercised: self.exercised.expose_vhost_user(), witness: self.witness.expose_vhost_user() }
    }
}

impl Disks {
    fn plan<'test>(&self, scratch: &'test Scratch, name: &str) -> GuestPlan<'test> {
        GuestPlan::new(scratch, name).vhost_user(self.exercised.socket()).vhost_user(self.witness.socket())
    }

    fn kill_workers(&self) {
        kill(worker_of(self.exercised.process().id()));
        kill(worker_of(self.witness.process().id()));
    }

    fn close(self) {
        assert!(self.exercised.close().success());
        assert!(self.witness.close().success());
    }
}
