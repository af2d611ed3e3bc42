//! Restores a backup into a server that is not serving: staged in a store file beside the present
//! one, which it then replaces.
//!
//! 1. The present store is opened and thereby locked: no server and no other restore can start
//!    meanwhile.
//! 2. The backup's records go into `store.redb.restoring`, sealed under this server's root.
//!    Leftovers of an earlier restore are removed first, here and whenever the server starts.
//! 3. The present server's newer facts are added ([`present`](super::present)), and the record of
//!    the restore.
//! 4. One rename makes it the server's store.
//!
//! If it is killed before the last step, the server is unchanged; after it, the server is exactly
//! the restored one.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Engine, Operation, Outcome, PendingCommit, Transaction};
use strongroom_types::unix_seconds_now;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::present::{self, Place};
use super::restored::Memory;
use super::source::of_object;
use crate::authority::transfer as authority;
use crate::backup::{Failure, Record, RecordKind, RestoreMark, RestoreTarget, Restored};
use crate::objects::destruction;
use crate::objects::id::ObjectId;
use crate::objects::sealing;
use crate::objects::transfer::PlainRecord;
use crate::root::RootKey;
use crate::state::{AUTHORITY_LABEL, OBJECTS_LABEL, RESTORED, STORE_FILE, StateError, open_store};

/// The staged store.
const STAGED_FILE: &str = "store.redb.restoring";
/// Transactions that may wait for the device together: within the store's queue at any size.
const PENDING_MAX: usize = 32;
/// Operations in one transaction; within the store's limits, as the records here have a few
/// kilobytes.
const OPERATIONS_PER_TRANSACTION: usize = 32;

/// A conflict in a restore's transaction.
#[derive(Debug, thiserror::Error)]
#[error("the staged store has a record twice; the backup is not of this program")]
pub struct Collision;

const NOT_BEGUN: &str = "a restore goes on that was not begun";

/// Called before each step, where a test kills the process.
type Observed = Box<dyn FnMut()>;

/// The state of a server that is not serving.
pub struct ServerTarget {
    directory: PathBuf,
    objects_key: SecretBytes,
    authority_key: SecretBytes,
    present: Place,
    staged: Option<Staged>,
    observed: Observed,
}

impl ServerTarget {
    /// Opens and locks the state in `directory`, whose root key is `root`. Parts that the server
    /// has not created yet may be missing.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Store`] while a server has it open.
    pub fn open(directory: &Path, root: &RootKey) -> Result<Self, StateError> {
        let objects_key = root.derive(OBJECTS_LABEL)?;
        let present = Place::new(open_store(&directory.join(STORE_FILE))?, &objects_key)?;
        Ok(Self {
            directory: directory.to_owned(),
            objects_key,
            authority_key: root.derive(AUTHORITY_LABEL)?,
            present,
            staged: None,
            observed: Box::new(|| {}),
        })
    }

    /// Calls `observed` before each step.
    #[cfg(test)]
    pub(super) fn observe(&mut self, observed: impl FnMut() + 'static) {
        self.observed = Box::new(observed);
    }

    /// The staged store, for the next step.
    fn staged(&mut self) -> Result<&mut Staged, Failure> {
        (self.observed)();
        Ok(self.staged.as_mut().ok_or(NOT_BEGUN)?)
    }
}

impl RestoreTarget for ServerTarget {
    fn live_objects(&self) -> Result<u64, Failure> {
        Ok(self.present.objects.live_count()?)
    }

    fn tombstones(&self) -> Result<Vec<Record>, Failure> {
        Ok(self.present.objects.tombstones()?.into_iter().map(of_object).collect())
    }

    /// Always starts over: a restore of ten thousand keys takes seconds.
    fn begin(&mut self, _mark: &RestoreMark) -> Result<u64, Failure> {
        (self.observed)();
        remove_staged(&self.directory)?;
        (self.observed)();
        let engine = Engine::create(&self.directory.join(STAGED_FILE))?;
        let place = Place::new(Arc::new(engine), &self.objects_key)?;
        self.staged = Some(Staged { place, pending: VecDeque::new(), buried: HashSet::new() });
        Ok(0)
    }

    fn stage(&mut self, _number: u64, record: &Record) -> Result<(), Failure> {
        (self.observed)();
        let staged = self.staged.as_mut().ok_or(NOT_BEGUN)?;
        let transaction = staged.import(record, &self.present, &self.authority_key)?;
        staged.submit(transaction)
    }

