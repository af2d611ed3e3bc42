//! Two changes of a served volume at once: each is done, one after the other, or refused with its
//! reason. What clients wrote and what snapshots hold is right whatever came first, and no volume
//! is left between two states.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::worker_support::{NbdClient, VerifiedIo};
use serde_json::Value;
use strongroom_system_tests::{CommandLine, Finished, Process, Protection, Scratch, Volume};

const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/read-layer.py");
const BLOCK: usize = 4096;
const DEADLINE: Duration = Duration::from_secs(120);
/// The verifying client works before it.
const FIRST: u64 = 512;
/// Blocks that nobody changes while the commands run.
const BLOCKS: u64 = 500;

/// A command on the volume, in the words of the command line: `{}` is the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    words: &'static str,
    /// Whether it is a job that goes on when it is called again.
    is_job: bool,
}

const fn change(words: &'static str) -> Change {
    Change { words, is_job: false }
}

const fn job(words: &'static str) -> Change {
    Change { words, is_job: true }
}

// Without a throttle, so that the clients' load does not decide how long a test takes.
const REKEY: Change = job("rekey --kek {} --key-file old.key --to-key-file new.key");
const RENEW: Change = job("rekey --data {} --key-file old.key --clients-keep 0");
const MOVE: Change = job("rekey --data {} --key-file old.key --to-key-file other.key --clients-keep 0");
const ENCRYPT: Change = job("encrypt {} --to-key-file old.key --clients-keep 0");
const DECRYPT: Change = job("decrypt {} --key-file old.key --clients-keep 0");
const SNAPSHOT: Change = change("snapshot create {} three");
const REVERT: Change = change("snapshot revert {} one --discard --key-file old.key --lock-wait 0s");
const DELETE: Change = change("snapshot delete {} one");
const MERGE: Change = change("snapshot merge {}");
const RESIZE: Change = change("resize {} --size 32M");
const UPGRADE: Change = change("upgrade {}");
/// The process that exposes the volume is asked to end.
const CLOSE: Change = change("");

/// All changes of an encrypted volume, and those of a clear one that are not of every volume.
const OF_ENCRYPTED: [Change; 11] =
    [REKEY, RENEW, MOVE, DECRYPT, SNAPSHOT, REVERT, DELETE, MERGE, RESIZE, UPGRADE, CLOSE];
const OF_CLEAR: [Change; 8] = [ENCRYPT, DECRYPT, SNAPSHOT, REVERT, DELETE, RESIZE, UPGRADE, CLOSE];

/// Why one of two changes may be refused. Anything else is a failure.
const REASONS: [&str; 25] = [
    "is being re-encrypted",
    "is not re-encrypted yet",
    "is being moved to another key",
    "is between two keys",
    "a snapshot of the volume is being made",
    "still being completed",
    "is under way",
    "another process works on this job",
    "there is nothing to do",
    "is in use",
    "is exposed",
    "is not exposed",
    "has ended",
    "cannot reach the process that exposes",
    "does not answer as it should",
    "needs its key",
    "is not encrypted",
    "is encrypted",
    "is not the key",
    "is not that of",
    "this key is not the volume's",
    "has no snapshot",
    "has a snapshot",
    "no worker serves now",
    "are being merged",
];

/// What stands in the place of a reason that is none.
const NO_REASON: &str = "not for a known reason:";

struct Stage<'test> {
    scratch: &'test Scratch,
    volume: Volume<'test>,
    exposed: Option<Process>,
    socket: PathBuf,
    /// What the blocks that nobody changes hold, and the content of the snapshots.
    present: Vec<u8>,
}

fn block(number: u64, text: &str) -> Vec<u8> {
    format!("{text}, block {number}\n").bytes().cycle().take(BLOCK).collect()
}

impl<'test> Stage<'test> {
    /// A volume with the snapshots `one` and `two`, which is served.
    fn new(scratch: &'test Scratch, name: &str, protection: Protection) -> Self {
        let volume = Volume::create(scratch, name, "24M", protection);
        let strongroom = CommandLine::new(scratch);
        if protection == Protection::Encrypted {
            fs::copy(volume.key_file(), scratch.path("old.key")).unwrap();
        } else {
            let _ = fs::remove_file(scratch.path("old.key"));
            strongroom.write_key_file("old.key", &[1; 32]);
        }
        for (file, fill) in [("new.key", 2), ("other.key", 3)] {
            let _ = fs::remove_file(scratch.path(file));
            strongroom.write_key_file(file, &[fill; 32]);
        }
        let path = volume.path().display().to_string();
        let key: &[&str] = match protection {
            Protection::Encrypted => &["--key-file", "old.key"],
            Protection::Unencrypted => &["--unencrypted"],
        };
        let (exposed, _) = strongroom.expose(&path, key);
        let socket = scratch.path("vm.sock");
        let mut present = vec![0; BLOCKS as usize * BLOCK];
        let mut write = |blocks: std::ops::Range<u64>, text: &str| {
            let mut client = NbdClient::connect(&socket).unwrap();
            for number in blocks {
                let content = block(number, text);
                client.write((FIRST + number) * BLOCK as u64, &content).unwrap();
                present[number as usize * BLOCK..][..BLOCK].copy_from_slice(&content);
            }
        };
        write(0..400, "first");
        strongroom.run(&["volume", "snapshot", "create", &path, "one"]).success();
        write(200..BLOCKS, "second");
        make_snapshot(&strongroom, &path, "two");
        write(0..50, "third");
        Self { scratch, volume, exposed: Some(exposed), socket, present }
    }

