//! Opens a volume: locks it, reads and authenticates the descriptor, opens the keys, and only then
//! does anything else.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_keys::Kek;
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{KeyEpoch, SnapshotId, VolumeSize};

use super::closing::settle_if_complete;
use super::descriptor::{Descriptor, EncryptionRecord};
use super::directory::VolumeDirectory;
use super::discards::DiscardsFacts;
use super::disk::{FileDisk, LayerBlocks, OpenLayer};
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::lock::{self, Sharing};
use super::log;
use super::open_files::{authenticate, open_layer_of, open_settled_layers, refuse_the_other_sort};
use super::renew_tags::renew_tags;
use super::storage::{BY_PATH, Storage, StoredFile};
use super::tags::TagsFacts;

/// The protection that the caller accepts: a volume under this key, or, explicitly, one that is not
/// encrypted. A volume of the other kind is refused, so that an attacker who can edit a descriptor
/// cannot cause a guest's data to be written in the clear.
#[derive(Clone, Copy, Debug)]
pub enum Protection<'a> {
    /// Encrypted, and this KEK opens it.
    Encrypted(&'a Kek),
    /// Encrypted, and its layers are getting new DEKs under another KEK. A volume that is under one
    /// of the two alone is accepted, too: the job has not begun, or is done.
    Between {
        /// The KEK of the old DEKs.
        from: &'a Kek,
        /// The KEK of the new ones.
        to: &'a Kek,
    },
    /// Encrypted under this KEK, perhaps beside layers below the top that are clear still: a person
    /// has the volume encrypted while it is in use. What is written is sealed.
    Encrypting(&'a Kek),
    /// Encrypted under this KEK, perhaps beside layers that are clear already: a person has the
    /// volume decrypted while it is in use. What is written is clear.
    Decrypting(&'a Kek),
    /// Clear, because a person chose it.
    Unencrypted,
}

impl<'a> Protection<'a> {
    /// The KEK for a new DEK, or a new volume.
    pub(super) fn kek(self) -> Option<&'a Kek> {
        match self {
            Self::Encrypted(kek) | Self::Between { to: kek, .. } | Self::Encrypting(kek) => Some(kek),
            Self::Decrypting(_) | Self::Unencrypted => None,
        }
    }

    /// All KEKs; none for a clear volume.
    pub(super) fn keks(self) -> Vec<&'a Kek> {
        match self {
            Self::Encrypted(kek) | Self::Encrypting(kek) | Self::Decrypting(kek) => vec![kek],
            Self::Between { from, to } => vec![from, to],
            Self::Unencrypted => Vec::new(),
        }
    }

    /// The KEK for a new DEK of this volume. One that is not being re-encrypted yet has all DEKs
    /// under its present KEK.
    pub(super) fn kek_for_new(self, encryption: &EncryptionRecord) -> Option<&'a Kek> {
        match self {
            Self::Between { from, to } if encryption.keks().all(|record| record.id != to.id()) => Some(from),
            Self::Between { .. }
            | Self::Encrypted(_)
            | Self::Encrypting(_)
            | Self::Decrypting(_)
            | Self::Unencrypted => self.kek(),
        }
    }
}

/// The kind of access that the caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write, exclusively.
    ReadWrite,
    /// Read, beside other readers.
    ReadOnly,
}

impl Access {
    pub(super) fn sharing(self) -> Sharing {
        match self {
            Self::ReadWrite => Sharing::Exclusive,
            Self::ReadOnly => Sharing::Shared,
        }
    }
}

/// How to open a volume.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions<'a> {
    /// The protection that the caller accepts.
    pub protection: Protection<'a>,
    /// The kind of access.
    pub access: Access,
    /// How long to wait for the process that holds the volume: a killed predecessor's last writes
    /// take up to 0.1 s, on a slow disk more.
    pub lock_wait: Duration,
    /// The least descriptor generation that the caller knows to exist; 0 accepts any.
    pub least_generation: u64,
}

