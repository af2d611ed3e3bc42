//! A volume with its snapshots is rewritten under other data keys, in a job that is killed at any
//! moment until it is done. Programs that have nothing of ours read the content before and after,
//! and look for what the old keys still open.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::worker_support::{NbdClient, VerifiedIo, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{CommandLine, Finished, Protection, Scratch, Volume};

const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/read-layer.py");
const FINDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/find-marker.py");

/// What every written block holds.
const MARKER: &str = "a secret of the guest";
const BLOCK: usize = 4096;
/// How long a layer may take to be complete.
const DEADLINE: Duration = Duration::from_secs(120);
/// The first block with the marker: the verifying client works before it.
const FIRST: u64 = 512;
/// Kills of a job, before it is left alone.
const KILLS: usize = if cfg!(feature = "full") { 40 } else { 6 };

/// The contents of a volume, by the names of its snapshots; that of the present is "".
pub const CONTENTS: [&str; 3] = ["", "one", "two"];

/// Writes blocks with the marker.
fn write(socket: &Path, blocks: std::ops::Range<u64>, text: &str) {
    let mut client = NbdClient::connect(socket).unwrap();
    for number in blocks {
        let line = format!("{MARKER}, {text}, block {number}\n");
        let block: Vec<u8> = line.bytes().cycle().take(BLOCK).collect();
        client.write((FIRST + number) * BLOCK as u64, &block).unwrap();
    }
}

/// A volume with two snapshots, whose layers hide parts of each other.
pub fn volume_with_snapshots<'test>(
    scratch: &'test Scratch,
    protection: Protection,
    arguments: &[&str],
) -> Volume<'test> {
    let volume = Volume::create_with(scratch, "vm1", "24M", protection, arguments);
    let exposed = volume.expose();
    let socket = exposed.socket();
    let snapshot = |name: &str| {
        let path = volume.path();
        let words = ["volume", "snapshot", "create", path.to_str().unwrap(), name];
        CommandLine::new(scratch).run(&words).success();
    };
    write(socket, 0..1500, "first");
    snapshot("one");
    write(socket, 1000..2000, "second");
    NbdClient::connect(socket).unwrap().write_zeroes((FIRST + 100) * BLOCK as u64, 200 * BLOCK).unwrap();
    snapshot("two");
    write(socket, 50..150, "third");
    assert!(exposed.close().success());
    volume
}

/// The content, as a program without anything of ours reads it.
fn read(scratch: &Scratch, volume: &Volume<'_>, key: &Path, snapshot: &str) -> Vec<u8> {
    read_at(scratch, &volume.path(), key, snapshot)
}

pub fn read_at(scratch: &Scratch, path: &Path, key: &Path, snapshot: &str) -> Vec<u8> {
    read_with(scratch, path, &format!("--key-file '{}'", key.display()), snapshot)
}

/// That of a clear volume.
fn read_clear(scratch: &Scratch, volume: &Volume<'_>, snapshot: &str) -> Vec<u8> {
    read_with(scratch, &volume.path(), "--unencrypted", snapshot)
}

fn read_with(scratch: &Scratch, path: &Path, how: &str, snapshot: &str) -> Vec<u8> {
    let name = format!("plain-{snapshot}");
    let of = if snapshot.is_empty() { String::new() } else { format!("--snapshot {snapshot}") };
    let script = format!("'{READER}' '{}' {how} {of} > {name}", path.display());
    CommandLine::new(scratch).run_shell(&script).success();
    fs::read(scratch.path(&name)).unwrap()
}

/// Looks for the marker under the keys of a former descriptor.
fn find(scratch: &Scratch, volume: &Volume<'_>, old_descriptor: &str, key: &Path) -> Finished {
    let (directory, key) = (volume.datastore(), key.display());
    let script = format!(
        "'{FINDER}' {old_descriptor} --key-file '{key}' --marker '{MARKER}' '{}'",
        directory.display()
    );
    CommandLine::new(scratch).run_shell(&script)
}

/// Makes a snapshot, as soon as the layer of the last one is complete.
fn make_snapshot(strongroom: &CommandLine<'_>, path: &str, name: &str) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let made = strongroom.run(&["volume", "snapshot", "create", path, name]);
        let is_early = made.stderr.contains("still being completed") && Instant::now() < deadline;
        if !is_early {
            made.success();
            return;
        }
        std::thread::yield_now();
    }
}

