//! A VM's own volumes that no guest reaches, in the process that holds the VM's key.
//!
//! They are ordinary volumes, so nothing of theirs is in a file in the clear, and a power cut
//! leaves what was flushed. Whoever opens one keeps it no longer than needed: while it is open its
//! key is not moved to another one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::{
    Access, CreateOptions, DatastoreError, OpenOptions, Protection, Provisioning, create, delete, describe,
    open, rename,
};
use strongroom_host::protocol::{FILLING, KnownVolume, OwnVolume, Problem, VmSpec};
use strongroom_keys::{Kek, KeyError, ProviderKey};
use strongroom_types::VolumeSize;
use strongroom_worker::{DiskAccess, StackError, TransferError, assemble_destaged};
use thiserror::Error;

use crate::keys::VmKeys;

/// How long the last I/O of whoever had a volume may take.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Why one of a VM's own volumes cannot be used.
#[derive(Debug, Error)]
pub enum OwnVolumeError {
    /// The volume, or its key.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The VM's key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Its stages.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// Reading or writing.
    #[error("{volume}: {error}")]
    Access {
        /// Which volume.
        volume: String,
        /// Why not.
        error: TransferError,
    },
}

impl OwnVolumeError {
    /// The key that is missing, if it may come by itself.
    pub fn missing_key(&self) -> Option<(&ProviderKey, &str)> {
        match self {
            Self::Key(error) | Self::Datastore(DatastoreError::Key { error, .. }) => match error {
                KeyError::Unavailable { key, reason, may_come_back: true } => Some((key, reason)),
                _ => None,
            },
            _ => None,
        }
    }

    /// As hostd is told.
    pub fn problem(&self) -> Problem {
        let code = match self {
            Self::Datastore(error) => error.code(),
            Self::Key(error) => error.code(),
            Self::Stack(_) | Self::Access { .. } => "own_volume",
        };
        Problem::new(code, self.to_string())
    }
}

/// The key of one of a VM's own volumes, or what it is to be made under, held from now on; none of
/// a VM that is not encrypted.
///
/// # Errors
/// Also while it cannot be had ([`OwnVolumeError::missing_key`]), and if it is another one than was
/// recorded.
pub fn hold_key(keys: &VmKeys, spec: &VmSpec, which: OwnVolume) -> Result<Option<Arc<Kek>>, OwnVolumeError> {
    let path = spec.own_volume_path(which);
    let found = match path.symlink_metadata() {
        Ok(_) => Some(describe(&path)?.descriptor),
        Err(_) => None,
    };
    Ok(keys.hold_for(spec.own_key(), found.as_ref())?)
}

/// What is accepted of a VM's own volume.
pub fn protection(kek: Option<&Kek>) -> Protection<'_> {
    kek.map_or(Protection::Unencrypted, Protection::Encrypted)
}

/// Makes the volume at `path`, unless it is there: thin, with the smallest log. It has its name
/// when it has its content.
///
/// # Errors
/// Also for want of room.
pub fn create_with(
    path: &Path,
    size: VolumeSize,
    kek: Option<&Kek>,
    content: &[u8],
) -> Result<(), OwnVolumeError> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let mut filling = path.to_owned().into_os_string();
    filling.push(FILLING);
    let filling = Path::new(&filling);
    if filling.symlink_metadata().is_ok() {
        delete(filling, LOCK_WAIT)?;
    }
    let (provisioning, protection) = (Provisioning::Thin, protection(kek));
    create(filling, &CreateOptions { size, provisioning, protection, log_bytes: Some(0), integrity: false })?;
    if !content.is_empty() {
        let mut volume = OpenOwnVolume::open(filling, kek)?;
        volume.write_at(0, content)?;
        volume.close()?;
    }
    Ok(rename(filling, path)?)
}

/// One that is open, for writing and for one thread.
#[derive(Debug)]
pub struct OpenOwnVolume {
    access: DiskAccess,
    name: String,
}

impl OpenOwnVolume {
    /// Opens the one at `path`.
    ///
    /// # Errors
    /// Also if it is not there, not under this key, or in use for longer than 30 s.
    pub fn open(path: &Path, kek: Option<&Kek>) -> Result<Self, OwnVolumeError> {
        Self::open_within(path, kek, LOCK_WAIT)
    }

