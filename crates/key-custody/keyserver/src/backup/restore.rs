//! Restoring: shares one by one, then everything checked, then everything staged, then one step
//! that makes it so.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;

use super::archive::{ArchiveKey, ArchiveReader, Broken};
use super::custodian::CustodianName;
use super::error::{BackupError, ShareError};
use super::header::{self, BackupId, Header};
use super::last::LastBackup;
use super::records::{Counts, RecordReader};
use super::share::{Share, combine};
use super::{Failure, Record, RecordKind};
use strongroom_types::hex;

/// Which restore is under way, for the target to know it again after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreMark {
    /// From which backup.
    pub backup: BackupId,
    /// Which records: of the manifest of its content.
    #[serde(with = "hex::array")]
    pub manifest_sha256: [u8; 32],
}

/// Where a backup is restored to: a key server that is not serving.
///
/// All or nothing: until [`commit`](Self::commit) the server's state is what it was, whatever was
/// staged and whenever the process dies; after it, the state is the staged one and nothing else. A
/// restore that was cut short is started again with the same backup and shares.
pub trait RestoreTarget {
    /// How many objects the server has now, that a restore would replace.
    ///
    /// # Errors
    /// As for every call here: whatever keeps the target from it; the restore ends, and the state
    /// stays.
    fn live_objects(&self) -> Result<u64, Failure>;

    /// All tombstones that the server has now.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn tombstones(&self) -> Result<Vec<Record>, Failure>;

    /// Starts staging for `mark`, or goes on with what an interrupted restore of the *same* mark
    /// left; anything else that is staged is dropped. Gives how many records are staged durably:
    /// the first for which [`stage`](Self::stage) is called has that number.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn begin(&mut self, mark: &RestoreMark) -> Result<u64, Failure>;

    /// Stages one record. Numbers grow, with gaps where nothing is to be staged. May be called
    /// again, after a crash, with a record that is staged already.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn stage(&mut self, number: u64, record: &Record) -> Result<(), Failure>;

    /// Stages a tombstone, and takes away an object of the same key that is staged. Comes after all
    /// that is staged.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn bury(&mut self, tombstone: &Record) -> Result<(), Failure>;

    /// Makes the staged state the server's, durably and in one step, with the knowledge that it was
    /// restored.
    ///
    /// # Errors
    /// See [`live_objects`](Self::live_objects).
    fn commit(&mut self, restored: &Restored) -> Result<(), Failure>;
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restored {
    /// From which backup.
    pub backup: LastBackup,
    /// Whose shares opened it.
    pub opened_by: Vec<CustodianName>,
    /// Objects of the backup that stay dead, because they were destroyed before it or since.
    pub buried: u64,
}

/// One ceremony: a backup, and the shares given so far.
#[derive(Debug)]
pub struct RestoreSession {
    path: PathBuf,
    header: Header,
    shares: Vec<Share>,
}

impl RestoreSession {
    /// Starts with the backup at `path`.
    ///
    /// # Errors
    /// [`BackupError::NotABackup`], [`BackupError::Newer`], [`BackupError::System`].
    pub fn open(path: &Path) -> Result<Self, BackupError> {
        let header = header::read_header(path)?;
        Ok(Self { path: path.to_owned(), header, shares: Vec::new() })
    }

    /// What the backup says of itself; authentic only once it has been verified.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many more shares are needed.
    pub fn missing(&self) -> usize {
        usize::from(self.header.threshold).saturating_sub(self.shares.len())
    }

    /// Takes a share: the line of text that a custodian's key opened. Gives the number of its
    /// custodian.
    ///
    /// # Errors
    /// [`ShareError`], which names the share; those given before stay.
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

    /// Replaces the state of `target` by the backup's. A server that has objects is replaced only
    /// if `replace` says so.
    ///
    /// Nothing of the target changes unless the whole backup has been checked, and staged. Objects
    /// that the backup or the target says were destroyed are not restored, and tombstones come
    /// last.
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
                RecordKind::Ledger | RecordKind::Authority | RecordKind::Object => {}
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

    /// Whose shares were given.
    fn given(&self) -> impl Iterator<Item = &CustodianName> {
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

    /// Gives each record and its number to `take`.
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