/// A volume that is open and locked, all of it in this process.
pub struct OpenVolume {
    /// The owner's side of the volume.
    pub head: VolumeHead,
    /// The blocks of its top layer.
    pub disk: Arc<FileDisk>,
    /// The file of their tags and its facts, if they have tags.
    pub tags: Option<(Arc<dyn StoredFile>, TagsFacts)>,
    /// The record of its discards and its facts, if there are layers below.
    pub discards: Option<(Arc<dyn StoredFile>, DiscardsFacts)>,
    /// The layers below, nearest first; they take no writes.
    pub lower: Vec<LayerBlocks>,
    /// The keys that seal the blocks of all layers.
    pub deks: Deks,
}

/// The DEKs that seal the blocks of a volume's layers, by epoch, oldest first; none for a clear
/// volume. Those of the top layer are the last: its epochs are the newest.
pub type Deks = Vec<(KeyEpoch, SecretBytes)>;

impl OpenVolume {
    fn of(head: VolumeHead, layer: OpenLayer, deks: Deks) -> Result<Self, DatastoreError> {
        let opened = layer.into_blocks().map_err(log::damaged(head.path(), head.descriptor().top))?;
        let (LayerBlocks { disk, tags, discards, .. }, lower) = opened;
        Ok(Self { head, disk, tags, discards, lower, deks })
    }

    /// The volume's directory.
    pub fn path(&self) -> &Path {
        self.head.path()
    }

    /// The authenticated descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        self.head.descriptor()
    }

    /// Takes the keys out, for the stage that uses them.
    pub fn take_deks(&mut self) -> Deks {
        std::mem::take(&mut self.deks)
    }

    /// Grows the volume; the new space reads as zeroes. See [`VolumeHead::grow`].
    pub fn grow(&mut self, size: VolumeSize, protection: Protection<'_>) -> Result<(), DatastoreError> {
        self.head.grow(size, protection)?;
        self.disk.set_size(size);
        Ok(())
    }
}

impl fmt::Debug for OpenVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenVolume({}, {})", self.descriptor().volume, self.path().display())
    }
}

/// Opens and locks the volume at `path`.
pub fn open(path: &Path, options: &OpenOptions<'_>) -> Result<OpenVolume, DatastoreError> {
    open_on(BY_PATH, path, options)
}

/// As [`open`], on another file system.
pub fn open_on(
    storage: &dyn Storage,
    path: &Path,
    options: &OpenOptions<'_>,
) -> Result<OpenVolume, DatastoreError> {
    let (head, layer, deks) = open_apart_on(storage, path, options)?;
    OpenVolume::of(head, layer, deks)
}

/// Opens a snapshot of the volume at `path` to read. The volume may be in use meanwhile: its layers
/// below the top do not change, and are not merged as long as they are open here.
///
/// # Errors
/// [`DatastoreError::NoSnapshot`]; [`DatastoreError::Merging`] during a merge of its layers; and
/// those of [`open`].
pub fn open_snapshot(
    path: &Path,
    snapshot: SnapshotId,
    options: &OpenOptions<'_>,
) -> Result<OpenVolume, DatastoreError> {
    open_snapshot_on(BY_PATH, path, snapshot, options)
}

/// As [`open_snapshot`], on another file system.
pub fn open_snapshot_on(
    storage: &dyn Storage,
    path: &Path,
    snapshot: SnapshotId,
    options: &OpenOptions<'_>,
) -> Result<OpenVolume, DatastoreError> {
    let (head, layer, deks) = lock_snapshot(storage, path, snapshot, options)?;
    OpenVolume::of(head, layer, deks)
}

