//! Layers of an exposed volume are merged in the background when a snapshot is deleted: under
//! clients that write, under kills, and on a datastore that fills up.

use std::ops::Range;
use std::path::Path;

use crate::disk_support::Mounts;
use crate::worker_support::{NbdClient, VerifiedIo, Worker, exposure, wait_until};
use serde_json::Value;
use strongroom_system_tests::{CommandLine, Finished, Protection, Scratch, Volume};

/// Operations of the verifying client between two steps.
const OPERATIONS: u64 = 100;

const CHUNK_BYTES: usize = 128 << 10;
/// The verifying client works before this.
const AREA_AT: u64 = 2 << 20;
const CHUNKS: usize = 240;

/// Runs `volume snapshot VERB PATH ARGUMENTS`, without a key.
#[track_caller]
fn snapshot(volume: &Volume<'_>, verb: &str, arguments: &[&str]) -> Finished {
    let path = volume.path();
    let words = [&["volume", "snapshot", verb, path.to_str().unwrap()], arguments].concat();
    CommandLine::new(volume.scratch()).run(&words)
}

fn layers_of(volume: &Volume<'_>) -> u64 {
    let info = volume.command("info", &["--json"]).success();
    serde_json::from_str::<Value>(&info).unwrap()["layers"].as_u64().unwrap()
}

/// The state of an exposed volume's merge; `None` if none is wanted.
fn merge_of(volume: &Volume<'_>) -> Option<Value> {
    let merge = exposure(volume)["merge"].clone();
    (!merge.is_null()).then_some(merge)
}

#[track_caller]
fn await_merged(volume: &Volume<'_>) {
    wait_until("the layers are merged", || {
        let merge = merge_of(volume);
        assert!(merge.as_ref().is_none_or(|merge| merge["state"] != "failed"), "{merge:?}");
        // While the supervisor starts a worker it may not answer at once.
        merge.is_none() && exposure(volume)["worker_pid"].is_u64()
    });
}

/// What was written beside the verifying client: a byte for each chunk.
struct Area(Vec<u8>);

impl Area {
    fn new() -> Self {
        Self(vec![0; CHUNKS])
    }

    /// Repeats a request on new connections: another worker may take over.
    #[track_caller]
    fn ask(socket: &Path, mut request: impl FnMut(&mut NbdClient) -> std::io::Result<()>) {
        let client = std::cell::RefCell::new(None);
        let request = std::cell::RefCell::new(&mut request);
        wait_until("the volume is served", || {
            let mut client = client.borrow_mut();
            if client.is_none() {
                *client = NbdClient::connect(socket).ok();
            }
            let is_done = client.as_mut().is_some_and(|client| (*request.borrow_mut())(client).is_ok());
            if !is_done {
                *client = None;
            }
            is_done
        });
    }

    /// Writes chunks; a fill of 0 makes them zeroes, without writing these.
    #[track_caller]
    fn write(&mut self, socket: &Path, chunks: Range<usize>, fill: u8) {
        for chunk in chunks {
            let at = AREA_AT + (chunk * CHUNK_BYTES) as u64;
            Self::ask(socket, |client| match fill {
                0 => client.write_zeroes(at, CHUNK_BYTES),
                fill => client.write(at, &vec![fill; CHUNK_BYTES]),
            });
            self.0[chunk] = fill;
        }
    }

    #[track_caller]
    fn verify(&self, socket: &Path) {
        let mut found = vec![0; CHUNK_BYTES];
        for (chunk, fill) in self.0.iter().enumerate() {
            let at = AREA_AT + (chunk * CHUNK_BYTES) as u64;
            Self::ask(socket, |client| client.read(at, &mut found));
            assert!(found.iter().all(|byte| byte == fill), "chunk {chunk} has {}, not {fill}", found[0]);
        }
    }
}

