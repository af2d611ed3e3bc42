//! A volume that was damaged, edited, rolled back or truncated is refused with one clear sentence,
//! and nothing is changed.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use strongroom_system_tests::{CommandLine, Scratch, Snapshot};

const KEY: [u8; 32] = [0x33; 32];
const WITH_KEY: [&str; 2] = ["--key-file", "vm1.key"];

/// The descriptor's parts (docs/ON_DISK.md): a header of 16 bytes with its version and the body's
/// length, the body, and a tag of 32 bytes.
const VERSION_AT: usize = 8;
const LENGTH_AT: usize = 12;
const BODY_AT: usize = 16;
const TAG_BYTES: usize = 32;

/// A datastore with the volume `ds/vm1`, 4 MiB, under a key file.
fn with_volume(scratch: &Scratch) -> CommandLine<'_> {
    let strongroom = CommandLine::new(scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    strongroom.json(&[&["volume", "create", "ds/vm1", "--size", "4M"], &WITH_KEY[..]].concat());
    strongroom
}

fn info(strongroom: &CommandLine<'_>) -> strongroom_system_tests::Finished {
    strongroom.run(&[&["volume", "info", "ds/vm1"], &WITH_KEY[..]].concat())
}

fn descriptor(strongroom: &CommandLine<'_>) -> PathBuf {
    strongroom.path("ds/vm1/descriptor")
}

fn layer(strongroom: &CommandLine<'_>) -> PathBuf {
    let entries = fs::read_dir(strongroom.path("ds/vm1")).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.to_string_lossy().contains("/layer-")).unwrap()
}

/// The descriptor with a part of its body replaced, and a header that fits.
fn edited(original: &[u8], from: &str, to: &str) -> Vec<u8> {
    let (header, rest) = original.split_at(BODY_AT);
    let (body, tag) = rest.split_at(rest.len() - TAG_BYTES);
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains(from), "no {from} in {body}");
    let body = body.replace(from, to);
    let mut edited = [header, body.as_bytes(), tag].concat();
    edited[LENGTH_AT..BODY_AT].copy_from_slice(&(body.len() as u32).to_le_bytes());
    edited
}