    /// The same, if it is in use for no longer than that.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_within(path: &Path, kek: Option<&Kek>, lock_wait: Duration) -> Result<Self, OwnVolumeError> {
        Self::open_expected(path, kek, lock_wait, None)
    }

    /// Opens one of a VM's own, if it is the one that the control plane knows.
    ///
    /// # Errors
    /// As [`open`](Self::open); also if another volume, or an older descriptor, was put in its
    /// place.
    pub fn open_known(spec: &VmSpec, which: OwnVolume, kek: Option<&Kek>) -> Result<Self, OwnVolumeError> {
        let known = spec.known_volume(which);
        Self::open_expected(&spec.own_volume_path(which), kek, LOCK_WAIT, known)
    }

    fn open_expected(
        path: &Path,
        kek: Option<&Kek>,
        lock_wait: Duration,
        known: Option<&KnownVolume>,
    ) -> Result<Self, OwnVolumeError> {
        let (access, protection) = (Access::ReadWrite, protection(kek));
        let least_generation = known.map_or(0, |known| known.least_generation);
        let opened = open(path, &OpenOptions { protection, access, lock_wait, least_generation })?;
        opened.descriptor().expect_volume(path, known.map(|known| known.volume))?;
        let disk = assemble_destaged(opened)?;
        let name = path.display().to_string();
        let access = DiskAccess::open(&*disk)
            .map_err(|error| OwnVolumeError::Access { volume: name.clone(), error })?;
        Ok(Self { access, name })
    }

    /// Its size, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.access.size_bytes()
    }

    /// Reads what is at byte `offset`.
    ///
    /// # Errors
    /// Also if that reaches beyond the end. After an error it must be opened anew.
    pub fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<(), OwnVolumeError> {
        let read = self.access.read_at(offset, into);
        read.map_err(|error| self.failed(error))
    }

    /// Writes at byte `offset`; durable after the next flush.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), OwnVolumeError> {
        let written = self.access.write_at(offset, from);
        written.map_err(|error| self.failed(error))
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// If that cannot be said.
    pub fn flush(&mut self) -> Result<(), OwnVolumeError> {
        let flushed = self.access.flush();
        flushed.map_err(|error| self.failed(error))
    }

    /// Flushes, empties the volume's log and lets go of it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn close(mut self) -> Result<(), OwnVolumeError> {
        self.flush()
    }

    fn failed(&self, error: TransferError) -> OwnVolumeError {
        OwnVolumeError::Access { volume: self.name.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_keys::KekSource;
    use strongroom_memory::secret::SecretBytes;

    use super::*;

    const MARKER: &[u8] = b"strongroom-own-volume-marker";

    fn kek(byte: u8) -> Kek {
        KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [byte; 32]).unwrap()).unwrap()
    }

    #[test]
    fn an_own_volume_is_whole_when_it_is_there_and_sealed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("nvram");
        let (size, kek_1) = (VolumeSize::new(1 << 20).unwrap(), kek(1));
        // An attempt that was interrupted is done again.
        create_with(&scratch.path().join("nvram.filling"), size, Some(&kek(2)), b"").unwrap();
        create_with(&path, size, Some(&kek_1), MARKER).unwrap();
        create_with(&path, size, Some(&kek_1), b"it is there already").unwrap();
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
        let mut volume = OpenOwnVolume::open(&path, Some(&kek_1)).unwrap();
        let mut found = [0; MARKER.len()];
        volume.read_at(0, &mut found).unwrap();
        assert_eq!(found, MARKER);
        volume.write_at((1 << 20) - 4, b"last").unwrap();
        volume.close().unwrap();
        for entry in std::fs::read_dir(&path).unwrap() {
            let content = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!content.windows(MARKER.len()).any(|window| window == MARKER));
        }
        assert!(OpenOwnVolume::open(&path, Some(&kek(2))).is_err());
        assert!(OpenOwnVolume::open(&path, None).is_err(), "it is encrypted");
    }
}
