use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa::{KeySize, OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, PrivateDecryptingKey};
use proptest::prelude::*;
use strongroom_memory::secret::SecretBytes;
use tempfile::TempDir;

use super::share::{combine, split};
use super::*;

/// A person with a private key.
pub(crate) struct Person {
    pub name: CustodianName,
    key: PrivateDecryptingKey,
}

impl Person {
    pub fn custodian(&self) -> Custodian {
        Custodian::of_public_key(self.name.clone(), &self.public_key()).unwrap()
    }

    pub fn public_key(&self) -> Vec<u8> {
        AsDer::<PublicKeyX509Der<'_>>::as_der(&self.key.public_key()).unwrap().as_ref().to_vec()
    }

    /// Opens this person's share in `header`.
    pub fn open_share(&self, header: &Header) -> SecretBytes {
        self.open(&header.custodians.iter().find(|holder| holder.name == self.name).unwrap().share)
    }

    pub fn open(&self, share: &[u8]) -> SecretBytes {
        let key = OaepPrivateDecryptingKey::new(self.key.clone()).unwrap();
        let mut text = vec![0; key.min_output_size()];
        let text = key.decrypt(&OAEP_SHA256_MGF1SHA256, share, &mut text, None).unwrap();
        SecretBytes::from_slice_and_wipe(text).unwrap()
    }
}

/// Three people, made once because RSA key generation is slow.
pub(crate) fn people() -> &'static [Person] {
    static PEOPLE: OnceLock<Vec<Person>> = OnceLock::new();
    PEOPLE.get_or_init(|| {
        ["ada", "grace", "emmy"]
            .map(|name| Person {
                name: CustodianName::new(name).unwrap(),
                key: PrivateDecryptingKey::generate(KeySize::Rsa3072).unwrap(),
            })
            .into()
    })
}

pub(crate) fn two_of_three() -> Custody {
    Custody::new(2, people().iter().map(Person::custodian).collect()).unwrap()
}

pub(super) fn record(kind: RecordKind, key: &str, value: &[u8]) -> Record {
    Record { kind, key: key.as_bytes().to_vec(), value: Zeroizing::new(value.to_vec()) }
}

/// A server's state.
pub(super) struct State {
    pub generation: u64,
    pub records: Vec<Record>,
}

impl BackupSource for State {
    fn snapshot(&self) -> Result<Snapshot<'_>, Failure> {
        let records = Box::new(self.records.iter().cloned().map(Ok));
        Ok(Snapshot { content: Content::KeyServer, generation: self.generation, records })
    }
}

pub(super) fn some_state() -> State {
    let records = vec![
        record(RecordKind::Tombstone, "dead", b"since long"),
        record(RecordKind::Ledger, "vm", b"7"),
        record(RecordKind::Authority, "ca", b"private key of the authority"),
        record(RecordKind::Object, "one", b"key one"),
        record(RecordKind::Object, "shredded later", b"key two"),
        record(RecordKind::Object, "empty", b""),
    ];
    State { generation: 7, records }
}

/// A target in memory.
#[derive(Default)]
struct Memory {
    live: Vec<Record>,
    staged: Vec<Record>,
    commits: u32,
    fails_at: Option<u64>,
}

impl RestoreTarget for Memory {
    fn live_objects(&self) -> Result<u64, Failure> {
        Ok(self.live.iter().filter(|record| record.kind == RecordKind::Object).count() as u64)
    }

    fn tombstones(&self) -> Result<Vec<Record>, Failure> {
        Ok(self.live.iter().filter(|record| record.kind == RecordKind::Tombstone).cloned().collect())
    }

    fn begin(&mut self, _mark: &RestoreMark) -> Result<u64, Failure> {
        self.staged.clear();
        Ok(0)
    }

    fn stage(&mut self, number: u64, record: &Record) -> Result<(), Failure> {
        if self.fails_at.is_some_and(|at| number >= at) {
            return Err("the disk is full".into());
        }
        self.staged.push(record.clone());
        Ok(())
    }

    fn bury(&mut self, tombstone: &Record) -> Result<(), Failure> {
        self.staged.retain(|record| record.key != tombstone.key);
        self.staged.push(tombstone.clone());
        Ok(())
    }