/// The names of a volume's files.
fn names(volume: &Volume<'_>) -> BTreeSet<String> {
    let entries = fs::read_dir(volume.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The codes of the refusal when a job that was killed had done everything.
const DONE_BEFORE: [&str; 2] = ["nothing_to_do", "wrong_key"];

/// Runs `strongroom --json volume ARGUMENTS` on the volume, killed as often as files come and go,
/// until it is done. Returns its answer, and how often it was killed. There is no answer if the
/// last kill came when all but that had been done.
fn killed_until_done(
    scratch: &Scratch,
    volume: &Volume<'_>,
    arguments: &str,
    mut between: impl FnMut(),
) -> (Value, usize) {
    let strongroom = CommandLine::new(scratch);
    let script = format!(
        r#"exec "$STRONGROOM" --json volume {arguments} '{}' --home home --lock-wait 1m"#,
        volume.path().display()
    );
    let mut kills = 0;
    loop {
        let before = names(volume);
        // A layer takes about five of them.
        let wanted = kills * 3 % 10;
        let mut seen = before.clone();
        let mut changes = 0;
        let is_time = || {
            let now = names(volume);
            if now != seen {
                seen = now;
                changes += 1;
            }
            kills < KILLS && changes > wanted
        };
        match strongroom.run_shell_until(&script, is_time) {
            // A volume that was re-keyed has another key by then.
            Some(finished) if kills > 0 && DONE_BEFORE.iter().any(|code| finished.stderr.contains(code)) => {
                return (Value::Null, kills);
            }
            Some(finished) => return (serde_json::from_str(&finished.success()).unwrap(), kills),
            None => kills += 1,
        }
        between();
    }
}

fn rekeyed_though_killed(arguments: &[&str]) {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Encrypted, arguments);
    let (old_key, new_key) = (volume.key_file(), scratch.path("new.key"));
    strongroom.write_key_file("new.key", &[2; 32]);
    let before = CONTENTS.map(|snapshot| read(&scratch, &volume, &old_key, snapshot));
    fs::copy(volume.path().join("descriptor"), scratch.path("old.descriptor")).unwrap();
    let found = find(&scratch, &volume, "old.descriptor", &old_key).failure();
    assert!(found.contains("show the marker"), "{found}");

    let path = volume.path().display().to_string();
    let rekey = format!("rekey --data --key-file '{}' --to-key-file new.key", old_key.display());
    let mut half_done = 0;
    let (answer, kills) = killed_until_done(&scratch, &volume, &rekey, || {
        // It says what it is, and neither key alone opens it once a layer is done.
        let described = strongroom.json(&["volume", "info", &path])["reencrypting"].clone();
        let left = described["left_layers"].as_u64();
        if left.is_some_and(|left| left > 0 && Some(left) < described["layers"].as_u64()) {
            half_done += 1;
            for key in [&old_key, &new_key] {
                let key = key.to_str().unwrap();
                let export = ["volume", "export", &path, "x", "--format", "raw", "--key-file", key];
                let refused = strongroom.run(&export).failure();
                assert!(refused.contains("is being re-encrypted") || refused.contains("KEK"), "{refused}");
            }
        }
    });
    println!("{kills} kills, after {half_done} of which it was half done; {answer}");
    assert!(kills > 0);
    assert!(answer.is_null() || answer["cancelled"] == false, "{answer}");
    let after = CONTENTS.map(|snapshot| read(&scratch, &volume, &new_key, snapshot));
    assert!(before == after, "the content has changed");
    find(&scratch, &volume, "old.descriptor", &old_key).success();
    let key = new_key.to_str().unwrap();
    strongroom.run(&["volume", "check", &path, "--data", "--key-file", key]).success();
    volume.command("check", &[]).failure();
    assert!(names(&volume).iter().all(|name| name != "descriptor.new"));
    // It is an ordinary volume again.
    strongroom.run(&["volume", "snapshot", "revert", &path, "one", "--discard", "--key-file", key]).success();
    assert!(read(&scratch, &volume, &new_key, "") == before[1]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_volume_is_rekeyed_with_its_snapshots_though_the_job_is_killed() {
    rekeyed_though_killed(&[]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_volume_with_tags_is_rekeyed_with_its_snapshots_though_the_job_is_killed() {
    rekeyed_though_killed(&["--integrity"]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_rekeying_that_is_cancelled_leaves_the_volume_under_its_key() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Encrypted, &[]);
    let old_key = volume.key_file();
    strongroom.write_key_file("new.key", &[2; 32]);
    let before = CONTENTS.map(|snapshot| read(&scratch, &volume, &old_key, snapshot));
    let path = volume.path().display().to_string();
    let rekey =
        ["volume", "rekey", "--data", &path, "--home", "home", "--key-file", old_key.to_str().unwrap()];
    let to = ["--to-key-file", "new.key"];
    let script = format!(
        r#"exec "$STRONGROOM" volume rekey --data '{path}' --home home --key-file '{}' --to-key-file new.key"#,
        old_key.display()
    );
    // One layer is done when the second new file is there.
    let first = names(&volume);
    let is_time = || {
        let new = names(&volume);
        new.difference(&first).filter(|name| name.starts_with("layer-")).count() >= 2
    };
    if strongroom.run_shell_until(&script, is_time).is_none() {
        strongroom.run(&[&rekey[..], &["--cancel", "--lock-wait", "1m"], &to].concat()).success();
        let after = CONTENTS.map(|snapshot| read(&scratch, &volume, &old_key, snapshot));
        assert!(before == after, "the content has changed");
        volume.command("check", &["--data"]).success();
        let refused = strongroom.run(&[&rekey[..], &["--cancel"], &to].concat()).failure();
        assert!(refused.contains("is not being re-encrypted"), "{refused}");
    }
    // New data keys under the same key.
    let answer = strongroom.json(&rekey);
    assert_eq!(answer["rewritten_layers"], 3);
    assert!(answer["replaced_kek"].is_null());
    let after = CONTENTS.map(|snapshot| read(&scratch, &volume, &old_key, snapshot));
    assert!(before == after, "the content has changed");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_volume_is_encrypted_and_decrypted_with_its_snapshots() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Unencrypted, &[]);
    strongroom.write_key_file("new.key", &[2; 32]);
    let path = volume.path().display().to_string();
    fs::copy(volume.path().join("descriptor"), scratch.path("old.descriptor")).unwrap();
    let refused = strongroom.run(&["volume", "decrypt", &path, "--home", "home", "--unencrypted"]).failure();
    assert!(refused.contains("not encrypted already"), "{refused}");
    let refused = strongroom.run(&["volume", "rekey", "--data", &path, "--home", "home"]).failure();
    assert!(refused.contains("is not encrypted"), "{refused}");
    let exported = |name: &str, key: &[&str]| {
        strongroom.run(&[&["volume", "export", &path, name, "--format", "raw"], key].concat()).success();
        fs::read(scratch.path(name)).unwrap()
    };
    let before = exported("before.raw", &["--unencrypted"]);

    let (answer, kills) =
        killed_until_done(&scratch, &volume, "encrypt --integrity --to-key-file new.key", || {});
    println!("{kills} kills; {answer}");
    let key = scratch.path("new.key");
    find(&scratch, &volume, "old.descriptor", &key).success();
    assert!(read(&scratch, &volume, &key, "") == before, "the content has changed");
    let checked = ["volume", "check", &path, "--data", "--key-file", "new.key"];
    strongroom.run(&checked).success();
    let again = ["volume", "encrypt", &path, "--home", "home", "--to-key-file", "new.key"];
    let refused = strongroom.run(&again).failure();
    assert!(refused.contains("encrypted already"), "{refused}");

    let (answer, kills) = killed_until_done(&scratch, &volume, "decrypt --key-file new.key", || {});
    println!("{kills} kills; {answer}");
    assert!(answer["kek_id"].is_null());
    assert!(exported("after.raw", &["--unencrypted"]) == before, "the content has changed");
}

/// Kills the worker that serves the volume.
fn kill_worker(volume: &Volume<'_>) {
    wait_until("a worker serves", || {
        let path = volume.path();
        let info = CommandLine::new(volume.scratch()).json(&["volume", "info", path.to_str().unwrap()]);
        let worker = info["exposure"]["worker_pid"].as_i64();
        let worker = worker.and_then(|worker| Pid::from_raw(worker as i32));
        worker.is_some_and(|worker| kill_process(worker, Signal::KILL).is_ok())
    });
}

/// Writes beside the verifying client, on new connections until one worker has taken all of it.
fn write_again(socket: &Path, blocks: std::ops::Range<u64>, text: &str) {
    wait_until("the volume is served", || {
        let connected = NbdClient::connect(socket);
        let Ok(mut client) = connected else { return false };
        blocks.clone().all(|number| {
            let line = format!("{MARKER}, {text}, block {number}\n");
            let block: Vec<u8> = line.bytes().cycle().take(BLOCK).collect();
            client.write((FIRST + number) * BLOCK as u64, &block).is_ok()
        })
    });
}

/// The content of the volume's descriptor.
fn descriptor_of(volume: &Volume<'_>) -> Value {
    let content = fs::read(volume.path().join("descriptor")).unwrap();
    let length = u32::from_le_bytes(content[12..16].try_into().unwrap()) as usize;
    serde_json::from_slice(&content[16..16 + length]).unwrap()
}

/// No data key is under the KEK of the old ones and that of the new ones.
fn expect_each_key_under_one_kek(volume: &Volume<'_>) {
    let descriptor = descriptor_of(volume);
    for layer in descriptor["layers"].as_array().unwrap() {
        for epoch in layer["epochs"].as_array().unwrap() {
            assert_eq!(epoch["envelopes"].as_array().unwrap().len(), 1, "{descriptor}");
        }
    }
}

/// Has another worker open what a job has made of the volume, under the load of a client, and ends
/// the load.
fn use_of_the_next_worker(volume: &Volume<'_>, io: VerifiedIo, socket: &Path) {
    io.wait_for_more(50);
    kill_worker(volume);
    io.wait_for_more(50);
    io.stop();
    write_again(socket, 60..70, "third");
}

/// Runs `strongroom volume ARGUMENTS` on the volume, until one of its layers is done, and kills it.
fn killed_half_done(volume: &Volume<'_>, arguments: &str) {
    let path = volume.path();
    let script = format!(
        r#"exec "$STRONGROOM" volume {arguments} '{}' --home home --rate 4M --lock-wait 1m"#,
        path.display()
    );
    let before = descriptor_of(volume)["layers"].as_array().unwrap().clone();
    let is_time = || {
        let now = descriptor_of(volume);
        let is_old = |layer: &&Value| before.iter().any(|old| old["id"] == layer["id"]);
        let old = now["layers"].as_array().unwrap().iter().filter(is_old).count();
        !now["reencrypting"].is_null() && old < before.len()
    };
    let finished = CommandLine::new(volume.scratch()).run_shell_until(&script, is_time);
    assert!(finished.is_none(), "it was done too early: {finished:?}");
    let now = descriptor_of(volume);
    let is_old = |layer: &Value| before.iter().any(|old| old["id"] == layer["id"]);
    assert!(now["layers"].as_array().unwrap().iter().any(is_old), "it was done too early");
}

fn rekeyed_while_it_is_used(arguments: &[&str]) {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Encrypted, arguments);
    let old_key = volume.key_file();
    strongroom.write_key_file("new.key", &[2; 32]);
    let before = CONTENTS.map(|snapshot| read(&scratch, &volume, &old_key, snapshot));
    fs::copy(volume.path().join("descriptor"), scratch.path("old.descriptor")).unwrap();
    let path = volume.path().display().to_string();
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    io.wait_for_more(50);

    // Killed between two layers, and at any other moment; a worker dies, too, and a snapshot is
    // made.
    let mut interrupted = 0;
    let (answer, kills) = killed_until_done(
        &scratch,
        &volume,
        &format!("rekey --data --key-file '{}' --to-key-file new.key", old_key.display()),
        || {
            interrupted += 1;
            io.wait_for_more(20);
            expect_each_key_under_one_kek(&volume);
            match interrupted {
                1 => kill_worker(&volume),
                2 => make_snapshot(&strongroom, &path, "meanwhile"),
                _ => {}
            }
            write_again(exposed.socket(), 60..70, "meanwhile");
        },
    );
    println!("{kills} kills; {answer}");
    assert!(kills > 0);
    // The next worker reads the new layers, and needs no old key.
    use_of_the_next_worker(&volume, io, exposed.socket());
    assert!(exposed.close().success());

    let new_key = scratch.path("new.key");
    find(&scratch, &volume, "old.descriptor", &old_key).success();
    let after = CONTENTS.map(|snapshot| read(&scratch, &volume, &new_key, snapshot));
    assert!(before[1..] == after[1..], "a snapshot has changed");
    let first = FIRST as usize * BLOCK;
    assert!(before[0][first..] == after[0][first..], "what was written before has changed");
    let key = new_key.to_str().unwrap();
    strongroom.run(&["volume", "check", &path, "--data", "--key-file", key]).success();
    volume.command("check", &[]).failure();
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_exposed_volume_is_rekeyed_while_it_is_used_and_the_job_is_killed() {
    rekeyed_while_it_is_used(&[]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_exposed_volume_with_tags_is_rekeyed_while_it_is_used_and_the_job_is_killed() {
    rekeyed_while_it_is_used(&["--integrity"]);
}

/// Exposes the volume with other arguments than its protection at first. Returns the socket, too.
fn expose_again(volume: &Volume<'_>, arguments: &[&str]) -> (strongroom_system_tests::Process, PathBuf) {
    let path = volume.path().display().to_string();
    let words = [&["--lock-wait", "30s"], arguments].concat();
    let (process, _) = CommandLine::new(volume.scratch()).expose(&path, &words);
    (process, volume.scratch().path("vm.sock"))
}

fn encrypted_and_decrypted_while_it_is_used(tags: &str) {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Unencrypted, &[]);
    strongroom.write_key_file("new.key", &[2; 32]);
    let key = scratch.path("new.key");
    let before = CONTENTS.map(|snapshot| read_clear(&scratch, &volume, snapshot));
    fs::copy(volume.path().join("descriptor"), scratch.path("old.descriptor")).unwrap();
    let path = volume.path().display().to_string();
    let unchanged = |after: &[Vec<u8>; 3]| {
        assert!(before[1..] == after[1..], "a snapshot has changed");
        let first = FIRST as usize * BLOCK;
        assert!(before[0][first..] == after[0][first..], "what was written before has changed");
    };

    // Killed between two layers, and at any other moment; a worker dies, too, and a snapshot is
    // made.
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    io.wait_for_more(50);
    let disturb = |socket: &Path, interrupted: &mut usize, io: &VerifiedIo, name: &str| {
        *interrupted += 1;
        io.wait_for_more(20);
        match *interrupted {
            1 => kill_worker(&volume),
            2 => make_snapshot(&strongroom, &path, name),
            _ => {}
        }
        write_again(socket, 60..70, "meanwhile");
    };
    let mut interrupted = 0;
    let encrypt = format!("encrypt {tags} --to-key-file new.key");
    let (answer, kills) = killed_until_done(&scratch, &volume, &encrypt, || {
        disturb(exposed.socket(), &mut interrupted, &io, "meanwhile");
    });
    println!("{kills} kills; {answer}");
    assert!(kills > 0);
    // The next worker has no clear layer any more.
    use_of_the_next_worker(&volume, io, exposed.socket());
    assert!(exposed.close().success());
    // No file of the datastore shows what was written.
    find(&scratch, &volume, "old.descriptor", &key).success();
    unchanged(&CONTENTS.map(|snapshot| read(&scratch, &volume, &key, snapshot)));
    strongroom.run(&["volume", "check", &path, "--data", "--key-file", "new.key"]).success();
    strongroom.run(&["volume", "snapshot", "delete", &path, "meanwhile", "--key-file", "new.key"]).success();

    let (exposed, socket) = expose_again(&volume, &["--key-file", "new.key"]);
    // The next client expects nothing there.
    NbdClient::connect(&socket).unwrap().write_zeroes(0, FIRST as usize * BLOCK).unwrap();
    let io = VerifiedIo::start(&socket);
    let mut interrupted = 0;
    let (answer, kills) = killed_until_done(&scratch, &volume, "decrypt --key-file new.key", || {
        disturb(&socket, &mut interrupted, &io, "back");
    });
    println!("{kills} kills; {answer}");
    assert!(answer["kek_id"].is_null());
    use_of_the_next_worker(&volume, io, &socket);
    assert!(exposed.terminate(DEADLINE).success());
    unchanged(&CONTENTS.map(|snapshot| read_clear(&scratch, &volume, snapshot)));
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_exposed_volume_is_encrypted_and_decrypted_while_it_is_used_and_the_job_is_killed() {
    encrypted_and_decrypted_while_it_is_used("");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_exposed_volume_gets_tags_with_its_encryption_while_it_is_used() {
    encrypted_and_decrypted_while_it_is_used("--integrity");
}

#[test]
fn a_half_encrypted_volume_is_served_again_only_as_a_person_says() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Unencrypted, &[]);
    strongroom.write_key_file("new.key", &[2; 32]);
    let before = CONTENTS.map(|snapshot| read_clear(&scratch, &volume, snapshot));
    fs::copy(volume.path().join("descriptor"), scratch.path("old.descriptor")).unwrap();
    let exposed = volume.expose();
    killed_half_done(&volume, "encrypt --to-key-file new.key");
    exposed.kill();
    let path = volume.path().display().to_string();
    let key = ["--key-file", "new.key"];
    for (arguments, refusal) in [
        (&key[..], "is being re-encrypted"),
        (&["--unencrypted"], "is encrypted"),
        (&["--key-file", "new.key", "--unfinished", "decrypt"], "is being re-encrypted"),
        (&["--unencrypted", "--unfinished", "encrypt"], "is encrypted"),
    ] {
        let words = [&["--lock-wait", "30s"], arguments].concat();
        let refused = strongroom.try_expose(&path, &words).failure();
        assert!(refused.contains(refusal), "{arguments:?}: {refused}");
    }
    // The descriptor of before, which nothing authenticates, is not taken with the key.
    let now = fs::read(volume.path().join("descriptor")).unwrap();
    fs::copy(scratch.path("old.descriptor"), volume.path().join("descriptor")).unwrap();
    let words = [&["--lock-wait", "30s", "--unfinished", "encrypt"], &key[..]].concat();
    let refused = strongroom.try_expose(&path, &words).failure();
    assert!(refused.contains("is not encrypted"), "{refused}");
    fs::write(volume.path().join("descriptor"), now).unwrap();

    let (exposed, socket) = expose_again(&volume, &["--key-file", "new.key", "--unfinished", "encrypt"]);
    let first = FIRST as usize * BLOCK;
    let mut client = NbdClient::connect(&socket).unwrap();
    for block in [0, 120, 250, 1200, 1999] {
        let at = first + block * BLOCK;
        let mut found = [0; BLOCK];
        client.read(at as u64, &mut found).unwrap();
        assert!(found[..] == before[0][at..at + BLOCK], "block {block}");
    }
    drop(client);
    write_again(&socket, 2000..2100, "sealed");
    let encrypt = ["volume", "encrypt", &path, "--home", "home", "--to-key-file", "new.key"];
    strongroom.run(&encrypt).success();
    assert!(exposed.terminate(DEADLINE).success());
    let key = scratch.path("new.key");
    find(&scratch, &volume, "old.descriptor", &key).success();
    let after = CONTENTS.map(|snapshot| read(&scratch, &volume, &key, snapshot));
    assert!(before[1..] == after[1..], "a snapshot has changed");
    let end = first + 2000 * BLOCK;
    assert!(before[0][first..end] == after[0][first..end], "what was written before has changed");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_exposed_volume_that_is_rekeyed_needs_both_keys_until_it_is_done() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = volume_with_snapshots(&scratch, Protection::Encrypted, &[]);
    let old_key = volume.key_file();
    strongroom.write_key_file("new.key", &[2; 32]);
    let before = CONTENTS.map(|snapshot| read(&scratch, &volume, &old_key, snapshot));
    fs::copy(volume.path().join("descriptor"), scratch.path("old.descriptor")).unwrap();
    let exposed = volume.expose();
    let rekey = format!("rekey --data --key-file '{}' --to-key-file new.key", old_key.display());
    killed_half_done(&volume, &rekey);
    expect_each_key_under_one_kek(&volume);
    exposed.kill();
    let path = volume.path().display().to_string();
    let old = old_key.to_str().unwrap();
    for (arguments, refusal) in [
        (&["--key-file", old][..], "--next-key-file"),
        (&["--key-file", old, "--next-key-file", old], "is not that of"),
        (&["--key-file", "new.key", "--next-key-file", "new.key"], "is being re-encrypted"),
    ] {
        let words = [&["--lock-wait", "30s"], arguments].concat();
        let refused = strongroom.try_expose(&path, &words).failure();
        assert!(refused.contains(refusal), "{arguments:?}: {refused}");
    }
    let (exposed, socket) = expose_again(&volume, &["--key-file", old, "--next-key-file", "new.key"]);
    write_again(&socket, 60..70, "third");
    let script = format!(r#""$STRONGROOM" volume {rekey} '{path}' --home home"#);
    strongroom.run_shell(&script).success();
    kill_worker(&volume);
    write_again(&socket, 60..70, "third");
    assert!(exposed.terminate(DEADLINE).success());
    let new_key = scratch.path("new.key");
    find(&scratch, &volume, "old.descriptor", &old_key).success();
    let after = CONTENTS.map(|snapshot| read(&scratch, &volume, &new_key, snapshot));
    assert!(before == after, "the content has changed");
}
