//! Opening a volume: lock, read the descriptor, authenticate it, open the keys, and only then anything else.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_keys::{Cipher, EnvelopeContext, Kek, Purpose};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{KeyEpoch, VolumeSize};

use super::descriptor::{Descriptor, EncodedDescriptor, LayerRecord, LogRecord};
use super::directory::{VolumeDirectory, layer_name, log_name, system, tags_name};
use super::disk::{FileDisk, LayerFacts, LockedLayer, LogFacts, OpenLayer};
use super::error::DatastoreError;
use super::filesystem::FileSystemKind;
use super::head::VolumeHead;
use super::lock::{self, Sharing};
use super::log;
use super::storage::{HOST, Storage, StoredFile};
use super::tags::{self, TagsFacts};

/// What the caller accepts: a volume under this key, or, explicitly, one that is not encrypted. A volume of the other
/// sort is refused, so that nobody who can edit a descriptor can make a guest's data be written clear.
#[derive(Clone, Copy, Debug)]
pub enum Protection<'a> {
    /// Encrypted, and this KEK opens it.
    Encrypted(&'a Kek),
    /// Clear, because a person chose it.
    Unencrypted,
}

impl<'a> Protection<'a> {
    pub(super) fn kek(self) -> Option<&'a Kek> {
        match self {
            Self::Encrypted(kek) => Some(kek),
            Self::Unencrypted => None,
        }
    }
}

/// What the caller wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write, alone.
    ReadWrite,
    /// Read, beside other readers.
    ReadOnly,
}

impl Access {
    fn sharing(self) -> Sharing {
        match self {
            Self::ReadWrite => Sharing::Exclusive,
            Self::ReadOnly => Sharing::Shared,
        }
    }
}

/// How to open a volume.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions<'a> {
    /// What is accepted.
    pub protection: Protection<'a>,
    /// What for.
    pub access: Access,
    /// How long to wait for whoever has it: a killed predecessor's last writes take up to 0.1 s, on a slow disk more.
    pub lock_wait: Duration,
    /// The least descriptor generation that the caller knows to exist; 0 knows nothing.
    pub least_generation: u64,
}

/// A volume that is open and locked, all of it in this process.
pub struct OpenVolume {
    /// What answers for the volume.
    pub head: VolumeHead,
    /// Its blocks.
    pub disk: Arc<FileDisk>,
    /// The file of their tags, if they have any, and what is known of it.
    pub tags: Option<(Arc<dyn StoredFile>, TagsFacts)>,
    /// The keys that seal them.
    pub deks: Deks,
}

/// The DEKs that seal a layer's blocks, by epoch, oldest first; none for a clear volume.
pub type Deks = Vec<(KeyEpoch, SecretBytes)>;

impl OpenVolume {
    /// The volume's directory.
    pub fn path(&self) -> &Path {
        self.head.path()
    }

    /// What the volume is; authenticated.
    pub fn descriptor(&self) -> &Descriptor {
        self.head.descriptor()
    }

    /// Takes the keys, for the stage that uses them; what stays behind holds none.
    pub fn take_deks(&mut self) -> Deks {
        std::mem::take(&mut self.deks)
    }

    /// Grows the volume; what is new reads as zeroes. See [`VolumeHead::grow`].
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
    open_on(HOST, path, options)
}

/// As [`open`], on another file system.
pub fn open_on(
    storage: &dyn Storage,
    path: &Path,
    options: &OpenOptions<'_>,
) -> Result<OpenVolume, DatastoreError> {
    let (head, layer, deks) = open_locked(storage, path, options)?;
    let tags = layer.tags.clone().zip(layer.facts.tags);
    Ok(OpenVolume {
        tags,
        disk: Arc::new(FileDisk::over(layer).map_err(log::damaged(path, head.descriptor().top))?),
        head,
        deks,
    })
}

/// Opens and locks the volume at `path` for two processes: one that answers for it, and one that does its I/O and gets
/// the layer and the keys.
pub fn open_apart(
    path: &Path,
    options: &OpenOptions<'_>,
) -> Result<(VolumeHead, OpenLayer, Deks), DatastoreError> {
    let (head, layer, deks) = open_locked(HOST, path, options)?;
    Ok((head, layer.hand_over(path)?, deks))
}

fn open_locked(
    storage: &dyn Storage,
    path: &Path,
    options: &OpenOptions<'_>,
) -> Result<(VolumeHead, LockedLayer, Deks), DatastoreError> {
    let deadline = Instant::now() + options.lock_wait;
    let directory = VolumeDirectory::open(storage, path)?;
    directory.file_system()?;
    // What is no volume, or not the sort that is wanted, is refused without waiting for anybody.
    refuse_the_other_sort(path, directory.read_descriptor()?.unverified(), options.protection)?;
    lock::acquire(&*directory.handle, options.access.sharing(), options.lock_wait, path)?;
    let left = OpenOptions { lock_wait: deadline.saturating_duration_since(Instant::now()), ..*options };
    let (descriptor, layer, deks) = open_layer_of(&directory, &left)?;
    Ok((VolumeHead { directory, descriptor, access: options.access }, layer, deks))
}

