//! The destination of a volume that moves: a hidden directory beside its place, until all of it is
//! there.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use strongroom_types::{VolumeId, display_bytes};

use super::RelocateOptions;
use super::layer_content::LayerContent;
use super::passage::{Found, LayerOrigin, pass};
use crate::file::create::make_datastore;
use crate::file::descriptor::{Descriptor, LayerRecord, LogRecord, Provisioning};
use crate::file::directory::{
    DESCRIPTOR, DESCRIPTOR_NEW, VolumeDirectory, layer_of_name, log_name, parent_of, sync_parent, system,
};
use crate::file::error::DatastoreError;
use crate::file::filesystem::FileSystem;
use crate::file::lock::{self, Sharing};
use crate::file::open::{Access, OpenOptions, Protection};
use crate::file::open_files::{Opening, authenticate};
use crate::file::reserve::is_spare;
use crate::file::storage::Storage;
use crate::file::{layer_files, log};

/// The prefix of the name of a volume that is arriving.
pub(in crate::file) const ARRIVING_PREFIX: &str = ".strongroom-moving-";

/// Room for what the volume has at its destination beyond its layers: the descriptor and its
/// reserve, the directory.
const SLACK_BYTES: u64 = 1 << 20;

/// A volume that is arriving in a directory. It is kept as it is if it is dropped: the next attempt
/// goes on with it.
pub(super) struct Arrival<'a> {
    storage: &'a dyn Storage,
    directory: VolumeDirectory,
    /// Where the volume will be.
    place: PathBuf,
    file_system: FileSystem,
    lock_wait: Duration,
}

/// Where a volume that will lie at `place` arrives.
pub(super) fn staging_of(place: &Path, volume: VolumeId) -> PathBuf {
    parent_of(place).join(format!("{ARRIVING_PREFIX}{volume}"))
}