    fn bury(&mut self, tombstone: &Record) -> Result<(), Failure> {
        self.staged()?.bury(tombstone)
    }

    fn commit(&mut self, restored: &Restored) -> Result<(), Failure> {
        let now = OffsetDateTime::now_utc();
        let memory = Memory {
            restored: restored.clone(),
            restored_unix_seconds: unix_seconds_now(),
            replaced: self.live_objects()?,
            is_on_record: false,
        };
        let memory = serde_json::to_vec(&memory)?;
        self.staged()?.settle()?;
        let staged = self.staged.take().ok_or(NOT_BEGUN)?;
        let mut operations = staged.place.keep_of(&self.present, now)?;
        operations.push(Operation::Put { key: RESTORED.to_vec(), value: memory, lease: None });
        for chunk in operations.chunks(OPERATIONS_PER_TRANSACTION) {
            (self.observed)();
            let transaction = Transaction { conditions: Vec::new(), operations: chunk.to_vec() };
            committed(staged.place.store.commit(transaction)?)?;
        }
        // Closed before it gets its name, so that the file of that name is always whole.
        drop(staged);
        (self.observed)();
        fs::rename(self.directory.join(STAGED_FILE), self.directory.join(STORE_FILE))?;
        (self.observed)();
        Ok(strongroom_files::sync_directory(&self.directory)?)
    }
}

/// Removes the leftovers of an interrupted restore. No other process may use the state directory.
///
/// # Errors
/// [`StateError::System`].
pub(crate) fn remove_staged(directory: &Path) -> Result<(), StateError> {
    let path = directory.join(STAGED_FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StateError::System { doing: "remove", path, error })
        }
        _ => Ok(()),
    }
}

/// The future store.
struct Staged {
    place: Place,
    pending: VecDeque<PendingCommit>,
    buried: HashSet<ObjectId>,
}

impl Staged {
    /// The transaction that puts `record` into this store.
    fn import(
        &self,
        record: &Record,
        present: &Place,
        authority_key: &SecretBytes,
    ) -> Result<Transaction, Failure> {
        let put = |value: Vec<u8>| Transaction::new().put(record.key.clone(), value);
        match record.kind {
            RecordKind::Object | RecordKind::Tombstone => {
                let object = object_in(record)?;
                Ok(match present.readable(object.id)? {
                    Some(present) => self.place.objects.import_over(&object, &present)?,
                    None => self.place.objects.import(&object)?,
                })
            }
            RecordKind::Authority => {
                let operation = authority::put(authority_key, &record.key, &record.value)?;
                Ok(Transaction { conditions: Vec::new(), operations: vec![operation] })
            }
            RecordKind::Ledger if record.key.starts_with(destruction::PREFIX) => {
                Ok(put(present::unconfirmed(&record.value)?))
            }
            RecordKind::Ledger => Ok(put(record.value.to_vec())),
            RecordKind::Entry | RecordKind::File => Err("it is a record of an inventory".into()),
        }
    }

    /// Adds a transaction to those that wait for the device.
    fn submit(&mut self, transaction: Transaction) -> Result<(), Failure> {
        if self.pending.len() >= PENDING_MAX {
            self.settle()?;
        }
        self.pending.push_back(self.place.store.submit(transaction));
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Failure> {
        self.pending.drain(..).try_for_each(|pending| committed(pending.wait()?))
    }

    fn bury(&mut self, tombstone: &Record) -> Result<(), Failure> {
        let tombstone = object_in(tombstone)?;
        // Backup and present server share many tombstones.
        if !self.buried.insert(tombstone.id) {
            return Ok(());
        }
        if self.buried.len() == 1 {
            // From here on the staged records are read; tombstones are independent of each other.
            self.settle()?;
        }
        match self.place.objects.bury(&tombstone)? {
            Some(transaction) => self.submit(transaction),
            None => Ok(()),
        }
    }
}

fn committed(outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Committed(_) => Ok(()),
        Outcome::Conflict(_) => Err(Collision.into()),
    }
}

/// An object or a tombstone from a backup.
fn object_in(record: &Record) -> Result<PlainRecord, Failure> {
    let id = record.key.as_slice().try_into().map_err(|_| "an object of the backup has no identifier")?;
    let kind = match record.kind {
        RecordKind::Tombstone => sealing::RecordKind::Tombstone,
        _ => sealing::RecordKind::Object,
    };
    let content = Zeroizing::new(record.value.to_vec());
    Ok(PlainRecord { id: ObjectId::from_bytes(id), kind, content })
}
