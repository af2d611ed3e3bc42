//! What a re-key job has done, so that it can be killed at any moment and go on when it is called
//! again.
//!
//! A file of JSON lines in the state directory, one for each thing that happened; its name comes
//! from what is to be re-keyed and to what. A new key is noted before it is used, and the wish for
//! it before it is made, both durably: no crash leaves a key at a provider that is not found again.
//! That a volume is done is known from the volume itself; it is noted too, so that a volume that
//! was put back is noticed. A torn last line is cut off.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use strongroom_crypto::mac;
use strongroom_datastore::file::KekRecord;
use strongroom_files::FileError;
use strongroom_keys::KeyRequestId;
use strongroom_types::{KekId, VolumeId, unix_seconds_now};

use crate::error::JobError;

const FORMAT: u32 = 1;

/// The longest file that is read: 200 bytes and a path for each of 100,000 volumes, with room.
const BYTES_MAX: u64 = 256 << 20;

/// A volume that is under its new key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Where it was.
    pub path: PathBuf,
    /// Which.
    pub volume: VolumeId,
    /// Its descriptor's generation then.
    pub generation: u64,
    /// The key that opens it.
    pub kek: KekId,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first.
    Job {
        format: u32,
        began_unix_seconds: u64,
        what: String,
    },
    /// A key is wished for, in the place of `from`.
    Asked {
        from: KekId,
        request: KeyRequestId,
    },
    /// It is there.
    Kek {
        from: KekId,
        to: KekRecord,
    },
    Done(Done),
    /// Nothing is left to be done.
    Finished {
        unix_seconds: u64,
    },
}

/// The file, and what it says. As long as it is open no other process has it.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    requests: HashMap<KekId, KeyRequestId>,
    keks: HashMap<KekId, KekRecord>,
    done: HashMap<PathBuf, Done>,
    finished: bool,
    resumed: bool,
}

impl Journal {
    /// Opens the journal of the job that is described by `what`, in the state directory `home`:
    /// that of one that was not finished, or a new one.
    pub fn open(home: &Path, what: &str) -> Result<Self, JobError> {
        let directory = home.join("jobs");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| JobError::File(FileError { action: "keep a job in", path, error })
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed(&directory))?;
        let digest = mac::sha256(what.as_bytes());
        let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = directory.join(format!("rekey-{name}.jsonl"));
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.map_err(failed(&path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(JobError::JobRuns { path });
        }
        let mut journal = Self {
            file,
            path: path.clone(),
            requests: HashMap::new(),
            keks: HashMap::new(),
            done: HashMap::new(),
            finished: false,
            resumed: false,
        };
        journal.read().and_then(|()| journal.begin(what)).map_err(failed(&path))?;
        strongroom_files::sync_directory(&directory).map_err(failed(&path))?;
        Ok(journal)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was begun by an earlier process.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The key that takes the place of this one.
    pub fn successor(&self, old: KekId) -> Option<&KekRecord> {
        self.keks.get(&old)
    }

    /// The new key of this id, if it is one of this job's.
    pub fn new_key(&self, id: KekId) -> Option<&KekRecord> {
        self.keks.values().find(|record| record.id == id)
    }

    /// What is known of a volume that was done.
    pub fn done(&self, path: &Path) -> Option<&Done> {
        self.done.get(path)
    }

    /// Names the wish for a key in the place of this one: the same again, if it was wished for
    /// before.
    pub fn request(&mut self, from: KekId) -> Result<KeyRequestId, JobError> {
        if let Some(request) = self.requests.get(&from) {
            return Ok(*request);
        }
        let request = KeyRequestId::random();
        self.note(&Line::Asked { from, request }, true)?;
        self.requests.insert(from, request);
        Ok(request)
    }

    /// Notes the key that takes the place of `from`, before it is used.
    pub fn succeed(&mut self, from: KekId, to: KekRecord) -> Result<(), JobError> {
        self.note(&Line::Kek { from, to: to.clone() }, true)?;
        self.keks.insert(from, to);
        Ok(())
    }

    /// Notes that a volume is done. Were it lost, the volume would say so itself.
    pub fn set_done(&mut self, done: Done) -> Result<(), JobError> {
        if self.done.get(&done.path) == Some(&done) {
            return Ok(());
        }
        self.note(&Line::Done(done.clone()), false)?;
        self.done.insert(done.path.clone(), done);
        Ok(())
    }

    /// Notes that nothing is left: the same command begins a new job from now on.
    pub fn finish(&mut self) -> Result<(), JobError> {
        self.note(&Line::Finished { unix_seconds: unix_seconds_now() }, true)
    }

    fn note(&mut self, line: &Line, durably: bool) -> Result<(), JobError> {
        let failed = |error| JobError::File(FileError { action: "note in", path: self.path.clone(), error });
        let mut text = serde_json::to_vec(line).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(failed)?;
        if durably { self.file.sync_data().map_err(failed) } else { Ok(()) }
    }

    fn read(&mut self) -> io::Result<()> {
        let text = strongroom_files::read_open(&self.file, BYTES_MAX)?;
        let mut whole_bytes = 0;
        for piece in text.split_inclusive(|byte| *byte == b'\n') {
            let Some(line) = piece.strip_suffix(b"\n") else { break };
            let Ok(line) = serde_json::from_slice(line) else { break };
            if let Line::Job { format, .. } = line
                && format != FORMAT
            {
                return Err(io::Error::other(format!("it has format {format}; this program knows {FORMAT}")));
            }
            self.take(line);
            whole_bytes += piece.len() as u64;
        }
        self.resumed = whole_bytes > 0 && !self.finished;
        self.file.set_len(whole_bytes)?;
        self.file.seek(SeekFrom::End(0))?;
        Ok(())
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Job { .. } => {}
            Line::Asked { from, request } => drop(self.requests.insert(from, request)),
            Line::Kek { from, to } => drop(self.keks.insert(from, to)),
            Line::Done(done) => drop(self.done.insert(done.path.clone(), done)),
            Line::Finished { .. } => self.finished = true,
        }
    }