    fn path(&self) -> String {
        self.volume.path().display().to_string()
    }

    /// Makes the change; `None` for the one that has no command.
    fn make(&self, of: Change) -> Option<Finished> {
        if of == CLOSE {
            self.exposed.as_ref().unwrap().signal(rustix::process::Signal::TERM);
            return None;
        }
        Some(self.make_by(of.words, of.is_job))
    }

    fn make_by(&self, words: &str, is_job: bool) -> Finished {
        let words = words.replace("{}", &format!("'{}'", self.path()));
        let home = if is_job { "--home home" } else { "" };
        let script = format!(r#"exec "$STRONGROOM" volume {words} {home}"#);
        CommandLine::new(self.scratch).run_shell(&script)
    }

    fn descriptor(&self) -> Value {
        let content = fs::read(self.volume.path().join("descriptor")).unwrap();
        let length = u32::from_le_bytes(content[12..16].try_into().unwrap()) as usize;
        serde_json::from_slice(&content[16..16 + length]).unwrap()
    }

    /// The key file that the volume is under now; none if it is clear.
    fn key(&self, ids: &[(String, &'static str)]) -> Option<&'static str> {
        let kek = self.descriptor()["encryption"]["kek"]["id"].as_str()?.to_owned();
        Some(ids.iter().find(|(id, _)| *id == kek).unwrap_or_else(|| panic!("KEK {kek}: {ids:?}")).1)
    }

    /// A volume that is done has no mark, layers of one sort, and each data key under one KEK.
    fn expect_whole(&self, told: &str) {
        let descriptor = self.descriptor();
        assert!(descriptor["reencrypting"].is_null(), "{told}: {descriptor}");
        let is_clear = descriptor["encryption"].is_null();
        for layer in descriptor["layers"].as_array().unwrap() {
            let epochs = layer["epochs"].as_array().unwrap();
            assert_eq!(epochs.is_empty(), is_clear, "{told}: {descriptor}");
            let of_one = |epoch: &Value| epoch["envelopes"].as_array().unwrap().len() == 1;
            assert!(epochs.iter().all(of_one), "{told}: {descriptor}");
        }
    }

    /// The content, as a program without anything of ours reads it.
    fn read(&self, key: Option<&str>, snapshot: Option<&str>) -> Vec<u8> {
        let how = key.map_or("--unencrypted".to_owned(), |key| format!("--key-file {key}"));
        let of = snapshot.map_or(String::new(), |snapshot| format!("--snapshot {snapshot}"));
        let script = format!("'{READER}' '{}' {how} {of} > plain", self.path());
        CommandLine::new(self.scratch).run_shell(&script).success();
        let plain = fs::read(self.scratch.path("plain")).unwrap();
        plain[FIRST as usize * BLOCK..][..BLOCKS as usize * BLOCK].to_vec()
    }
}

fn make_snapshot(strongroom: &CommandLine<'_>, path: &str, name: &str) {
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let made = strongroom.run(&["volume", "snapshot", "create", path, name]);
        if !made.stderr.contains("still being completed") || std::time::Instant::now() > deadline {
            made.success();
            return;
        }
        std::thread::yield_now();
    }
}

/// The KEK ids of the key files, as volumes under them say.
fn key_ids(scratch: &Scratch) -> Vec<(String, &'static str)> {
    let strongroom = CommandLine::new(scratch);
    let id = |file: &'static str| {
        let path = format!("ids/{file}");
        strongroom.run(&["volume", "create", &path, "--size", "1M", "--key-file", file]).success();
        let info = strongroom.json(&["volume", "info", &path]);
        strongroom.run(&["volume", "delete", &path, "--yes"]).success();
        (info["encryption"]["kek_id"].as_str().unwrap_or_else(|| panic!("{info}")).to_owned(), file)
    };
    ["old.key", "new.key", "other.key"].map(id).to_vec()
}

/// Makes both changes at once, and says what became of them.
fn at_once(scratch: &Scratch, name: &str, protection: Protection, pair: [Change; 2]) -> String {
    let mut stage = Stage::new(scratch, name, protection);
    let ids = key_ids(scratch);
    let snapshots = {
        let first = |number: u64| if number < 400 { block(number, "first") } else { vec![0; BLOCK] };
        let second = |number: u64| if number < 200 { first(number) } else { block(number, "second") };
        let one: Vec<u8> = (0..BLOCKS).flat_map(first).collect();
        let two: Vec<u8> = (0..BLOCKS).flat_map(second).collect();
        [("one", one), ("two", two)]
    };
    let io = (!pair.contains(&CLOSE)).then(|| VerifiedIo::start(&stage.socket));
    if let Some(io) = &io {
        io.wait_for_more(10);
    }
    let finished = std::thread::scope(|scope| {
        let stage = &stage;
        let started = pair.map(|change| scope.spawn(move || stage.make(change)));
        started.map(|thread| thread.join().unwrap())
    });
    let mut told = Vec::new();
    let mut again = Vec::new();
    let mut is_reverted = false;
    for (change, finished) in pair.into_iter().zip(finished) {
        let Some(finished) = finished else { continue };
        let words = change.words.split(" {}").next().unwrap();
        if finished.status.success() {
            told.push(format!("{words}: done"));
            is_reverted |= change == REVERT;
            continue;
        }
        // A job of several volumes says on stdout which of them are not done.
        let said = [finished.stdout, finished.stderr].concat();
        let reason = REASONS.iter().find(|reason| said.contains(*reason));
        let reason = reason.filter(|_| finished.status.code() == Some(1));
        match reason {
            Some(reason) => told.push(format!("{words}: {reason}")),
            None => told.push(format!("{words}: {NO_REASON} {said}")),
        }
        if change.is_job {
            again.push(change);
        }
    }
    let told = told.join("; ");
    if let Some(io) = io {
        io.wait_for_more(10);
        io.stop();
    }
    let exposed = stage.exposed.take().unwrap();
    assert!(exposed.terminate(DEADLINE).success(), "{told}");
    // A job that was cut off goes on when the volume is not served. One that was refused before it
    // began may be impossible after the other.
    if !stage.descriptor()["reencrypting"].is_null() {
        // Under the key that the volume has, if the other change has moved it.
        let with = |key: &str, change: &Change| {
            let words = change.words.replace("--key-file old.key", &format!("--key-file {key}"));
            stage.make_by(&words, true).status.success()
        };
        let keys = ["old.key", "new.key", "other.key"];
        let done = again.iter().any(|change| keys.iter().any(|key| with(key, change)));
        assert!(done, "{told}: nothing goes on with it");
    }
    stage.expect_whole(&told);
    let key = stage.key(&ids);
    let check: &[&str] = match key {
        Some(key) => &["--key-file", key],
        None => &["--unencrypted"],
    };
    let path = stage.path();
    let checked = [&["volume", "check", &path, "--data"], check].concat();
    CommandLine::new(scratch).run(&checked).success();
    let listed = stage.descriptor()["snapshots"].to_string();
    for (name, content) in &snapshots {
        if listed.contains(&format!(r#""name":"{name}""#)) {
            assert!(stage.read(key, Some(name)) == *content, "{told}: snapshot {name} has changed");
        }
    }
    let present = if is_reverted { &snapshots[0].1 } else { &stage.present };
    assert!(stage.read(key, None) == *present, "{told}: the content has changed");
    drop(stage);
    fs::remove_dir_all(scratch.path(&format!("{name}.ds"))).unwrap();
    let home = scratch.path("home");
    if Path::new(&home).exists() {
        fs::remove_dir_all(home).unwrap();
    }
    told
}

fn all_pairs(of: &[Change], protection: Protection, part: impl Fn(usize) -> bool) {
    let scratch = Scratch::new();
    let pairs = of.iter().enumerate().flat_map(|(at, a)| of[at..].iter().map(move |b| [*a, *b]));
    let pairs = pairs.filter(|pair| *pair != [CLOSE, CLOSE]);
    let mut without_reason = Vec::new();
    for (number, pair) in pairs.enumerate().filter(|(number, _)| part(*number)) {
        let told = at_once(&scratch, &format!("vm{number}"), protection, pair);
        println!("{told}");
        without_reason.extend(Some(told).filter(|told| told.contains(NO_REASON)));
    }
    assert!(without_reason.is_empty(), "{}", without_reason.join("\n"));
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn changes_of_a_served_volume_are_ordered_or_refused() {
    all_pairs(&OF_ENCRYPTED, Protection::Encrypted, |number| [3, 12, 19].contains(&number));
    all_pairs(&OF_CLEAR, Protection::Unencrypted, |number| [1, 3].contains(&number));
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn every_two_changes_of_an_encrypted_volume_that_is_served_are_ordered_or_refused() {
    all_pairs(&OF_ENCRYPTED, Protection::Encrypted, |_| true);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn every_two_changes_of_a_clear_volume_that_is_served_are_ordered_or_refused() {
    all_pairs(&OF_CLEAR, Protection::Unencrypted, |_| true);
}
