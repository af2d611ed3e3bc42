//! A volume moves to another datastore under a guest that writes and reads over vhost-user: its
//! session goes on, and everything that was acknowledged is there.
//!
//! The program is its own worker.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

mod vhost_user;

use std::cell::Cell;
use std::io::{self, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use strongroom_datastore::file::*;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_keys::{Kek, KekSource, NoProviders};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{SnapshotId, VolumeSize};
use strongroom_worker::birth::Frontend;
use strongroom_worker::control::Peer;
use strongroom_worker::supervise::{
    AwaitedVolume, Birthright, Exposure, Program, Quarters, Standby, Supervisor, VolumeKek, WorkerStarter,
    Workers,
};
use strongroom_worker::{
    ChangedPlace, NotMoved, PARKED_MAX, PlaceKeeper, ServedCopy, ServedVolume, Throttle, copy_served,
};

use vhost_user::DEADLINE;
use vhost_user::driver::{Driver, FLUSH, IN, OUT};
use vhost_user::front_end::{BASIC, FLUSH as FLUSHES, FrontEnd};

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 16 * MIB;
const BLOCK: usize = 4096;
const BLOCKS: u64 = VOLUME_BYTES / BLOCK as u64;
/// Blocks that the guest uses: few enough that it overwrites them.
const USED: u64 = 128;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return match strongroom_worker::process_main::process_main() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    let trials = vec![
        trial("a_guest_goes_on_at_the_volumes_new_place", a_guest_goes_on_at_the_volumes_new_place),
        trial(
            "clients_that_write_as_fast_as_they_are_copied_are_slowed_down_until_little_is_left",
            clients_that_write_as_fast_as_they_are_copied_are_slowed_down_until_little_is_left,
        ),
        trial(
            "a_move_that_does_not_come_about_leaves_guest_and_volume_where_they_were",
            a_move_that_does_not_come_about_leaves_guest_and_volume_where_they_were,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn kek() -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap()
}

/// Two datastores on two file systems, and a socket.
struct Site {
    here: tempfile::TempDir,
    there: tempfile::TempDir,
}

impl Site {
    fn new(volume_bytes: u64) -> Self {
        let site =
            Self { here: tempfile::tempdir().unwrap(), there: tempfile::tempdir_in("/dev/shm").unwrap() };
        let kek = kek();
        let protection = Protection::Encrypted(&kek);
        let options = CreateOptions {
            size: VolumeSize::new(volume_bytes).unwrap(),
            provisioning: Provisioning::Thin,
            protection,
            log_bytes: None,
            integrity: Some(Integrity::NEW),
        };
        create(&site.from(), &options).unwrap();
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: "kept".parse().unwrap() };
        let to_add =
            AddLayerOptions { protection, log_bytes: None, lock_wait: DEADLINE, least_generation: 0 };
        create_snapshot(&site.from(), &snapshot, &to_add).unwrap();
        site
    }

    fn from(&self) -> PathBuf {
        self.here.path().join("vm1")
    }

    fn to(&self) -> PathBuf {
        self.there.path().join("vm1")
    }

    fn socket(&self) -> PathBuf {
        self.here.path().join("vm1.sock")
    }

    /// Serves the volume at a place.
    fn serve(&self, path: &Path) -> Supervisor {
        let _ = std::fs::remove_file(self.socket());
        let AwaitedVolume { head, layer, deks, kek, keyring } = open_at(path);
        let program = Program::at(&std::env::current_exe().unwrap(), vec!["worker".into()]).unwrap();
        let exposure = Exposure {
            head,
            kek,
            keyring,
            listener: Listener::bind(&Address::Unix(self.socket())).unwrap(),
            birthright: Birthright {
                frontend: Frontend::VhostUser { serial: "vm1".to_owned(), queues_max: 1 },
                tls_key: None,
                name: "vm1".to_owned(),
                placement: None,
                limits: Vec::new(),
            },
            workers: Workers::of(Arc::new(WorkerStarter::new(program, Quarters::OfItsOwn))),
        };
        Supervisor::start(exposure, layer, deks).unwrap()
    }
}

fn open_at(path: &Path) -> AwaitedVolume {
    let kek = kek();
    let options = OpenOptions {
        protection: Protection::Encrypted(&kek),
        access: Access::ReadWrite,
        lock_wait: DEADLINE,
        least_generation: 0,
    };
    let (head, layer, deks) = open_apart(path, &options).unwrap();
    let keyring = Arc::new(NoProviders("no key is a provider's".to_owned()));
    let kek = VolumeKek::new(Some(self::kek()), Arc::clone(&keyring) as _).unwrap();
    AwaitedVolume { head, layer, deks, kek, keyring }
}

/// A supervisor on a thread of its own.
struct Served {
    stop: PipeWriter,
    keeps_sessions: Arc<AtomicBool>,
    thread: JoinHandle<Option<Standby>>,
}

impl Served {
    fn run(supervisor: Supervisor) -> Self {
        let (stopped, stop) = io::pipe().unwrap();
        let keeps_sessions = Arc::new(AtomicBool::new(false));
        let keeps = Arc::clone(&keeps_sessions);
        let thread = std::thread::spawn(move || supervisor.run_until(&stopped, &keeps).unwrap());
        Self { stop, keeps_sessions, thread }
    }

    /// Closes the volume. Its worker keeps the guest's session.
    fn release(self) -> Standby {
        self.keeps_sessions.store(true, Ordering::SeqCst);
        drop(self.stop);
        self.thread.join().unwrap().unwrap()
    }

    fn end(self) {
        drop(self.stop);
        assert!(self.thread.join().unwrap().is_none());
    }
}

/// A guest that writes and verifies until it is told to stop, and verifies everything then.
struct Guest {
    stop: Arc<AtomicBool>,
    requests: Arc<AtomicU64>,
    thread: JoinHandle<Vec<u64>>,
}

fn content(number: u64) -> Vec<u8> {
    match number {
        0 => vec![0; BLOCK],
        number => number.to_le_bytes().repeat(BLOCK / 8),
    }
}

fn verify(driver: &mut Driver, block: u64, number: u64) {
    assert_eq!(driver.run(IN, block * 8, BLOCK as u32), 0);
    assert!(
        driver.get_content(0, BLOCK) == content(number),
        "block {block} is not what number {number} wrote"
    );
}

impl Guest {
    fn start(socket: &Path) -> Self {
        let (stop, requests) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&requests));
        let socket = socket.to_owned();
        let thread = std::thread::spawn(move || {
            let mut front_end = FrontEnd::connect(&socket, BASIC | FLUSHES);
            let mut driver = front_end.start(0, 0);
            let mut written = vec![0; USED as usize];
            for number in 1_u64.. {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let at = |number: u64| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % USED;
                let block = at(number);
                driver.set_content(0, &content(number));
                assert_eq!(driver.run(OUT, spread(block) * 8, BLOCK as u32), 0);
                written[block as usize] = number;
                if number % 7 == 0 {
                    assert_eq!(driver.run(FLUSH, 0, 0), 0);
                }
                let other = at(number + 3);
                verify(&mut driver, spread(other), written[other as usize]);
                counted.fetch_add(1, Ordering::SeqCst);
            }
            for block in 0..USED {
                verify(&mut driver, spread(block), written[block as usize]);
            }
            written
        });
        Self { stop, requests, thread }
    }

    fn wait_for_more(&self, more: u64) {
        let enough = self.requests.load(Ordering::SeqCst) + more;
        while self.requests.load(Ordering::SeqCst) < enough {
            assert!(!self.thread.is_finished(), "the guest has failed");
            std::thread::yield_now();
        }
    }

    /// Verifies everything. Returns the last number that was written to each block.
    fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// Where a block lies: they are spread over the volume.
