//! A volume's directory: its file names, and reading and replacing its descriptor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_types::LayerId;

use super::descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor, EncodedDescriptor, Integrity};
use super::error::DatastoreError;
use super::filesystem::FileSystem;
use super::log::{self, LogUse};
use super::maps::Space;
use super::places::VM_FILE;
use super::shared::SharedLayers;
use super::storage::{BY_PATH, Directory, Storage, StoredFile};

pub(super) const DESCRIPTOR: &str = "descriptor";
/// A descriptor that is being written. One that is found was never acknowledged.
pub(super) const DESCRIPTOR_NEW: &str = "descriptor.new";
/// The control socket of the process that serves an exposed volume; one of a dead process is
/// replaced.
pub const CONTROL_SOCKET: &str = "control";
const LAYER_PREFIX: &str = "layer-";
const LOG_PREFIX: &str = "log-";
const FORMER_TAGS_PREFIX: &str = "tags-";
const TAGS_PREFIX: &str = "tags2-";
const DISCARDS_PREFIX: &str = "discards-";

/// The error of a failed system call on `path`.
pub(super) fn system(action: &'static str, path: &Path) -> impl Fn(Errno) -> DatastoreError {
    move |errno| match errno {
        Errno::NOSPC | Errno::DQUOT => {
            DatastoreError::Full { path: path.to_owned(), needed: "a few more KiB".to_owned() }
        }
        Errno::NOMEDIUM => DatastoreError::NotMounted { path: path.to_owned() },
        errno => DatastoreError::System { action, path: path.to_owned(), errno },
    }
}