    /// Begins anew, unless there is something to go on with.
    fn begin(&mut self, what: &str) -> io::Result<()> {
        if self.resumed {
            return Ok(());
        }
        self.requests.clear();
        self.keks.clear();
        self.done.clear();
        self.finished = false;
        self.file.set_len(0)?;
        self.file.rewind()?;
        let line =
            Line::Job { format: FORMAT, began_unix_seconds: unix_seconds_now(), what: what.to_owned() };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        self.file.write_all(&text)?;
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use strongroom_keys::KekSource;

    use super::*;

    fn done(name: &str) -> Done {
        let (path, volume) = (PathBuf::from(name), VolumeId::from_bytes([1; 16]));
        Done { path, volume, generation: 3, kek: KekId::from_bytes([2; 16]) }
    }

    #[test]
    fn a_job_goes_on_where_it_was_and_a_finished_one_is_over() {
        let home = tempfile::tempdir().unwrap();
        let old = KekId::from_bytes([1; 16]);
        let new = KekRecord { id: KekId::from_bytes([2; 16]), source: KekSource::KeyFile {} };
        let open = || Journal::open(home.path(), "volumes to corp").unwrap();
        let mut journal = open();
        assert!(!journal.is_resumed());
        assert!(matches!(Journal::open(home.path(), "volumes to corp"), Err(JobError::JobRuns { .. })));
        let request = journal.request(old).unwrap();
        journal.succeed(old, new.clone()).unwrap();
        journal.set_done(done("/ds/vm1")).unwrap();
        drop(journal);

        let mut journal = open();
        assert!(journal.is_resumed());
        assert_eq!(journal.request(old).unwrap(), request);
        assert_eq!((journal.successor(old), journal.new_key(new.id)), (Some(&new), Some(&new)));
        assert_eq!(journal.done(Path::new("/ds/vm1")), Some(&done("/ds/vm1")));
        journal.finish().unwrap();
        drop(journal);
        let journal = open();
        assert!(!journal.is_resumed() && journal.successor(old).is_none());
    }

    #[test]
    fn a_torn_line_is_cut_off_and_what_was_before_it_stays() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(home.path(), "x").unwrap();
        journal.set_done(done("/ds/vm1")).unwrap();
        let whole = std::fs::read(journal.path()).unwrap();
        journal.set_done(done("/ds/vm2")).unwrap();
        let (path, torn) = (journal.path().to_owned(), std::fs::read(journal.path()).unwrap());
        drop(journal);
        for end in whole.len()..torn.len() {
            std::fs::write(&path, &torn[..end]).unwrap();
            let mut journal = Journal::open(home.path(), "x").unwrap();
            assert!(
                journal.done(Path::new("/ds/vm1")).is_some() && journal.done(Path::new("/ds/vm2")).is_none()
            );
            journal.set_done(done("/ds/vm2")).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), torn);
        }
    }
}
