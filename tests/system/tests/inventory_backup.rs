//! The inventory is backed up while everything runs, opened by two custodians, and restored beside
//! a guest that runs on. The former control plane, which still has its own, is refused.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{CommandLine, Scratch, Serving, datastore};

const WITHIN: Duration = Duration::from_secs(120);
const OPTIONS: &str = "--backup-directory \"$PWD/safe\" --backup-every 1h --backup-keep 2 --backup-custodian ada=ada.pem \
--backup-custodian grace=grace.pem --backup-custodian emmy=emmy.pem";

/// Each custodian makes a key of their own.
fn make_custodians(scratch: &Scratch) {
    let script = "for name in ada grace emmy; do
        openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $name.key
        openssl pkey -in $name.key -pubout -out $name.pem
    done";
    CommandLine::new(scratch).run_shell(script).success();
}

/// The backups that are there, whole or not.
fn backups(scratch: &Scratch) -> Vec<String> {
    let all = fs::read_dir(scratch.path("safe")).unwrap().map(|entry| entry.unwrap().path());
    let all = all.map(|path| path.display().to_string());
    let mut all: Vec<String> = all.filter(|path| path.contains(".backup")).collect();
    all.sort();
    all
}

/// Two custodians open their shares.
fn open_shares(serving: &Serving<'_>, backup: &str) -> &'static str {
    for name in ["ada", "emmy"] {
        serving.runs(&format!("keyserver custodian open-share {backup} --key {name}.key > {name}.share"));
    }
    "--share ada.share --share emmy.share"
}

#[test]
#[ignore = "long: make test-guests"]
fn a_lost_inventory_comes_back_beside_a_guest_that_runs_on() {
    let scratch = Scratch::new();
    make_custodians(&scratch);
    scratch.make_directory("safe");
    let mut serving = Serving::start_with(&scratch, OPTIONS);
    let guest = serving.test_guest();
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --machine pc {guest}"));
    serving.runs("folder create team");
    let _place = serving.take_place();
    serving.runs("vm start web1");

    // The first one is made without a request.
    let until = Instant::now() + WITHIN;
    while backups(&scratch).is_empty() {
        assert!(Instant::now() < until, "no backup is made");
    }
    let made = serving.json("inventory backup");
    assert_eq!((made["threshold"].as_u64(), made["custodians"].as_array().unwrap().len()), (Some(2), 3));
    let backup = made["file"].as_str().unwrap().to_owned();
    fs::copy(&backup, scratch.path("inventory.backup")).unwrap();
    serving.runs("inventory backup --without-access-log");
    assert_eq!(backups(&scratch).len(), 2, "as many as are kept");
    let log = serving.runs("access log");
    assert!(log.contains("a backup of the inventory was asked for"), "{log}");

    // Nothing of it is in the clear.
    let sealed = fs::read(scratch.path("inventory.backup")).unwrap();
    let token = fs::read_to_string(scratch.path("home/control/token")).unwrap();
    let key = fs::read_to_string(scratch.path("home/control/api.key")).unwrap();
    for secret in ["web1", "folder/", "credential", token.trim(), key.lines().nth(1).unwrap()] {
        assert_eq!(datastore::occurrences(&scratch.path("safe"), secret.as_bytes()), 0, "{secret}");
    }

    // Foreign, damaged and cut ones are refused, and change nothing.
    let shares = open_shares(&serving, "inventory.backup");
    let verified = serving.runs(&format!("inventory verify inventory.backup {shares}"));
    assert!(verified.contains("the backup is whole"), "{verified}");
    let custodians = "--custodian ada=ada.pem --custodian grace=grace.pem --custodian emmy=emmy.pem";
    serving.runs(&format!("keyserver backup kms.backup --threshold 2 {custodians}"));
    let refused = serving.is_refused(&format!("inventory verify kms.backup {shares}"));
    assert!(
        refused.contains("is a backup of a key server, and not of a control plane's inventory"),
        "{refused}"
    );
    let refused = serving.is_refused(&format!("keyserver restore inventory.backup {shares}"));
    assert!(refused.contains("is a backup of a control plane's inventory"), "{refused}");
    let mut damaged = sealed.clone();
    let last = damaged.len() - 100;
    damaged[last] ^= 1;
    for (name, bytes) in [("damaged.backup", &damaged[..]), ("cut.backup", &sealed[..last])] {
        fs::write(scratch.path(name), bytes).unwrap();
        let refused = serving.is_refused(&format!("inventory verify {name} {shares}"));
        assert!(refused.contains("is damaged"), "{name}: {refused}");
    }
    let refused = serving.is_refused(&format!("inventory restore inventory.backup {shares}"));
    assert!(refused.contains("has an inventory, which a restore does not replace"), "{refused}");

    // More happens, and then the inventory is lost.
    serving.runs("vm create web2 --memory 64M --net none --disk 16M");
    serving.kill();
    fs::rename(scratch.path("home/control"), scratch.path("former")).unwrap();
    for damaged in ["damaged.backup", "cut.backup"] {
        serving.is_refused(&format!("inventory restore {damaged} {shares}"));
    }
    assert!(!scratch.path("home/control/store.redb").exists());
    let restored = serving.runs(&format!("inventory restore inventory.backup {shares}"));
    assert!(restored.contains("1 VM, 1 host, no users"), "{restored}");
    assert!(
        serving
            .is_refused(&format!("inventory restore inventory.backup {shares}"))
            .contains("has an inventory")
    );
    assert_eq!(
        fs::read(scratch.path("former/api.crt")).unwrap(),
        fs::read(scratch.path("home/control/api.crt")).unwrap(),
        "what clients have pinned"
    );

    serving.start_again();
    serving.wait_until_told("event list", "VM web1 is as it was when the inventory was backed up");
    let web1 = serving.wait_until("web1", "runs", |vm| vm["power"] == "running");
    assert_eq!(web1["generation"], 1, "it was not started again");
    assert!(serving.runs("folder list").contains("team"));
    serving.wait_until_told("event alarms", "VM web2 lies on host host1 and is not in the inventory");
    serving.runs("vm register web2");
    serving.runs("vm pause web1");
    serving.runs("vm resume web1");
    let log = serving.runs("access log");
    assert!(log.contains("the inventory was restored from backup"), "{log}");
    serving.runs("access verify");

    // The former control plane is started once more. The host follows the restored one.
    serving.end();
    fs::rename(scratch.path("home/control"), scratch.path("restored")).unwrap();
    fs::rename(scratch.path("former"), scratch.path("home/control")).unwrap();
    serving.start_again();
    serving.wait_until("web1", "runs", |vm| vm["power"] == "running");
    let refused = serving.is_refused("vm stop web1 --force");
    assert!(refused.contains("this host follows term"), "{refused}");
    assert_eq!(serving.vm("web1")["power"], "running");
    serving.end();
    fs::rename(scratch.path("home/control"), scratch.path("former")).unwrap();
    fs::rename(scratch.path("restored"), scratch.path("home/control")).unwrap();
    serving.start_again();
    serving.wait_until("web1", "runs", |vm| vm["power"] == "running");
    serving.runs("vm stop web1 --force");
}

/// Waits for this many changes of the directory with backups or of the record of the last one, and
/// returns whether they came before the backup was done.
fn changes(watch: &OwnedFd, number: usize, done: &AtomicBool) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut seen = 0;
    loop {
        match reader.next() {
            Ok(_) => seen += 1,
            Err(Errno::AGAIN) if done.load(Ordering::SeqCst) => return false,
            Err(_) => thread::yield_now(),
        }
        if seen == number {
            return true;
        }
    }
}

