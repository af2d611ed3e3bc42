//! The store's file: created whole or not at all, and locked against other processes.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::StorageBackend;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::error::StoreError;

/// Most bytes by which the file grows that are written with zeroes at once. A commit that
/// overwrites them takes no space, so its syncs are flushes of the device and not commits of the
/// file system's journal, which wait for other processes' writes. With more zeroes the commit that
/// grows the file would take too long.
const FILLED_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// An open file that no other process has open as a store. The lock (`flock`) ends with it.
#[derive(Debug)]
pub(super) struct LockedFile(File);

impl LockedFile {
    pub(super) fn open(path: &Path, name: &Arc<str>) -> Result<Self, StoreError> {
        let failed = |error: io::Error| StoreError::Open {
            store: Arc::clone(name),
            doing: "opened",
            reason: error.to_string().into(),
        };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse { store: Arc::clone(name) }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // If the file was replaced while the lock was awaited, it is no longer the store of that
        // name.
        let named = std::fs::metadata(path).map_err(failed)?;
        let held = file.metadata().map_err(failed)?;
        if (named.dev(), named.ino()) != (held.dev(), held.ino()) {
            return Err(StoreError::InUse { store: Arc::clone(name) });
        }
        // The process that linked the file may have been killed before the name was durable: a
        // power cut could then undo the whole store.
        sync_directory_of(path).map_err(failed)?;
        Ok(Self(file))
    }

    fn fill(&self, mut from: u64, to: u64) -> io::Result<()> {
        static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];
        while from < to {
            let count = (to - from).min(ZEROES.len() as u64);
            self.0.write_all_at(&ZEROES[..count as usize], from)?;
            from += count;
        }
        Ok(())
    }
}

impl StorageBackend for LockedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let before = self.0.metadata()?.len();
        self.0.set_len(length)?;
        if length > before && length - before <= FILLED_MAX_BYTES {
            // If there is no room, the file stays sparse, and a later write there fails.
            let _ = self.fill(before, length);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn close(&self) -> io::Result<()> {
        self.0.unlock()
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str() != OsStr::new("") => parent,
        _ => Path::new("."),
    }
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

/// A file that has no name yet (`O_TMPFILE`), so that a store that was not finished leaves nothing.
pub(super) struct Nameless {
    file: File,
    path: PathBuf,
}

impl Nameless {
    /// Makes one in the directory of `path`, and locks it.
    pub(super) fn create(path: &Path) -> io::Result<(Self, LockedFile)> {
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let directory = directory_of(path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?);
        file.try_lock().map_err(io::Error::from)?;
        let handle = LockedFile(file.try_clone()?);
        Ok((Self { file, path: path.to_owned() }, handle))
    }

    /// Gives it its name, durably; refuses to replace another file.
    pub(super) fn appear(self) -> io::Result<()> {
        // Syncs length and attributes, too: redb asked only for `fdatasync`.
        self.file.sync_all()?;
        let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(CWD, open, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
        sync_directory_of(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_in_the_current_directory() {
        assert_eq!(directory_of(Path::new("store.redb")), Path::new("."));
        assert_eq!(directory_of(Path::new("a/store.redb")), Path::new("a"));
        assert_eq!(directory_of(Path::new("/store.redb")), Path::new("/"));
    }
}
