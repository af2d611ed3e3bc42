//! A volume with tags under a guest's requests: its worker is killed and upgraded without a false
//! report of damage; then a block is damaged, and no reader gets it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::worker_support::Worker;
use serde_json::Value;
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Until};
use strongroom_system_tests::{CommandLine, Exposure, Finished, Protection, Scratch, Volume};

const ROUNDS: usize = if cfg!(feature = "full") { 50 } else { 3 };
const QUEUES: u16 = 2;
const DEPTH: u16 = 32;
const AREA_BYTES: u64 = 48 << 20;
/// The least number of operations that each worker answers.
const OPERATIONS: u64 = 300;

#[test]
fn a_volume_with_tags_outlives_kills_and_upgrades() {
    let scratch = Scratch::new();
    let volume = Volume::create_with(&scratch, "vm1", "64M", Protection::Encrypted, &["--integrity"]);
    let exposure = volume.expose_vhost_user();
    let strongroom = CommandLine::new(&scratch);
    let path = volume.path();
    let path = path.to_str().expect("a test's path is text");
    let front_end = FrontEnd::connect(exposure.socket(), Settings::new(QUEUES, DEPTH)).expect("a session");
    let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(77) };
    let mut load = Load::new(front_end, config).expect("load");
    for round in 0..ROUNDS {
        let mut kill_and_upgrade = || -> Result<(), LoadError> {
            load.run(Until::Operations(OPERATIONS))?;
            Worker::of(&volume).kill();
            load.await_end()?;
            load.reconnect()?;
            load.run(Until::Operations(OPERATIONS))?;
            strongroom.json(&["volume", "upgrade", path]);
            load.run(Until::Operations(OPERATIONS))
        };
        kill_and_upgrade().unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let report = load.finish().unwrap_or_else(|error| panic!("in the end: {error}"));
    println!("{ROUNDS} kills and upgrades: {report}");
    assert!(exposure.close().success());

    let (finished, data) = check_data(&volume);
    finished.success();
    println!("{data}");
    assert_eq!((&data["wrong_blocks"], &data["unsettled_blocks"]), (&0.into(), &0.into()), "{data}");
    assert!(data["verified_blocks"].as_u64() > Some(0), "{data}");

    damage(&volume, 5);
    let (finished, data) = check_data(&volume);
    assert!(!finished.status.success());
    assert_eq!((&data["wrong_blocks"], &data["unreadable_blocks"]), (&1.into(), &0.into()), "{data}");
    let image = scratch.path("vm1.raw");
    let refused = volume.command("export", &["--format", "raw", image.to_str().expect("text")]);
    assert!(!refused.status.success() && refused.stderr.contains("block 5 is damaged"), "{}", refused.stderr);
}

#[test]
fn without_tags_only_reading_is_checked_and_it_says_so() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "8M", Protection::Encrypted);
    let content = scratch.path("content.raw");
    fs::write(&content, vec![0x5A; 1 << 20]).expect("a file");
    let key = volume.key_file();
    let strongroom = CommandLine::new(&scratch);
    let place = volume.datastore().join("vm2");
    let text = |path: &PathBuf| path.to_str().expect("a test's path is text").to_owned();
    strongroom.json(&["volume", "import", &text(&content), &text(&place), "--key-file", &text(&key)]);
    let layer = file_of(&place, "layer-");
    File::options()
        .write(true)
        .open(layer)
        .and_then(|layer| layer.write_all_at(&[1, 2, 3], 20_480))
        .expect("damage");
    let check = ["volume", "check", &text(&place), "--data", "--key-file", &text(&key)];
    let answer = strongroom.json(&check);
    assert_eq!((&answer["clean"], &answer["data"]["integrity"]), (&true.into(), &false.into()), "{answer}");
    assert!(
        answer["findings"][0]["message"].as_str().is_some_and(|text| text.contains("no tags")),
        "{answer}"
    );
}