/// The control plane of a real `serve` is killed at each change that a backup makes: it leaves a
/// whole backup or none, its successor makes the next one, and takes away what was left.
#[test]
#[ignore = "long: make test-guests"]
fn there_is_no_moment_at_which_a_kill_leaves_half_a_backup() {
    let scratch = Scratch::new();
    make_custodians(&scratch);
    scratch.make_directory("safe");
    let mut serving = Serving::start_with(&scratch, OPTIONS);
    serving.json("inventory backup");
    let (mut number, mut killed) = (1, 0);
    loop {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let named = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        let written = WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE;
        inotify::add_watch(&watch, scratch.path("safe"), named | written).unwrap();
        // Without the store, which changes all the time.
        inotify::add_watch(&watch, scratch.path("home/control"), named).unwrap();
        let (done, process) = (AtomicBool::new(false), serving.process(&["serve", "--role control"]));
        let came = thread::scope(|scope| {
            scope.spawn(|| {
                // It fails if the control plane is killed meanwhile.
                let script = "STRONGROOM_HOME=\"$PWD/home\" exec \"$STRONGROOM\" inventory backup";
                let _ = CommandLine::new(&scratch).run_shell(script);
                done.store(true, Ordering::SeqCst);
            });
            let came = changes(&watch, number, &done);
            if came {
                kill_process(process, Signal::KILL).unwrap();
            }
            came
        });
        // All that has a backup's name is whole; what has not is taken away by the next one.
        serving.wait_until_told("host list", "host1");
        let backup = serving.json("inventory backup")["file"].as_str().unwrap().to_owned();
        let all = backups(&scratch);
        assert!(
            all.contains(&backup) && all.iter().all(|path| path.ends_with(".backup")),
            "{number}: {all:?}"
        );
        assert!(all.len() <= 2, "as many as are kept: {all:?}");
        for backup in &all {
            let shares = open_shares(&serving, backup);
            serving.runs(&format!("inventory verify {backup} {shares}"));
        }
        if !came {
            break;
        }
        (number, killed) = (number + 1, killed + 1);
    }
    println!("killed at each of {killed} changes");
    assert!(killed > 5, "{killed}");
    serving.end();
}

