//! The control plane's interface to backups of its inventory: what is in one, and where it goes.
//!
//! A backup is sealed by the rooms that hold keys, so this is a trait. What is sealed has no key in
//! it, but everything else that an attacker could use: SHA-256 of tokens, hashes of passwords,
//! secrets shared with identity providers.

use std::time::Duration;

use strongroom_api::backup::InventoryBackup;
use strongroom_store::{Entries, KeyRange, Snapshot, StoreError};

use crate::records::{ACCESS_HEAD_KEY, AccessAnchorRecord, AccessRecord, Record};

/// Whether a backup has the access log, which may be larger than all the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogPart {
    /// It has.
    Included,
    /// It has not: the log begins anew after a restore.
    LeftOut,
}

/// The entries of a backup, at one revision. The inventory may change meanwhile.
pub struct Export {
    snapshot: Box<dyn Snapshot>,
    access_log: AccessLogPart,
}

/// An entry of a backup.
#[derive(Clone, PartialEq, Eq)]
pub struct ExportedEntry {
    /// Its key in the store.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

impl Export {
    /// What is to be backed up of a store.
    pub fn new(snapshot: Box<dyn Snapshot>, access_log: AccessLogPart) -> Self {
        Self { snapshot, access_log }
    }

    /// The number of the store's changes at that time.
    pub fn revision(&self) -> u64 {
        self.snapshot.revision().0
    }

    /// The entries, in the order of their keys.
    pub fn entries(&self) -> impl Iterator<Item = Result<ExportedEntry, StoreError>> {
        let all = Entries::new(&*self.snapshot, KeyRange { start: Vec::new(), end: None });
        all.filter_map(|entry| match entry {
            Ok(entry) if self.is_left_out(&entry.key) => None,
            Ok(entry) => Some(Ok(ExportedEntry { key: entry.key, value: entry.value })),
            Err(error) => Some(Err(error)),
        })
    }

    fn is_left_out(&self, key: &[u8]) -> bool {
        match self.access_log {
            AccessLogPart::Included => false,
            AccessLogPart::LeftOut => {
                key == ACCESS_HEAD_KEY.as_bytes()
                    || key.starts_with(AccessRecord::PREFIX.as_bytes())
                    || key.starts_with(AccessAnchorRecord::PREFIX.as_bytes())
            }
        }
    }
}

/// Why there is no backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackupProblem {
    /// Nobody has said where backups go, or who opens them.
    #[error("it is not set up: {0}")]
    NotSetUp(String),
    /// The directory is not the one that it was.
    #[error("{}", .0.reason)]
    Unfit(UnfitDirectory),
    /// It could not be made. No file has a backup's name because of it.
    #[error("{0}")]
    Failed(String),
}

/// Why the directory for backups takes none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfitDirectory {
    /// Why, as a sentence.
    pub reason: String,
    /// What ends it.
    pub next_step: String,
}

/// Seals backups and keeps them.
pub trait Backups: Send + Sync {
    /// Makes a backup, and removes those that are more than are kept. Blocks.
    ///
    /// # Errors
    /// [`BackupProblem`].
    fn make(&self, export: &Export) -> Result<InventoryBackup, BackupProblem>;

    /// The last backup, if its file is still there.
    fn last(&self) -> Option<InventoryBackup>;

    /// Why the directory would take no backup now; `None` if nothing speaks against it. Blocks as
    /// long as its file system does.
    fn unfit(&self) -> Option<UnfitDirectory>;

    /// How often one is made without a request; `None` for never.
    fn every(&self) -> Option<Duration>;

    /// Whether those that are made without a request have the access log.
    fn access_log(&self) -> AccessLogPart;
}
