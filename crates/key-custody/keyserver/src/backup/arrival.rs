//! Receives a backup from a server in pieces: whole, durable and unchanged, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use strongroom_files::{PRIVATE_MODE, directory_of, sync_directory};

use super::create::{partial_of, put_in_place, system};
use super::error::BackupError;

/// Bytes read at a time for a digest.
const PIECE_BYTES: usize = 64 << 10;

/// A file in transfer. Unless it is [finished](Arrival::finish), it is removed.
#[derive(Debug)]
pub struct Arrival {
    path: PathBuf,
    partial: PathBuf,
    file: File,
}

impl Arrival {
    /// Begins a file that will become `path`, which must not exist.
    ///
    /// # Errors
    /// [`BackupError::Exists`], [`BackupError::System`].
    pub fn at(path: &Path) -> Result<Self, BackupError> {
        if path.symlink_metadata().is_ok() {
            return Err(BackupError::Exists { path: path.to_owned() });
        }
        let partial = partial_of(path);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(PRIVATE_MODE)
            .open(&partial)
            .map_err(system("write", &partial))?;
        Ok(Self { path: path.to_owned(), partial, file })
    }

    /// Adds the next bytes.
    ///
    /// # Errors
    /// [`BackupError::System`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.file.write_all(bytes).map_err(system("write", &self.partial))
    }

    /// Makes it durable, reads it back, and gives it its name if it has this length and SHA-256.
    ///
    /// # Errors
    /// [`BackupError::NotArrived`], [`BackupError::Exists`], [`BackupError::System`].
    pub fn finish(self, length_bytes: u64, sha256: &[u8; 32]) -> Result<(), BackupError> {
        self.file.sync_all().map_err(system("write", &self.partial))?;
        let arrived = digest_of(&self.partial).map_err(system("read", &self.partial))?;
        if arrived != (length_bytes, *sha256) {
            return Err(BackupError::NotArrived { path: self.path.clone() });
        }
        put_in_place(&self.partial, &self.path)?;
        sync_directory(directory_of(&self.path)).map_err(system("make durable", &self.path))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // A leftover's name does not pass for a backup's; a finished file no longer has this name.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Length and SHA-256 of a file.
pub(crate) fn digest_of(path: &Path) -> io::Result<(u64, [u8; 32])> {
    let mut file = File::open(path)?;
    let (mut hash, mut length_bytes) = (Context::new(&SHA256), 0);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            break;
        }
        hash.update(&piece[..count]);
        length_bytes += count as u64;
    }
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(hash.finish().as_ref());
    Ok((length_bytes, sha256))
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::digest;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn it_arrives_whole_or_not_at_all() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("backup");
        let sha256: [u8; 32] = digest(&SHA256, b"one two").as_ref().try_into().unwrap();
        for (pieces, length_bytes) in
            [(&[&b"one "[..]][..], 7), (&[b"one ", b"tvo"], 7), (&[b"one ", b"two"], 8)]
        {
            let mut arrival = Arrival::at(&path).unwrap();
            pieces.iter().try_for_each(|piece| arrival.write(piece)).unwrap();
            let refused = arrival.finish(length_bytes, &sha256).unwrap_err();
            assert!(matches!(refused, BackupError::NotArrived { .. }), "{refused}");
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        }
        let mut arrival = Arrival::at(&path).unwrap();
        arrival.write(b"one two").unwrap();
        // Another process created the file first.
        fs::write(&path, b"theirs").unwrap();
        assert!(matches!(arrival.finish(7, &sha256), Err(BackupError::Exists { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert!(matches!(Arrival::at(&path), Err(BackupError::Exists { .. })));
        fs::remove_file(&path).unwrap();
        let mut arrival = Arrival::at(&path).unwrap();
        arrival.write(b"one two").unwrap();
        arrival.finish(7, &sha256).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }
}
