//! Making a volume: whole, or not at all.
//!
//! Everything is built in a hidden directory beside the place, made durable, and then renamed into place, which the
//! file system does in one step. A power cut leaves a volume or a hidden directory that `list` names as a rest.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, fallocate, fsync, ftruncate, mkdir, openat,
    renameat_with, unlinkat,
};
use rustix::io::Errno;
use strongroom_keys::{Cipher, Envelope, EnvelopeContext, Kek, Purpose};
use strongroom_types::{KeyEpoch, LayerId, VolumeId, VolumeSize};

use super::descriptor::{Descriptor, EncryptionRecord, EpochRecord, KekRecord, LayerRecord, Provisioning};
use super::directory::{VolumeDirectory, layer_name, parent_of, sync_parent, system};
use super::error::DatastoreError;
use super::filesystem;
use super::open::Protection;

/// How the name of a volume under construction starts.
pub(super) const BUILDING_PREFIX: &str = ".strongroom-new-";

/// What to make.
#[derive(Debug)]
pub struct CreateOptions<'a> {
    /// The size that the guest sees.
    pub size: VolumeSize,
    /// How space is taken.
    pub provisioning: Provisioning,
    /// Under which key; or clear.
    pub protection: Protection<'a>,
}

/// Makes a volume at `path`, whose parent is the datastore's directory (made too, if only it is missing).
pub fn create(path: &Path, options: &CreateOptions<'_>) -> Result<Descriptor, DatastoreError> {
    let name = volume_name(path)?;
    let parent = parent_of(path);
    make_datastore(parent)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let datastore = openat(CWD, parent, flags, Mode::empty()).map_err(system("open", parent))?;
    filesystem::recognise(&datastore, parent)?;
    if rustix::fs::statat(&datastore, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(DatastoreError::Exists { path: path.to_owned() });
    }

    let descriptor = describe_new(path, options)?;
    let building = Building::start(parent.join(format!("{BUILDING_PREFIX}{}", descriptor.volume)))?;
    let layer =
        building.directory.file(&layer_name(descriptor.top), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
    let layer = layer.map_err(system("create a layer of", path))?;
    size_layer(&layer, 0, &descriptor, path)?;
    fsync(&layer).map_err(system("sync a layer of", path))?;
    let encoded = descriptor.encode(path, options.protection.kek())?;
    building.directory.write_descriptor(&encoded)?;
    building.finish(path)?;
    Ok(descriptor)
}

/// Gives a volume another name in its datastore, durably. Whatever has that name already stays, and it is an error.
pub fn rename(from: &Path, to: &Path) -> Result<(), DatastoreError> {
    volume_name(to)?;
    put_in_place(from, to)?;
    sync_parent(to)
}

/// Renames without replacing; durable only when the directory is synced.
fn put_in_place(from: &Path, to: &Path) -> Result<(), DatastoreError> {
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(|errno| match errno {
        Errno::EXIST | Errno::NOTEMPTY => DatastoreError::Exists { path: to.to_owned() },
        errno => system("create", to)(errno),
    })
}

/// Gives a layer's file the length that its volume needs, and the space if it is thick; `from_bytes` is its length so far.
pub(super) fn size_layer(
    layer: &File,
    from_bytes: u64,
    descriptor: &Descriptor,
    path: &Path,
) -> Result<(), DatastoreError> {
    let bytes = descriptor.size_bytes.block_aligned_bytes();
    let sized = match descriptor.provisioning {
        Provisioning::Thin => ftruncate(layer, bytes),
        // A growth within the last block needs no more space, and there is no allocating of nothing.
        Provisioning::Thick if bytes == from_bytes => Ok(()),
        Provisioning::Thick => fallocate(layer, FallocateFlags::empty(), from_bytes, bytes - from_bytes),
    };
    sized.map_err(|errno| match errno {
        Errno::NOSPC | Errno::DQUOT => DatastoreError::Full {
            path: path.to_owned(),
            needed: strongroom_types::display_bytes(bytes - from_bytes),
        },
        errno => system("give its size to a layer of", path)(errno),
    })
}

/// The name that a path gives a volume, if it gives one.
fn volume_name(path: &Path) -> Result<&str, DatastoreError> {
    let bad = |reason| DatastoreError::BadName { path: path.to_owned(), reason };
    let name = path.file_name().ok_or_else(|| bad("it ends in '..' or in nothing"))?;
    let name = name.to_str().ok_or_else(|| bad("it is not UTF-8"))?;
    match name {
        _ if name.starts_with('.') => Err(bad("hidden names are the datastore's own")),
        _ if name.chars().any(char::is_control) => Err(bad("it holds a control character")),
        // ext4, XFS, btrfs and tmpfs agree on it.
        _ if name.len() > 255 => Err(bad("it is longer than 255 bytes")),
        _ => Ok(name),
    }
}

fn make_datastore(parent: &Path) -> Result<(), DatastoreError> {
    match mkdir(parent, Mode::RWXU) {
        Ok(()) => sync_parent(parent),
        Err(Errno::EXIST) => Ok(()),
        // Whatever else is wrong with it (read-only, not reachable) shows, better named, when it is opened.
        Err(_) if parent.is_dir() => Ok(()),
        Err(errno) => Err(system("create the datastore", parent)(errno)),
    }
}

fn describe_new(path: &Path, options: &CreateOptions<'_>) -> Result<Descriptor, DatastoreError> {
    let (volume, layer, epoch) = (VolumeId::random(), LayerId::random(), KeyEpoch::FIRST);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut descriptor = Descriptor {
        volume,
        generation: 1,
        size_bytes: options.size,
        provisioning: options.provisioning,
        created_unix_seconds: now.map_or(0, |since| since.as_secs()),
        encryption: None,
        top: layer,
        layers: vec![LayerRecord { id: layer, parent: None, epochs: Vec::new() }],
    };
    if let Some(kek) = options.protection.kek() {
        let cipher = Cipher::Aes256Xts4096;
        let envelope =
            seal_new_dek(&EnvelopeContext { purpose: Purpose::LayerData, volume, layer, epoch, cipher }, kek);
        let envelope = envelope.map_err(|error| DatastoreError::Key { path: path.to_owned(), error })?;
        descriptor.layers[0].epochs.push(EpochRecord { epoch, cipher, envelopes: vec![envelope] });
        let kek = KekRecord { id: kek.id(), source: kek.source().clone() };
        // FIRST is 1, so its successor exists; an id of 1 again would be refused as used.
        let next_epoch = epoch.next().unwrap_or(epoch);
        descriptor.encryption = Some(EncryptionRecord { kek, next_epoch });
    }
    Ok(descriptor)
}

fn seal_new_dek(context: &EnvelopeContext, kek: &Kek) -> Result<Envelope, strongroom_keys::KeyError> {
    Envelope::new(context, kek).map(|(envelope, _dek)| envelope)
}

/// A volume under construction; unless it is finished, nothing of it stays.
struct Building {
    directory: VolumeDirectory,
    path: PathBuf,
    finished: bool,
}

impl Building {
    fn start(path: PathBuf) -> Result<Self, DatastoreError> {
        mkdir(&path, Mode::RWXU).map_err(system("create", &path))?;
        let directory = VolumeDirectory::open(&path)?;
        Ok(Self { directory, path, finished: false })
    }

    /// Puts it in place. The files and their names are durable before the name that leads to them.
    fn finish(mut self, path: &Path) -> Result<(), DatastoreError> {
        self.directory.sync()?;
        put_in_place(&self.path, path)?;
        self.finished = true;
        sync_parent(path)
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        for name in self.directory.names().unwrap_or_default() {
            let _ = unlinkat(&self.directory.handle, name.as_str(), AtFlags::empty());
        }
        let _ = rustix::fs::rmdir(&self.path);
    }
}
