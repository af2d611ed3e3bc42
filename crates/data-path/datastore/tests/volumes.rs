//! The life of a file volume without its data path: creating, describing, opening, growing,
//! checking and deleting it; and every way in which that is refused.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, in its helping functions too, and says why it is skipped"
)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_keys::{Kek, KekSource, KeyError};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{KeyEpoch, VolumeSize};

const MIB: u64 = 1 << 20;

struct Datastore(tempfile::TempDir);

impl Datastore {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The name, mode and content of every file below: if they are equal before and after, nothing
    /// was touched.
    fn state(&self) -> Vec<(PathBuf, u32, Vec<u8>)> {
        fn walk(directory: &Path, found: &mut Vec<(PathBuf, u32, Vec<u8>)>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                found.push((path.clone(), metadata.mode(), content));
                if metadata.is_dir() {
                    walk(&path, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(self.0.path(), &mut found);
        found.sort();
        found
    }
}

fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

fn size(bytes: u64) -> VolumeSize {
    VolumeSize::new(bytes).unwrap()
}

fn encrypted(kek: &Kek, bytes: u64, provisioning: Provisioning) -> CreateOptions<'_> {
    let protection = Protection::Encrypted(kek);
    CreateOptions { size: size(bytes), provisioning, protection, log_bytes: None, integrity: None }
}

fn clear(bytes: u64) -> CreateOptions<'static> {
    let protection = Protection::Unencrypted;
    CreateOptions {
        size: size(bytes),
        provisioning: Provisioning::Thin,
        protection,
        log_bytes: None,
        integrity: None,
    }
}

fn to_write<'a>(protection: Protection<'a>) -> OpenOptions<'a> {
    OpenOptions { protection, access: Access::ReadWrite, lock_wait: Duration::ZERO, least_generation: 0 }
}

fn layer_path(volume: &Path) -> PathBuf {
    let mut names = fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().path());
    names.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("layer-")).unwrap()
}

/// Replaces text in the descriptor's body, and corrects the header's length.
fn edit_descriptor(volume: &Path, from: &str, to: &str) {
    let path = volume.join("descriptor");
    let bytes = fs::read(&path).unwrap();
    let (body, tag) = bytes[16..].split_at(bytes.len() - 16 - 32);
    let text = std::str::from_utf8(body).unwrap();
    assert!(text.contains(from), "{text}");
    let text = text.replacen(from, to, 1);
    let edited = [&bytes[..12], &(text.len() as u32).to_le_bytes(), text.as_bytes(), tag].concat();
    fs::write(path, edited).unwrap();
}

/// A guest's writes bypass the page cache, which would keep them in memory, and which a failed
/// fsync empties.
#[test]
fn the_files_of_an_open_volume_are_direct() {
    let datastore = Datastore::new();
    let (path, key) = (datastore.path("vm1"), kek(1));
    let options =
        CreateOptions { integrity: Some(Integrity::NEW), ..encrypted(&key, 4 * MIB, Provisioning::Thin) };
    create(&path, &options).unwrap();
    if describe(&path).unwrap().file_system.kind == FileSystemKind::Tmpfs {
        println!("skipped: old versions of tmpfs know no O_DIRECT");
        return;
    }
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let opened = open(&path, &OpenOptions { access, ..to_write(Protection::Encrypted(&key)) }).unwrap();
        let mut direct = Vec::new();
        for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let Some(file) = fs::read_link(entry.path()).ok().filter(|file| file.starts_with(&path)) else {
                continue;
            };
            let Some(name) =
                file.strip_prefix(&path).ok().and_then(Path::to_str).filter(|name| !name.is_empty())
            else {
                continue;
            };
            let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
            let info = fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let flags = u32::from_str_radix(flags, 8).unwrap();
            assert_ne!(flags & rustix::fs::OFlags::DIRECT.bits(), 0, "{name} is open with {flags:o}");
            direct.push(name.split('-').next().unwrap().to_owned());
        }
        direct.sort();
        assert_eq!(direct, ["layer", "log", "tags2"]);
        drop(opened);
    }
}