fn deleted_while_clients_write(protection: Protection, arguments: &[&str]) {
    let scratch = Scratch::new();
    let volume = Volume::create_with(&scratch, "vm1", "64M", protection, arguments);
    let exposed = volume.expose();
    let socket = exposed.socket();
    let io = VerifiedIo::start(socket);
    let mut area = Area::new();
    area.write(socket, 0..200, 1);
    io.wait_for_more(OPERATIONS);
    snapshot(&volume, "create", &["one"]).success();
    area.write(socket, 50..150, 2);
    area.write(socket, 60..80, 0);
    io.wait_for_more(OPERATIONS);
    snapshot(&volume, "create", &["two"]).success();
    area.write(socket, 100..120, 3);
    let said = snapshot(&volume, "delete", &["one"]).success();
    assert!(said.contains("merged in the background"), "{said}");
    // A snapshot is made, and everything is read, while blocks move.
    snapshot(&volume, "create", &["three"]).success();
    io.wait_for_more(OPERATIONS);
    area.verify(socket);
    await_merged(&volume);
    assert_eq!(layers_of(&volume), 3, "one layer for each snapshot, and the top");
    area.verify(socket);
    area.write(socket, 110..130, 4);
    // The layer below the top: the top is merged too, below a new one.
    snapshot(&volume, "delete", &["two", "--wait"]).success();
    snapshot(&volume, "delete", &["three", "--wait"]).success();
    area.verify(socket);
    io.wait_for_more(OPERATIONS);
    assert_eq!(layers_of(&volume), 2, "what was merged, and a top that takes the writes");
    let said = snapshot(&volume, "merge", &["--wait"]).success();
    assert!(said.contains("layers now: 2"), "{said}");
    area.verify(socket);
    io.stop();
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
    let key = volume.key_file();
    let key = match protection {
        Protection::Encrypted => vec!["--key-file", key.to_str().unwrap()],
        Protection::Unencrypted => vec!["--unencrypted"],
    };
    snapshot(&volume, "merge", &key).success();
    assert_eq!(layers_of(&volume), 1);
    let exposed = volume.expose();
    area.verify(exposed.socket());
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
}