    fn commit(&mut self, _restored: &Restored) -> Result<(), Failure> {
        self.live = std::mem::take(&mut self.staged);
        self.commits += 1;
        Ok(())
    }
}

/// A directory with a backup of `state`.
struct Backup {
    _directory: TempDir,
    path: PathBuf,
    last: LastBackup,
}

fn back_up_state(state: &State) -> Backup {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("backup");
    let last = back_up(state, &two_of_three(), &path, directory.path()).unwrap();
    Backup { _directory: directory, path, last }
}

/// A session with the shares of the first two people.
fn opened(path: &Path) -> RestoreSession {
    let mut session = RestoreSession::open(path, Content::KeyServer).unwrap();
    for person in &people()[..2] {
        session.add_share(&person.open_share(&session.header().clone())).unwrap();
    }
    session
}

#[test]
fn what_is_backed_up_is_restored_and_the_dead_stay_dead() {
    let state = some_state();
    let backup = back_up_state(&state);
    assert_eq!(
        backup.last.counts,
        Counts { ledger: 1, authority: 1, objects: 3, tombstones: 1, ..Counts::default() }
    );

    let shredded = record(RecordKind::Tombstone, "shredded later", b"after the backup");
    let mut target = Memory { live: vec![shredded.clone()], ..Memory::default() };
    let session = opened(&backup.path);
    assert_eq!(session.verify().unwrap(), backup.last.counts);
    let restored = session.restore(&mut target, false).unwrap();
    assert_eq!((restored.buried, restored.backup.generation), (1, 7));
    let mut expected = state.records.clone();
    expected.retain(|record| record.key != b"shredded later");
    expected.push(shredded);
    let sorted = |mut records: Vec<Record>| {
        records.sort_by(|one, other| one.key.cmp(&other.key));
        records
    };
    assert_eq!(sorted(target.live.clone()), sorted(expected));

    let refused = session.restore(&mut target, false).unwrap_err();
    assert!(matches!(refused, BackupError::NotEmpty { objects: 2 }), "{refused}");
    session.restore(&mut target, true).unwrap();
    assert_eq!(target.commits, 2);
}