/// Zeroes replace a block and its tag, and then a whole volume and all of its tags.
#[test]
fn what_is_erased_is_not_taken_for_what_was_never_there() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let source = Volume::create(&scratch, "key-of", "1M", Protection::Encrypted);
    let content = scratch.path("content.raw");
    fs::write(&content, vec![0x5A; 2 << 20]).expect("a file");
    let text = |path: &PathBuf| path.to_str().expect("a test's path is text").to_owned();
    let key = text(&source.key_file());
    let place = source.datastore().join("vm2");
    let import = ["volume", "import", &text(&content), &text(&place), "--key-file", &key, "--integrity"];
    strongroom.json(&import);
    let info = strongroom.json(&["volume", "info", &text(&place)]);
    assert_eq!(info["integrity"], "polyval-aes-256-absence", "{info}");
    let wrong_blocks = || {
        let check = ["volume", "check", &text(&place), "--data", "--json", "--key-file", &key];
        let finished = strongroom.run(&check);
        let answer: Value = serde_json::from_str(&finished.stdout).expect("the answer is JSON");
        answer["data"]["wrong_blocks"].as_u64()
    };
    assert_eq!(wrong_blocks(), Some(0));
    let open = |prefix| File::options().write(true).open(file_of(&place, prefix)).expect("it opens");
    let (layer, tags) = (open("layer-"), open("tags2-"));
    layer.write_all_at(&[0; 4096], 5 * 4096).expect("it is erased");
    tags.write_all_at(&[0; 16], (16 << 20) + 5 * 16).expect("its tag is erased");
    assert_eq!(wrong_blocks(), Some(1));
    layer.write_all_at(&vec![0; 2 << 20], 0).expect("all is erased");
    let bytes = tags.metadata().expect("its length").len();
    tags.set_len(0).and_then(|()| tags.set_len(bytes)).expect("all tags are erased");
    assert_eq!(wrong_blocks(), Some(512));
}

/// With an old set of marks, put back after an orderly end, blocks that were changed meanwhile are
/// accepted unchecked. Only someone who knows that the end was orderly could detect this, so such
/// blocks are counted, and raise an alarm.
#[test]
fn what_is_taken_as_it_is_is_told_as_an_alarm() {
    const AREA_BYTES: u64 = 40 << 20;
    // In the last used region, but not one of its used blocks.
    const BLOCK: u64 = (44 << 20) / 4096;
    let scratch = Scratch::new();
    let volume = Volume::create_with(&scratch, "vm1", "64M", Protection::Encrypted, &["--integrity"]);
    let exposure = volume.expose_vhost_user();
    let connect = |exposure: &Exposure| {
        FrontEnd::connect(exposure.socket(), Settings::new(QUEUES, DEPTH)).expect("a session")
    };
    let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(78) };
    let mut load = Load::new(connect(&exposure), config).expect("load");
    load.run(Until::Operations(OPERATIONS)).expect("load");
    let tags = File::options().read(true).write(true).open(file_of(&volume.path(), "tags2-"));
    let tags = tags.expect("the tags open");
    let mut marks = vec![0; (1 << 20) - 4096];
    tags.read_exact_at(&mut marks, 4096).expect("the marks");
    load.finish().expect("load");
    assert!(exposure.close().success());
    let (finished, data) = check_data(&volume);
    finished.success();
    assert_eq!(data["unsettled_blocks"], 0, "{data}");

    damage(&volume, BLOCK);
    tags.write_all_at(&marks, 4096).expect("the marks are put back");
    let exposure = volume.expose_vhost_user();
    let _session = connect(&exposure);
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let info: Value =
            serde_json::from_str(&volume.command("info", &["--json"]).success()).expect("the answer is JSON");
        let condition = &info["exposure"]["condition"];
        if condition["adopted_blocks"] == 1 {
            break;
        }
        assert!(Instant::now() < until, "it is never told: {condition}");
    }
    let told = volume.command("info", &[]).success();
    assert!(told.contains("1 blocks did not match their tags") && told.contains("ALARM"), "{told}");
    assert!(exposure.close().success());
}

fn check_data(volume: &Volume<'_>) -> (Finished, Value) {
    let finished = volume.command("check", &["--data", "--json"]);
    let answer: Value = serde_json::from_str(&finished.stdout).expect("the answer is JSON");
    (finished, answer["data"].clone())
}

/// Changes a byte of a block, as a faulty disk might.
fn damage(volume: &Volume<'_>, block: u64) {
    let layer = File::options().read(true).write(true).open(file_of(&volume.path(), "layer-"));
    let layer = layer.expect("the layer opens");
    let mut byte = [0];
    layer.read_exact_at(&mut byte, block * 4096 + 77).expect("it is read");
    byte[0] ^= 1;
    layer.write_all_at(&byte, block * 4096 + 77).expect("it is written");
}

fn file_of(volume: &std::path::Path, prefix: &str) -> PathBuf {
    let entries = fs::read_dir(volume).expect("a directory").map(|entry| entry.expect("an entry").path());
    let is_it =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    entries.into_iter().find(is_it).expect("it is there")
}
