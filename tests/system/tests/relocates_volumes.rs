//! A volume with its snapshots moves to another file system, in a command that is killed at any
//! moment until it is done. A program that has nothing of ours reads the content where it is.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use strongroom_system_tests::{CommandLine, Protection, Scratch};

use crate::reencrypts_volumes::{CONTENTS, read_at, volume_with_snapshots};
use crate::worker_support::{NbdClient, VerifiedIo, Worker, wait_until};

/// How long the end of a move may take.
const DEADLINE: Duration = Duration::from_secs(120);
/// Kills of the command, before it is left alone.
const KILLS: usize = if cfg!(feature = "full") { 40 } else { 8 };

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Bytes that lie in a directory and those in it.
fn bytes_in(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let bytes_of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => 1 + bytes_in(&entry.path()),
        Ok(metadata) => std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}

/// Moves a volume, and kills that again and again. Returns its answer.
fn moved_though_killed(scratch: &Scratch, from: &Path, to: &Path, key: &Path) -> (Value, usize) {
    let strongroom = CommandLine::new(scratch);
    let script = format!(
        r#"exec "$STRONGROOM" --json volume move '{}' --to '{}' --key-file '{}' --home home --lock-wait 1m"#,
        from.display(),
        to.display(),
        key.display()
    );
    let mut kills = 0;
    loop {
        let mut seen = bytes_in(to);
        let mut changes = 0;
        let wanted = kills * 5;
        let is_time = || {
            let now = bytes_in(to);
            changes += usize::from(now != seen);
            seen = now;
            kills < KILLS && changes > wanted
        };
        match strongroom.run_shell_until(&script, is_time) {
            Some(finished) if finished.stderr.contains("two_places") => {
                // The last kill came between the two: both are whole, and a person decides.
                let there = to.join(from.file_name().unwrap());
                strongroom.run(&["volume", "delete", there.to_str().unwrap(), "--yes"]).success();
            }
            Some(finished) => return (serde_json::from_str(&finished.success()).unwrap(), kills),
            None => kills += 1,
        }
        if !from.join("descriptor").exists() {
            // The last kill came within the deletion: only that is left, and the volume is there.
            return (Value::Null, kills);
        }
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_volume_moves_to_another_file_system_and_back_though_the_command_is_killed() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Encrypted, &["--integrity"]);
    let (key, other) = (volume.key_file(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (here, there) = (volume.path(), other.path().join("vm1"));
    let before = CONTENTS.map(|snapshot| read_at(&scratch, &here, &key, snapshot));
    let info = |path: &Path| strongroom.json(&["volume", "info", path.to_str().unwrap()]);
    let (id, generation) = (info(&here)["volume_id"].clone(), info(&here)["generation"].as_u64().unwrap());

    // Within a file system it is a rename.
    scratch.make_directory("beside");
    let words = |path: &Path, to: &Path| -> Vec<String> {
        let words =
            ["volume", "move", path.to_str().unwrap(), "--to", to.to_str().unwrap(), "--home", "home"];
        let key = ["--key-file".to_owned(), key.to_str().unwrap().to_owned()];
        words.into_iter().map(str::to_owned).chain(key).collect()
    };
    let run = |words: Vec<String>| strongroom.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let said = run(words(&here, &scratch.path("beside"))).success();
    assert!(said.contains("nothing was copied"), "{said}");
    run(words(&scratch.path("beside/vm1"), &volume.datastore())).success();

    let (answer, kills) = moved_though_killed(&scratch, &here, other.path(), &key);
    println!("{kills} kills; {answer}");
    assert!(kills > 0);
    assert!(answer.is_null() || answer["copied"]["layers"] == 3, "{answer}");
    assert_eq!(names_in(other.path()), ["vm1"]);
    let after = CONTENTS.map(|snapshot| read_at(&scratch, &there, &key, snapshot));
    assert!(before == after, "the content has changed");
    assert_eq!(info(&there)["volume_id"], id);
    assert!(info(&there)["generation"].as_u64().unwrap() > generation);
    let path = there.to_str().unwrap();
    strongroom.run(&["volume", "check", path, "--data", "--key-file", key.to_str().unwrap()]).success();

    let said = run(words(&there, &volume.datastore())).success();
    assert!(said.contains("3 layers were copied") && said.contains("nothing is left of"), "{said}");
    assert!(names_in(other.path()).is_empty());
    let after = CONTENTS.map(|snapshot| read_at(&scratch, &here, &key, snapshot));
    assert!(before == after, "the content has changed");
    volume.command("check", &["--data"]).success();
}

/// A client writes and verifies while the volume is copied in rounds; the command and the worker
/// are killed. When the exposure ends, everything that was acknowledged is at the new place.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_exposed_volume_is_copied_while_it_is_used_and_moves_when_that_has_ended() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Encrypted, &["--integrity"]);
    let (key, other) = (volume.key_file(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (here, there) = (volume.path(), other.path().join("vm1"));
    let before = CONTENTS.map(|snapshot| read_at(&scratch, &here, &key, snapshot));
    let layers = |path: &Path| names_in(path).iter().filter(|name| name.starts_with("layer-")).count();
    assert_eq!(layers(&here), 3);
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    io.wait_for_more(50);
    let script = format!(
        r#"exec "$STRONGROOM" volume move '{}' --to '{}' --key-file '{}' --home home --lock-wait 1m"#,
        here.display(),
        other.path().display(),
        key.display()
    );
    for kill in 0..4 {
        let mut seen = bytes_in(other.path());
        let mut changes = 0;
        let is_time = || {
            let now = bytes_in(other.path());
            changes += usize::from(now != seen);
            seen = now;
            changes > 3 * kill || layers(&here) > 4 + kill
        };
        let ended = strongroom.run_shell_until(&script, is_time);
        assert!(
            ended.is_none(),
            "it waits for the end of the exposure: {:?}",
            ended.map(|ended| ended.stderr)
        );
        if kill == 1 {
            Worker::of(&volume).kill();
        }
        io.wait_for_more(50);
    }
    let mut moving = strongroom.start_shell("move", &script);
    let log = moving.stderr_log().to_owned();
    wait_until("all but the last is copied", || {
        fs::read_to_string(&log).is_ok_and(|told| told.contains("end its exposure now"))
    });
    io.wait_for_more(50);
    io.stop();
    let mut expected = vec![0; before[0].len()];
    NbdClient::connect(exposed.socket()).unwrap().read(0, &mut expected).unwrap();
    assert!(exposed.close().success());
    assert!(moving.wait(DEADLINE).success());
    assert!(!here.exists());
    assert_eq!(names_in(other.path()), ["vm1"]);
    assert!(read_at(&scratch, &there, &key, "") == expected, "what was acknowledged is not there");
    for (snapshot, before) in CONTENTS.iter().zip(&before).skip(1) {
        assert!(read_at(&scratch, &there, &key, snapshot) == *before, "{snapshot} has changed");
    }
    let path = there.to_str().unwrap();
    let with_key = |words: &[&str]| {
        let key = ["--key-file", key.to_str().unwrap()];
        strongroom.run(&[words, &key].concat()).success()
    };
    with_key(&["volume", "check", path, "--data"]);
    with_key(&["volume", "snapshot", "merge", path]);
    assert!(read_at(&scratch, &there, &key, "") == expected);
}
