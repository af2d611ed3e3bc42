//! Snapshots of an exposed volume: clients see a pause, a snapshot has all writes that were
//! acknowledged before it, and a kill leaves the volume with the snapshot or without it.

use std::path::PathBuf;

use crate::worker_support::{NbdClient, VerifiedIo, Worker, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strongroom_system_tests::{CommandLine, Finished, Protection, Scratch, Volume};

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

fn names_of(volume: &Volume<'_>) -> Vec<String> {
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
    assert_eq!(names_of(&volume), ["one", "two", "three"]);
    let refused = snapshot(&volume, "create", &["two"]).failure();
    assert!(refused.contains("has a snapshot 'two' already"), "{refused}");
    let said = snapshot(&volume, "delete", &["two"]).success();
    assert!(said.contains("merged in the background"), "{said}");
    io.wait_for_more(OPERATIONS);
    io.stop();
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
    snapshot_with_key(&volume, "merge", &[]).success();
    volume.command("check", &["--data"]).success();
    assert_eq!(names_of(&volume), ["one", "three"]);
}

/// The worker goes on, with the connections of its clients: one that writes, one that sends nothing
/// meanwhile, and one that connected before the volume grew.
#[test]
fn a_client_keeps_its_connection_over_snapshots() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "16M", Protection::Encrypted);
    let exposed = volume.expose();
    let worker = Worker::of(&volume);
    let [mut idle, mut busy] = [(); 2].map(|()| NbdClient::connect(exposed.socket()).unwrap());
    let found = |client: &mut NbdClient, at: u64| {
        let mut block = [0; 4096];
        client.read(at, &mut block).unwrap();
        assert_eq!([block[0]; 4096], block, "a torn block");
        block[0]
    };
    for round in 1..=5_u8 {
        // A block that every layer has, and one that only this one has.
        busy.write(0, &[round; 4096]).unwrap();
        busy.write(u64::from(round) << 16, &[round; 4096]).unwrap();
        let name = format!("s{round}");
        snapshot(&volume, "create", &[&name]).success();
        assert_eq!((found(&mut busy, 0), found(&mut idle, 0)), (round, round));
        for earlier in 1..=round {
            assert_eq!(found(&mut idle, u64::from(earlier) << 16), earlier);
        }
        let size_bytes = (16 << 20) * (u64::from(round) + 1);
        let resize = serde_json::json!({ "resize": { "size_bytes": size_bytes, "least_generation": 0 } });
        assert_eq!(ask(&volume, &resize)["resized"]["size_bytes"], size_bytes);
    }
    assert_eq!(Worker::of(&volume).id, worker.id);
    // The logs of complete layers take no space, although the worker has them open.
    let open = std::fs::read_dir(format!("/proc/{}/fd", worker.id)).unwrap();
    let open = open.map(|entry| entry.unwrap().path());
    let is_removed = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("/log-") && !to.exists())
    };
    let removed: Vec<_> = open.filter(is_removed).collect();
    assert!(removed.iter().all(|path| std::fs::metadata(path).unwrap().len() == 0), "{removed:?}");
    assert!(!removed.is_empty());
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
    for round in (1..=5_u8).rev() {
        snapshot_with_key(&volume, "revert", &[&format!("s{round}"), "--discard"]).success();
        let exposed = volume.expose();
        let mut client = NbdClient::connect(exposed.socket()).unwrap();
        assert_eq!(found(&mut client, 0), round);
        drop(client);
        assert!(exposed.close().success());
    }
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
        let found = names_of(&volume);
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