#[test]
fn a_backup_of_something_else_is_refused_in_both_directions() {
    let backup = back_up_state(&some_state());
    let refused = RestoreSession::open(&backup.path, Content::Inventory).unwrap_err();
    assert!(matches!(refused, BackupError::OfOther { found: Content::KeyServer, .. }), "{refused}");
    let directory = TempDir::new().unwrap();
    let mixed = State { generation: 1, records: vec![record(RecordKind::Entry, "vm/1", b"{}")] };
    let refused = write(&mixed, &two_of_three(), &directory.path().join("backup")).unwrap_err();
    assert!(matches!(refused, BackupError::Source(_)), "{refused}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn a_tombstone_wins_over_an_object_of_the_same_backup_in_either_order() {
    for dead_first in [true, false] {
        let mut records = vec![
            record(RecordKind::Object, "key", b"secret"),
            record(RecordKind::Tombstone, "key", b"destroyed"),
        ];
        if dead_first {
            records.reverse();
        }
        let backup = back_up_state(&State { generation: 1, records });
        let mut target = Memory::default();
        opened(&backup.path).restore(&mut target, false).unwrap();
        assert_eq!(target.live, [record(RecordKind::Tombstone, "key", b"destroyed")]);
    }
}

#[test]
fn any_two_of_three_open_it_and_one_does_not() {
    let backup = back_up_state(&some_state());
    for absent in 0..3 {
        let mut session = RestoreSession::open(&backup.path, Content::KeyServer).unwrap();
        let header = session.header().clone();
        for (at, person) in people().iter().enumerate() {
            if at == absent {
                continue;
            }
            let refused = session.verify().unwrap_err();
            assert!(matches!(refused, BackupError::TooFewShares { threshold: 2, .. }), "{refused}");
            assert_eq!(usize::from(session.add_share(&person.open_share(&header)).unwrap()), at + 1);
        }
        assert_eq!(session.missing(), 0);
        session.verify().unwrap();
    }
    // All three shares work as well.
    let mut session = opened(&backup.path);
    session.add_share(&people()[2].open_share(&session.header().clone())).unwrap();
    session.verify().unwrap();
}

#[test]
fn a_custodians_program_opens_their_share_and_nobody_elses() {
    use aws_lc_rs::encoding::Pkcs8V1Der;
    let pem = |der: &[u8]| pem::encode(&pem::Pem::new("PRIVATE KEY", der));
    let curves = [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384];
    let pairs = curves.map(|curve| rcgen::KeyPair::generate_for(curve).unwrap());
    let rsa: Pkcs8V1Der<'_> = AsDer::as_der(&people()[0].key).unwrap();
    let private = [pem(rsa.as_ref()), pairs[0].serialize_pem(), pairs[1].serialize_pem()];
    let public = [
        people()[0].public_key(),
        rcgen::PublicKeyData::subject_public_key_info(&pairs[0]),
        rcgen::PublicKeyData::subject_public_key_info(&pairs[1]),
    ];
    let custodian = |(at, public): (usize, &Vec<u8>)| {
        Custodian::of_public_key(CustodianName::new(format!("c{at}")).unwrap(), public).unwrap()
    };
    let custody = Custody::new(3, public.iter().enumerate().map(custodian).collect()).unwrap();
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("backup");
    write(&some_state(), &custody, &path).unwrap();
    let mut session = RestoreSession::open(&path, Content::KeyServer).unwrap();
    let header = session.header().clone();
    for (at, private) in private.iter().enumerate() {
        let key = CustodianKey::from_pem(private.as_bytes()).unwrap();
        let (holder, share) = key.open_share(&header).unwrap();
        assert_eq!(usize::from(holder.index), at + 1);
        session.add_share(&share).unwrap();
        for changed in 0..header.custodians[at].share.len() {
            let mut header = header.clone();
            header.custodians[at].share[changed] ^= 1;
            match key.open_share(&header) {
                Err(OpeningError::Damaged { .. }) => {}
                // Opening does not depend on the key's name in the message.
                Ok((_, opened)) if opened == share => {}
                // CBC does not authenticate; the share's own checksum does.
                Ok((_, opened)) => drop(share::Share::decode(&opened).unwrap_err()),
                Err(error) => panic!("{error}"),
            }
        }
    }
    session.verify().unwrap();
    let stranger = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let refused = CustodianKey::from_pem(stranger.as_bytes()).unwrap().open_share(&header).unwrap_err();
    assert!(refused.to_string().contains("c0, c1, c2"), "{refused}");
    let edwards = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
    for unfit in [edwards.as_str(), "nonsense", ""] {
        assert!(matches!(CustodianKey::from_pem(unfit.as_bytes()), Err(OpeningError::Key { .. })));
    }
}

#[test]
fn a_share_of_another_backup_or_given_twice_is_named() {
    let (backup, other) = (back_up_state(&some_state()), back_up_state(&some_state()));
    let mut session = RestoreSession::open(&backup.path, Content::KeyServer).unwrap();
    let foreign = people()[1].open_share(&read_header(&other.path).unwrap());
    let refused = session.add_share(&foreign).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "share 2 is of backup {}, not of {}; open the share that lies in this backup's file",
            other.last.id, backup.last.id
        )
    );
    let own = people()[1].open_share(session.header());
    session.add_share(&own).unwrap();
    assert!(matches!(session.add_share(&own), Err(ShareError::Twice { index: 2 })));
    let sealed = session.header().custodians[0].share.clone();
    let sealed = SecretBytes::from_slice_and_wipe(&mut sealed.clone()).unwrap();
    assert!(matches!(session.add_share(&sealed), Err(ShareError::NotAShare)));
    assert_eq!(session.missing(), 1);
}