/// The directory's file system is unmounted: nothing goes to the machine's own disk, the alarm says
/// what to do, and ends when the file system is back.
#[test]
fn a_directory_that_is_not_mounted_takes_no_backup_and_raises_an_alarm() {
    let scratch = Scratch::new();
    make_custodians(&scratch);
    scratch.make_directory("safe");
    let mut serving = Serving::start_with(&scratch, OPTIONS);
    serving.json("inventory backup");
    // A mount point whose file system goes away is an empty directory. Here it is one, because
    // another process would have to see the mount.
    fs::rename(scratch.path("safe"), scratch.path("away")).unwrap();
    scratch.make_directory("safe");
    serving.wait_until_told("event alarms", "is not the directory that it was");
    let alarms = serving.runs("event alarms");
    assert!(alarms.contains("mount its file system"), "{alarms}");
    let refused = serving.is_refused("inventory backup");
    assert!(
        refused.contains("inventory-backups.json in it is missing")
            && refused.contains("mount its file system"),
        "{refused}"
    );
    assert_eq!(
        fs::read_dir(scratch.path("safe")).unwrap().count(),
        0,
        "nothing is on the machine's own disk"
    );
    // Also not after a start: it is no first one.
    serving.end();
    serving.start_again();
    assert!(serving.is_refused("inventory backup").contains("is not the directory that it was"));
    assert_eq!(fs::read_dir(scratch.path("safe")).unwrap().count(), 0);
    // Another file system there is not taken for it.
    fs::write(
        scratch.path("safe/inventory-backups.json"),
        r#"{"format":1,"id":"00000000-0000-4000-8000-000000000001"}"#,
    )
    .unwrap();
    assert!(serving.is_refused("inventory backup").contains("is not the directory that it was"));
    fs::remove_dir_all(scratch.path("safe")).unwrap();
    fs::rename(scratch.path("away"), scratch.path("safe")).unwrap();
    serving.json("inventory backup");
    serving.wait_until_told("event list", "over: the inventory is not backed up");
    // What the alarm says for another directory under the same path works.
    fs::rename(scratch.path("safe"), scratch.path("away")).unwrap();
    scratch.make_directory("safe");
    serving.end();
    fs::remove_file(scratch.path("home/control/backup-directory.json")).unwrap();
    serving.start_again();
    serving.json("inventory backup");
    serving.end();
}

#[test]
#[ignore = "long: make test-guests"]
fn a_lost_machine_comes_back_on_another_one_with_its_keys_and_its_inventory() {
    let scratch = Scratch::new();
    make_custodians(&scratch);
    scratch.make_directory("safe");
    let mut serving = Serving::start_with(&scratch, OPTIONS);
    let guest = serving.test_guest();
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --machine pc {guest}"));
    serving.runs("vm create web2 --memory 64M --net none --disk 16M");
    serving.runs("vm start web1");
    serving.runs("vm stop web1 --force");
    let custodians = "--custodian ada=ada.pem --custodian grace=grace.pem --custodian emmy=emmy.pem";
    serving.runs(&format!("keyserver backup kms.backup --threshold 2 {custodians}"));
    let made = serving.json("inventory backup");
    fs::copy(made["file"].as_str().unwrap(), scratch.path("inventory.backup")).unwrap();
    serving.runs("vm delete web2 --yes");
    serving.end();

    // What is left is the datastore, and two files.
    fs::remove_dir_all(scratch.path("home")).unwrap();
    fs::remove_dir_all(scratch.path("run")).unwrap();
    serving.runs("keyserver init");
    let shares = open_shares(&serving, "kms.backup");
    serving.runs(&format!("keyserver restore kms.backup {shares}"));
    let shares = open_shares(&serving, "inventory.backup");
    let restored = serving.runs(&format!("inventory restore inventory.backup {shares}"));
    assert!(restored.contains("2 VMs, 1 host") && !restored.contains("no key server"), "{restored}");
    serving.test_guest();
    serving.start_again();
    serving.wait_until_told("event list", "VM web1 is as it was when the inventory was backed up");
    serving.wait_until_told("event alarms", "VM web2 is not in its datastore any more");
    serving.runs("vm unregister web2");
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let web1 = serving.wait_until("web1", "runs", |vm| vm["power"] == "running");
    assert_eq!(web1["generation"], 2);
    serving.runs("vm stop web1 --force");
}