#[test]
fn a_thin_volume_takes_the_space_of_its_log_whatever_its_size() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    let made = create(&path, &encrypted(&kek(1), 2 << 40, Provisioning::Thin)).unwrap();
    let described = describe(&path).unwrap();
    assert_eq!(described.descriptor, made);
    assert_eq!((made.generation, made.size_bytes.bytes()), (1, 2 << 40));
    let log_bytes = made.layers[0].log.unwrap().bytes;
    assert_eq!(log_bytes, 64 * MIB);
    assert!(described.space.committed_bytes - log_bytes < 64 << 10, "{}", described.space.committed_bytes);
    assert_eq!(fs::metadata(layer_path(&path)).unwrap().len(), 2 << 40);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let opened = open(&path, &to_write(Protection::Encrypted(&kek(1)))).unwrap();
    assert_eq!(*opened.descriptor(), made);
    assert_eq!(opened.deks.len(), 1);
    assert_eq!((opened.deks[0].0, opened.deks[0].1.len()), (KeyEpoch::FIRST, 64));
    assert!(check(&path, Some(&kek(1))).unwrap().is_empty());
}

#[test]
fn a_thick_volume_takes_its_space_at_once() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &encrypted(&kek(1), 8 * MIB, Provisioning::Thick)).unwrap();
    assert!(describe(&path).unwrap().space.committed_bytes >= 8 * MIB);
    let mut opened = open(&path, &to_write(Protection::Encrypted(&kek(1)))).unwrap();
    opened.grow(size(16 * MIB), Protection::Encrypted(&kek(1))).unwrap();
    assert!(describe(&path).unwrap().space.committed_bytes >= 16 * MIB);
}

#[test]
fn growth_within_the_last_block_needs_no_space() {
    let datastore = Datastore::new();
    for (name, provisioning) in [("thin", Provisioning::Thin), ("thick", Provisioning::Thick)] {
        let path = datastore.path(name);
        create(&path, &encrypted(&kek(1), MIB + 512, provisioning)).unwrap();
        let mut opened = open(&path, &to_write(Protection::Encrypted(&kek(1)))).unwrap();
        opened.grow(size(MIB + 1024), Protection::Encrypted(&kek(1))).unwrap();
        assert_eq!(opened.descriptor().size_bytes.bytes(), MIB + 1024);
        assert_eq!(fs::metadata(layer_path(&path)).unwrap().len(), MIB + 4096);
    }
}

#[test]
fn the_datastore_is_made_with_its_first_volume_and_nothing_is_replaced() {
    let datastore = Datastore::new();
    let path = datastore.path("ds/vm1");
    create(&path, &clear(MIB)).unwrap();
    let before = datastore.state();
    assert!(matches!(create(&path, &clear(MIB)), Err(DatastoreError::Exists { .. })));
    assert!(matches!(
        create(&datastore.path("no/where/vm1"), &clear(MIB)),
        Err(DatastoreError::System { .. })
    ));
    for name in [".hidden", "..", "new\nline", &"x".repeat(256)] {
        let refused = create(&datastore.path("ds").join(name), &clear(MIB));
        assert!(
            matches!(refused, Err(DatastoreError::BadName { .. } | DatastoreError::Exists { .. })),
            "{name}"
        );
    }
    assert_eq!(datastore.state(), before);
}

#[test]
fn growth_survives_reopening_and_shrinking_is_refused() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    let key = kek(1);
    create(&path, &encrypted(&key, MIB + 512, Provisioning::Thin)).unwrap();
    let mut opened = open(&path, &to_write(Protection::Encrypted(&key))).unwrap();
    opened.grow(size(5 * MIB), Protection::Encrypted(&key)).unwrap();
    assert!(matches!(
        opened.grow(size(MIB), Protection::Encrypted(&key)),
        Err(DatastoreError::Shrink { from, to, .. }) if (from.bytes(), to.bytes()) == (5 * MIB, MIB)
    ));
    drop(opened);
    let opened = open(&path, &to_write(Protection::Encrypted(&key))).unwrap();
    assert_eq!((opened.descriptor().generation, opened.descriptor().size_bytes.bytes()), (2, 5 * MIB));
    let rolled_back = OpenOptions { least_generation: 3, ..to_write(Protection::Encrypted(&key)) };
    drop(opened);
    assert!(matches!(open(&path, &rolled_back), Err(DatastoreError::RolledBack { found: 2, least: 3, .. })));
}

