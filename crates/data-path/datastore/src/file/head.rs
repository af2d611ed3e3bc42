//! What answers for a volume: its directory, its descriptor, and the right to replace that.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, DirEntry, OFlags, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use strongroom_types::VolumeSize;

use super::descriptor::Descriptor;
use super::directory::{VolumeDirectory, layer_name};
use super::disk::OpenLayer;
use super::error::DatastoreError;
use super::layer_files;
use super::open::{Access, Deks, OpenOptions, Protection};
use super::open_files::{open_chain_envelopes, open_layer_of};

/// What stays with the process that answers for a volume while another one does its I/O. It holds
/// the directory's lock: as long as it lives, nobody else opens the volume for writing or deletes
/// it, whatever becomes of the other process. It holds no key.
pub struct VolumeHead {
    pub(super) directory: VolumeDirectory,
    pub(super) descriptor: Descriptor,
    pub(super) access: Access,
}

impl VolumeHead {
    /// The volume's directory.
    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    /// What the volume is; authenticated.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// What the volume was opened for.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether a file of the volume was removed from its directory, or the directory itself:
    /// whoever does the I/O goes on with files that nobody finds any more. What cannot be told is
    /// not gone. The names are those of open files, so no disk is asked for them.
    pub fn are_files_gone(&self) -> bool {
        let mut layers = self.descriptor.layers.iter();
        layers.any(|layer| {
            matches!(self.directory.file(&layer_name(layer.id), OFlags::RDONLY), Err(Errno::NOENT))
        })
    }

    /// Whether files of the volume are not this process's user's, which root opens by its right to.
    /// What cannot be told is not.
    pub fn has_files_of_other_users(&self) -> bool {
        let ours = geteuid().as_raw();
        let is_others = |entry: &DirEntry| {
            let found = statat(self, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            entry.file_name() != c".." && found.is_ok_and(|stat| stat.st_uid != ours)
        };
        Dir::read_from(self).is_ok_and(|entries| entries.flatten().any(|entry| is_others(&entry)))
    }

    /// Opens and locks the layers anew, after whoever did its I/O has died: waits `lock_wait` at
    /// most for the last of that I/O. The descriptor is read and authenticated anew too. It must be
    /// that of the same volume, and no older.
    pub fn reopen(
        &mut self,
        protection: Protection<'_>,
        lock_wait: Duration,
    ) -> Result<(OpenLayer, Deks), DatastoreError> {
        let least_generation = self.descriptor.generation;
        let options = OpenOptions { protection, access: self.access, lock_wait, least_generation };
        let (descriptor, layer, deks) = open_layer_of(&self.directory, &options)?;
        let layer = layer.hand_over(&self.directory.path)?;
        if descriptor.volume != self.descriptor.volume {
            return Err(DatastoreError::Replaced {
                path: self.directory.path.clone(),
                expected: self.descriptor.volume,
                found: descriptor.volume,
            });
        }
        self.descriptor = descriptor;
        Ok((layer, deks))
    }

    /// The keys of the layers once more, for another process that is to do its I/O.
    pub fn deks(&self, protection: Protection<'_>) -> Result<Deks, DatastoreError> {
        match protection {
            Protection::Encrypted(kek) => open_chain_envelopes(&self.directory.path, &self.descriptor, kek),
            Protection::Unencrypted => Ok(Vec::new()),
        }
    }

    /// Grows the volume; what is new reads as zeroes. The top layer's files grow first, and
    /// durably: a power cut before the descriptor is replaced leaves a file that is longer than
    /// needed, which harms nothing. Whoever does the I/O is told afterwards, with
    /// [`FileDisk::set_size`](super::FileDisk::set_size); until then it uses the old size.
    pub fn grow(&mut self, size: VolumeSize, protection: Protection<'_>) -> Result<(), DatastoreError> {
        let path = self.directory.path.clone();
        let from = self.descriptor.size_bytes;
        if size < from {
            return Err(DatastoreError::Shrink { path, from, to: size });
        }
        if size == from {
            return Ok(());
        }
        let mut grown = self.descriptor.clone();
        grown.size_bytes = size;
        grown.generation += 1;
        let encoded = grown.encode(&path, protection.keks())?;
        if let Some(top) = grown.layer(grown.top) {
            layer_files::grow(&self.directory, &grown, top, from, protection)?;
        }
        self.directory.write_descriptor(&encoded)?;
        self.descriptor = grown;
        Ok(())
    }
}

/// The directory itself: for what lies in it beside the volume's own files.
impl AsFd for VolumeHead {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.handle.as_fd()
    }
}

impl fmt::Debug for VolumeHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeHead({}, {})", self.descriptor.volume, self.directory.path.display())
    }
}