/// A writer numbers its writes: each goes to one of the volumes when the one before is complete.
#[test]
fn volumes_have_snapshots_of_one_instant() {
    const ROUNDS: usize = if cfg!(feature = "full") { 100 } else { 4 };
    let scratch = Scratch::new();
    let volumes =
        ["one", "two", "three"].map(|name| Volume::create(&scratch, name, "16M", Protection::Encrypted));
    let exposed = volumes.each_ref().map(|volume| volume.expose());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let written = std::sync::atomic::AtomicU64::new(0);
    let paths = volumes.each_ref().map(|volume| volume.path().to_str().unwrap().to_owned());
    let names: Vec<String> = (0..ROUNDS).map(|round| format!("s{round}")).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // No snapshot ends their connections.
            let mut clients = exposed.each_ref().map(|one| NbdClient::connect(one.socket()).unwrap());
            for number in 1_u64.. {
                let at = number as usize % 3;
                let block: Vec<u8> = number.to_le_bytes().repeat(512);
                clients[at].write(MARK_AT, &block).unwrap();
                written.store(number, std::sync::atomic::Ordering::SeqCst);
                if is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    break;
                }
            }
        });
        let wait_for_more = || {
            let now = written.load(std::sync::atomic::Ordering::SeqCst);
            wait_until("the writer goes on", || written.load(std::sync::atomic::Ordering::SeqCst) > now + 50);
        };
        for name in &names {
            wait_for_more();
            let said =
                snapshot(&volumes[0], "create", &[name, "--with", &paths[1], "--with", &paths[2]]).success();
            assert!(said.contains("3 snapshots of one instant"), "{said}");
        }
        // A volume that has the name already, one that is not exposed, and one that is named twice:
        // no volume has a snapshot then, and all are served on.
        snapshot(&volumes[2], "create", &["taken"]).success();
        let refused = snapshot(&volumes[0], "create", &["taken", "--with", &paths[2]]).failure();
        assert!(refused.contains("has a snapshot 'taken' already"), "{refused}");
        let cold = Volume::create(&scratch, "cold", "16M", Protection::Encrypted);
        let cold = cold.path().to_str().unwrap().to_owned();
        let refused = snapshot(&volumes[0], "create", &["no", "--with", &cold]).failure();
        assert!(refused.contains("is not exposed"), "{refused}");
        let refused = snapshot(&volumes[0], "create", &["no", "--with", &paths[0]]).failure();
        assert!(refused.contains("is named twice"), "{refused}");
        wait_for_more();
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    exposed.into_iter().for_each(|one| assert!(one.close().success()));
    assert_eq!(names_of(&volumes[0]), names);
    for name in names.iter().rev() {
        let numbers = volumes.each_ref().map(|volume| {
            snapshot_with_key(volume, "revert", &[name, "--discard"]).success();
            number_in(volume)
        });
        assert_consecutive(name, numbers);
    }
}

/// The number that the last write of a volume had.
fn number_in(volume: &Volume<'_>) -> u64 {
    let exposed = volume.expose();
    let mut found = [0; 4096];
    NbdClient::connect(exposed.socket()).unwrap().read(MARK_AT, &mut found).unwrap();
    assert!(exposed.close().success());
    assert_eq!(found[..8].repeat(512), found, "a torn write");
    u64::from_le_bytes(found[..8].try_into().unwrap())
}

/// With one writer, an instant has three consecutive numbers: a later write without an earlier one
/// would leave a gap.
fn assert_consecutive(name: &str, mut numbers: [u64; 3]) {
    numbers.sort_unstable();
    assert_eq!([numbers[0], numbers[0] + 1, numbers[0] + 2], numbers, "{name}");
}

/// Asks the process that exposes the volume, as `SnapshotGroup` does.
fn ask(volume: &Volume<'_>, request: &Value) -> Value {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(volume.path().join("control")).unwrap();
    writeln!(stream, "{}", serde_json::json!({ "format": 1, "request": request })).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str::<Value>(&answer).unwrap()["answer"].clone()
}

/// A decision, and its SHA-256.
const DECISION: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const DECISION_SHA256: &str = "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925";