#[test]
fn a_growth_cut_by_a_power_loss_is_a_notice() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &encrypted(&kek(1), MIB, Provisioning::Thin)).unwrap();
    fs::File::options().write(true).open(layer_path(&path)).unwrap().set_len(2 * MIB).unwrap();
    fs::write(path.join("descriptor.new"), b"half a descr").unwrap();
    let findings = check(&path, Some(&kek(1))).unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings.iter().all(|finding| finding.severity == Severity::Notice));
    let mut opened = open(&path, &to_write(Protection::Encrypted(&kek(1)))).unwrap();
    opened.grow(size(2 * MIB), Protection::Encrypted(&kek(1))).unwrap();
    assert!(check(&path, Some(&kek(1))).unwrap().is_empty());
}

#[test]
fn only_the_right_key_opens() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &encrypted(&kek(1), MIB, Provisioning::Thin)).unwrap();
    let before = datastore.state();
    let wrong = open(&path, &to_write(Protection::Encrypted(&kek(2)))).unwrap_err();
    assert!(matches!(wrong, DatastoreError::Key { error: KeyError::WrongKek { .. }, .. }), "{wrong}");
    let clear_asked = open(&path, &to_write(Protection::Unencrypted)).unwrap_err();
    assert!(
        matches!(clear_asked, DatastoreError::Encrypted { source_name: "key file", .. }),
        "{clear_asked}"
    );
    let findings = check(&path, Some(&kek(2))).unwrap();
    assert_eq!(findings[0].severity, Severity::Error);
    assert_eq!(datastore.state(), before);
}

#[test]
fn a_clear_volume_opens_only_when_that_is_meant() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &clear(MIB)).unwrap();
    let refused = open(&path, &to_write(Protection::Encrypted(&kek(1)))).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotEncrypted { .. }), "{refused}");
    assert!(open(&path, &to_write(Protection::Unencrypted)).unwrap().deks.is_empty());
}

#[test]
fn a_clear_descriptor_put_in_an_encrypted_ones_place_is_refused() {
    let datastore = Datastore::new();
    let (victim, decoy) = (datastore.path("victim"), datastore.path("decoy"));
    create(&victim, &encrypted(&kek(1), MIB, Provisioning::Thin)).unwrap();
    create(&decoy, &clear(MIB)).unwrap();
    fs::copy(decoy.join("descriptor"), victim.join("descriptor")).unwrap();
    let refused = open(&victim, &to_write(Protection::Encrypted(&kek(1)))).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotEncrypted { .. }), "{refused}");
}

#[test]
fn an_edited_descriptor_is_refused() {
    let size_edit = format!("\"size_bytes\":{}", 512 * 1024);
    let edits = [
        (format!("\"size_bytes\":{MIB}"), size_edit.as_str()),
        ("\"generation\":1".to_owned(), "\"generation\":9"),
        ("\"provisioning\":\"thin\"".to_owned(), "\"provisioning\":\"thick\""),
        ("\"next_epoch\":2".to_owned(), "\"next_epoch\":3"),
    ];
    for (from, to) in &edits {
        let datastore = Datastore::new();
        let path = datastore.path("vm1");
        create(&path, &encrypted(&kek(1), MIB, Provisioning::Thin)).unwrap();
        edit_descriptor(&path, from, to);
        let before = datastore.state();
        let error = open(&path, &to_write(Protection::Encrypted(&kek(1)))).unwrap_err();
        assert!(matches!(error, DatastoreError::NotAuthentic { .. }), "{from}: {error}");
        assert_eq!(check(&path, Some(&kek(1))).unwrap()[0].severity, Severity::Error);
        assert_eq!(datastore.state(), before);
    }
}

