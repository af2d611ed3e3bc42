//! Adds a new top to a volume in use: it is prepared beforehand, and the layer below it is
//! completed afterwards.
//!
//! ```text
//! prepare   the descriptor names an empty top over the layer that still takes writes, which is `closing`
//! take over the process that does the I/O writes to the new top; the caller sees to that
//! settle    the lower layer is complete and durable: the descriptor says so, and its log goes
//! ```
//!
//! A power cut between these steps is harmless. Before the change-over the new top is empty, and
//! after it the lower layer takes no writes. Either way the top is opened over a layer that is
//! recovered as a top would be. So the change-over itself writes nothing.

use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_types::LayerId;

use super::add_layer::{
    AddLayerOptions, OldTop, Placement, make_durable, put_in_place, refuse_an_open_log, refuse_unclosed,
    refuse_unsettled_tags, remove_layers, remove_leftovers, with_a_layer,
};
use super::descriptor::Descriptor;
use super::directory::{VolumeDirectory, log_name, system};
use super::disk::{LayerBlocks, OpenLayer};
use super::error::DatastoreError;
use super::group::{GroupMark, GroupPart, GroupTerms};
use super::head::VolumeHead;
use super::log;
use super::open::{Access, Deks, OpenOptions, Protection};
use super::open_files::Opening;
use super::snapshots::NewSnapshot;

/// The new top is empty and no other process locks it, so there is no wait.
const LOCK_WAIT: Duration = Duration::ZERO;

impl VolumeHead {
    /// Durably puts a new, empty top over the layer that another process writes to.
    ///
    /// # Errors
    /// If the layer below the top is not complete yet, the volume has too many layers, or there is
    /// no room. The volume is then unchanged.
    pub fn prepare_layer(
        &mut self,
        protection: Protection<'_>,
        log_bytes: Option<u64>,
    ) -> Result<(), DatastoreError> {
        self.put_top(protection, log_bytes, None)
    }

    /// As [`Self::prepare_layer`], for a snapshot of several volumes: the same descriptor has the
    /// volume's part of it.
    ///
    /// # Errors
    /// [`DatastoreError::OtherGroup`], and those of [`Self::prepare_layer`].
    pub fn prepare_part(
        &mut self,
        snapshot: &NewSnapshot,
        terms: GroupTerms,
        protection: Protection<'_>,
        log_bytes: Option<u64>,
    ) -> Result<(), DatastoreError> {
        self.refuse_a_second_group()?;
        snapshot.check(&self.directory.path, &self.descriptor)?;
        let part = GroupPart::of(snapshot, self.descriptor.top, terms);
        self.put_top(protection, log_bytes, Some(part))
    }

    fn put_top(
        &mut self,
        protection: Protection<'_>,
        log_bytes: Option<u64>,
        part: Option<GroupPart>,
    ) -> Result<(), DatastoreError> {
        let descriptor = self.descriptor.clone();
        self.put_top_of(&descriptor, protection, log_bytes, part)
    }

    /// Durably puts a new, empty top on `descriptor`, which differs from the volume's at most by
    /// the mark of a re-encryption.
    pub(super) fn put_top_of(
        &mut self,
        descriptor: &Descriptor,
        protection: Protection<'_>,
        log_bytes: Option<u64>,
        part: Option<GroupPart>,
    ) -> Result<(), DatastoreError> {
        let directory = &self.directory;
        let path = &directory.path;
        refuse_unclosed(path, descriptor)?;
        let options = AddLayerOptions { protection, log_bytes, lock_wait: LOCK_WAIT, least_generation: 0 };
        let placement = Placement { on: descriptor.top, snapshots: descriptor.snapshots.clone() };
        let file_system = directory.file_system()?;
        let (mut layered, _) =
            with_a_layer(path, descriptor, placement, OldTop::Closing, &file_system, &options)?;
        if let Some(part) = part {
            layered.group = Some(GroupMark::Part(part));
        }
        let encoded = layered.encode(path, &protection.keks())?;
        remove_leftovers(directory, &self.descriptor)?;
        put_in_place(directory, &layered, &encoded, log::FileState::InUse, protection)?;
        self.descriptor = layered;
        Ok(())
    }

    /// Opens and locks the prepared top, to which nothing has been written. Returns its open files,
    /// and the keys of its own epochs.
    ///
    /// # Errors
    /// If its files cannot be opened.
    pub fn open_prepared(&self, protection: Protection<'_>) -> Result<(OpenLayer, Deks), DatastoreError> {
        self.lock_prepared(protection)
    }

    /// As [`Self::open_prepared`], for the process itself, on any file system.
    ///
    /// # Errors
    /// If its files cannot be opened.
    pub fn prepared_blocks(&self, protection: Protection<'_>) -> Result<(LayerBlocks, Deks), DatastoreError> {
        let (top, deks) = self.lock_prepared(protection)?;
        let damaged = log::damaged(&self.directory.path, self.descriptor.top);
        Ok((top.into_blocks().map_err(damaged)?.0, deks))
    }