fn spread(block: u64) -> u64 {
    block * (BLOCKS / USED)
}

/// Records a move, or does not.
struct Keeper {
    records: bool,
    recorded: Vec<u64>,
}

impl PlaceKeeper for Keeper {
    type Error = String;

    fn commit(&mut self, moved: &Descriptor) -> Result<(), String> {
        if !self.records {
            return Err("no room for the record".to_owned());
        }
        self.recorded.push(moved.generation);
        Ok(())
    }

    fn open(&mut self, path: &Path) -> Result<AwaitedVolume, String> {
        Ok(open_at(path))
    }
}

fn options(kek: &Kek) -> RelocateOptions<'_> {
    RelocateOptions { protection: Protection::Encrypted(kek), lock_wait: DEADLINE, least_generation: 0 }
}

fn copy<'a>(
    path: &'a Path,
    to: &Path,
    kek: &'a Kek,
    report: &mut dyn FnMut(RelocateProgress),
) -> ServedCopy<'a> {
    let served = ServedVolume { path, supervisor: Peer::Trusted };
    let going_on = AtomicBool::new(false);
    copy_served(served, to, &options(kek), unthrottled(), &going_on, report).unwrap()
}

fn unthrottled() -> Throttle {
    Throttle { clients_keep: 0.try_into().unwrap(), ..Throttle::default() }
}