#[test]
fn a_descriptor_that_none_of_us_writes_is_refused_before_its_tag() {
    let edits = [
        ("\"cipher\":\"aes-256-xts-plain64-4096\"", "\"cipher\":\"null\""),
        ("\"size_bytes\":1048576", "\"size_bytes\":0"),
        ("\"size_bytes\":1048576", "\"size_bytes\":18446744073709551615"),
        ("\"size_bytes\":1048576", "\"size_bytes\":1048577"),
        ("\"epoch\":1", "\"epoch\":0"),
        ("\"next_epoch\":2", "\"next_epoch\":1"),
        ("\"generation\":1", "\"generation\":1,\"extra\":1"),
        ("\"layers\":[{", "\"layers\":[],\"unused\":[{"),
    ];
    for (from, to) in edits {
        let datastore = Datastore::new();
        let path = datastore.path("vm1");
        create(&path, &encrypted(&kek(1), MIB, Provisioning::Thin)).unwrap();
        edit_descriptor(&path, from, to);
        let error = open(&path, &to_write(Protection::Encrypted(&kek(1)))).unwrap_err();
        assert!(matches!(error, DatastoreError::Damaged { .. }), "{to}: {error}");
    }
}

#[test]
fn every_flipped_byte_of_a_descriptor_is_noticed() {
    let datastore = Datastore::new();
    for (name, options) in [("enc", encrypted(&kek(1), MIB, Provisioning::Thin)), ("clear", clear(MIB))] {
        let path = datastore.path(name);
        create(&path, &options).unwrap();
        let good = fs::read(path.join("descriptor")).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(path.join("descriptor"), &bad).unwrap();
            assert!(open(&path, &to_write(options.protection)).is_err(), "{name} byte {at}");
        }
        for length in 0..good.len() {
            fs::write(path.join("descriptor"), &good[..length]).unwrap();
            let error = open(&path, &to_write(options.protection)).unwrap_err();
            assert!(matches!(error, DatastoreError::Damaged { .. }), "{name} length {length}: {error}");
        }
        fs::write(path.join("descriptor"), &good).unwrap();
        open(&path, &to_write(options.protection)).unwrap();
    }
}

#[test]
fn a_newer_format_is_told_from_damage() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &clear(MIB)).unwrap();
    let file = fs::File::options().write(true).open(path.join("descriptor")).unwrap();
    file.write_all_at(&(FORMAT_VERSION + 1).to_le_bytes(), 8).unwrap();
    let error = open(&path, &to_write(Protection::Unencrypted)).unwrap_err();
    let versions = match &error {
        DatastoreError::NewerFormat { found, known, .. } => (*found, *known),
        _ => panic!("{error}"),
    };
    assert_eq!(versions, (FORMAT_VERSION + 1, FORMAT_VERSION));
}

#[test]
fn an_endless_descriptor_is_refused_unread() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &clear(MIB)).unwrap();
    let file = fs::File::options().write(true).open(path.join("descriptor")).unwrap();
    file.write_all_at(&u32::MAX.to_le_bytes(), 12).unwrap();
    file.set_len(1 << 40).unwrap();
    assert!(matches!(open(&path, &to_write(Protection::Unencrypted)), Err(DatastoreError::Damaged { .. })));
}

#[test]
fn a_damaged_layer_is_named() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    let descriptor = create(&path, &clear(MIB)).unwrap();
    let layer = layer_path(&path);
    fs::File::options().write(true).open(&layer).unwrap().set_len(MIB - 1).unwrap();
    let error = open(&path, &to_write(Protection::Unencrypted)).unwrap_err();
    assert!(
        matches!(error, DatastoreError::Truncated { layer, found_bytes, wanted_bytes: MIB, .. }
            if layer == descriptor.top && found_bytes == MIB - 1),
        "{error}"
    );
    assert_eq!(check(&path, None).unwrap()[0].severity, Severity::Error);
    fs::remove_file(&layer).unwrap();
    let error = open(&path, &to_write(Protection::Unencrypted)).unwrap_err();
    assert!(matches!(error, DatastoreError::MissingLayer { .. }), "{error}");
    assert_eq!(check(&path, None).unwrap()[0].severity, Severity::Error);
    // A link in a layer's place could lead to any file of the host.
    symlink("/etc/passwd", &layer).unwrap();
    assert!(open(&path, &to_write(Protection::Unencrypted)).is_err());
}

