//! A server's record of its restore. It is part of the restored state, so every restored server has
//! it.
//!
//! `restored` in the store → JSON of [`Memory`]. The first process that opens the state writes the
//! audit record and records the backup as the last one; if it is killed, the next one repeats that.
//! So the restore is on record at least once before anything is served.

use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_audit::{AuditLog, Outcome, Record};
use strongroom_store::{Is, Store, Transaction};

use crate::actor::server;
use crate::backup::{BackupError, Restored};
use crate::state::RESTORED;

/// Why a restore cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RestoredError {
    /// The store.
    #[error(transparent)]
    Store(#[from] strongroom_store::StoreError),
    /// The audit log.
    #[error("that the server was restored cannot be put on record: {0}")]
    Audit(#[from] strongroom_audit::AuditError),
    /// The last backup cannot be recorded.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// It cannot be read.
    #[error("what the server was restored from cannot be read: {0}")]
    Damaged(#[from] serde_json::Error),
}

/// A restored server's record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    pub restored: Restored,
    /// When, in seconds since 1970.
    pub restored_unix_seconds: u64,
    /// The number of the replaced server's objects that are gone.
    pub replaced: u64,
    /// Whether it is in the audit log.
    pub is_on_record: bool,
}

/// Writes the audit record of a restore that is not recorded yet.
pub(crate) fn finish(directory: &Path, store: &dyn Store, audit: &AuditLog) -> Result<(), RestoredError> {
    let Some(entry) = store.get(RESTORED)? else { return Ok(()) };
    let memory: Memory = serde_json::from_slice(&entry.value)?;
    if memory.is_on_record {
        return Ok(());
    }
    audit.append(&record(&memory)).wait()?;
    // As of this change, the server's whole state is in that backup.
    let generation = store.snapshot()?.revision().next().0;
    memory.restored.backup.clone().at_generation(generation).remember(directory)?;
    let value = serde_json::to_vec(&Memory { is_on_record: true, ..memory })?;
    // A conflict means that another process has done it.
    store
        .commit(Transaction::new().when(RESTORED, Is::ModifiedAt(entry.mod_revision)).put(RESTORED, value))?;
    Ok(())
}

fn record(memory: &Memory) -> Record {
    let Restored { backup, opened_by, buried } = &memory.restored;
    let record = Record::new(server(), "restore", Outcome::Done)
        .object(backup.id.to_string())
        .reason("the state before this line is another one's; grants from before are refused")
        .field("backup made", backup.created_unix_seconds.to_string())
        .field("backup generation", backup.generation.to_string())
        .field("restored", memory.restored_unix_seconds.to_string())
        .field("objects", backup.counts.objects.to_string())
        .field("tombstones", backup.counts.tombstones.to_string())
        .field("stayed dead", buried.to_string())
        .field("replaced", memory.replaced.to_string());
    // One field each, because together they may exceed a record's text limit.
    opened_by
        .iter()
        .enumerate()
        .fold(record, |record, (at, name)| record.field(format!("share {}", at + 1), name.to_string()))
}
