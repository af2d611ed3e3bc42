//! The root's files in the state directory, and the order in which they change.
//!
//! A new seal is written beside the old one, made durable, opened once, and only then renamed into
//! place. So a crash leaves the old seal or the new one, whole, and possibly an unreferenced file,
//! which the next start removes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use strongroom_files::PRIVATE_MODE;

use super::error::RootError;
use super::plain_file::{KEY_FILE_PREFIX, KEY_FILE_SUFFIX, KeyFile};
use super::record::{RECORD_BYTES_MAX, Root, Seal, Unreadable};

const RECORD: &str = "root.json";
const RECORD_STAGED: &str = "root.json.new";
const LOCK: &str = "root.lock";

/// The state directory's root files, locked against another process that changes the seal.
pub(super) struct Place {
    directory: PathBuf,
    lock: Option<File>,
}

impl Place {
    /// Does not wait: a second process gets an error.
    pub fn lock(directory: &Path) -> Result<Self, RootError> {
        let path = directory.join(LOCK);
        let system = |error| RootError::System { what: "lock", path: path.clone(), error };
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(PRIVATE_MODE)
            .open(&path)
            .map_err(system)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { directory: directory.to_owned(), lock: Some(lock) }),
            Err(Errno::WOULDBLOCK) => Err(RootError::Busy { directory: directory.to_owned() }),
            Err(errno) => Err(system(errno.into())),
        }
    }

    /// For reading the record only, which is replaced atomically.
    pub fn unlocked(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), lock: None }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn record_path(&self) -> PathBuf {
        self.directory.join(RECORD)
    }

    pub fn has_record(&self) -> Result<bool, RootError> {
        let path = self.record_path();
        path.try_exists().map_err(|error| RootError::System { what: "look for", path, error })
    }

    pub fn read_record(&self) -> Result<Root, RootError> {
        let path = self.record_path();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RootError::Missing { path });
            }
            Err(error) => return Err(RootError::System { what: "open", path, error }),
        };
        let mode = file
            .metadata()
            .map_err(|error| RootError::System { what: "look at", path: path.clone(), error })?
            .mode();
        if mode & 0o077 != 0 {
            return Err(RootError::Mode { path, mode: mode & 0o7777 });
        }
        let mut text = Vec::new();
        file.take(RECORD_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(|error| RootError::System {
            what: "read",
            path: path.clone(),
            error,
        })?;
        if text.len() > RECORD_BYTES_MAX {
            return Err(RootError::Damaged {
                path,
                why: format!("it is longer than {RECORD_BYTES_MAX} bytes"),
            });
        }
        Root::decode(&text).map_err(|unreadable| match unreadable {
            Unreadable::Newer(format) => RootError::Newer { path, format },
            Unreadable::Damaged(why) => RootError::Damaged { path, why },
        })
    }

    /// Replaces the present record by `record`, after `check` has opened it.
    ///
    /// On an error the previous record stays. The order is: write the key file, write the record
    /// beside, check, rename the record into place, and last remove the previous seal's key file.
    /// So the record in place always names an existing key file.
    pub fn publish(
        &self,
        record: &Root,
        key_file: Option<&KeyFile>,
        check: &dyn Fn(&Self) -> Result<(), RootError>,
    ) -> Result<(), RootError> {
        self.publish_until(record, key_file, check, &|_| Ok(()))
    }

    /// As [`publish`](Self::publish); an error of `before`, which is called before each step, stops
    /// it there without cleaning up, like a crash.
    pub(super) fn publish_until(
        &self,
        record: &Root,
        key_file: Option<&KeyFile>,
        check: &dyn Fn(&Self) -> Result<(), RootError>,
        before: &dyn Fn(Step) -> Result<(), RootError>,
    ) -> Result<(), RootError> {
        let staged = self.directory.join(RECORD_STAGED);
        before(Step::WriteKeyFile)?;
        if let Some(KeyFile { name, key }) = key_file {
            self.write_durably(&self.directory.join(name), key.expose())?;
            self.sync()?;
        }
        before(Step::StageRecord)?;
        let text = record
            .encode()
            .map_err(|error| RootError::Damaged { path: staged.clone(), why: error.to_string() })?;
        self.write_durably(&staged, &text)?;
        before(Step::Check)?;
        if let Err(error) = check(self) {
            // The record in place is complete without these; if they cannot be removed now, the
            // next start does it.
            let _ = fs::remove_file(&staged);
            if let Some(KeyFile { name, .. }) = key_file {
                let _ = fs::remove_file(self.directory.join(name));
            }
            return Err(error);
        }
        before(Step::PutInPlace)?;
        let system = |error| RootError::System { what: "put in place", path: self.record_path(), error };
        fs::rename(&staged, self.record_path()).map_err(system)?;
        self.sync()?;
        before(Step::RemoveLeftovers)?;
        self.remove_leftovers(record);
        Ok(())
    }

    /// Removes leftovers of an interrupted or a former seal. Key files are overwritten first, which
    /// on most modern disks does not guarantee that the bytes are gone.
    pub fn remove_leftovers(&self, record: &Root) {
        let named = match &record.seal {
            Seal::PlainFile(seal) => Some(seal.file_name()),
            _ => None,
        };
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let file_name = entry.file_name();
            let Some(name) = file_name.to_str() else { continue };
            let is_key_file = name
                .strip_prefix(KEY_FILE_PREFIX)
                .and_then(|rest| rest.strip_suffix(KEY_FILE_SUFFIX))
                .is_some_and(|generation| generation.parse::<u64>().is_ok());
            if is_key_file && Some(name) != named.as_deref() {
                overwrite(&entry.path());
                let _ = fs::remove_file(entry.path());
            } else if name == RECORD_STAGED {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn write_durably(&self, path: &Path, content: &[u8]) -> Result<(), RootError> {
        strongroom_files::write(path, content).map_err(|error| RootError::System {
            what: "write",
            path: path.to_owned(),
            error,
        })
    }

    fn sync(&self) -> Result<(), RootError> {
        strongroom_files::sync_directory(&self.directory).map_err(|error| RootError::System {
            what: "make durable",
            path: self.directory.clone(),
            error,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Unlocked explicitly: closing alone would leave it locked while another thread's child has
        // not yet run exec.
        if let Some(lock) = &self.lock {
            let _ = rustix::fs::flock(lock, FlockOperation::Unlock);
        }
    }
}

/// The steps of [`Place::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    WriteKeyFile,
    StageRecord,
    Check,
    PutInPlace,
    RemoveLeftovers,
}

fn overwrite(path: &Path) {
    let Ok(mut file) = OpenOptions::new().write(true).open(path) else { return };
    let _ = file.write_all(&[0; super::ROOT_BYTES]).and_then(|()| file.sync_all());
}