#[test]
fn every_damaged_byte_of_a_backup_is_noticed() {
    let backup = back_up_state(&some_state());
    let good = fs::read(&backup.path).unwrap();
    let shares = people()[..2].iter().map(|person| person.open_share(&read_header(&backup.path).unwrap()));
    let shares: Vec<SecretBytes> = shares.collect();
    // In memory, because it is written thousands of times.
    let elsewhere = TempDir::new_in("/dev/shm").unwrap();
    let damaged = elsewhere.path().join("damaged");
    let refused = |bytes: &[u8]| {
        fs::write(&damaged, bytes).unwrap();
        let Ok(mut session) = RestoreSession::open(&damaged, Content::KeyServer) else { return true };
        let mut target = Memory::default();
        let outcome = shares
            .iter()
            .try_for_each(|share| session.add_share(share).map(drop))
            .map_err(BackupError::from)
            .and_then(|()| session.restore(&mut target, false));
        assert_eq!(target.commits == 0, outcome.is_err());
        outcome.is_err()
    };
    assert!(!refused(&good));
    let mut bytes = good.clone();
    for at in 0..good.len() {
        bytes[at] ^= 1 << (at % 8);
        assert!(refused(&bytes), "byte {at}");
        bytes[at] = good[at];
        assert!(refused(&good[..at]), "cut off at {at}");
    }
    assert!(refused(&[&good[..], b"\0"].concat()));
}

#[test]
fn chunks_cannot_be_swapped_left_out_or_repeated() {
    let value = vec![0x5a; 200 << 10];
    let backup =
        back_up_state(&State { generation: 1, records: vec![record(RecordKind::Object, "big", &value)] });
    let good = fs::read(&backup.path).unwrap();
    let start = good.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let chunk = 4 + archive::CHUNK_BYTES + 16;
    let (header, body) = good.split_at(start);
    let chunks: Vec<&[u8]> = body.chunks(chunk).collect();
    assert_eq!(chunks.len(), 4);
    opened(&backup.path).verify().unwrap();
    let session = opened(&backup.path);
    for order in [&[1, 0, 2, 3][..], &[0, 2, 3], &[0, 1, 1, 2, 3], &[0, 1, 2], &[3], &[0, 1, 2, 3, 3], &[]] {
        let body: Vec<u8> = order.iter().flat_map(|&at| chunks[at]).copied().collect();
        fs::write(&backup.path, [header, &body].concat()).unwrap();
        let refused = session.verify().unwrap_err();
        assert!(matches!(refused, BackupError::Damaged { .. }), "{order:?}: {refused}");
    }
}

#[test]
fn content_of_every_length_around_a_chunk_is_restored() {
    // The record's head has 7 bytes and its key 1; the manifest follows.
    for value_bytes in (archive::CHUNK_BYTES - 300..archive::CHUNK_BYTES + 40).step_by(17) {
        let records = vec![record(RecordKind::Object, "k", &vec![1; value_bytes])];
        let backup = back_up_state(&State { generation: 1, records: records.clone() });
        let mut target = Memory::default();
        opened(&backup.path).restore(&mut target, false).unwrap();
        assert_eq!(target.live, records);
    }
}

#[test]
fn a_target_that_fails_keeps_its_state() {
    let backup = back_up_state(&some_state());
    let live = vec![record(RecordKind::Object, "present", b"stays")];
    for fails_at in 0..=5 {
        let mut target = Memory { live: live.clone(), fails_at: Some(fails_at), ..Memory::default() };
        let refused = opened(&backup.path).restore(&mut target, true).unwrap_err();
        assert!(matches!(refused, BackupError::Target(_)), "{refused}");
        assert_eq!(target.live, live);
    }
}

#[test]
fn a_source_that_fails_leaves_no_backup() {
    struct Failing;
    impl BackupSource for Failing {
        fn snapshot(&self) -> Result<Snapshot<'_>, Failure> {
            let good = some_state().records.into_iter().map(Ok);
            let bad: Result<Record, Failure> = Err("the store is damaged".into());
            Ok(Snapshot { content: Content::KeyServer, generation: 1, records: Box::new(good.chain([bad])) })
        }
    }
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("backup");
    let refused = back_up(&Failing, &two_of_three(), &path, directory.path());
    assert!(matches!(refused, Err(BackupError::Source(_))));
    let too_long = State {
        generation: 1,
        records: vec![record(RecordKind::Object, &"k".repeat(KEY_BYTES_MAX + 1), b"")],
    };
    let refused = back_up(&too_long, &two_of_three(), &path, directory.path());
    assert!(matches!(refused, Err(BackupError::RecordLength { .. })));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    assert_eq!(status(directory.path(), 1).unwrap(), BackupStatus::Unbacked);
}

