//! The VM's own volumes that no guest reaches. This process holds the VM's key and opens them
//! itself.
//!
//! They are ordinary volumes: no file has their content in the clear, and flushed data survives a
//! power cut. A volume should be open only as long as needed: while it is open, it cannot be moved
//! to another key.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{
    Access, CreateOptions, DatastoreError, OpenOptions, Protection, Provisioning, create, delete, describe,
    open, rename,
};
use strongroom_host::protocol::{FILLING, KnownVolume, OwnVolume, Problem, VmSpec};
use strongroom_keys::{Kek, KeyError, MissingKey};
use strongroom_types::VolumeSize;
use strongroom_worker::{DiskAccess, MergeError, StackError, TransferError, assemble_destaged};
use thiserror::Error;

use crate::keys::VmKeys;

/// How long the last I/O of a volume's previous holder may take.
pub const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Why one of a VM's own volumes cannot be used.
#[derive(Debug, Error)]
pub enum OwnVolumeError {
    /// The volume, or its key in the descriptor, is invalid.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The VM's key is unavailable.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Its stages cannot be assembled.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The layer of its last snapshot cannot be completed.
    #[error(transparent)]
    Layers(#[from] MergeError),
    /// A read or write failed.
    #[error("{volume}: {error}")]
    Access {
        /// The volume's name.
        volume: String,
        /// The error.
        error: TransferError,
    },
}

impl OwnVolumeError {
    /// Returns the missing key with the reason, if it may become available.
    pub fn missing_key(&self) -> Option<MissingKey<'_>> {
        match self {
            Self::Key(error) | Self::Datastore(DatastoreError::Key { error, .. }) => error.missing_key(),
            _ => None,
        }
    }

    /// The problem for hostd.
    pub fn problem(&self) -> Problem {
        let code = match self {
            Self::Datastore(error) => error.code(),
            Self::Key(error) => error.code(),
            Self::Stack(_) | Self::Layers(_) | Self::Access { .. } => "own_volume",
        };
        Problem::new(code, self.to_string())
    }
}

/// Returns the key of one of the VM's own volumes, or the key for a new one, and holds it from now
/// on. Returns `None` for an unencrypted VM.
///
/// # Errors
/// Also if the key is unavailable ([`OwnVolumeError::missing_key`]), or is not the recorded one.
pub fn hold_key(keys: &VmKeys, spec: &VmSpec, which: OwnVolume) -> Result<Option<Arc<Kek>>, OwnVolumeError> {
    let path = spec.own_volume_path(which);
    let found = match is_gone(&path) {
        true => None,
        false => Some(describe(&path)?.descriptor),
    };
    Ok(keys.hold_for(spec.own_key(), found.as_ref())?)
}

/// The protection that the volume must have.
pub fn protection(kek: Option<&Kek>) -> Protection<'_> {
    kek.map_or(Protection::Unencrypted, Protection::Encrypted)
}

/// Makes the volume at `path` with its first content, unless it exists: thin, with the smallest
/// log. It gets its name when the content is complete.
///
/// # Errors
/// Also if the file system is full.
pub fn create_with(
    path: &Path,
    size: VolumeSize,
    kek: Option<&Kek>,
    content: &[u8],
) -> Result<(), OwnVolumeError> {
    if !is_gone(path) {
        return Ok(());
    }
    let mut filling = path.to_owned().into_os_string();
    filling.push(FILLING);
    let filling = Path::new(&filling);
    if !is_gone(filling) {
        delete(filling, LOCK_WAIT)?;
    }
    let (provisioning, protection) = (Provisioning::Thin, protection(kek));
    create(filling, &CreateOptions { size, provisioning, protection, log_bytes: Some(0), integrity: None })?;
    if !content.is_empty() {
        let mut volume = OpenOwnVolume::open(filling, kek)?;
        volume.write_at(0, content)?;
        volume.close()?;
    }
    Ok(rename(filling, path)?)
}

/// An open volume, for writing by one thread.
#[derive(Debug)]
pub struct OpenOwnVolume {
    access: DiskAccess,
    name: String,
}

impl OpenOwnVolume {
    /// Opens the volume at `path`.
    ///
    /// # Errors
    /// Also if it does not exist, is not under this key, or is in use for longer than 30 s.
    pub fn open(path: &Path, kek: Option<&Kek>) -> Result<Self, OwnVolumeError> {
        Self::open_within(path, kek, LOCK_WAIT)
    }

    /// As [`open`](Self::open), but waits at most this long for another holder.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_within(path: &Path, kek: Option<&Kek>, lock_wait: Duration) -> Result<Self, OwnVolumeError> {
        Self::open_expected(path, kek, lock_wait, None)
    }

    /// Opens one of the VM's own volumes, if it is the one that the control plane knows.
    ///
    /// # Errors
    /// As [`open`](Self::open); also if another volume, or an old descriptor, is in its place.
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

    /// Reads at byte `offset`.
    ///
    /// # Errors
    /// Also if the range reaches beyond the end. After an error the volume must be reopened.
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

    /// Makes all writes durable.
    ///
    /// # Errors
    /// If the flush fails.
    pub fn flush(&mut self) -> Result<(), OwnVolumeError> {
        let flushed = self.access.flush();
        flushed.map_err(|error| self.failed(error))
    }

    /// Flushes, empties the volume's log, and closes the volume.
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
        // The creation replaces the remains of an interrupted one.
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