#[test]
fn one_writer_or_many_readers() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &clear(MIB)).unwrap();
    let read_only = OpenOptions { access: Access::ReadOnly, ..to_write(Protection::Unencrypted) };
    let writer = open(&path, &to_write(Protection::Unencrypted)).unwrap();
    for options in [to_write(Protection::Unencrypted), read_only] {
        assert!(matches!(open(&path, &options), Err(DatastoreError::InUse { holder: Some(_), .. })));
    }
    assert!(matches!(delete(&path, Duration::ZERO), Err(DatastoreError::InUse { .. })));
    drop(writer);
    let readers = [open(&path, &read_only).unwrap(), open(&path, &read_only).unwrap()];
    assert!(matches!(open(&path, &to_write(Protection::Unencrypted)), Err(DatastoreError::InUse { .. })));
    drop(readers);
    open(&path, &to_write(Protection::Unencrypted)).unwrap();
}

#[test]
fn a_waiting_opener_gets_the_lock_when_it_is_free() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &clear(MIB)).unwrap();
    let writer = open(&path, &to_write(Protection::Unencrypted)).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let patient =
                OpenOptions { lock_wait: Duration::from_secs(60), ..to_write(Protection::Unencrypted) };
            open(&path, &patient).map(drop)
        });
        drop(writer);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn deletion_takes_the_volume_and_nothing_else() {
    let datastore = Datastore::new();
    let (path, other) = (datastore.path("vm1"), datastore.path("vm2"));
    create(&path, &clear(MIB)).unwrap();
    create(&other, &clear(MIB)).unwrap();
    fs::write(path.join("notes.txt"), "mine").unwrap();
    let before = datastore.state();
    assert!(
        matches!(delete(&path, Duration::ZERO), Err(DatastoreError::Stranger { stranger, .. }) if stranger == "notes.txt")
    );
    assert!(matches!(delete(datastore.0.path(), Duration::ZERO), Err(DatastoreError::Stranger { .. })));
    assert_eq!(datastore.state(), before);
    fs::remove_file(path.join("notes.txt")).unwrap();
    // The remains of a power cut between removing descriptor and layers can be deleted.
    fs::remove_file(path.join("descriptor")).unwrap();
    delete(&path, Duration::ZERO).unwrap();
    assert!(!path.exists() && other.exists());
    assert!(matches!(delete(&path, Duration::ZERO), Err(DatastoreError::System { .. })));
    fs::create_dir(&path).unwrap();
    assert!(
        matches!(delete(&path, Duration::ZERO), Err(DatastoreError::NotAVolume { .. })),
        "an empty directory is no volume"
    );
}

#[test]
fn a_list_shows_what_is_broken_beside_what_is_not() {
    let datastore = Datastore::new();
    create(&datastore.path("a"), &clear(MIB)).unwrap();
    create(&datastore.path("b"), &clear(MIB)).unwrap();
    fs::write(datastore.path("b").join("descriptor"), b"nonsense").unwrap();
    fs::create_dir(datastore.path(".strongroom-new-1234")).unwrap();
    fs::write(datastore.path("a file"), b"").unwrap();
    let listed = list(datastore.0.path()).unwrap();
    let names: Vec<_> = listed
        .iter()
        .map(|entry| {
            let name = entry.path().file_name().unwrap().to_str().unwrap();
            (name, matches!(entry, ListedVolume::Volume(_)))
        })
        .collect();
    assert_eq!(names, [(".strongroom-new-1234", false), ("a", true), ("b", false)]);
    delete(&datastore.path(".strongroom-new-1234"), Duration::ZERO).unwrap();
}

#[test]
fn what_is_no_volume_is_named_so() {
    let datastore = Datastore::new();
    fs::create_dir(datastore.path("empty")).unwrap();
    fs::write(datastore.path("file"), b"").unwrap();
    for name in ["empty", "file"] {
        let error = open(&datastore.path(name), &to_write(Protection::Unencrypted)).unwrap_err();
        assert!(matches!(error, DatastoreError::NotAVolume { .. }), "{error}");
    }
    let error = describe(&datastore.path("nothing")).unwrap_err();
    assert!(error.to_string().contains("nothing"), "{error}");
}