/// Opens and locks the volume's layer. The caller holds the directory's lock.
pub(super) fn open_layer_of(
    directory: &VolumeDirectory,
    options: &OpenOptions<'_>,
) -> Result<(Descriptor, LockedLayer, Deks), DatastoreError> {
    let path = &directory.path;
    let file_system = directory.file_system()?;
    let kind = file_system.kind;
    let (encoded, file) = lock_top(directory, kind, options)?;
    let descriptor = authenticate(path, encoded, options)?;
    if descriptor.layers.len() != 1 {
        return Err(DatastoreError::Layers { path: path.to_owned(), count: descriptor.layers.len() });
    }
    let layer = &descriptor.layers[0];
    check_length(path, layer, &*file, descriptor.size_bytes.block_aligned_bytes())?;
    let log = layer.log.map(|record| lock_log(directory, layer, record, kind, options)).transpose()?;
    let tags =
        layer.integrity.map(|_| lock_tags(directory, &descriptor, layer, kind, options)).transpose()?;
    let deks = match options.protection {
        Protection::Encrypted(kek) => open_envelopes(path, &descriptor, layer, kek)?,
        Protection::Unencrypted => Vec::new(),
    };
    let facts = LayerFacts {
        size_bytes: descriptor.size_bytes,
        provisioning: descriptor.provisioning,
        read_only: options.access == Access::ReadOnly,
        // In a clear volume a seal only says "here is something"; the first epoch stands for that.
        log: layer
            .log
            .map(|LogRecord { bytes }| LogFacts { bytes, fill_bytes_min: file_system.fill_bytes_min }),
        tags: layer.integrity.map(|_| TagsFacts {
            volume: descriptor.volume,
            layer: layer.id,
            handed_over: false,
            syncs_in_turn: file_system.syncs_in_turn,
        }),
        syncs_in_turn: file_system.syncs_in_turn,
        write_epoch: deks.last().map_or(KeyEpoch::FIRST, |(epoch, _)| *epoch),
    };
    Ok((descriptor, LockedLayer { file: file.into(), log, tags, facts }, deks))
}

/// Opens the top layer's file and locks it. The descriptor names the file, but only under the lock does it hold still: it
/// is read again until both agree.
fn lock_top(
    directory: &VolumeDirectory,
    kind: FileSystemKind,
    options: &OpenOptions<'_>,
) -> Result<(EncodedDescriptor, Box<dyn StoredFile>), DatastoreError> {
    let path = &directory.path;
    let mut encoded = directory.read_descriptor()?;
    loop {
        refuse_the_other_sort(path, encoded.unverified(), options.protection)?;
        let top = encoded.unverified().top;
        let file =
            open_layer(directory, &layer_name(top), kind, options.access).map_err(|errno| match errno {
                Errno::NOENT => DatastoreError::MissingLayer { path: path.clone(), layer: top },
                Errno::ROFS | Errno::ACCESS | Errno::PERM => {
                    DatastoreError::ReadOnly { path: path.clone(), errno }
                }
                errno => system("open a layer of", path)(errno),
            })?;
        lock::acquire(&*file, options.access.sharing(), options.lock_wait, path)?;
        let reread = directory.read_descriptor()?;
        if reread.bytes() == encoded.bytes() {
            return Ok((reread, file));
        }
        encoded = reread;
    }
}

/// Opens the layer's log and locks it: a killed predecessor's last writes to it land as late as those to the layer.
fn lock_log(
    directory: &VolumeDirectory,
    layer: &LayerRecord,
    record: LogRecord,
    kind: FileSystemKind,
    options: &OpenOptions<'_>,
) -> Result<Arc<dyn StoredFile>, DatastoreError> {
    let path = &directory.path;
    let log =
        open_layer(directory, &log_name(layer.id), kind, options.access).map_err(|errno| match errno {
            Errno::NOENT => DatastoreError::MissingLog { path: path.clone(), layer: layer.id },
            errno => system("open the log of", path)(errno),
        })?;
    lock::acquire(&*log, options.access.sharing(), options.lock_wait, path)?;
    log::check_identity(path, layer.id, &*log, record)?;
    Ok(log.into())
}

