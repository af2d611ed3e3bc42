//! kill -9 in every step of a backup and of a restore, each in a process of its own, on files.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use strongroom_memory::secret::SecretBytes;
use tempfile::TempDir;

use super::create::back_up_observed;
use super::tests::{people, record, some_state, two_of_three};
use super::*;
use crate::killed::{Countdown, is_killed, place};

type FileContent = BTreeMap<Vec<u8>, (String, Vec<u8>)>;

/// A server's state in files, and the staged state beside it.
struct Files {
    directory: PathBuf,
    countdown: Countdown,
    staged: Option<File>,
}

impl Files {
    fn new(directory: &Path, countdown: Countdown) -> Self {
        Self { directory: directory.to_owned(), countdown, staged: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The whole lines of a file, without a truncated last one.
    fn lines(&self, name: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }

    fn content(&self, name: &str) -> FileContent {
        let mut content = FileContent::new();
        for line in self.lines(name) {
            let [_number, kind, key, value] = &line[..] else { panic!("{line:?}") };
            content.insert(hex::decode(key).unwrap(), (kind.clone(), hex::decode(value).unwrap()));
        }
        content
    }

    fn append(&mut self, number: u64, record: &Record) -> Result<(), Failure> {
        self.countdown.step();
        let line = line(number, record);
        let staged = self.staged.as_mut().ok_or("not begun")?;
        // Half a line may be left.
        staged.write_all(&line.as_bytes()[..line.len() / 2])?;
        self.countdown.step();
        staged.write_all(&line.as_bytes()[line.len() / 2..])?;
        staged.sync_all()?;
        self.countdown.step();
        Ok(())
    }
}

fn line(number: u64, record: &Record) -> String {
    format!("{number} {:?} {} {}\n", record.kind, hex::encode(&record.key), hex::encode(&record.value))
}

impl RestoreTarget for Files {
    fn live_objects(&self) -> Result<u64, Failure> {
        Ok(self.lines("live").iter().filter(|line| line[1] == "Object").count() as u64)
    }

    fn tombstones(&self) -> Result<Vec<Record>, Failure> {
        let dead = self.content("live").into_iter().filter(|(_, (kind, _))| kind == "Tombstone");
        let record = |key, value| Record { kind: RecordKind::Tombstone, key, value: Zeroizing::new(value) };
        Ok(dead.map(|(key, (_, value))| record(key, value)).collect())
    }

    fn begin(&mut self, mark: &RestoreMark) -> Result<u64, Failure> {
        self.countdown.step();
        let mark = serde_json::to_vec(mark)?;
        if fs::read(self.path("mark")).ok().as_ref() != Some(&mark) {
            strongroom_files::write(&self.path("staged"), b"")?;
            self.countdown.step();
            strongroom_files::replace(&self.path("mark"), &mark)?;
        }
        self.countdown.step();
        // A truncated line is staged again.
        let lines = self.lines("staged");
        let whole: String = lines.iter().map(|line| line.join(" ") + "\n").collect();
        strongroom_files::replace(&self.path("staged"), whole.as_bytes())?;
        self.staged = Some(OpenOptions::new().append(true).open(self.path("staged"))?);
        // Tombstones have no numbers, and are buried again.
        let numbered = lines.iter().filter(|line| line[1] != "Tombstone");
        Ok(numbered
            .map(|line| line[0].parse::<u64>().map(|number| number + 1))
            .next_back()
            .unwrap_or(Ok(0))?)
    }

    fn stage(&mut self, number: u64, record: &Record) -> Result<(), Failure> {
        self.append(number, record)
    }

    fn bury(&mut self, tombstone: &Record) -> Result<(), Failure> {
        self.append(0, tombstone)
    }

    fn commit(&mut self, _restored: &Restored) -> Result<(), Failure> {
        self.countdown.step();
        let staged = fs::read(self.path("staged"))?;
        strongroom_files::write(&self.path("live.new"), &staged)?;
        self.countdown.step();
        fs::rename(self.path("live.new"), self.path("live"))?;
        strongroom_files::sync_directory(&self.directory)?;
        self.countdown.step();
        fs::remove_file(self.path("mark"))?;
        self.countdown.step();
        Ok(())
    }
}

fn as_content(records: &[Record]) -> FileContent {
    let entry = |record: &Record| (record.key.clone(), (format!("{:?}", record.kind), record.value.to_vec()));
    records.iter().map(entry).collect()
}

#[test]
fn a_restore_killed_in_any_step_is_all_or_nothing_and_can_be_started_again() {
    const TEST: &str =
        "backup::kill_tests::a_restore_killed_in_any_step_is_all_or_nothing_and_can_be_started_again";
    if let Some(directory) = place() {
        let mut session = RestoreSession::open(&directory.join("backup"), Content::KeyServer).unwrap();
        for name in ["share-1", "share-2"] {
            let mut share = fs::read(directory.join(name)).unwrap();
            session.add_share(&SecretBytes::from_slice_and_wipe(&mut share).unwrap()).unwrap();
        }
        let mut target = Files::new(&directory.join("server"), Countdown::of_this_process());
        session.restore(&mut target, true).unwrap();
        return;
    }
    let made = TempDir::new().unwrap();
    let backup = made.path().join("backup");
    back_up(&some_state(), &two_of_three(), &backup, made.path()).unwrap();
    let header = read_header(&backup).unwrap();
    let present = [
        record(RecordKind::Object, "newer than the backup", b"replaced"),
        record(RecordKind::Tombstone, "shredded later", b"after the backup"),
    ];
    let mut expected = as_content(&some_state().records);
    expected.extend(as_content(&present[1..]));

    let mut steps = 0;
    loop {
        let directory = TempDir::new().unwrap();
        let server = directory.path().join("server");
        fs::create_dir(&server).unwrap();
        fs::copy(&backup, directory.path().join("backup")).unwrap();
        for (person, name) in people().iter().zip(["share-1", "share-2"]) {
            fs::write(directory.path().join(name), person.open_share(&header).expose()).unwrap();
        }
        let live: String = present.iter().map(|record| line(0, record)).collect();
        fs::write(server.join("live"), live).unwrap();
        let files = Files::new(&server, Countdown::never());

        let killed = is_killed(TEST, directory.path(), Some(steps));
        let now = files.content("live");
        if killed {
            assert!(now == as_content(&present) || now == expected, "step {steps}: {now:?}");
            // A second kill after resuming, and then a run to the end.
            is_killed(TEST, directory.path(), Some(3));
            assert!(!is_killed(TEST, directory.path(), None));
        }
        assert_eq!(files.content("live"), expected, "step {steps}");
        if !killed {
            break;
        }
        steps += 1;
    }
    assert!(steps > 20, "only {steps} steps");
    println!("killed in each of {steps} steps of a restore");
}

#[test]
fn a_backup_killed_in_any_step_is_whole_or_none() {
    const TEST: &str = "backup::kill_tests::a_backup_killed_in_any_step_is_whole_or_none";
    if let Some(directory) = place() {
        let custodians = ["1", "2"].map(|name| {
            let public = fs::read(directory.join(name)).unwrap();
            Custodian::of_public_key(CustodianName::new(name).unwrap(), &public).unwrap()
        });
        let custody = Custody::new(2, custodians.into()).unwrap();
        let mut countdown = Countdown::of_this_process();
        let name = if directory.join("backup").exists() { "second" } else { "backup" };
        let path = directory.join(name);
        back_up_observed(&some_state(), &custody, &path, &directory, &mut |_| countdown.step()).unwrap();
        return;
    }
    let mut steps = 0;
    loop {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("backup");
        for (person, name) in people().iter().zip(["1", "2"]) {
            fs::write(directory.path().join(name), person.public_key()).unwrap();
        }
        let killed = is_killed(TEST, directory.path(), Some(steps));
        let is_there = path.exists();
        if is_there {
            let mut session = RestoreSession::open(&path, Content::KeyServer).unwrap();
            let header = session.header().clone();
            for (person, holder) in people().iter().zip(&header.custodians) {
                session.add_share(&person.open(&holder.share)).unwrap();
            }
            session.verify().unwrap();
        }
        match status(directory.path(), 7).unwrap() {
            BackupStatus::Unbacked => assert!(killed),
            BackupStatus::Backed { last, .. } => {
                assert!(is_there);
                assert_eq!(last.id, read_header(&path).unwrap().id);
            }
        }
        if !killed {
            break;
        }
        // The leftovers do not block the next backup.
        assert!(!is_killed(TEST, directory.path(), None));
        assert!(matches!(status(directory.path(), 7).unwrap(), BackupStatus::Backed { .. }));
        steps += 1;
    }
    assert!(steps > 10, "only {steps} steps");
    println!("killed in each of {steps} steps of a backup");
}