#[test]
fn an_edited_descriptor_is_noticed() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let original = fs::read(descriptor(&strongroom)).unwrap();
    let changed = "the descriptor of ds/vm1 was changed by someone without its key; do not use the volume: \
                   restore the descriptor from a backup";
    for (from, to, message) in [
        (r#""size_bytes":4194304"#, r#""size_bytes":8388608"#, changed),
        (r#""size_bytes":4194304"#, r#""size_bytes":4096"#, changed),
        (r#""generation":1,"#, r#""generation":2,"#, changed),
        (r#""provisioning":"thin""#, r#""provisioning":"thick""#, changed),
        (
            "aes-256-xts-plain64-4096",
            "none",
            "the descriptor of ds/vm1 is damaged: unknown variant `none`, expected `aes-256-xts-plain64-4096`",
        ),
        (
            r#""size_bytes":4194304"#,
            r#""size_bytes":0"#,
            "the descriptor of ds/vm1 is damaged: a size of 0 bytes is too small; the smallest volume has 4096 bytes",
        ),
        (
            r#""size_bytes":4194304"#,
            r#""size_bytes":18446744073709551104"#,
            "the descriptor of ds/vm1 is damaged: a size of 16383.99P is too large; the largest volume has 64T",
        ),
        (
            r#""volume":"#,
            r#""stranger":1,"volume":"#,
            "the descriptor of ds/vm1 is damaged: unknown field `stranger`",
        ),
    ] {
        fs::write(descriptor(&strongroom), edited(&original, from, to)).unwrap();
        let before = Snapshot::of(&strongroom.path("ds"));
        let finished = strongroom.try_expose("ds/vm1", &WITH_KEY);
        assert!(finished.stderr.starts_with(&format!("error: {message}")), "{to}: {}", finished.stderr);
        assert_eq!((finished.status.code(), finished.stderr.lines().count()), (Some(1), 1), "{to}");
        before.assert_untouched(&strongroom.path("ds"));
    }
    fs::write(descriptor(&strongroom), &original).unwrap();
    info(&strongroom).success();
}

#[test]
fn no_flipped_bit_of_a_descriptor_passes() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let original = fs::read(descriptor(&strongroom)).unwrap();
    // Every byte of the header, and a sample of the rest that covers every kind of field.
    for at in (0..BODY_AT).chain((BODY_AT..original.len()).step_by(5)) {
        let mut flipped = original.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(descriptor(&strongroom), &flipped).unwrap();
        let refusal = info(&strongroom).failure();
        assert_eq!(refusal.lines().count(), 1, "byte {at}: {refusal}");
    }
    for length in (0..original.len()).step_by(37) {
        fs::write(descriptor(&strongroom), &original[..length]).unwrap();
        info(&strongroom).failure();
    }
    fs::write(descriptor(&strongroom), &original).unwrap();
    info(&strongroom).success();
}

#[test]
fn a_newer_format_is_left_alone() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let mut newer = fs::read(descriptor(&strongroom)).unwrap();
    newer[VERSION_AT] = 10;
    fs::write(descriptor(&strongroom), &newer).unwrap();
    let before = Snapshot::of(&strongroom.path("ds"));
    let message = "ds/vm1 has format version 10; this program reads versions up to 9: use a newer one";
    strongroom.expose_is_refused("ds/vm1", &WITH_KEY, message);
    let listed = strongroom.json(&["volume", "list", "ds"]);
    assert_eq!(listed["broken"][0]["reason"], message);
    let checked = strongroom.run(&[&["volume", "check", "ds/vm1"], &WITH_KEY[..]].concat());
    assert_eq!(
        (checked.status.code(), checked.stdout.lines().next()),
        (Some(1), Some(&*format!("error: {message}")))
    );
    before.assert_untouched(&strongroom.path("ds"));
}

#[test]
fn an_old_descriptor_put_back_is_refused_by_whoever_knows_better() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let old = fs::read(descriptor(&strongroom)).unwrap();
    strongroom.json(&[&["volume", "resize", "ds/vm1", "--size", "8M"], &WITH_KEY[..]].concat());
    fs::write(descriptor(&strongroom), old).unwrap();
    let before = Snapshot::of(&strongroom.path("ds"));
    let message =
        "the descriptor of ds/vm1 has generation 1, but generation 2 is known to exist: it was rolled back";
    let least = [&WITH_KEY[..], &["--least-generation", "2"]].concat();
    strongroom.expose_is_refused("ds/vm1", &least, message);
    strongroom.is_refused(
        &[&["volume", "resize", "ds/vm1", "--size", "16M"], &least[..]].concat(),
        1,
        message,
    );
    strongroom.is_refused(&[&["volume", "info", "ds/vm1"], &least[..]].concat(), 1, message);
    let checked = strongroom.run(&[&["volume", "check", "ds/vm1"], &least[..]].concat());
    assert_eq!(checked.status.code(), Some(1));
    assert!(checked.stdout.starts_with(&format!("error: {message}")), "{}", checked.stdout);
    before.assert_untouched(&strongroom.path("ds"));
}

#[test]
fn a_truncated_or_missing_layer_is_noticed() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let layer = layer(&strongroom);
    let id = layer.file_name().unwrap().to_str().unwrap().strip_prefix("layer-").unwrap().to_owned();
    File::options().write(true).open(&layer).unwrap().set_len(4 << 19).unwrap();
    let before = Snapshot::of(&strongroom.path("ds"));
    let message = format!(
        "layer {id} of ds/vm1 is truncated: it has 2097152 bytes instead of 4194304; restore it from a backup"
    );
    strongroom.expose_is_refused("ds/vm1", &WITH_KEY, &message);
    let checked = strongroom.run(&["volume", "check", "ds/vm1", "--no-key"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(checked.stdout.contains(&format!("error: {message}\n")), "{}", checked.stdout);
    before.assert_untouched(&strongroom.path("ds"));

    fs::remove_file(&layer).unwrap();
    let missing = format!("layer {id} of ds/vm1 is missing; restore it from a backup");
    strongroom.expose_is_refused("ds/vm1", &WITH_KEY, &missing);
    // A link would make the server write into another user's file.
    fs::write(strongroom.path("precious"), vec![7; 4 << 20]).unwrap();
    symlink(strongroom.path("precious"), &layer).unwrap();
    let refusal =
        strongroom.run(&[&["volume", "resize", "ds/vm1", "--size", "8M"], &WITH_KEY[..]].concat()).failure();
    assert!(refusal.contains("ds/vm1"), "{refusal}");
    assert_eq!(fs::read(strongroom.path("precious")).unwrap(), vec![7; 4 << 20]);
}