#[test]
fn status_counts_the_changes_since_the_last_backup() {
    let directory = TempDir::new().unwrap();
    assert_eq!(status(directory.path(), 0).unwrap(), BackupStatus::Unbacked);
    let back_up_as = |name: &str, generation| {
        let state = State { generation, ..some_state() };
        back_up(&state, &two_of_three(), &directory.path().join(name), directory.path())
    };
    let first = back_up_as("first", 7).unwrap();
    let backed =
        |last: &LastBackup, changes_since| BackupStatus::Backed { last: last.clone(), changes_since };
    assert_eq!(status(directory.path(), 10).unwrap(), backed(&first, 3));
    assert!(matches!(back_up_as("first", 9), Err(BackupError::Exists { .. })));
    assert_eq!(status(directory.path(), 10).unwrap(), backed(&first, 3));
    let second = back_up_as("second", 10).unwrap();
    assert_eq!(status(directory.path(), 10).unwrap(), backed(&second, 0));
    // A server with fewer changes than the one that was backed up.
    assert_eq!(status(directory.path(), 9).unwrap(), BackupStatus::Unbacked);
}

#[test]
fn a_backup_and_its_header_show_nothing_secret() {
    let marker = b"a marker that is a key of 32 b..";
    let backup =
        back_up_state(&State { generation: 1, records: vec![record(RecordKind::Object, "k", marker)] });
    let bytes = fs::read(&backup.path).unwrap();
    assert!(!bytes.windows(8).any(|window| marker.windows(8).any(|part| part == window)));
    let shown = format!("{:?}", record(RecordKind::Object, "k", marker));
    assert_eq!(shown, "Record(Object 6b, 32 bytes, redacted)");
    assert!(format!("{:?}", opened(&backup.path)).contains("redacted"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Arbitrary input is always refused.
    #[test]
    fn arbitrary_bytes_are_neither_a_share_nor_a_backup(
        bytes in prop::collection::vec(any::<u8>(), 0..1000),
        field in "[ -~]{0,40}",
        number in any::<u32>(),
    ) {
        let texts = [
            bytes.clone(),
            [&b"strongroom-share-1:"[..], &bytes].concat(),
            format!("strongroom-share-1:{field}:{number}:{number}:{field}:{field}:{field}").into_bytes(),
        ];
        for mut text in texts {
            let text = SecretBytes::from_slice_and_wipe(&mut text).unwrap();
            prop_assert!(share::Share::decode(&text).is_err());
        }
        let directory = TempDir::new_in("/dev/shm").unwrap();
        let path = directory.path().join("backup");
        let header = format!("{{\"format\":\"strongroom key server backup\",\"version\":{number}}}\n");
        for content in [bytes.clone(), [header.as_bytes(), &bytes].concat()] {
            fs::write(&path, content).unwrap();
            prop_assert!(RestoreSession::open(&path, Content::KeyServer).is_err());
        }
    }

    #[test]
    fn any_m_shares_give_the_key_and_fewer_do_not(
        (threshold, total) in (2..=CUSTODIANS_MAX as u8).prop_flat_map(|total| (2..=total, Just(total))),
        order in Just((0..CUSTODIANS_MAX).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let key = SecretBytes::random(32).unwrap();
        let mut shares: Vec<Option<_>> =
            split(&key, BackupId::new(), threshold, total).unwrap().into_iter().map(Some).collect();
        let order = order.into_iter().filter(|&at| at < usize::from(total));
        let mut chosen: Vec<_> = order.map(|at| shares[at].take().unwrap()).collect();
        for more in 0..=(total - threshold) {
            prop_assert_eq!(&combine(&chosen[..usize::from(threshold + more)]).unwrap(), &key);
        }
        chosen.truncate(usize::from(threshold) - 1);
        // The scheme refuses a single share; fewer than the threshold give another key.
        prop_assert!(combine(&chosen).map_or(true, |other| other != key));
    }
}
