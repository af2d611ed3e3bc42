//! The worker of an exposed volume dies, is replaced by a newer one, and outlives its supervisor
//! only until it has closed the volume. Clients see a pause, and every acknowledged sector is
//! there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::worker_support::{DEADLINE, NbdClient, VerifiedIo, Worker, exposure, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strongroom_system_tests::{CommandLine, Protection, Scratch, Volume, family};

/// Operations between two blows, so that each meets other I/O.
const OPERATIONS: u64 = 200;

#[test]
fn a_killed_worker_is_a_pause() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    for _ in 0..3 {
        io.wait_for_more(OPERATIONS);
        Worker::of(&volume).kill();
    }
    io.wait_for_more(OPERATIONS);
    assert!(io.connections() >= 4, "{} connections over three kills", io.connections());
    assert_eq!(exposure(&volume)["restarts"], 3);
    let (operations, longest) = io.stop();
    println!("{operations} operations over three kills; the longest took {longest:?}");
    let log = || fs::read_to_string(exposed.process().stderr_log()).unwrap();
    // The client may notice a worker before the supervisor does.
    wait_until("the last outage is told of", || log().matches("the outage took").count() == 3);
    assert_eq!(log().matches("was killed by signal 9; another one is started").count(), 3, "{}", log());
    assert!(exposed.close().success());
}

#[test]
fn a_killed_supervisor_frees_the_volume() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    for _ in 0..3 {
        let exposed = volume.expose();
        let worker = Worker::of(&volume);
        let mut client = NbdClient::connect(exposed.socket()).unwrap();
        client.write(0, &[7; 65536]).unwrap();
        exposed.kill();
        worker.wait();
    }
    // Its remains are no obstacle.
    assert!(volume.path().join("control").exists());
    assert_eq!(exposure(&volume), Value::Null);
    volume.command("check", &[]).success();
    let exposed = volume.expose();
    let mut found = [0; 65536];
    NbdClient::connect(exposed.socket()).unwrap().read(0, &mut found).unwrap();
    assert!(found == [7; 65536]);
    exposed.kill();
    let strongroom = CommandLine::new(&scratch);
    // Its worker closes it first.
    strongroom.json(&["volume", "delete", volume.path().to_str().unwrap(), "--yes", "--lock-wait", "60s"]);
}

#[test]
fn a_worker_is_upgraded_under_io() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    let strongroom = CommandLine::new(&scratch);
    let path = volume.path();
    for _ in 0..3 {
        io.wait_for_more(OPERATIONS);
        let before = Worker::of(&volume);
        // No key is given: the supervisor has it.
        let upgraded = strongroom.json(&["volume", "upgrade", path.to_str().unwrap()]);
        assert_eq!(upgraded["old_worker_pid"], before.id);
        assert_eq!(upgraded["worker_pid"], Worker::of(&volume).id);
        println!("the pause of an upgrade: {} us", upgraded["stall_microseconds"]);
        before.wait();
    }
    io.wait_for_more(OPERATIONS);
    assert_eq!(exposure(&volume)["restarts"], 0);
    io.stop();
    assert!(exposed.close().success());
}

/// The program at the path is not one that can take over: the old worker continues.
#[test]
fn an_upgrade_to_what_is_no_worker_changes_nothing() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let install = |from: &std::path::Path| {
        // As a package does it: a new file replaces the old one. Another process writes it:
        // otherwise a program that another test starts meanwhile would hold it open for writing,
        // and it could not be executed.
        strongroom.peer("cp", &["--", from.to_str().unwrap(), "new"]);
        fs::set_permissions(strongroom.path("new"), PermissionsExt::from_mode(0o755)).unwrap();
        fs::rename(strongroom.path("new"), strongroom.path("strongroom")).unwrap();
    };
    install(strongroom.program());
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "64M", "--unencrypted"]);
    let script = "exec ./strongroom volume expose ds/vm1 --nbd unix:vm.sock --unencrypted 2>stderr";
    let mut server = strongroom.start_shell("expose", script);
    server.wait_for_line("its NBD URI", DEADLINE, |line| line.starts_with("nbd+unix:"));
    let io = VerifiedIo::start(&strongroom.path("vm.sock"));
    io.wait_for_more(OPERATIONS);

    install("/bin/false".as_ref());
    let refused = strongroom.run(&["volume", "upgrade", "ds/vm1"]).failure();
    assert!(refused.starts_with("error: the new worker does not start: worker "), "{refused}");
    assert!(refused.contains("ended with status 1"), "{refused}");
    io.wait_for_more(OPERATIONS);
    assert_eq!(io.connections(), 1, "nobody was disconnected");
    // A worker that dies now is replaced by its own program.
    let pid = strongroom.json(&["volume", "info", "ds/vm1"])["exposure"]["worker_pid"].clone();
    strongroom.run_shell(&format!("kill -9 {pid}")).success();
    io.wait_for_more(OPERATIONS);

    install(strongroom.program());
    strongroom.json(&["volume", "upgrade", "ds/vm1"]);
    io.wait_for_more(OPERATIONS);
    io.stop();
    assert!(server.terminate(DEADLINE).success());
    strongroom.is_refused(
        &["volume", "upgrade", "ds/vm1"],
        1,
        "ds/vm1 is not exposed; nothing is to be upgraded",
    );
}

