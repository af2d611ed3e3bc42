//! The file system as the log needs it: a real directory, or a simulated one in tests.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;

use crate::error::AuditError;

/// A directory used by one log alone. Its lock, if it has one, ends with it.
pub trait Directory: Send + Sync {
    /// The names in it, in any order.
    ///
    /// # Errors
    /// The system's.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens a file to read. With `write`, also to write, and creates a missing file.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, name: &str, write: bool) -> io::Result<Box<dyn LogFile>>;

    /// Renames a file, replacing a file of the new name.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes its names durable.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> io::Result<()>;
}

/// An open file of a log.
pub trait LogFile: Send {
    /// Its length in bytes.
    ///
    /// # Errors
    /// The system's.
    fn length(&self) -> io::Result<u64>;

    /// Reads from `offset` on, and returns the number of bytes read.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `from`.
    ///
    /// # Errors
    /// The system's; any part may have been written.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Sets the file's length.
    ///
    /// # Errors
    /// The system's.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Makes the writes durable, and the file's length.
    ///
    /// # Errors
    /// The system's; writes since the last successful sync may be lost, even if a later sync
    /// succeeds.
    fn sync(&self) -> io::Result<()>;
}

/// A real directory, for one process at a time (`flock`).
#[derive(Debug)]
pub struct OsDirectory {
    path: PathBuf,
    directory: File,
}

impl OsDirectory {
    /// Opens an existing directory, and locks it.
    ///
    /// # Errors
    /// [`AuditError::InUse`], [`AuditError::Io`].
    pub fn lock(path: &Path) -> Result<Self, AuditError> {
        let this = Self::to_read(path)?;
        match rustix::fs::flock(&this.directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(this),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(AuditError::InUse { log: Arc::from(path.display().to_string()) })
            }
            Err(error) => Err(AuditError::opening(&error.into())),
        }
    }

    /// Opens a directory without a lock, for [`verify`](crate::verify) beside a writer.
    ///
    /// # Errors
    /// [`AuditError::Io`].
    pub fn to_read(path: &Path) -> Result<Self, AuditError> {
        let directory = File::open(path).map_err(|error| AuditError::opening(&error))?;
        Ok(Self { path: path.to_owned(), directory })
    }
}

impl Directory for OsDirectory {
    fn names(&self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.path)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Box<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(write).create(write).mode(0o600);
        Ok(Box::new(OsFile(options.open(self.path.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

struct OsFile(File);

impl LogFile for OsFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(into, offset)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_all_at(from, offset)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
