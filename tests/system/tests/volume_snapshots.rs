//! Snapshots of an exposed volume: clients see a pause, a snapshot has all writes that were
//! acknowledged before it, and a kill leaves the volume with the snapshot or without it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod worker_support;

use serde_json::Value;
use strongroom_system_tests::{CommandLine, Finished, Protection, Scratch, Volume};
use worker_support::{NbdClient, VerifiedIo, Worker, wait_until};

/// Operations between two blows, so that each meets other I/O.
const OPERATIONS: u64 = 200;

/// The offset of the marks, of which each snapshot has another one.
const MARK_AT: u64 = 5 << 20;
const MARK_BYTES: usize = 300 << 10;

/// Runs `volume snapshot VERB PATH ARGUMENTS`, without a key.
#[track_caller]
fn snapshot(volume: &Volume<'_>, verb: &str, arguments: &[&str]) -> Finished {
    let (path, scratch) = (volume.path(), volume.scratch());
    let words = [&["volume", "snapshot", verb, path.to_str().unwrap()], arguments].concat();
    CommandLine::new(scratch).run(&words)
}

/// As [`snapshot`], with the volume's key.
#[track_caller]
fn snapshot_with_key(volume: &Volume<'_>, verb: &str, arguments: &[&str]) -> Finished {
    let key = volume.key_file();
    snapshot(volume, verb, &[arguments, &["--key-file", key.to_str().unwrap()]].concat())
}

fn names(volume: &Volume<'_>) -> Vec<String> {
    let listed = snapshot(volume, "list", &["--json"]).success();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let snapshots = listed["snapshots"].as_array().unwrap().iter();
    snapshots.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

fn mark(volume: &Volume<'_>, fill: u8) {
    let exposed = volume.expose();
    write(exposed.socket(), fill);
    assert!(exposed.close().success());
}

fn write(socket: &std::path::Path, fill: u8) {
    NbdClient::connect(socket).unwrap().write(MARK_AT, &[fill; MARK_BYTES]).unwrap();
}

#[track_caller]
fn assert_marked(volume: &Volume<'_>, fill: u8) {
    let exposed = volume.expose();
    let mut found = vec![0; MARK_BYTES];
    NbdClient::connect(exposed.socket()).unwrap().read(MARK_AT, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == fill), "{:?} where all should be {fill}", &found[..8]);
    assert!(exposed.close().success());
}

#[test]
fn snapshots_are_made_while_clients_write() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    for name in ["one", "two", "three"] {
        io.wait_for_more(OPERATIONS);
        // No key is given: the supervisor has it.
        let said = snapshot(&volume, "create", &[name]).success();
        assert!(said.contains(&format!("snapshot {name}; the volume's clients waited for")), "{said}");
        io.wait_for_more(OPERATIONS);
        Worker::of(&volume).kill();
    }
    io.wait_for_more(OPERATIONS);
    assert_eq!(names(&volume), ["one", "two", "three"]);
    let refused = snapshot(&volume, "create", &["two"]).failure();
    assert!(refused.contains("has a snapshot 'two' already"), "{refused}");
    let said = snapshot(&volume, "delete", &["two"]).success();
    assert!(said.contains("volume snapshot merge"), "{said}");
    io.wait_for_more(OPERATIONS);
    io.stop();
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
    snapshot_with_key(&volume, "merge", &[]).success();
    volume.command("check", &["--data"]).success();
    assert_eq!(names(&volume), ["one", "three"]);
}

#[test]
fn what_is_killed_during_a_snapshot_leaves_the_volume_with_it_or_without() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let mut expected = Vec::new();
    for round in 1..=6_u8 {
        let name = format!("s{round}");
        let exposed = volume.expose();
        write(exposed.socket(), round);
        match round % 3 {
            // The supervisor is killed, and with it the worker, while the command runs.
            0 => std::thread::scope(|scope| {
                let command = scope.spawn(|| snapshot(&volume, "create", &[&name]));
                std::thread::sleep(std::time::Duration::from_millis(10 * u64::from(round)));
                exposed.kill();
                if command.join().unwrap().status.success() {
                    expected.push((name.clone(), round));
                }
            }),
            // The same, as soon as the command has answered.
            1 => {
                snapshot(&volume, "create", &[&name]).success();
                expected.push((name.clone(), round));
                exposed.kill();
            }
            // The worker is killed while the command runs; the supervisor continues.
            _ => {
                std::thread::scope(|scope| {
                    let command = scope.spawn(|| snapshot(&volume, "create", &[&name]));
                    std::thread::sleep(std::time::Duration::from_millis(10 * u64::from(round)));
                    Worker::of(&volume).kill();
                    if command.join().unwrap().status.success() {
                        expected.push((name.clone(), round));
                    }
                });
                wait_until("a worker serves again", || NbdClient::connect(exposed.socket()).is_ok());
                exposed.kill();
            }
        }
        // Its worker closes the volume.
        wait_until("the volume is free", || volume.command("check", &["--data"]).status.success());
        let found = names(&volume);
        // An unreported snapshot may exist.
        if found.contains(&name) && !expected.iter().any(|(known, _)| *known == name) {
            expected.push((name, round));
        }
        assert_eq!(found, expected.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    }
    mark(&volume, 99);
    assert!(expected.len() >= 2, "{expected:?}");
    for (name, round) in &expected {
        snapshot_with_key(&volume, "revert", &[name, "--discard"]).success();
        assert_marked(&volume, *round);
    }
    for (name, _) in &expected {
        snapshot_with_key(&volume, "delete", &[name]).success();
    }
    assert_marked(&volume, expected.last().unwrap().1);
    volume.command("check", &["--data"]).success();
}