impl<'a> Arrival<'a> {
    /// Begins the arrival of a volume, or finds what an earlier attempt has left. The datastore is
    /// made if only its directory is missing.
    pub(super) fn begin(
        storage: &'a dyn Storage,
        place: &Path,
        volume: VolumeId,
        lock_wait: Duration,
    ) -> Result<Self, DatastoreError> {
        make_datastore(storage, parent_of(place))?;
        VolumeDirectory::open_datastore(storage, parent_of(place))?.file_system()?;
        let staging = staging_of(place, volume);
        match storage.make_directory(&staging) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(system("create", &staging)(errno)),
        }
        let directory = VolumeDirectory::open(storage, &staging)?;
        lock::acquire(&*directory.handle, Sharing::Exclusive, lock_wait, &staging)?;
        let file_system = directory.file_system()?;
        Ok(Self { storage, directory, place: place.to_owned(), file_system, lock_wait })
    }

    /// Makes sure that the volume can arrive, and removes what has of another one of its states.
    /// `bytes_of` says what the files of a layer have allocated where it comes from. Returns its
    /// descriptor at the destination.
    ///
    /// # Errors
    /// If the destination lacks room for it, or cannot hold such a volume; those of
    /// [`tidy`](Self::tidy).
    pub(super) fn expected(
        &self,
        descriptor: &Descriptor,
        bytes_of: &dyn Fn(&LayerRecord) -> u64,
    ) -> Result<Descriptor, DatastoreError> {
        let arriving = self.described(descriptor)?;
        self.tidy(&arriving)?;
        self.refuse_without_room(&arriving, bytes_of)?;
        Ok(arriving)
    }

    /// The volume's descriptor at the destination. The log of its top is as the file system there
    /// needs it.
    pub(super) fn described(&self, descriptor: &Descriptor) -> Result<Descriptor, DatastoreError> {
        let FileSystem { reserves_space, kind, .. } = self.file_system;
        if descriptor.provisioning == Provisioning::Thick && !reserves_space {
            return Err(DatastoreError::ThinOnly { path: self.place.clone(), kind });
        }
        let mut arriving = Descriptor { generation: descriptor.generation + 1, ..descriptor.clone() };
        for top in arriving.layers.iter_mut().filter(|layer| layer.id == descriptor.top) {
            let asked = top.log.map(|LogRecord { bytes }| bytes);
            let (provisioning, size) = (descriptor.provisioning, descriptor.size_bytes);
            top.log = log::record_for(&self.file_system, provisioning, asked, size);
        }
        Ok(arriving)
    }

    /// Removes what an earlier attempt has left and the volume does not have any more.
    ///
    /// # Errors
    /// [`DatastoreError::Stranger`] for a file that is no volume's.
    fn tidy(&self, arriving: &Descriptor) -> Result<(), DatastoreError> {
        for name in self.directory.names()? {
            if !layer_files::are_of(arriving, &name) || name == log_name(arriving.top) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes all but the files of these layers.
    pub(super) fn keep_only(&self, layers: &[LayerRecord]) -> Result<(), DatastoreError> {
        let is_kept = |name: &String| layers.iter().any(|layer| layer_of_name(name) == Some(layer.id));
        self.directory.names()?.iter().filter(|name| !is_kept(name)).try_for_each(|name| self.remove(name))
    }

    /// Removes all that has arrived if a copy has found no room. Returns whether it has.
    pub(super) fn gives_way<Copied>(&self, copied: &Result<Copied, DatastoreError>) -> bool {
        let is_full = matches!(copied, Err(DatastoreError::Full { .. }));
        if is_full {
            let _ = self.clear();
        }
        is_full
    }

    /// Removes all that has arrived.
    pub(super) fn clear(&self) -> Result<(), DatastoreError> {
        self.keep_only(&[])
    }

    fn remove(&self, name: &str) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        if layer_of_name(name).is_none() && ![DESCRIPTOR, DESCRIPTOR_NEW].contains(&name) && !is_spare(name) {
            return Err(DatastoreError::Stranger { path: path.clone(), stranger: name.to_owned() });
        }
        match self.directory.handle.remove(name) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(system("remove a file of", path)(errno)),
        }
    }

    /// Refuses a volume that does not fit beside what has arrived of it.
    fn refuse_without_room(
        &self,
        arriving: &Descriptor,
        bytes_of: &dyn Fn(&LayerRecord) -> u64,
    ) -> Result<(), DatastoreError> {
        let mut needed_bytes = SLACK_BYTES;
        for layer in &arriving.layers {
            let there = allocated_bytes(&self.directory, layer);
            let log_bytes = layer.log.map_or(0, |LogRecord { bytes }| bytes);
            needed_bytes = needed_bytes.saturating_add(log_bytes + bytes_of(layer).saturating_sub(there));
        }
        match self.file_system.available_bytes >= needed_bytes {
            true => Ok(()),
            false => {
                let needed = display_bytes(needed_bytes);
                Err(DatastoreError::Full { path: self.place.clone(), needed })
            }
        }
    }

    /// Copies a layer, durably, and reads it back. What an earlier attempt has left of it is
    /// compared; if it turns out to be something else, it is copied anew. `moved` learns of each
    /// piece that was written, in bytes, and can end it: the result is `None` then, and otherwise
    /// the bytes that were written.
    ///
    /// # Errors
    /// [`DatastoreError::NotRelocated`] if the datastore reads back something else, or another
    /// host has sent something else.
    pub(super) fn carry(
        &self,
        from: &mut LayerOrigin<'_>,
        arriving: &Descriptor,
        layer: &LayerRecord,
        moved: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<u64>, DatastoreError> {
        let layer = &without_log(layer);
        let mut left = match self.open(arriving, layer) {
            Err(error @ DatastoreError::InUse { .. }) => return Err(error),
            found => found.ok(),
        };
        loop {
            let (into, found) = match left.take() {
                Some(content) => (content, Found::Some),
                None => {
                    layer_files::names(layer).try_for_each(|name| self.remove(&name))?;
                    layer_files::make_for_copy(&self.directory, arriving, layer, &self.place)?;
                    (self.open(arriving, layer)?, Found::Nothing)
                }
            };
            let Some(passed) = pass(from, &into, layer, found, moved)? else { return Ok(None) };
            into.sync()?;
            let arrived = match found {
                // It was read back piece by piece.
                Found::Nothing => passed.arrived,
                Found::Some => match into.read(&mut |_| Ok(moved(0)))? {
                    Some(all) => Some(all),
                    None => return Ok(None),
                },
            };
            match found {
                _ if arrived == passed.said => return Ok(Some(passed.written_bytes)),
                Found::Some => {}
                Found::Nothing => {
                    return Err(DatastoreError::NotRelocated { path: self.place.clone(), layer: layer.id });
                }
            }
        }
    }

    /// Opens what there is of a layer here, past the page cache: what is read comes from the disk.
    fn open(&self, arriving: &Descriptor, layer: &LayerRecord) -> Result<LayerContent, DatastoreError> {
        let options = OpenOptions {
            // Not looked at: no envelope is opened.
            protection: Protection::Unencrypted,
            access: Access::ReadWrite,
            lock_wait: self.lock_wait,
            least_generation: 0,
        };
        let opening = Opening {
            directory: &self.directory,
            file_system: self.file_system,
            descriptor: arriving,
            options: &options,
            // The last writes of a killed attempt have ended.
            sharing: Some(Sharing::Exclusive),
        };
        Ok(LayerContent::of(self.place.clone(), arriving, layer, opening.open(layer)?))
    }

    /// Gives the volume its name, durably, with all files of its layers there: first the log of its
    /// top, and its descriptor, which is authentic when it is read back, and the names of all of
    /// them.
    pub(super) fn take_place(
        &self,
        arriving: &Descriptor,
        options: &RelocateOptions<'_>,
    ) -> Result<(), DatastoreError> {
        let encoded = arriving.encode(&self.place, &options.protection.keks())?;
        self.tidy(arriving)?;
        for layer in &arriving.layers {
            // It was copied, perhaps hours ago.
            self.open(arriving, &without_log(layer))?;
            if let Some(LogRecord { bytes }) = layer.log {
                log::create(&self.directory, layer.id, bytes, log::FileState::Closed, &self.place)?;
            }
        }
        self.directory.sync()?;
        self.directory.write_descriptor(&encoded)?;
        let written = self.directory.read_descriptor()?;
        if authenticate(&self.place, written, &options.to_open(Access::ReadOnly))? != *arriving {
            return Err(DatastoreError::NotRelocated { path: self.place.clone(), layer: arriving.top });
        }
        self.storage.rename(&self.directory.path, &self.place).map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY => DatastoreError::Exists { path: self.place.clone() },
            errno => system("create", &self.place)(errno),
        })?;
        sync_parent(self.storage, &self.place)
    }
}

impl Drop for Arrival<'_> {
    /// Nothing is left of an arrival that has not begun.
    fn drop(&mut self) {
        if self.directory.names().is_ok_and(|names| names.is_empty()) {
            let _ = self.storage.remove_directory(&self.directory.path);
        }
    }
}

/// What the files of a layer have allocated in a directory, without its log.
pub(super) fn allocated_bytes(directory: &VolumeDirectory, layer: &LayerRecord) -> u64 {
    let bytes_of = |name: String| directory.handle.allocated_bytes(&name).unwrap_or_default();
    layer_files::names(&without_log(layer)).map(bytes_of).sum()
}

/// The layer as it is copied: its log is empty, and another one is made.
pub(super) fn without_log(layer: &LayerRecord) -> LayerRecord {
    LayerRecord { log: None, ..layer.clone() }
}
