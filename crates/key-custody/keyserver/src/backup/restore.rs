//! Restores a backup: collect the shares, check the whole file, stage it, then commit in one step.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;

use super::archive::{ArchiveKey, ArchiveReader, Broken};
use super::custodian::CustodianName;
use super::error::{BackupError, ShareError};
use super::header::{self, BackupId, Content, Header};
use super::last::LastBackup;
use super::records::{Counts, RecordReader};
use super::share::{Share, combine};
use super::{Failure, Record, RecordKind};
use strongroom_types::hex;

/// The identity of a restore, by which the target recognises it after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreMark {
    /// The backup's id.
    pub backup: BackupId,
    /// The digest of its content's manifest.
    #[serde(with = "hex::array")]
    pub manifest_sha256: [u8; 32],
}

/// The target of a restore: a key server that is not serving.
///
/// A restore is atomic: until [`commit`](Self::commit) the server keeps its state, whatever was
/// staged and whenever the process dies; after it, the server has exactly the staged state. An
/// interrupted restore is started again with the same backup and shares.
pub trait RestoreTarget {
    /// The number of the server's objects, which a restore would replace.
    ///
    /// # Errors
    /// The target's failure, as for every call of this trait; the restore ends, and the server
    /// keeps its state.
    fn live_objects(&self) -> Result<u64, Failure>;

    /// All tombstones of the server.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn tombstones(&self) -> Result<Vec<Record>, Failure>;

    /// Starts staging for `mark`, or resumes an interrupted restore of the *same* mark; any other
    /// staged state is dropped. Returns the number of durably staged records, which is the number
    /// of the first record passed to [`stage`](Self::stage).
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn begin(&mut self, mark: &RestoreMark) -> Result<u64, Failure>;

    /// Stages one record. Numbers grow, with gaps for records that are not staged. After a crash it
    /// may be called again with a record that is already staged.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn stage(&mut self, number: u64, record: &Record) -> Result<(), Failure>;

    /// Stages a tombstone, and removes a staged object of the same key. Called after all records
    /// are staged.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn bury(&mut self, tombstone: &Record) -> Result<(), Failure>;

    /// Makes the staged state the server's, durably and atomically, and records that it was
    /// restored.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn commit(&mut self, restored: &Restored) -> Result<(), Failure>;
}

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restored {
    /// The backup.
    pub backup: LastBackup,
    /// The custodians whose shares opened it.
    pub opened_by: Vec<CustodianName>,
    /// Objects of the backup that stay destroyed, because they were destroyed before it or since.
    pub buried: u64,
}

/// One ceremony at which a backup is opened, and the shares given so far.
#[derive(Debug)]
pub struct RestoreSession {
    path: PathBuf,
    header: Header,
    shares: Vec<Share>,
}

impl RestoreSession {
    /// Starts with the backup of this content at `path`.
    ///
    /// # Errors
    /// [`BackupError::NotABackup`], [`BackupError::OfOther`], [`BackupError::Newer`],
    /// [`BackupError::System`].
    pub fn open(path: &Path, content: Content) -> Result<Self, BackupError> {
        let header = header::read_header(path)?;
        if header.content != content {
            let (found, wanted) = (header.content, content);
            return Err(BackupError::OfOther { path: path.to_owned(), found, wanted });
        }
        Ok(Self { path: path.to_owned(), header, shares: Vec::new() })
    }

    /// The backup's header; authentic only once it has been verified.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many more shares are needed.
    pub fn missing(&self) -> usize {
        usize::from(self.header.threshold).saturating_sub(self.shares.len())
    }

    /// Adds a share: the line of text that a custodian opened. Returns the custodian's number.
    ///
    /// # Errors
    /// [`ShareError`], which names the share; earlier shares stay.
    pub fn add_share(&mut self, text: &SecretBytes) -> Result<u8, ShareError> {
        let share = Share::decode(text)?;
        let (index, header) = (share.index, &self.header);
        if share.backup != header.id {
            return Err(ShareError::OtherBackup { index, share_of: share.backup, wanted: header.id });
        }
        // At most CUSTODIANS_MAX, which fits.
        let total = header.custodians.len() as u8;
        if (share.threshold, share.total) != (header.threshold, total) {
            return Err(ShareError::OtherThreshold {
                index,
                share_threshold: share.threshold,
                share_total: share.total,
                threshold: header.threshold,
                total,
            });
        }
        if self.shares.iter().any(|given| given.index == index) {
            return Err(ShareError::Twice { index });
        }
        self.shares.push(share);
        Ok(index)
    }

    /// Reads the whole backup and checks every byte of it. Changes nothing.
    ///
    /// # Errors
    /// [`BackupError::TooFewShares`], [`BackupError::WrongKey`], [`BackupError::Damaged`].
    pub fn verify(&self) -> Result<Counts, BackupError> {
        let key = self.key()?;
        self.read(&key, |_, _| Ok(())).map(|read| read.counts)
    }