#[test]
fn a_snapshot_is_deleted_while_clients_write() {
    deleted_while_clients_write(Protection::Encrypted, &[]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_snapshot_of_a_volume_with_tags_is_deleted_while_clients_write() {
    deleted_while_clients_write(Protection::Encrypted, &["--integrity"]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_snapshot_of_a_clear_volume_is_deleted_while_clients_write() {
    deleted_while_clients_write(Protection::Unencrypted, &[]);
}

/// Leaves a volume with a merge that is slow enough to be met on its way.
#[track_caller]
fn begin_merge(volume: &Volume<'_>, socket: &Path, area: &mut Area, round: u8) {
    snapshot(volume, "create", &["lower"]).success();
    area.write(socket, 10..80, round);
    area.write(socket, 30..40, 0);
    snapshot(volume, "create", &[&format!("s{round}")]).success();
    area.write(socket, 60..70, round + 100);
    snapshot(volume, "delete", &["lower"]).success();
    snapshot(volume, "merge", &["--rate", "2M"]).success();
}

/// Waits until so much was copied, or nothing is left.
#[track_caller]
fn await_copied(volume: &Volume<'_>, bytes: u64) {
    wait_until("the merge goes on", || {
        merge_of(volume).is_none_or(|merge| merge["copied_bytes"].as_u64() >= Some(bytes))
    });
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn what_is_killed_during_a_merge_leaves_the_volume_as_it_was() {
    const ROUNDS: u8 = if cfg!(feature = "full") { 60 } else { 6 };
    let scratch = Scratch::new();
    let volume = Volume::create_with(&scratch, "vm1", "64M", Protection::Encrypted, &["--integrity"]);
    let mut exposed = volume.expose();
    let mut area = Area::new();
    area.write(exposed.socket(), 0..60, 99);
    let io = VerifiedIo::start(exposed.socket());
    for round in 1..=ROUNDS {
        begin_merge(&volume, exposed.socket(), &mut area, round);
        await_copied(&volume, u64::from(round % 4) * (3 << 20));
        if round % 2 == 0 {
            Worker::of(&volume).kill();
        } else {
            exposed.kill();
            exposed = volume.expose();
        }
        area.verify(exposed.socket());
        // It goes on by itself, at its own speed or a new one.
        if round % 3 == 0 {
            snapshot(&volume, "merge", &["--rate", "1G", "--wait"]).success();
        } else {
            snapshot(&volume, "merge", &["--rate", "1G"]).success();
            await_merged(&volume);
        }
        area.verify(exposed.socket());
        snapshot(&volume, "delete", &[&format!("s{round}"), "--wait"]).success();
        area.verify(exposed.socket());
    }
    io.stop();
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
}

#[test]
fn a_merge_pauses_and_goes_on_when_the_volume_is_exposed_again() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let refused = snapshot(&volume, "merge", &["--pause"]).failure();
    assert!(refused.contains("is not exposed"), "{refused}");
    let exposed = volume.expose();
    let said = snapshot(&volume, "merge", &[]).success();
    assert!(said.contains("no layers are left to be merged"), "{said}");
    let mut area = Area::new();
    area.write(exposed.socket(), 0..60, 1);
    begin_merge(&volume, exposed.socket(), &mut area, 2);
    let said = snapshot(&volume, "merge", &["--pause"]).success();
    assert!(said.contains("paused"), "{said}");
    assert_eq!(merge_of(&volume).unwrap()["state"], "paused");
    for verb in ["info", "snapshot list"] {
        let path = volume.path();
        let words: Vec<_> = std::iter::once("volume").chain(verb.split(' ')).collect();
        let said =
            CommandLine::new(&scratch).run(&[&words[..], &[path.to_str().unwrap()]].concat()).success();
        assert!(said.contains("paused"), "{said}");
    }
    // Other changes of layers and workers go on beside it, and it stays paused.
    snapshot(&volume, "create", &["beside"]).success();
    volume.upgrade().success();
    volume.command("resize", &["--size", "80M"]).success();
    assert_eq!(merge_of(&volume).unwrap()["state"], "paused");
    let refused = snapshot(&volume, "delete", &["beside", "--wait"]).failure();
    assert!(refused.contains("it is paused"), "{refused}");
    area.verify(exposed.socket());
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
    let exposed = volume.expose();
    await_merged(&volume);
    area.verify(exposed.socket());
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
}

#[test]
fn a_merge_without_room_gives_back_what_it_has_taken() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let disk = mounts.tmpfs("disk", 42);
    mounts.place("vm1", &disk);
    let volume = Volume::create_with(&scratch, "vm1", "64M", Protection::Encrypted, &["--integrity"]);
    let exposed = volume.expose();
    let socket = exposed.socket();
    let mut area = Area::new();
    area.write(socket, 0..80, 1);
    snapshot(&volume, "create", &["lower"]).success();
    // 20 MiB that the lower layer does not have.
    area.write(socket, 80..240, 2);
    snapshot(&volume, "create", &["upper"]).success();
    let available = || {
        let info = volume.command("info", &["--json"]).success();
        let info: Value = serde_json::from_str(&info).unwrap();
        info["datastore"]["available_bytes"].as_u64().unwrap()
    };
    let before = available();
    assert!((4 << 20..16 << 20).contains(&before), "the test needs other sizes: {before}");
    snapshot(&volume, "delete", &["lower"]).success();
    wait_until("the merge has failed", || merge_of(&volume).is_some_and(|merge| merge["state"] == "failed"));
    let said = volume.command("info", &[]).success();
    assert!(said.contains("merge         FAILED") && said.contains("nothing is lost"), "{said}");
    assert!(available() > before / 2, "{} of {before} are left", available());
    area.verify(socket);
    area.write(socket, 0..8, 3);
    mounts.resize_tmpfs(&disk, 256);
    snapshot(&volume, "merge", &["--wait"]).success();
    area.verify(socket);
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
}