/// A client that overwrites the volume, piece by piece, as far as it may.
struct Writer {
    may: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Writer {
    const PIECE: u64 = 512 << 10;
    const ENDS: u64 = u64::MAX;

    fn start(socket: &Path, volume_bytes: u64) -> Self {
        let (may, written) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let (may_write, has_written, socket) = (Arc::clone(&may), Arc::clone(&written), socket.to_owned());
        let thread = std::thread::spawn(move || {
            let mut front_end = FrontEnd::connect(&socket, BASIC | FLUSHES);
            let mut driver = front_end.start(0, 0);
            driver.set_content(0, &vec![7; Self::PIECE as usize]);
            loop {
                let written = has_written.load(Ordering::SeqCst);
                match may_write.load(Ordering::SeqCst) {
                    Self::ENDS => break,
                    may if written >= may => std::thread::yield_now(),
                    _ => {
                        let at = written % volume_bytes;
                        assert_eq!(driver.run(OUT, at / 512, Self::PIECE as u32), 0);
                        has_written.fetch_add(Self::PIECE, Ordering::SeqCst);
                    }
                }
            }
        });
        Self { may, written, thread }
    }

    /// Waits until it has written so much more.
    fn write(&self, more: u64) {
        let may = self.may.fetch_add(more, Ordering::SeqCst) + more;
        while self.written.load(Ordering::SeqCst) < may {
            assert!(!self.thread.is_finished(), "the writer has failed");
            std::thread::yield_now();
        }
    }

    fn end(self) {
        self.may.store(Self::ENDS, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

fn clients_that_write_as_fast_as_they_are_copied_are_slowed_down_until_little_is_left() {
    const BYTES: u64 = 128 * MIB;
    let (site, kek) = (Site::new(BYTES), kek());
    let (from, to) = (site.from(), site.to());
    let served = Served::run(site.serve(&from));
    let writer = Writer::start(&site.socket(), BYTES);
    writer.write(BYTES);
    // As much as is copied, until it is slowed down; each time to half of that.
    let (slowed, done_bytes) = (Cell::new(0), Cell::new(0));
    let mut report = |progress: RelocateProgress| {
        let more = progress.done_bytes.saturating_sub(done_bytes.replace(progress.done_bytes));
        writer.write(more >> slowed.get());
    };
    let mut copy = copy(&from, &to, &kek, &mut report);
    let before_bytes = copy.left().bytes;
    assert!(before_bytes > 64 * MIB, "it has written as much as was copied: {before_bytes}");
    let mut slow = |round: u32, bytes_per_second: u64| {
        assert!(bytes_per_second > 0);
        assert_eq!(slowed.replace(round), round - 1);
    };
    let going_on = AtomicBool::new(false);
    copy.catch_up(unthrottled(), &going_on, &mut report, &mut slow).unwrap();
    let left_bytes = copy.left().bytes;
    println!("{before_bytes} bytes were left, and {left_bytes} after {} slower rounds", slowed.get());
    assert!(left_bytes <= 32 * MIB && slowed.get() >= 1, "{left_bytes} after {}", slowed.get());
    let standby = served.release();
    let mut keeper = Keeper { records: true, recorded: Vec::new() };
    let ChangedPlace { supervisor, moved, .. } = copy.change_place(standby, &mut keeper, PARKED_MAX).unwrap();
    moved.unwrap();
    let served = Served::run(supervisor);
    writer.end();
    served.end();
}

fn a_guest_goes_on_at_the_volumes_new_place() {
    let (site, kek) = (Site::new(VOLUME_BYTES), kek());
    let (from, to) = (site.from(), site.to());
    let served = Served::run(site.serve(&from));
    let guest = Guest::start(&site.socket());
    guest.wait_for_more(60);
    let copy = copy(&from, &to, &kek, &mut |_| {});
    guest.wait_for_more(30);
    let standby = served.release();
    let mut keeper = Keeper { records: true, recorded: Vec::new() };
    let changed = copy.change_place(standby, &mut keeper, PARKED_MAX).unwrap();
    let ChangedPlace { supervisor, moved, pause } = changed;
    let moved = moved.unwrap();
    println!("the guest waited for {pause:?}; {} layers", moved.layers.len());
    assert_eq!(keeper.recorded, [moved.generation]);
    let served = Served::run(supervisor);
    guest.wait_for_more(30);
    // It is in use there, and goes here.
    remove_former(&from, &to, &options(&kek)).unwrap();
    assert!(!from.exists());
    guest.wait_for_more(30);
    let written = guest.end();
    served.end();
    let names: Vec<_> = std::fs::read_dir(site.there.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    expect(&site, &to, &written);
    let kept = describe(&to).unwrap().descriptor.snapshots;
    assert_eq!(kept.len(), 1);
}

fn a_move_that_does_not_come_about_leaves_guest_and_volume_where_they_were() {
    let (site, kek) = (Site::new(VOLUME_BYTES), kek());
    let (from, to) = (site.from(), site.to());
    let mut served = Served::run(site.serve(&from));
    let guest = Guest::start(&site.socket());
    guest.wait_for_more(60);
    for (records, within) in [(false, PARKED_MAX), (true, Duration::ZERO)] {
        let copy = copy(&from, &to, &kek, &mut |_| {});
        guest.wait_for_more(20);
        let standby = served.release();
        let mut keeper = Keeper { records, recorded: Vec::new() };
        let ChangedPlace { supervisor, moved, .. } = copy.change_place(standby, &mut keeper, within).unwrap();
        match moved.unwrap_err() {
            NotMoved::Commit(_) => assert!(!records),
            NotMoved::Copy(error) => {
                assert!(records && error.to_string().contains("interrupted"), "{error}");
            }
        }
        assert!(keeper.recorded.is_empty() && !to.exists());
        served = Served::run(supervisor);
        guest.wait_for_more(30);
    }
    let written = guest.end();
    served.end();
    expect(&site, &from, &written);
    // The next attempt finds what was copied.
    let volume = describe(&from).unwrap().descriptor.volume;
    cancel_relocation(&to, volume, DEADLINE).unwrap();
    assert!(std::fs::read_dir(site.there.path()).unwrap().next().is_none());
}

/// What a guest finds that starts anew.
fn expect(site: &Site, path: &Path, written: &[u64]) {
    let served = Served::run(site.serve(path));
    let mut front_end = FrontEnd::connect(&site.socket(), BASIC | FLUSHES);
    let mut driver = front_end.start(0, 0);
    for (block, number) in (0_u64..).zip(written) {
        verify(&mut driver, spread(block), *number);
    }
    drop((driver, front_end));
    served.end();
}