/// Makes parts of a snapshot of two exposed volumes, as `volume snapshot create --with` does until
/// it decides.
fn make_parts(volumes: &[Volume<'_>; 2], id: &str, name: &str) {
    use serde_json::json;
    let path = |at: usize| volumes[at].path().canonicalize().unwrap();
    let places = [json!({ "first": [path(1)] }), json!({ "after": path(0) })];
    for (volume, place) in volumes.iter().zip(places) {
        let terms = json!({ "place": place, "decision_sha256": DECISION_SHA256 });
        let prepare =
            json!({ "prepare_part": { "id": id, "name": name, "least_generation": 0, "terms": terms } });
        assert_eq!(ask(volume, &prepare), "snapshot_prepared");
    }
    for volume in volumes {
        assert_eq!(
            ask(volume, &json!({ "freeze_for_snapshot": { "id": id, "lease_ms": 10_000 } })),
            "frozen"
        );
    }
    for volume in volumes {
        let committed = ask(volume, &json!({ "commit_snapshot": { "id": id } }));
        assert_eq!(committed["snapshotted"]["snapshot"], id, "{committed}");
    }
}

/// The command that makes a snapshot of several volumes is killed when all have their parts, and
/// when only the first one knows that it exists.
#[test]
fn a_snapshot_of_several_volumes_is_of_all_or_of_none_when_its_command_is_killed() {
    use serde_json::json;
    let scratch = Scratch::new();
    let volumes = ["one", "two"].map(|name| Volume::create(&scratch, name, "16M", Protection::Encrypted));
    let id = "11111111-2222-4333-8444-555555555555";
    let exposed = volumes.each_ref().map(|volume| volume.expose());
    make_parts(&volumes, id, "early");
    for volume in &volumes {
        let listed = snapshot(volume, "list", &[]).success();
        assert!(listed.contains("no snapshots; early, of several volumes, is none"), "{listed}");
    }
    // A decision that is not the one that the parts were made for.
    let other = DECISION.replacen('0', "1", 1);
    let forged = json!({ "decide_snapshot": { "id": id, "decision": other } });
    assert_eq!(ask(&volumes[1], &forged)["refused"]["code"], "no_snapshot");
    // The processes that could still be told end, too.
    exposed.into_iter().for_each(|one| one.kill());
    wait_until("the volumes are free", || {
        volumes.iter().all(|volume| volume.command("check", &["--data"]).status.success())
    });
    let exposed = volumes.each_ref().map(|volume| volume.expose());
    for volume in &volumes {
        let listed = snapshot(volume, "list", &[]).success();
        assert!(listed.starts_with("no snapshots") && !listed.contains("early"), "{listed}");
    }

    let id = "66666666-2222-4333-8444-555555555555";
    make_parts(&volumes, id, "late");
    let decided = ask(&volumes[0], &json!({ "decide_snapshot": { "id": id, "decision": DECISION } }));
    assert!(decided["snapshot_decided"]["generation"].is_u64(), "{decided}");
    volumes.iter().for_each(|volume| assert_eq!(names_of(volume), ["late"]));
    exposed.into_iter().for_each(|one| assert!(one.close().success()));
    volumes.iter().for_each(|volume| assert_eq!(names_of(volume), ["late"]));
    // The first volume has the record as long as the other one has not read it.
    let first = volumes[0].path().to_str().unwrap().to_owned();
    let refused = CommandLine::new(&scratch).run(&["volume", "delete", &first, "--yes"]).failure();
    assert!(refused.contains("has not read it yet"), "{refused}");
    snapshot_with_key(&volumes[1], "delete", &["late"]).success();
    assert_eq!((names_of(&volumes[0]), names_of(&volumes[1])), (vec!["late".to_owned()], Vec::new()));
    // Both make the next one.
    let exposed = volumes.each_ref().map(|volume| volume.expose());
    let with = volumes[1].path().to_str().unwrap().to_owned();
    snapshot(&volumes[0], "create", &["next", "--with", &with]).success();
    assert_eq!(names_of(&volumes[0]), ["late", "next"]);
    assert_eq!(names_of(&volumes[1]), ["next"]);
    exposed.into_iter().for_each(|one| assert!(one.close().success()));
    for volume in &volumes {
        let described = volume.command("info", &["--json"]).success();
        assert!(!described.contains("undecided"), "{described}");
        volume.command("check", &["--data"]).success();
    }
}

/// A process that coordinates a group dies, or is too slow.
#[test]
fn a_freeze_ends_with_its_lease() {
    use serde_json::json;
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "16M", Protection::Encrypted);
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    io.wait_for_more(OPERATIONS);
    let id = "11111111-2222-4333-8444-555555555555";
    let prepare = json!({ "prepare_snapshot": { "id": id, "name": "late", "least_generation": 0 } });
    let commit = json!({ "commit_snapshot": { "id": id } });
    let freeze = |lease_ms| json!({ "freeze_for_snapshot": { "id": id, "lease_ms": lease_ms } });
    // No freeze without a prepared snapshot, no commit without a freeze.
    assert_eq!(ask(&volume, &freeze(1000))["refused"]["code"], "snapshot");
    assert_eq!(ask(&volume, &prepare), "snapshot_prepared");
    assert_eq!(ask(&volume, &commit)["refused"]["code"], "not_frozen");
    // What changes layers or the descriptor waits.
    let resize = json!({ "resize": { "size_bytes": 32 << 20, "least_generation": 0 } });
    assert_eq!(ask(&volume, &resize)["refused"]["code"], "busy");
    assert_eq!(ask(&volume, &prepare)["refused"]["code"], "snapshot");
    io.wait_for_more(OPERATIONS);
    // The lease ends: clients are served on, and the commit is refused.
    assert_eq!(ask(&volume, &freeze(300)), "frozen");
    io.wait_for_more(OPERATIONS);
    assert_eq!(ask(&volume, &commit)["refused"]["code"], "not_frozen");
    // A coordinator gives up.
    assert_eq!(ask(&volume, &prepare), "snapshot_prepared");
    assert_eq!(ask(&volume, &freeze(10_000)), "frozen");
    assert_eq!(ask(&volume, &json!({ "abandon_snapshot": { "id": id } })), "snapshot_abandoned");
    io.wait_for_more(OPERATIONS);
    // The supervisor hangs: the worker goes on by itself when the lease is over, and no commit that
    // comes later is obeyed.
    assert_eq!(ask(&volume, &prepare), "snapshot_prepared");
    assert_eq!(ask(&volume, &freeze(500)), "frozen");
    exposed.process().signal(Signal::STOP);
    io.wait_for_more(OPERATIONS);
    exposed.process().signal(Signal::CONT);
    assert_eq!(ask(&volume, &commit)["refused"]["code"], "not_frozen");
    io.wait_for_more(OPERATIONS);
    // The worker dies while nothing is served, and while a snapshot is only prepared.
    for is_frozen in [true, false] {
        assert_eq!(ask(&volume, &prepare), "snapshot_prepared");
        if is_frozen {
            assert_eq!(ask(&volume, &freeze(10_000)), "frozen");
        }
        Worker::of(&volume).kill();
        io.wait_for_more(OPERATIONS);
        assert_eq!(ask(&volume, &commit)["refused"]["code"], "not_frozen");
    }
    assert!(names_of(&volume).is_empty());
    snapshot(&volume, "create", &["after"]).success();
    io.wait_for_more(OPERATIONS);
    io.stop();
    // The volume is closed while it is frozen: what was written is in it, and it is in order.
    let exposed = {
        NbdClient::connect(exposed.socket()).unwrap().write(MARK_AT, &[7; MARK_BYTES]).unwrap();
        assert_eq!(ask(&volume, &prepare), "snapshot_prepared");
        assert_eq!(ask(&volume, &freeze(10_000)), "frozen");
        assert!(exposed.close().success());
        assert_marked(&volume, 7);
        volume.expose()
    };
    // The supervisor dies while its volume is frozen.
    assert_eq!(ask(&volume, &prepare), "snapshot_prepared");
    assert_eq!(ask(&volume, &freeze(10_000)), "frozen");
    exposed.kill();
    wait_until("the volume is free", || volume.command("check", &["--data"]).status.success());
    assert_eq!(names_of(&volume), ["after"]);
    // A closing layer is completed when the volume is served again.
    mark(&volume, 1);
    snapshot_with_key(&volume, "merge", &[]).success();
    volume.command("check", &["--data"]).success();
}