    /// Passes each record of the backup to `take`, after checking every byte of the file. An error
    /// of `take` ends it.
    ///
    /// # Errors
    /// As [`verify`](Self::verify); [`BackupError::Target`].
    pub fn read_records(
        &self,
        mut take: impl FnMut(&Record) -> Result<(), Failure>,
    ) -> Result<LastBackup, BackupError> {
        let key = self.key()?;
        let checked = self.read(&key, |_, _| Ok(()))?;
        let read = self.read(&key, |_, record| take(record).map_err(BackupError::Target))?;
        if read.manifest_sha256 != checked.manifest_sha256 {
            let why = "it was replaced by another while it was read".to_owned();
            return Err(BackupError::NotABackup { path: self.path.clone(), why });
        }
        Ok(LastBackup::new(&self.header, read.counts))
    }

    /// Replaces the state of `target` by the backup's. A server that has objects is replaced only
    /// if `replace` is set.
    ///
    /// The target does not change until the whole backup has been checked and staged. Objects with
    /// a tombstone in the backup or the target are not restored, and tombstones come last.
    ///
    /// # Errors
    /// As [`verify`](Self::verify); [`BackupError::NotEmpty`]; [`BackupError::Target`].
    pub fn restore(&self, target: &mut dyn RestoreTarget, replace: bool) -> Result<Restored, BackupError> {
        let key = self.key()?;
        let present = target.tombstones().map_err(BackupError::Target)?;
        let mut dead: HashSet<Vec<u8>> = present.iter().map(|tombstone| tombstone.key.clone()).collect();
        let checked = self.read(&key, |_, record| {
            if record.kind == RecordKind::Tombstone {
                dead.insert(record.key.clone());
            }
            Ok(())
        })?;
        let objects = target.live_objects().map_err(BackupError::Target)?;
        if objects > 0 && !replace {
            return Err(BackupError::NotEmpty { objects });
        }

        let mark = RestoreMark { backup: self.header.id, manifest_sha256: checked.manifest_sha256 };
        let staged = target.begin(&mark).map_err(BackupError::Target)?;
        let mut buried = 0;
        self.read(&key, |number, record| {
            match record.kind {
                RecordKind::Tombstone => return Ok(()),
                RecordKind::Object if dead.contains(&record.key) => {
                    buried += 1;
                    return Ok(());
                }
                RecordKind::Ledger
                | RecordKind::Authority
                | RecordKind::Object
                | RecordKind::Entry
                | RecordKind::File => {}
            }
            if number < staged {
                return Ok(());
            }
            target.stage(number, record).map_err(BackupError::Target)
        })?;
        self.read(&key, |_, record| match record.kind {
            RecordKind::Tombstone => target.bury(record).map_err(BackupError::Target),
            _ => Ok(()),
        })?;
        for tombstone in &present {
            target.bury(tombstone).map_err(BackupError::Target)?;
        }
        let backup = LastBackup::new(&self.header, checked.counts);
        let restored = Restored { backup, opened_by: self.given().cloned().collect(), buried };
        target.commit(&restored).map_err(BackupError::Target)?;
        Ok(restored)
    }

    /// The custodians whose shares were given.
    pub fn given(&self) -> impl Iterator<Item = &CustodianName> {
        let is_given = |index| self.shares.iter().any(|share| share.index == index);
        self.header.custodians.iter().filter(move |holder| is_given(holder.index)).map(|holder| &holder.name)
    }

    fn key(&self) -> Result<SecretBytes, BackupError> {
        let threshold = usize::from(self.header.threshold);
        if self.shares.len() < threshold {
            return Err(BackupError::TooFewShares { given: self.shares.len(), threshold });
        }
        let key = combine(&self.shares)?;
        if !self.header.is_opened_by(&key)? {
            return Err(BackupError::WrongKey { id: self.header.id });
        }
        Ok(key)
    }

    /// Passes each record and its number to `take`.
    fn read(
        &self,
        key: &SecretBytes,
        mut take: impl FnMut(u64, &Record) -> Result<(), BackupError>,
    ) -> Result<Read, BackupError> {
        let (header, line, file) = header::open(&self.path)?;
        if header != self.header {
            let why = "its header changed since the shares were taken".to_owned();
            return Err(BackupError::NotABackup { path: self.path.clone(), why });
        }
        let key = ArchiveKey::new(key, header.id, &line)?;
        let mut number = 0;
        let records = RecordReader::new(ArchiveReader::new(&key, file));
        let outcome = records.read_all(|record| {
            if record.kind.content() != header.content {
                return Err(Stopped::Broken(Broken::Damaged {
                    offset: 0,
                    why: "it has a record of something else",
                }));
            }
            take(number, &record).map_err(Stopped::Taker)?;
            number += 1;
            Ok::<(), Stopped>(())
        });
        let path = self.path.clone();
        let manifest = outcome.map_err(|stopped| match stopped {
            Stopped::Taker(error) => error,
            Stopped::Broken(Broken::System(error)) => BackupError::System { what: "read", path, error },
            Stopped::Broken(Broken::Damaged { offset, why }) => {
                BackupError::Damaged { path, offset: line.len() as u64 + offset, why }
            }
        })?;
        Ok(Read { counts: manifest.counts, manifest_sha256: manifest.sha256 })
    }
}

struct Read {
    counts: Counts,
    manifest_sha256: [u8; 32],
}

enum Stopped {
    Broken(Broken),
    Taker(BackupError),
}

impl From<Broken> for Stopped {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}