    fn lock_prepared(&self, protection: Protection<'_>) -> Result<(OpenLayer, Deks), DatastoreError> {
        let (directory, descriptor) = (&self.directory, &self.descriptor);
        let path = &directory.path;
        let top = descriptor.layer(descriptor.top).ok_or_else(|| DatastoreError::Damaged {
            path: path.clone(),
            reason: "it has no top".to_owned(),
        })?;
        let (access, least_generation) = (Access::ReadWrite, descriptor.generation);
        let options = OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation };
        let file_system = directory.file_system()?;
        let sharing = Some(access.sharing());
        let opening = Opening { directory, file_system, descriptor, options: &options, sharing };
        let mut layer = opening.open(top)?;
        layer.set_new();
        let mut deks = self.deks(protection)?;
        deks.retain(|(epoch, _)| top.epochs.iter().any(|record| record.epoch == *epoch));
        Ok((layer, deks))
    }

    /// Removes a prepared top. Nothing may have been written to it.
    pub fn withdraw_layer(&mut self, protection: Protection<'_>) -> Result<(), DatastoreError> {
        let mut without = self.descriptor.clone();
        let Some(at) = without.layers.iter().position(|layer| layer.closing) else { return Ok(()) };
        let (top, size) = (without.top, without.layer_size(&without.layers[at]));
        let withdrawn: Vec<_> = without.layers.extract_if(.., |layer| layer.id == top).collect();
        let Some(closing) = without.layers.iter_mut().find(|layer| layer.closing) else { return Ok(()) };
        (closing.closing, closing.size_bytes) = (false, None);
        (without.top, without.size_bytes) = (closing.id, size);
        if without.part().is_some_and(|part| part.snapshot.layer == without.top) {
            without.group = None;
        }
        without.generation += 1;
        self.replace_descriptor(without, &protection.keks())?;
        remove_layers(&self.directory, &withdrawn);
        Ok(())
    }

    /// Records that the layer below the top is complete and durable, as the process that does the
    /// I/O reports. Makes it the layer of `snapshot`, if one is given.
    ///
    /// # Errors
    /// If its log is not empty, or the volume already has such a snapshot.
    pub fn settle_layer(
        &mut self,
        snapshot: Option<&NewSnapshot>,
        protection: Protection<'_>,
    ) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        let Some(closing) = self.descriptor.closing() else { return Ok(()) };
        let id = closing.id;
        if closing.log.is_some() {
            let log = self.directory.file(&log_name(id), OFlags::RDONLY).map_err(|errno| match errno {
                Errno::NOENT => DatastoreError::MissingLog { path: path.clone(), layer: id },
                errno => system("open the log of", path)(errno),
            })?;
            if !log::is_closed_empty(&*log, id).map_err(log::damaged(path, id))? {
                return Err(DatastoreError::LogNotEmpty { path: path.clone(), layer: id });
            }
        }
        let mut settled = settled(&self.descriptor);
        if let Some(snapshot) = snapshot {
            snapshot.check(path, &settled)?;
            settled.snapshots.push(snapshot.of(id));
        }
        self.replace_descriptor(settled, &protection.keks())?;
        remove_log(&self.directory, id);
        Ok(())
    }
}

/// Settles the layer below the top if its last user left it complete. Returns whether the
/// descriptor has changed.
pub(super) fn settle_if_complete(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    layer: &OpenLayer,
    deks: &Deks,
    protection: Protection<'_>,
) -> Result<bool, DatastoreError> {
    let (Some(record), Some(closing)) = (descriptor.closing(), layer.lower.first()) else { return Ok(false) };
    let path: &Path = &directory.path;
    let is_complete = refuse_an_open_log(path, record.id, closing)
        .and_then(|()| refuse_unsettled_tags(path, record.id, closing, deks));
    match is_complete {
        Ok(()) => {}
        Err(DatastoreError::LogNotEmpty { .. } | DatastoreError::TagsNotSettled { .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    make_durable(path, closing)?;
    let encoded = settled(descriptor).encode(path, &protection.keks())?;
    directory.write_descriptor(&encoded)?;
    remove_log(directory, record.id);
    Ok(true)
}

/// The descriptor of a volume whose layers below the top are all complete.
fn settled(descriptor: &Descriptor) -> Descriptor {
    let mut settled = descriptor.clone();
    for layer in settled.layers.iter_mut().filter(|layer| layer.closing) {
        (layer.closing, layer.log) = (false, None);
    }
    settled.generation += 1;
    settled
}

/// Removes the log of a layer that no longer has one.
fn remove_log(directory: &VolumeDirectory, layer: LayerId) {
    // The process that does the I/O has it open as long as it serves the layer, and reads nothing
    // there any more: its space is given back now.
    if let Ok(log) = directory.file(&log_name(layer), OFlags::RDWR) {
        let _ = log.set_length(0);
    }
    // No descriptor names it any more: if it stays, it is a leftover.
    let _ = directory.handle.remove(&log_name(layer));
}