/// Opens and locks the layers of a snapshot to read. Returns them with the descriptor of a volume
/// that has the snapshot's content.
pub(super) fn lock_snapshot(
    storage: &dyn Storage,
    path: &Path,
    snapshot: SnapshotId,
    options: &OpenOptions<'_>,
) -> Result<(VolumeHead, OpenLayer, Deks), DatastoreError> {
    let options = OpenOptions { access: Access::ReadOnly, ..*options };
    let directory = VolumeDirectory::open(storage, path)?;
    let mut encoded = directory.read_descriptor()?;
    loop {
        refuse_the_other_sort(path, encoded.unverified(), options.protection)?;
        let bytes = encoded.bytes().to_vec();
        let descriptor = authenticate(path, encoded, &options)?;
        let no_snapshot =
            || DatastoreError::NoSnapshot { path: path.to_owned(), snapshot: snapshot.to_string() };
        let descriptor = descriptor.as_of(snapshot).ok_or_else(no_snapshot)?;
        let opened = open_settled_layers(&directory, &descriptor, &options);
        // Until the layers were locked, they could be merged.
        encoded = directory.read_descriptor()?;
        if encoded.bytes() != bytes {
            continue;
        }
        let (layer, deks) = opened?;
        return Ok((VolumeHead { directory, descriptor, access: options.access }, layer, deks));
    }
}

/// Reads the descriptor of the volume at `path`, and checks that the key authenticates it and that
/// it is not too old. Nothing is locked or opened: the volume may be in use, and its descriptor may
/// be replaced a moment later. The descriptor, or a later one, is durable: the process
/// that wrote it may have been killed before it was.
///
/// # Errors
/// Those of reading and authenticating the descriptor, and of the sync.
pub fn authenticated(
    path: &Path,
    protection: Protection<'_>,
    least_generation: u64,
) -> Result<Descriptor, DatastoreError> {
    authenticated_on(BY_PATH, path, protection, least_generation)
}

/// As [`authenticated`], on another file system.
pub fn authenticated_on(
    storage: &dyn Storage,
    path: &Path,
    protection: Protection<'_>,
    least_generation: u64,
) -> Result<Descriptor, DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    let encoded = directory.read_descriptor()?;
    refuse_the_other_sort(path, encoded.unverified(), protection)?;
    let (access, lock_wait) = (Access::ReadOnly, Duration::ZERO);
    let options = OpenOptions { protection, access, lock_wait, least_generation };
    let descriptor = authenticate(path, encoded, &options)?;
    directory.sync()?;
    Ok(descriptor)
}

/// Opens and locks the volume at `path` for two processes: one that owns it, and one that does its
/// I/O and gets the layer and the keys.
pub fn open_apart(
    path: &Path,
    options: &OpenOptions<'_>,
) -> Result<(VolumeHead, OpenLayer, Deks), DatastoreError> {
    open_apart_on(BY_PATH, path, options)
}

/// As [`open_apart`], on any storage.
pub fn open_apart_on(
    storage: &dyn Storage,
    path: &Path,
    options: &OpenOptions<'_>,
) -> Result<(VolumeHead, OpenLayer, Deks), DatastoreError> {
    let deadline = Instant::now() + options.lock_wait;
    let directory = VolumeDirectory::open(storage, path)?;
    directory.file_system()?;
    // A path that is no volume, or a volume of the other kind, is refused without waiting for the
    // lock.
    refuse_the_other_sort(path, directory.read_descriptor()?.unverified(), options.protection)?;
    lock::acquire(&*directory.handle, options.access.sharing(), options.lock_wait, path)?;
    let left = OpenOptions { lock_wait: deadline.saturating_duration_since(Instant::now()), ..*options };
    let (mut descriptor, mut layer, mut deks) = open_layer_of(&directory, &left)?;
    if options.access == Access::ReadWrite {
        directory.sync_place(storage)?;
        let is_changed = settle_if_complete(&directory, &descriptor, &layer, &deks, options.protection)?
            || renew_tags(&directory, &descriptor, options.protection)?;
        if is_changed {
            drop(layer);
            (descriptor, layer, deks) = open_layer_of(&directory, &left)?;
        }
    }
    Ok((VolumeHead { directory, descriptor, access: options.access }, layer, deks))
}
