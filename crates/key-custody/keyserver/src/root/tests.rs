//! Tests of the ways that need no device; TPM and token have their own tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use strongroom_crypto::kdf::Argon2idParams;
use tempfile::TempDir;

use super::credential::CredentialName;
use super::passphrase::PassphraseWay;
use super::place::Step;
use super::*;

/// Cheap, because these tests derive often.
const COST: Argon2idParams = Argon2idParams { memory_kib: 64, passes: 1, lanes: 1 };

fn secret(text: &str) -> SecretBytes {
    SecretBytes::from_slice_and_wipe(&mut text.as_bytes().to_vec()).unwrap()
}

fn typed() -> Way {
    Way::Passphrase(PassphraseWay { source: SecretSource::Given {}, cost: COST })
}

fn given(passphrase: &SecretBytes) -> Access<'_> {
    Access { given: Some(passphrase), ..Access::default() }
}

fn write(path: &Path, content: &[u8], mode: u32) {
    let _ = fs::remove_file(path);
    fs::write(path, content).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn names(directory: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "root.lock")
        .collect();
    names.sort();
    names
}

#[test]
fn a_passphrase_opens_its_root_and_no_other_does() {
    let state = TempDir::new().unwrap();
    let right = secret("correct horse");
    let root = create(state.path(), &typed(), &given(&right)).unwrap();
    let opened = open(state.path(), &given(&right)).unwrap();
    assert_eq!(opened.id(), root.id());
    assert_eq!(opened.derive("objects v1").unwrap(), root.derive("objects v1").unwrap());

    let refused = open(state.path(), &given(&secret("correct horsf"))).unwrap_err();
    assert!(matches!(&refused, RootError::WrongPassphrase { .. }), "{refused}");
    assert!(matches!(open(state.path(), &Access::default()), Err(RootError::NotGiven { .. })));
    let empty = secret("");
    assert!(matches!(open(state.path(), &given(&empty)), Err(RootError::SecretLength { .. })));
    assert!(matches!(create(state.path(), &typed(), &given(&right)), Err(RootError::Exists { .. })));
}

#[test]
fn a_short_passphrase_seals_no_root_new_or_old() {
    let state = TempDir::new().unwrap();
    let (short, long) = (secret("eleven byte"), secret("twelve bytes"));
    let refused = create(state.path(), &typed(), &given(&short)).unwrap_err();
    assert!(matches!(refused, RootError::PassphraseTooShort { actual_bytes: 11 }), "{refused}");
    assert!(refused.to_string().contains("at least 12 bytes"), "{refused}");
    assert_eq!(names(&state), [""; 0]);
    let root = create(state.path(), &typed(), &given(&long)).unwrap();
    let refused = reseal(state.path(), &root, &typed(), &given(&short)).unwrap_err();
    assert!(matches!(refused, RootError::PassphraseTooShort { actual_bytes: 11 }), "{refused}");
    assert_eq!(open(state.path(), &given(&long)).unwrap().id(), root.id());
}

#[test]
fn labels_derive_keys_of_their_own_and_the_root_shows_nowhere() {
    let state = TempDir::new().unwrap();
    let root = create(state.path(), &Way::PlainFile, &Access::default()).unwrap();
    let (objects, backup) = (root.derive("objects v1").unwrap(), root.derive("backup v1").unwrap());
    assert_ne!(objects, backup);
    assert_eq!(objects.len(), DERIVED_BYTES);
    assert_ne!(objects, root.secret);
    assert_eq!(format!("{root:?}"), format!("RootKey({}, redacted)", root.id()));

    let record = fs::read(state.path().join("root.json")).unwrap();
    let digits = hex::encode(root.secret.expose());
    assert!(!String::from_utf8(record).unwrap().contains(&digits));
}

