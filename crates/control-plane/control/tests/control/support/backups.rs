//! Backups of the inventory that are kept in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_api::backup::InventoryBackup;
use strongroom_control::backup::{AccessLogPart, BackupProblem, Backups, Export};

/// Backups in memory.
#[derive(Default)]
pub struct Shelf {
    pub made: Mutex<Vec<InventoryBackup>>,
    pub is_full: AtomicBool,
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

    fn every(&self) -> Option<Duration> {
        self.every
    }

    fn access_log(&self) -> AccessLogPart {
        AccessLogPart::Included
    }
}