#[test]
fn other_file_systems_are_refused() {
    let error = create(Path::new("/proc/self/vm1"), &clear(MIB)).unwrap_err();
    assert!(matches!(&error, DatastoreError::FileSystem { kind, .. } if kind == "proc"), "{error}");
}

#[test]
fn a_missing_or_foreign_log_is_named() {
    let datastore = Datastore::new();
    let (path, other) = (datastore.path("vm1"), datastore.path("vm2"));
    let (first, second) = (create(&path, &clear(MIB)).unwrap(), create(&other, &clear(MIB)).unwrap());
    let log = |volume: &Path, descriptor: &Descriptor| volume.join(format!("log-{}", descriptor.top));
    let refused = || {
        let error = open(&path, &to_write(Protection::Unencrypted)).unwrap_err();
        let found = check(&path, None).unwrap();
        assert_eq!((found[0].severity, &found[0].message), (Severity::Error, &error.to_string()));
        error
    };
    let good = fs::read(log(&path, &first)).unwrap();
    fs::copy(log(&other, &second), log(&path, &first)).unwrap();
    assert!(matches!(refused(), DatastoreError::Log { .. }));
    fs::write(log(&path, &first), &good[..good.len() - 4096]).unwrap();
    assert!(matches!(refused(), DatastoreError::Log { .. }));
    fs::write(log(&path, &first), vec![0; good.len()]).unwrap();
    assert!(matches!(refused(), DatastoreError::Log { .. }));
    fs::remove_file(log(&path, &first)).unwrap();
    assert!(matches!(refused(), DatastoreError::MissingLog { .. }));
    fs::write(log(&path, &first), &good).unwrap();
    open(&path, &to_write(Protection::Unencrypted)).unwrap();
    assert_eq!(describe_log(&path).unwrap(), Some(LogUse { size_bytes: MIB, used_bytes: 0 }));
}

/// A volume written by a program of format version 1: a layer without a log.
#[test]
fn a_volume_of_version_1_has_no_log_and_is_used_without() {
    let datastore = Datastore::new();
    let path = datastore.path("vm1");
    create(&path, &CreateOptions { provisioning: Provisioning::Thick, ..clear(MIB) }).unwrap();
    let bytes = fs::read(path.join("descriptor")).unwrap();
    let body = std::str::from_utf8(&bytes[16..bytes.len() - 32]).unwrap();
    let mut body = body.replace("thick", "thin");
    for unheard in [",\"log\":null", ",\"integrity\":null", ",\"size_bytes\":null"] {
        assert!(body.contains(unheard), "{body}");
        body = body.replace(unheard, "");
    }
    let mut old = [b"STRGROOM".as_slice(), &1_u32.to_le_bytes(), &(body.len() as u32).to_le_bytes()].concat();
    old.extend(body.as_bytes());
    let checksum = strongroom_keys::DescriptorKey::checksum(&old);
    old.extend(checksum);
    fs::write(path.join("descriptor"), old).unwrap();
    let opened = open(&path, &to_write(Protection::Unencrypted)).unwrap();
    assert_eq!(opened.disk.log_size_and_use(), None);
    assert!(check(&path, None).unwrap().is_empty());
}

#[test]
fn a_size_that_the_file_system_has_no_files_for_is_named_as_such() {
    let datastore = Datastore::new();
    let path = datastore.path("ds/huge");
    match create(&path, &clear(strongroom_types::MAX_VOLUME_BYTES)) {
        // XFS and btrfs have files of that size; ext4 has not.
        Ok(_) => {}
        Err(refused) => {
            assert!(
                matches!(&refused, DatastoreError::FileTooLarge { path: named } if *named == path),
                "{refused}"
            );
            assert!(!path.exists());
        }
    }
}

