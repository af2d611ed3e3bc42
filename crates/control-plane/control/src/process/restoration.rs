//! Restores an inventory from the entries of a backup: whole, or not at all.
//!
//! ```text
//! store.redb.restoring   the entries, then what becomes of them (`inventory/restored.rs`)
//!         -> store.redb  in one step, if there is none yet
//! ```
//!
//! A restore that was killed leaves no inventory, and is started again.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use strongroom_store::{Engine, Outcome, Store, StoreError, Transaction};

use super::state::STORE;
use crate::backup::ExportedEntry;
use crate::inventory::{Failure, Inventory, RestoredFrom, Revised};
use crate::records::META_KEY;

/// What the store is called until it is whole.
const STAGED: &str = "store.redb.restoring";
/// The most entries of a transaction, and the most bytes before it is committed.
const ENTRIES_AT_A_TIME: usize = 100;
const BYTES_AT_A_TIME: usize = 256 * 1024;

/// Why an inventory was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestorationError {
    /// There is an inventory.
    #[error(
        "{path} is there: this machine has an inventory, which a restore does not replace. If it is to be given up, \
         end `serve` and move {path} away first"
    )]
    Exists {
        /// The store.
        path: PathBuf,
    },
    /// A file failed.
    #[error("{path}: {error}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The backup has no inventory.
    #[error("there is no inventory in the backup")]
    Empty,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The inventory in the backup cannot be used.
    #[error(transparent)]
    Inventory(#[from] Failure),
}

/// A restore in progress. Unless it is [finished](Restoration::finish), nothing is left of it.
pub struct Restoration {
    directory: PathBuf,
    store: Engine,
    staged: Staged,
    entries: Transaction,
    bytes: usize,
}

/// The store's file until it has its place, where it has another name.
struct Staged(PathBuf);

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Restoration {
    /// Begins to restore into a state directory, which is made if it does not exist.
    ///
    /// # Errors
    /// [`RestorationError`], as for all methods here.
    pub fn begin(directory: &Path) -> Result<Self, RestorationError> {
        must_be_free(&directory.join(STORE))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at(directory))?;
        let staged = directory.join(STAGED);
        match fs::remove_file(&staged) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&staged)(error)),
            Ok(()) | Err(_) => {}
        }
        let store = Engine::create(&staged)?;
        let (directory, staged) = (directory.to_owned(), Staged(staged));
        Ok(Self { directory, store, staged, entries: Transaction::new(), bytes: 0 })
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: ExportedEntry) -> Result<(), RestorationError> {
        let bytes = entry.key.len() + entry.value.len();
        let is_full = self.entries.operations.len() >= ENTRIES_AT_A_TIME;
        if is_full || self.bytes + bytes > BYTES_AT_A_TIME {
            self.commit()?;
        }
        let before = std::mem::take(&mut self.entries);
        self.entries = before.put(entry.key, entry.value);
        self.bytes += bytes;
        Ok(())
    }

    fn commit(&mut self) -> Result<(), RestorationError> {
        self.bytes = 0;
        let entries = std::mem::take(&mut self.entries);
        if entries.operations.is_empty() {
            return Ok(());
        }
        match self.store.commit(entries)? {
            // It has no conditions.
            Outcome::Committed(_) | Outcome::Conflict(_) => Ok(()),
        }
    }

    /// Makes the entries an inventory that can be used, and gives it its place.
    pub fn finish(mut self, from: &RestoredFrom) -> Result<Revised, RestorationError> {
        self.commit()?;
        if self.store.get(META_KEY.as_bytes())?.is_none() {
            return Err(RestorationError::Empty);
        }
        let Self { directory, store, staged, .. } = self;
        let inventory = Inventory::open(Arc::new(store))?;
        let revised = inventory.revise_restored(from)?;
        // Closes the store.
        drop(inventory);
        let path = directory.join(STORE);
        match rustix::fs::renameat_with(CWD, &staged.0, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(RestorationError::Exists { path }),
            Err(errno) => return Err(at(&path)(errno.into())),
        }
        strongroom_files::sync_directory(&directory).map_err(at(&directory))?;
        Ok(revised)
    }
}

fn must_be_free(path: &Path) -> Result<(), RestorationError> {
    match path.symlink_metadata() {
        Ok(_) => Err(RestorationError::Exists { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(path)(error)),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> RestorationError {
    let path = path.to_owned();
    move |error| RestorationError::File { path, error }
}
