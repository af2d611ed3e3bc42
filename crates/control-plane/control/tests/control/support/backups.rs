//! Backups of the inventory that are kept in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_api::backup::InventoryBackup;
use strongroom_control::backup::{AccessLogPart, BackupProblem, Backups, Export, UnfitDirectory};

/// Backups in memory.
#[derive(Default)]
pub struct Shelf {
    pub made: Mutex<Vec<InventoryBackup>>,
    pub is_full: AtomicBool,
    pub is_away: AtomicBool,
    pub every: Option<Duration>,
    pub now_s: Mutex<u64>,
}

impl Backups for Shelf {
    fn make(&self, export: &Export) -> Result<InventoryBackup, BackupProblem> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(BackupProblem::Failed("no space left on device".to_owned()));
        }
        let made = InventoryBackup {
            id: uuid::Uuid::new_v4(),
            file: "/mnt/safe/one".to_owned(),
            length_bytes: 1,
            created_unix_seconds: *self.now_s.lock(),
            threshold: 2,
            custodians: Vec::new(),
            entries: export.entries().count() as u64,
        };
        self.made.lock().push(made.clone());
        Ok(made)
    }

    fn last(&self) -> Option<InventoryBackup> {
        self.made.lock().last().cloned()
    }

    fn unfit(&self) -> Option<UnfitDirectory> {
        self.is_away.load(Ordering::SeqCst).then(|| UnfitDirectory {
            reason: "/mnt/safe is not the directory that it was".to_owned(),
            next_step: "mount its file system".to_owned(),
        })
    }

    fn every(&self) -> Option<Duration> {
        self.every
    }

    fn access_log(&self) -> AccessLogPart {
        AccessLogPart::Included
    }
}