/// The results of all ways to open a volume at a path.
fn ways_in(path: &Path) -> [Result<(), DatastoreError>; 5] {
    let layer = AddLayerOptions {
        protection: Protection::Unencrypted,
        log_bytes: None,
        lock_wait: Duration::ZERO,
        least_generation: 0,
    };
    [
        describe(path).map(drop),
        open(path, &to_write(Protection::Unencrypted)).map(drop),
        check(path, None).map(drop),
        add_layer(path, &layer).map(drop),
        delete(path, Duration::ZERO),
    ]
}

#[test]
fn a_datastore_cannot_lead_out_of_itself_by_links() {
    let scratch = Datastore::new();
    let (own, other) = (scratch.path("own"), scratch.path("other"));
    for datastore in [&own, &other] {
        identify(datastore).unwrap();
    }
    create(&other.join("vm1"), &clear(MIB)).unwrap();
    fs::create_dir(other.join("web1")).unwrap();
    create(&other.join("web1/disk0"), &clear(MIB)).unwrap();
    let before = scratch.state();
    symlink(other.join("vm1"), own.join("vm1")).unwrap();
    symlink("../other/web1", own.join("web1")).unwrap();
    for path in [own.join("vm1"), own.join("web1/disk0")] {
        for refused in ways_in(&path) {
            let refused = refused.unwrap_err();
            assert!(matches!(&refused, DatastoreError::Link { path: named } if *named == path), "{refused}");
        }
    }
    let refused = create(&own.join("web1/disk1"), &clear(MIB)).unwrap_err();
    assert_eq!(refused.code(), "link");
    // A link is listed as a link, and it is unknown which key the volume behind it needs.
    let listed = list(&own).unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|volume| matches!(volume, ListedVolume::Broken { .. })), "{listed:?}");
    assert_eq!(key_needs(&own).unwrap().unreadable.len(), 1);
    for name in ["vm1", "web1"] {
        fs::remove_file(own.join(name)).unwrap();
    }
    assert!(scratch.state() == before, "something was changed through a link");
}

/// An attacker replaces a file of a volume by a link to that same file, elsewhere: all that it says
/// is right. Spare descriptors are not opened until one is written, which leaves what they lead to.
#[test]
fn a_link_in_the_place_of_a_volumes_file_is_refused() {
    let scratch = Datastore::new();
    let path = scratch.path("ds/vm1");
    create(&path, &clear(MIB)).unwrap();
    let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let is_spare = |name: &OsString| name.to_string_lossy().contains("spare");
    assert_eq!(names.iter().filter(|name| is_spare(name)).count(), 4, "{names:?}");
    for name in names.iter().filter(|name| !is_spare(name)) {
        let (file, elsewhere) = (path.join(name), scratch.path("elsewhere"));
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        let opened = open(&path, &to_write(Protection::Unencrypted)).map(drop);
        let refused = opened.expect_err(&format!("{name:?} is a link"));
        assert!(refused.to_string().contains("vm1"), "{name:?}: {refused}");
        fs::remove_file(&file).unwrap();
        fs::rename(&elsewhere, &file).unwrap();
    }
    for name in names.iter().filter(|name| is_spare(name)) {
        let (file, elsewhere) = (path.join(name), scratch.path("elsewhere"));
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        let before = fs::read(&elsewhere).unwrap();
        let options = AddLayerOptions {
            protection: Protection::Unencrypted,
            log_bytes: None,
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        add_layer(&path, &options).unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), before, "{name:?} was written through");
        let _ = fs::remove_file(&file);
    }
    open(&path, &to_write(Protection::Unencrypted)).unwrap();
}

#[test]
fn a_datastore_may_itself_be_reached_through_a_link() {
    let scratch = Datastore::new();
    fs::create_dir(scratch.path("disk")).unwrap();
    identify(&scratch.path("disk/vms")).unwrap();
    symlink("disk/vms", scratch.path("srv")).unwrap();
    let path = scratch.path("srv/vm1");
    create(&path, &clear(MIB)).unwrap();
    open(&path, &to_write(Protection::Unencrypted)).unwrap();
    assert_eq!(list(&scratch.path("srv")).unwrap().len(), 1);
    delete(&path, Duration::ZERO).unwrap();
}