/// The successor waits for the lock, which is released when the dead worker's last I/O has ended,
/// however long that takes.
#[test]
fn a_supervisor_waits_for_the_lock_and_says_so() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let worker = Worker::of(&volume);
    let layer = fs::read_dir(volume.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains("layer-"))
        .unwrap();
    // The name in `/proc/locks`; other tests wait for locks too.
    let place = format!(":{} ", fs::metadata(&layer).unwrap().ino());
    // Another holder, which queues before the worker dies, plays the dead worker's last I/O.
    let slow_disk = std::thread::spawn(move || {
        let file = fs::File::open(layer).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        file
    });
    wait_until("it is in the queue", || {
        assert!(!slow_disk.is_finished(), "the worker holds the lock");
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&place))
    });
    worker.kill();
    // The first to ask gets a free lock, and that may be the successor.
    wait_until("it has the lock", || {
        let has_it = slow_disk.is_finished();
        if !has_it && let Some(successor) = Worker::now_of(&volume) {
            successor.kill();
        }
        has_it
    });
    let held = slow_disk.join().unwrap();
    wait_until("there is no worker", || exposure(&volume)["worker_pid"] == Value::Null);
    // The supervisor answers meanwhile, and grows the volume too.
    volume.command("resize", &["--size", "128M"]).success();
    drop(held);
    // The connection waits in the listening socket until there is a worker.
    assert_eq!(NbdClient::connect(exposed.socket()).unwrap().size_bytes, 128 << 20);
    assert!(exposed.close().success());
}

/// The reason that a worker cannot start is logged, again and again, and the supervisor still ends
/// when it is told to.
#[test]
fn a_worker_that_cannot_start_is_tried_again() {
    if !rustix::process::geteuid().is_root() {
        println!("the kernel shows root alone how many descriptors a process has that holds keys");
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let worker = Worker::of(&volume);
    let starter = family::only_child_of(exposed.process().id());
    // A few more descriptors than the starter has: enough for the starter, and too few for the
    // rings of a worker, which inherits none of them. The number depends on the process that
    // started it.
    let open = fs::read_dir(format!("/proc/{starter}/fd")).unwrap().count();
    let limit = format!("--nofile={0}:{0}", open + 8);
    CommandLine::new(&scratch).peer("prlimit", &[&format!("--pid={starter}"), &limit]);
    worker.kill();
    let log = || fs::read_to_string(exposed.process().stderr_log()).unwrap();
    wait_until("it is tried again", || {
        log().contains("no worker serves yet") && log().contains("attempt 3 in")
    });
    // A ring has two, and either may exceed the limit.
    assert!(log().contains("RLIMIT_NOFILE") || log().contains("Too many open files"), "{}", log());
    exposed.process().signal(Signal::TERM);
    assert_eq!(exposed.close().code(), Some(1), "it was not closed in order");
}

#[test]
fn an_exposed_volume_grows_from_another_shell() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    io.wait_for_more(OPERATIONS);
    let strongroom = CommandLine::new(&scratch);
    let path = volume.path();
    let resize = |size| ["volume", "resize", path.to_str().unwrap(), "--size", size].map(str::to_owned);
    let resized = strongroom.json(&resize("128M").each_ref().map(String::as_str));
    assert_eq!(
        (&resized["old_size_bytes"], &resized["size_bytes"]),
        (&(64 << 20).into(), &(128 << 20).into())
    );
    assert_eq!(resized["generation"], 2);
    let mut client = NbdClient::connect(exposed.socket()).unwrap();
    assert_eq!(client.size_bytes, 128 << 20);
    client.write((128 << 20) - 4096, &[9; 4096]).unwrap();
    let refused = strongroom.run(&resize("64M").each_ref().map(String::as_str)).failure();
    assert!(refused.contains("has 128M and cannot shrink to 64M"), "{refused}");
    // The growth is there for the next process that opens the volume, worker or not.
    Worker::of(&volume).kill();
    io.wait_for_more(OPERATIONS);
    assert_eq!(NbdClient::connect(exposed.socket()).unwrap().size_bytes, 128 << 20);
    io.stop();
    assert!(exposed.close().success());
    volume.command("check", &[]).success();
}