/// Opens the file of the layer's tags and locks it, for the same reason.
fn lock_tags(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    kind: FileSystemKind,
    options: &OpenOptions<'_>,
) -> Result<Arc<dyn StoredFile>, DatastoreError> {
    let path = &directory.path;
    let tags =
        open_layer(directory, &tags_name(layer.id), kind, options.access).map_err(|errno| match errno {
            Errno::NOENT => DatastoreError::MissingTags { path: path.clone(), layer: layer.id },
            errno => system("open the tags of", path)(errno),
        })?;
    lock::acquire(&*tags, options.access.sharing(), options.lock_wait, path)?;
    check_tags_length(path, layer, &*tags, descriptor)?;
    Ok(tags.into())
}

/// Refuses a file of tags that is shorter than they are.
pub(super) fn check_tags_length(
    path: &Path,
    layer: &LayerRecord,
    tags: &dyn StoredFile,
    descriptor: &Descriptor,
) -> Result<(), DatastoreError> {
    let wanted_bytes = tags::file_bytes(descriptor.size_bytes.block_aligned_bytes());
    let found_bytes = tags.length().map_err(system("examine the tags of", path))?;
    if found_bytes < wanted_bytes {
        return Err(DatastoreError::TruncatedTags {
            path: path.to_owned(),
            layer: layer.id,
            found_bytes,
            wanted_bytes,
        });
    }
    Ok(())
}

fn open_layer(
    directory: &VolumeDirectory,
    name: &str,
    kind: FileSystemKind,
    access: Access,
) -> Result<Box<dyn StoredFile>, Errno> {
    let access = match access {
        Access::ReadWrite => OFlags::RDWR,
        Access::ReadOnly => OFlags::RDONLY,
    };
    match directory.file(name, access | OFlags::DIRECT) {
        // tmpfs knows O_DIRECT since Linux 6.6; it has no device below, so nothing is lost without.
        Err(Errno::INVAL) if kind == FileSystemKind::Tmpfs => directory.file(name, access),
        opened => opened,
    }
}

fn refuse_the_other_sort(
    path: &Path,
    descriptor: &Descriptor,
    protection: Protection<'_>,
) -> Result<(), DatastoreError> {
    match (descriptor.key_source(), protection) {
        (Some(source), Protection::Unencrypted) => {
            Err(DatastoreError::Encrypted { path: path.to_owned(), source_name: source.name() })
        }
        (None, Protection::Encrypted(_)) => Err(DatastoreError::NotEncrypted { path: path.to_owned() }),
        _ => Ok(()),
    }
}

pub(super) fn authenticate(
    path: &Path,
    encoded: EncodedDescriptor,
    options: &OpenOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let descriptor = match options.protection {
        Protection::Encrypted(kek) => encoded.verify(path, kek)?,
        Protection::Unencrypted => encoded.unverified().clone(),
    };
    let (found, least) = (descriptor.generation, options.least_generation);
    if found < least {
        return Err(DatastoreError::RolledBack { path: path.to_owned(), found, least });
    }
    Ok(descriptor)
}

/// Refuses a layer that is no file, or is shorter than its volume. A longer one is the rest of a growth that a power cut
/// interrupted before its descriptor was written.
pub(super) fn check_length(
    path: &Path,
    layer: &LayerRecord,
    file: &dyn StoredFile,
    wanted_bytes: u64,
) -> Result<(), DatastoreError> {
    let found_bytes = file.length().map_err(|errno| match errno {
        Errno::NOTSUP => DatastoreError::MissingLayer { path: path.to_owned(), layer: layer.id },
        errno => system("examine a layer of", path)(errno),
    })?;
    if found_bytes < wanted_bytes {
        return Err(DatastoreError::Truncated {
            path: path.to_owned(),
            layer: layer.id,
            found_bytes,
            wanted_bytes,
        });
    }
    Ok(())
}

pub(super) fn open_envelopes(
    path: &Path,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    kek: &Kek,
) -> Result<Deks, DatastoreError> {
    let mut deks = Vec::new();
    for record in &layer.epochs {
        let Cipher::Aes256Xts4096 = record.cipher;
        let context = EnvelopeContext {
            purpose: Purpose::LayerData,
            volume: descriptor.volume,
            layer: layer.id,
            epoch: record.epoch,
            cipher: record.cipher,
        };
        let envelope =
            record.envelopes.iter().find(|envelope| envelope.kek() == kek.id()).ok_or_else(|| {
                DatastoreError::Damaged {
                    path: path.to_owned(),
                    reason: format!("key epoch {} has no envelope for KEK {}", record.epoch, kek.id()),
                }
            })?;
        let dek = envelope.open(&context, kek);
        deks.push((record.epoch, dek.map_err(|error| DatastoreError::Key { path: path.to_owned(), error })?));
    }
    Ok(deks)
}
