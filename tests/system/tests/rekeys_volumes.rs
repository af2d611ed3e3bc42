//! Volumes move to other keys in a job that is killed at random moments until it is done. At every
//! moment one of the keys opens each volume, and at the end only the new one.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::worker_support::VerifiedIo;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{CommandLine, Protection, Scratch, Volume};

/// A smaller number in CI.
const VOLUMES: usize = if cfg!(feature = "full") { 1000 } else { 30 };
/// Each needs three runs of Argon2id over 64 MiB.
const PASSPHRASE_VOLUMES: usize = if cfg!(feature = "full") { 60 } else { 2 };
/// The number of volumes opened after each kill, besides those between two keys.
const SAMPLE: usize = 2;
/// The most steps of a job that are noted before it is killed again.
const SLICES: usize = 6;

/// A datastore whose volumes are re-keyed.
struct Datastore<'test> {
    strongroom: CommandLine<'test>,
    name: &'static str,
    volumes: usize,
    random: StdRng,
}

impl<'test> Datastore<'test> {
    fn new(scratch: &'test Scratch, name: &'static str, volumes: usize, key: &str) -> Self {
        let strongroom = CommandLine::new(scratch);
        let made = strongroom.run_shell(&format!(
            r#"mkdir -p {name}; n=0; while [ $n -lt {volumes} ]; do
                 "$STRONGROOM" volume create {name}/vm$n --size 1M {key} > made.log; n=$((n + 1)); done"#
        ));
        made.success();
        Self { strongroom, name, volumes, random: StdRng::seed_from_u64(1) }
    }

    fn volume(&self, number: usize) -> String {
        format!("{}/vm{number}", self.name)
    }

    /// Whether the key opens the volume, and everything in it that has a key.
    fn is_opened(&self, number: usize, key: &str) -> bool {
        let check = format!(r#""$STRONGROOM" volume check {} {key} > checked.log 2>&1"#, self.volume(number));
        let status = self.strongroom.run_shell(&format!("({check}) && exit 0 || exit 7")).status;
        match status.code() {
            Some(0) => true,
            Some(7) => false,
            _ => panic!("{status:?}"),
        }
    }

    /// The volumes that are between two keys at present.
    fn between(&self) -> Vec<usize> {
        let listed = self.strongroom.json(&["volume", "list", self.name]);
        let is_between = |volume: &&Value| !volume["encryption"]["next_kek_id"].is_null();
        let volumes = listed["items"].as_array().unwrap();
        assert_eq!(volumes.len(), self.volumes);
        let paths = volumes.iter().filter(is_between).map(|volume| volume["path"].as_str().unwrap());
        paths.map(|path| path.rsplit_once("vm").unwrap().1.parse().unwrap()).collect()
    }

    /// Re-keys, with kills whenever a few more steps have been noted, at the machine's own speed,
    /// until it is done. `one_takes` is the approximate time for a volume. Returns its answer.
    fn rekey(&mut self, old_key: &str, target: &str, new_key: &str, one_takes: Duration) -> Value {
        let (mut kills, mut between) = (0, 0);
        let name = self.name;
        let rekey = format!(
            r#"exec "$STRONGROOM" --json volume rekey --kek --datastore {name} --home home --lock-wait 5m {old_key} {target}"#
        );
        let home = self.strongroom.path("home");
        let before = noted(&home);
        // The first kill is certain to hit: the job waits for a volume that is in use, and has
        // noted its beginning.
        let somebody = self.lock(0);
        let begun = self.strongroom.run_shell_until(&rekey, || noted(&home) > before);
        assert!(begun.is_none(), "{begun:?}");
        drop(somebody);
        kills += 1;
        let answer = loop {
            let enough = noted(&home) + self.random.random_range(1..=(self.volumes / SLICES).max(1));
            // Later kills come somewhere on the way to the next volume.
            let later = self.random.random_range(Duration::ZERO..one_takes);
            let mut has_enough_since = None;
            let is_time = || {
                let now = noted(&home);
                if has_enough_since.is_none() && now >= enough {
                    has_enough_since = Some(Instant::now());
                }
                // A job that has noted its end completes.
                now <= before + self.volumes && has_enough_since.is_some_and(|since| since.elapsed() >= later)
            };
            match self.strongroom.run_shell_until(&rekey, is_time) {
                Some(rekeyed) => break serde_json::from_str(&rekeyed.success()).unwrap(),
                None => kills += 1,
            }
            let caught = self.between();
            assert!(caught.len() <= 1, "one after the other");
            for number in &caught {
                let both = [old_key, new_key].map(|key| self.is_opened(*number, key));
                assert_eq!(both, [true; 2], "{} after {kills} kills", self.volume(*number));
            }
            for _ in 0..SAMPLE {
                let number = self.random.random_range(0..self.volumes);
                let is_opened = self.is_opened(number, old_key) || self.is_opened(number, new_key);
                assert!(is_opened, "{} is stranded after {kills} kills", self.volume(number));
            }
            between += caught.len();
        };
        println!(
            "{name}: {} volumes, {kills} kills; {between} times a volume was between two keys",
            self.volumes
        );
        answer
    }

    /// The file of a volume's layer.
    fn layer(&self, number: usize) -> PathBuf {
        let entries = fs::read_dir(self.strongroom.path(&self.volume(number))).unwrap();
        let mut layers = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("layer-"));
        layers.next().unwrap()
    }