/// The same of an error of the standard library.
pub(super) fn system_io(action: &'static str, path: &Path, error: &std::io::Error) -> DatastoreError {
    system(action, path)(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// The file name of a layer.
pub(super) fn layer_name(layer: LayerId) -> String {
    format!("{LAYER_PREFIX}{layer}")
}

/// The file name of a layer's first-write log.
pub(super) fn log_name(layer: LayerId) -> String {
    format!("{LOG_PREFIX}{layer}")
}

/// The file name of a layer's tags.
pub(super) fn tags_name(layer: LayerId, integrity: Integrity) -> String {
    match integrity {
        Integrity::HmacSha256 => format!("{FORMER_TAGS_PREFIX}{layer}"),
        Integrity::HmacSha256Absence | Integrity::PolyvalAesAbsence => format!("{TAGS_PREFIX}{layer}"),
    }
}

/// The file name of the record of a layer's discards.
pub(super) fn discards_name(layer: LayerId) -> String {
    format!("{DISCARDS_PREFIX}{layer}")
}

/// Whether a file of a volume belongs to a layer, by the file's name. Those are large, and guests'
/// requests go to them.
pub fn is_layer_file(name: &str) -> bool {
    layer_of_name(name).is_some()
}

/// The layer that a file belongs to, by the file's name.
pub(super) fn layer_of_name(name: &str) -> Option<LayerId> {
    let parts = [LAYER_PREFIX, LOG_PREFIX, FORMER_TAGS_PREFIX, TAGS_PREFIX, DISCARDS_PREFIX];
    parts.iter().find_map(|prefix| name.strip_prefix(prefix))?.parse().ok()
}

/// A volume's directory, held open, so that changes of its path do not matter.
pub(super) struct VolumeDirectory {
    pub(super) path: PathBuf,
    pub(super) handle: Arc<dyn Directory>,
}

impl VolumeDirectory {
    pub(super) fn open(storage: &dyn Storage, path: &Path) -> Result<Self, DatastoreError> {
        Self::opened(path, storage.open_volume(path))
    }

    /// Opens a datastore, or a VM's directory in one, to look for volumes.
    pub(super) fn open_datastore(storage: &dyn Storage, path: &Path) -> Result<Self, DatastoreError> {
        Self::opened(path, storage.open_directory(path))
    }

    fn opened(path: &Path, handle: Result<Arc<dyn Directory>, Errno>) -> Result<Self, DatastoreError> {
        let handle = handle.map_err(|errno| match errno {
            Errno::NOTDIR => DatastoreError::NotAVolume { path: path.to_owned() },
            Errno::LOOP => DatastoreError::Link { path: path.to_owned() },
            errno => system("open", path)(errno),
        })?;
        Ok(Self { path: path.to_owned(), handle })
    }

    pub(super) fn file_system(&self) -> Result<FileSystem, DatastoreError> {
        self.handle.file_system(&self.path)
    }

    /// Opens a file of the volume.
    pub(super) fn file(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno> {
        self.handle.open(name, flags)
    }

    /// The names of all files, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>, DatastoreError> {
        self.handle.names().map_err(system("list", &self.path))
    }

    /// Reads the descriptor, without verifying its tag.
    pub(super) fn read_descriptor(&self) -> Result<EncodedDescriptor, DatastoreError> {
        let file = self.file(DESCRIPTOR, OFlags::RDONLY).map_err(|errno| match errno {
            Errno::NOENT => DatastoreError::NotAVolume { path: self.path.clone() },
            errno => system("open the descriptor of", &self.path)(errno),
        })?;
        let failed = |errno| system("read the descriptor of", &self.path)(errno);
        // One byte more than the limit, so that a descriptor that is too long is noticed.
        let length = file.length().map_err(failed)?.min(DESCRIPTOR_BYTES_MAX as u64 + 1);
        let mut bytes = vec![0; length as usize];
        let count = file.read_at(0, &mut bytes).map_err(failed)?;
        bytes.truncate(count);
        EncodedDescriptor::parse(&self.path, bytes)
    }

    /// Replaces the descriptor: after a power cut there is the old one or the new one, whole. The
    /// new content is durable before its name is, and the name before this returns. If there is no
    /// room, reserved space is used.
    pub(super) fn write_descriptor(&self, encoded: &[u8]) -> Result<(), DatastoreError> {
        let action = "write the descriptor of";
        let write = || match self.write_new(encoded) {
            Err(Errno::NOSPC | Errno::DQUOT) => {
                // Nothing refers to it; if it cannot be removed, the next one overwrites it.
                let _ = self.handle.remove(DESCRIPTOR_NEW);
                self.write_into_spare(encoded)
            }
            written => written.map(|()| DESCRIPTOR_NEW.to_owned()),
        };
        if let Err(errno) = write().and_then(|name| self.handle.rename(&name, DESCRIPTOR)) {
            let _ = self.handle.remove(DESCRIPTOR_NEW);
            return Err(system(action, &self.path)(errno));
        }
        self.sync()?;
        // The descriptor is in place. A missing reserve for the next one is no reason to fail.
        let _ = self.fill_spares(encoded.len() as u64);
        Ok(())
    }

    /// Durably writes a new descriptor under its temporary name.
    fn write_new(&self, encoded: &[u8]) -> Result<(), Errno> {
        let file = self.file(DESCRIPTOR_NEW, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_at(0, encoded)?;
        file.sync()
    }

    /// Makes the volume's name durable, and that of the VM's directory that holds it. The process
    /// that named it may have been killed before the name was durable; a power cut would then undo
    /// the name and lose all writes acknowledged from now on.
    pub(super) fn sync_place(&self, storage: &dyn Storage) -> Result<(), DatastoreError> {
        self.sync_name(storage, &self.path)?;
        let above = parent_of(&self.path);
        if above.file_name().is_some() && storage.exists(&above.join(VM_FILE)) {
            self.sync_name(storage, above)?;
        }
        Ok(())
    }

    fn sync_name(&self, storage: &dyn Storage, path: &Path) -> Result<(), DatastoreError> {
        match sync_parent(storage, path) {
            // A process with access to one volume may lack access to the directory above.
            Err(DatastoreError::System { errno: Errno::ACCESS, .. }) => {
                self.handle.sync_file_system().map_err(system("sync the file system of", &self.path))
            }
            synced => synced,
        }
    }

    /// Makes the directory's names durable.
    pub(super) fn sync(&self) -> Result<(), DatastoreError> {
        self.handle.sync().map_err(system("sync", &self.path))
    }
}

/// A volume as its descriptor describes it, before any key has authenticated it.
#[derive(Debug)]
pub struct DescribedVolume {
    /// The volume's directory.
    pub path: PathBuf,
    /// The descriptor. For an encrypted volume it is unverified: use it to ask for the right key or
    /// to display, but do not act on it.
    pub descriptor: Descriptor,
    /// What its files take.
    pub space: Space,
    /// The layers that other volumes have too.
    pub shared_layers: SharedLayers,
    /// The file system that holds it.
    pub file_system: FileSystem,
}

/// Reads a volume's descriptor without its key.
pub fn describe(path: &Path) -> Result<DescribedVolume, DatastoreError> {
    describe_on(BY_PATH, path)
}

/// As [`describe`], on another file system.
pub fn describe_on(storage: &dyn Storage, path: &Path) -> Result<DescribedVolume, DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    let descriptor = directory.read_descriptor()?.unverified().clone();
    let space = Space::of(&directory, &descriptor)?;
    let shared_layers = directory.shared_layers(&descriptor);
    let (path, file_system) = (path.to_owned(), directory.file_system()?);
    Ok(DescribedVolume { path, descriptor, space, shared_layers, file_system })
}

/// Describes the first-write log of the volume at `path`, which may be in use; `None` if it has
/// none.
pub fn describe_log(path: &Path) -> Result<Option<LogUse>, DatastoreError> {
    let directory = VolumeDirectory::open(BY_PATH, path)?;
    let encoded = directory.read_descriptor()?;
    let descriptor = encoded.unverified();
    match descriptor.layer(descriptor.top) {
        Some(top) => log::describe(&directory, descriptor, top),
        None => Ok(None),
    }
}

/// Makes durable the entry of `path` in the directory that holds it.
pub(super) fn sync_parent(storage: &dyn Storage, path: &Path) -> Result<(), DatastoreError> {
    let parent = parent_of(path);
    let handle = storage.open_directory(parent).map_err(system("open", parent))?;
    handle.sync().map_err(system("sync", parent))
}

/// The directory that holds `path`.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