#[test]
fn files_of_the_root_are_its_owners_alone() {
    let state = TempDir::new().unwrap();
    create(state.path(), &Way::PlainFile, &Access::default()).unwrap();
    for name in ["root.json", "root.lock", "root-1.key"] {
        let mode = fs::metadata(state.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{name}");
    }
    let key = state.path().join("root-1.key");
    fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
    assert!(matches!(open(state.path(), &Access::default()), Err(RootError::Mode { .. })));
    fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    open(state.path(), &Access::default()).unwrap();
    let record = state.path().join("root.json");
    fs::set_permissions(&record, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(open(state.path(), &Access::default()), Err(RootError::Mode { .. })));
}

#[test]
fn a_systemd_credential_opens_its_root() {
    let (state, credentials) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = credentials.path().join("strongroom.root");
    let way = Way::Credential(CredentialName::new("strongroom.root").unwrap());
    let access = Access { credentials_directory: Some(credentials.path().to_owned()), ..Access::default() };

    assert!(matches!(create(state.path(), &way, &Access::default()), Err(RootError::NoCredentials { .. })));
    assert!(matches!(create(state.path(), &way, &access), Err(RootError::NoCredential { .. })));
    write(&path, &[7; 31], 0o400);
    let short = create(state.path(), &way, &access);
    assert!(matches!(short, Err(RootError::SecretLength { least_bytes: 32, actual_bytes: 31 })));
    assert_eq!(names(&state), [""; 0]);

    // 0440 is the mode of a file of root's that an access list opens to the service.
    write(&path, &[7; 64], 0o440);
    let root = create(state.path(), &way, &access).unwrap();
    assert_eq!(open(state.path(), &access).unwrap().id(), root.id());

    write(&path, &[8; 64], 0o400);
    assert!(matches!(open(state.path(), &access), Err(RootError::WrongCredential { .. })));
    write(&path, &[7; 64], 0o444);
    assert!(matches!(open(state.path(), &access), Err(RootError::Mode { .. })));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/proc/self/environ", &path).unwrap();
    assert!(matches!(open(state.path(), &access), Err(RootError::Unreadable { .. })));
}

#[test]
fn names_of_credentials_stay_in_their_directory() {
    for name in ["", ".", "..", "a/b", "../a", "a b", "a:b", "ä", &"x".repeat(256)] {
        assert!(CredentialName::new(name).is_err(), "{name}");
        let quoted = serde_json::to_string(name).unwrap();
        assert!(serde_json::from_str::<CredentialName>(&quoted).is_err(), "{name}");
    }
    CredentialName::new("strongroom.root").unwrap();
}

#[test]
fn a_passphrase_comes_from_a_file_or_a_descriptor() {
    let (state, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = elsewhere.path().join("passphrase");
    write(&path, b"correct horse\n", 0o600);
    let source = SecretSource::File { path: path.clone() };
    let way = Way::Passphrase(PassphraseWay { source, cost: COST });
    let root = create(state.path(), &way, &Access::default()).unwrap();
    // The line end is from the editor, and not part of the passphrase.
    let opened = open(state.path(), &given(&secret("correct horse"))).unwrap();
    assert_eq!(opened.id(), root.id());

    let file = fs::File::open(&path).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file).cast_unsigned();
    assert_eq!(read_descriptor(number).unwrap(), secret("correct horse"));

    write(&path, &[b'x'; 2000], 0o600);
    assert!(matches!(open(state.path(), &Access::default()), Err(RootError::SecretLength { .. })));
    write(&path, b"correct horse", 0o604);
    assert!(matches!(open(state.path(), &Access::default()), Err(RootError::Mode { .. })));
}

#[test]
fn what_was_typed_to_open_the_old_seal_is_not_what_the_new_one_is_sealed_with() {
    let (state, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let old = secret("typed by a person");
    let root = create(state.path(), &typed(), &given(&old)).unwrap();
    let path = elsewhere.path().join("passphrase");
    write(&path, b"from some file", 0o600);
    let way = Way::Passphrase(PassphraseWay { source: SecretSource::File { path }, cost: COST });
    reseal(state.path(), &root, &way, &given(&old)).unwrap();
    assert_eq!(open(state.path(), &Access::default()).unwrap().id(), root.id());
    assert!(matches!(open(state.path(), &given(&old)), Err(RootError::WrongPassphrase { .. })));
}

#[test]
fn a_secret_on_the_same_file_system_is_worth_a_warning() {
    let (state, elsewhere) = (TempDir::new().unwrap(), TempDir::new_in("/dev/shm").unwrap());
    let passphrase_in = |directory: &TempDir| {
        let path = directory.path().join("passphrase");
        write(&path, b"correct horse", 0o600);
        Way::Passphrase(PassphraseWay { source: SecretSource::File { path }, cost: COST })
    };
    let warnings = || describe(state.path(), None).unwrap().warnings;
    let access = Access::default();
    let root = create(state.path(), &passphrase_in(&state), &access).unwrap();
    let path = state.path().join("passphrase");
    assert_eq!(warnings(), [Warning::SameFileSystem { what: "passphrase", path }]);
    reseal(state.path(), &root, &passphrase_in(&elsewhere), &access).unwrap();
    assert_eq!(warnings(), []);
    reseal(state.path(), &root, &Way::PlainFile, &access).unwrap();
    let described = describe(state.path(), None).unwrap();
    assert_eq!(described.protection, Protection::Unprotected);
    assert!(matches!(&described.warnings[..], [Warning::Unprotected { .. }]));

    let credential = CredentialName::new("root").unwrap();
    let in_state = Access { credentials_directory: Some(state.path().to_owned()), ..Access::default() };
    write(&state.path().join("root"), &[1; 32], 0o400);
    reseal(state.path(), &root, &Way::Credential(credential), &in_state).unwrap();
    let described = describe(state.path(), Some(state.path())).unwrap();
    assert_eq!(described.protection, Protection::Credential);
    assert!(matches!(&described.warnings[..], [Warning::SameFileSystem { what: "credential", .. }]));
}

#[test]
fn a_new_seal_takes_the_place_of_the_old_one_and_leaves_nothing_behind() {
    let state = TempDir::new().unwrap();
    let passphrase = secret("correct horse");
    let root = create(state.path(), &Way::PlainFile, &Access::default()).unwrap();
    assert_eq!(names(&state), ["root-1.key", "root.json"]);
    reseal(state.path(), &root, &typed(), &given(&passphrase)).unwrap();
    assert_eq!(names(&state), ["root.json"]);
    let described = describe(state.path(), None).unwrap();
    assert_eq!((described.protection, described.generation), (Protection::Passphrase, 2));
    reseal(state.path(), &root, &Way::PlainFile, &Access::default()).unwrap();
    assert_eq!(names(&state), ["root-3.key", "root.json"]);
    assert_eq!(open(state.path(), &Access::default()).unwrap().id(), root.id());

    let other = RootKey::generate().unwrap();
    let refused = reseal(state.path(), &other, &typed(), &given(&passphrase));
    assert!(matches!(refused, Err(RootError::OtherRoot { .. })));
}

#[test]
fn a_crash_in_any_step_of_a_new_seal_leaves_the_old_one_or_the_new_one() {
    let passphrase = secret("correct horse");
    let access = given(&passphrase);
    let steps = [Step::WriteKeyFile, Step::StageRecord, Step::Check, Step::PutInPlace, Step::RemoveLeftovers];
    for (from, to_plain) in [(typed(), true), (Way::PlainFile, false), (Way::PlainFile, true)] {
        for crash in steps {
            let state = TempDir::new().unwrap();
            let root = create(state.path(), &from, &access).unwrap();
            let generation = 2;
            let (seal, key_file) = if to_plain {
                let (seal, key_file) = plain_file::seal(&root, generation).unwrap();
                (Seal::PlainFile(seal), Some(key_file))
            } else {
                let Way::Passphrase(way) = typed() else { unreachable!() };
                (Seal::Passphrase(passphrase::seal(&root, &way, &access).unwrap()), None)
            };
            let record = Root { id: root.id, generation, sealed_unix_seconds: 0, seal };
            let place = Place::lock(state.path()).unwrap();
            let check = |place: &Place| unseal(place, &record, &access).map(drop);
            let stop = |step| if step == crash { Err(RootError::NotGiven { what: "crash" }) } else { Ok(()) };
            place.publish_until(&record, key_file.as_ref(), &check, &stop).unwrap_err();
            drop(place);

            assert_eq!(open(state.path(), &access).unwrap().id(), root.id(), "{crash:?}");
            let generation = describe(state.path(), None).unwrap().generation;
            assert_eq!(generation, if crash == Step::RemoveLeftovers { 2 } else { 1 });
            // The start removed the crash's leftovers: there is one record, and a key file only if
            // the record names one.
            let sealed_plainly = if generation == 2 { to_plain } else { matches!(from, Way::PlainFile) };
            assert_eq!(names(&state).len(), if sealed_plainly { 2 } else { 1 }, "{:?}", names(&state));
        }
    }
}

#[test]
fn a_seal_that_does_not_open_changes_nothing() {
    let state = TempDir::new().unwrap();
    let root = create(state.path(), &Way::PlainFile, &Access::default()).unwrap();
    let before = fs::read(state.path().join("root.json")).unwrap();
    let source = SecretSource::File { path: state.path().join("missing") };
    let way = Way::Passphrase(PassphraseWay { source, cost: COST });
    reseal(state.path(), &root, &way, &Access::default()).unwrap_err();
    assert_eq!(fs::read(state.path().join("root.json")).unwrap(), before);
    assert_eq!(names(&state), ["root-1.key", "root.json"]);
}

#[test]
fn a_damaged_record_is_named_as_such_and_never_opens() {
    let state = TempDir::new().unwrap();
    let passphrase = secret("correct horse");
    create(state.path(), &typed(), &given(&passphrase)).unwrap();
    let path = state.path().join("root.json");
    let text = fs::read(&path).unwrap();
    for at in 0..text.len() {
        let mut damaged = text.clone();
        damaged[at] ^= 1;
        write(&path, &damaged, 0o600);
        let outcome = describe(state.path(), None);
        // A flipped bit of white space or of a letter's case may be no change at all.
        if let Ok(described) = outcome {
            assert_eq!(described.protection, Protection::Passphrase);
            assert!(damaged[at].is_ascii_whitespace() || text[at].is_ascii_whitespace(), "{at}");
        }
    }
    let newer = String::from_utf8(text.clone()).unwrap().replace("\"format\": 1", "\"format\": 2");
    write(&path, newer.as_bytes(), 0o600);
    assert!(matches!(open(state.path(), &given(&passphrase)), Err(RootError::Newer { format: 2, .. })));
    let unknown = String::from_utf8(text).unwrap().replace("\"root\": {", "\"root\": {\n\"extra\": 1,");
    write(&path, unknown.as_bytes(), 0o600);
    assert!(matches!(open(state.path(), &given(&passphrase)), Err(RootError::Damaged { .. })));
    write(&path, &vec![b' '; 70 << 10], 0o600);
    assert!(matches!(open(state.path(), &given(&passphrase)), Err(RootError::Damaged { .. })));
}

#[test]
fn two_processes_do_not_seal_at_once() {
    let state = TempDir::new().unwrap();
    let place = Place::lock(state.path()).unwrap();
    let busy = create(state.path(), &Way::PlainFile, &Access::default());
    assert!(matches!(busy, Err(RootError::Busy { .. })));
    drop(place);
    create(state.path(), &Way::PlainFile, &Access::default()).unwrap();
}