    /// Holds a volume as long as the file is open.
    fn lock(&self, number: usize) -> File {
        let layer = File::open(self.layer(number)).unwrap();
        flock(&layer, FlockOperation::LockExclusive).unwrap();
        layer
    }

    /// The layer of each volume: the same file with the same content if nothing was copied.
    fn layers(&self) -> Vec<(u64, Vec<u8>)> {
        let content = |path: PathBuf| (path.metadata().unwrap().ino(), fs::read(path).unwrap());
        (0..self.volumes).map(|number| content(self.layer(number))).collect()
    }
}

/// The number of steps that the jobs of a home have noted.
fn noted(home: &Path) -> usize {
    let Ok(jobs) = fs::read_dir(home.join("jobs")) else { return 0 };
    let lines = |path| fs::read(path).unwrap().iter().filter(|byte| **byte == b'\n').count();
    jobs.map(|job| lines(job.unwrap().path())).sum()
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_job_that_is_killed_at_random_moves_all_volumes_and_strands_none() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    for (name, fill) in [("old.key", 1), ("new.key", 2)] {
        strongroom.write_key_file(name, &[fill; 32]);
    }
    let (old, new) = ("--key-file old.key", "--key-file new.key");
    let mut datastore = Datastore::new(&scratch, "ds", VOLUMES, old);
    let layers = datastore.layers();
    let answer = datastore.rekey(old, "--to-key-file new.key", new, Duration::from_millis(3));
    assert_eq!((answer["finished"].as_bool(), answer["resumed"].as_bool()), (Some(true), Some(true)));
    assert_eq!(answer["volumes"].as_array().unwrap().len(), VOLUMES);
    for number in 0..VOLUMES {
        assert!(datastore.is_opened(number, new), "vm{number}");
        assert!(!datastore.is_opened(number, old), "vm{number} still opens under the old key");
    }
    assert_eq!(datastore.layers(), layers);
    // The job is over: the same command begins another one, with nothing to do.
    let done = strongroom.json(&[
        "volume",
        "rekey",
        "--kek",
        "--datastore",
        "ds",
        "--home",
        "home",
        "--key-file",
        "old.key",
        "--to-key-file",
        "new.key",
    ]);
    assert_eq!((done["resumed"].as_bool(), done["finished"].as_bool()), (Some(false), Some(true)));
    assert_eq!(done["volumes"], answer["volumes"]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn passphrases_move_to_other_passphrases_and_then_to_a_key_file() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    fs::write(strongroom.path("old"), "correct horse\n").unwrap();
    fs::write(strongroom.path("new"), "battery staple\n").unwrap();
    strongroom.write_key_file("new.key", &[2; 32]);
    let (old, new) = ("--passphrase-fd 3 3<old", "--passphrase-fd 3 3<new");
    let mut datastore = Datastore::new(&scratch, "ds", PASSPHRASE_VOLUMES, old);
    datastore.rekey(old, "--to-passphrase-fd 4 4<new", new, Duration::from_millis(500));
    datastore.rekey(new, "--to-key-file new.key", "--key-file new.key", Duration::from_millis(500));
    for number in 0..PASSPHRASE_VOLUMES {
        assert!(datastore.is_opened(number, "--key-file new.key"));
        assert!(!datastore.is_opened(number, old) && !datastore.is_opened(number, new));
    }
}

#[test]
fn an_exposed_volume_moves_while_it_is_used() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    strongroom.write_key_file("new.key", &[2; 32]);
    fs::write(strongroom.path("passphrase"), "correct horse\n").unwrap();
    let path = volume.path().display().to_string();
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    io.wait_for_more(50);
    let rekey = ["volume", "rekey", "--kek", &path, "--home", "home"];
    // The exposing process has the old key, so none is given.
    let moved = strongroom.json(&[&rekey[..], &["--to-key-file", "new.key"]].concat());
    assert_eq!(moved["volumes"][0]["generation"], 3);
    io.wait_for_more(50);
    // The next worker gets its keys with the new one.
    let exposure = || strongroom.json(&["volume", "info", &path])["exposure"].clone();
    let worker = exposure()["worker_pid"].as_i64().unwrap();
    kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL).unwrap();
    io.wait_for_more(50);
    assert_eq!(exposure()["restarts"], 1);
    let script =
        format!(r#""$STRONGROOM" volume rekey --kek '{path}' --home home --to-passphrase-fd 3 3<passphrase"#);
    let said = strongroom.run_shell(&script).success();
    assert!(said.contains("(from a passphrase), generation 5"), "{said}");
    io.stop();
    assert!(exposed.close().success());

    strongroom.run(&["volume", "check", &path, "--key-file", "new.key"]).failure();
    strongroom.run_with_passphrase("passphrase", &["volume", "check", &path]).success();
    let key = moved["volumes"][0]["kek_id"].as_str().unwrap();
    let refused =
        strongroom.run_with_passphrase("passphrase", &["volume", "check", &path, "--expect-kek", key]);
    let refused = refused.failure();
    assert!(refused.contains("is expected"), "{refused}");
}
