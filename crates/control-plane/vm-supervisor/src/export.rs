//! Copies a disk of a VM that is off for a client: into a file that it has opened, or as frames.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::{Access, OpenOptions, OpenVolume, describe, open, open_snapshot};
use strongroom_host::protocol::{
    Disk, DiskKind, DiskName, ExportNews, GuestEnd, GuestWelcome, Problem, VmSpec,
};
use strongroom_images::{ImageError, Stop};
use strongroom_io::{Disk as Stage, Plain};
use strongroom_streams::FrameWriter;
use strongroom_types::SnapshotId;
use strongroom_worker::streamed::export_stream;
use strongroom_worker::{Progress, TransferError, assemble, export_file};

use crate::guest_client::GuestClient;
use crate::hand::Converter;
use crate::job::key_problem;
use crate::keys::VmKeys;
use crate::own_volume::protection;

/// How long the last I/O of the volume's previous holder may take.
pub const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Returns the data disk with this name.
///
/// # Errors
/// If the VM has none with this name.
pub fn data_disk<'a>(spec: &'a VmSpec, name: &DiskName) -> Result<&'a Disk, Problem> {
    let is_meant = |disk: &&Disk| disk.name == *name && disk.kind == DiskKind::Data;
    let none =
        || Problem::new("no_such_disk", format!("VM {} has no disk {name} that keeps data", spec.name));
    spec.disks.iter().find(is_meant).ok_or_else(none)
}

/// Opens a disk of a VM that is off, or a snapshot of a disk, for reading. Verifies that it is the
/// VM's own volume, encrypted as configured, and not rolled back.
///
/// # Errors
/// If its key is unavailable, or its volume is another one, damaged or in use; `no_snapshot` if the
/// volume does not have the snapshot.
pub fn open_to_read(
    spec: &VmSpec,
    disk: &Disk,
    snapshot: Option<SnapshotId>,
    keys: &VmKeys,
) -> Result<OpenVolume, Problem> {
    let path = spec.volume_path(&disk.name);
    let descriptor = describe(&path)?.descriptor;
    let kek = keys.hold_for(&disk.key, Some(&descriptor));
    let kek = kek.map_err(key_problem)?;
    let options = OpenOptions {
        protection: protection(kek.as_deref()),
        access: Access::ReadOnly,
        lock_wait: LOCK_WAIT,
        least_generation: disk.least_generation,
    };
    let volume = match snapshot {
        Some(snapshot) => open_snapshot(&path, snapshot, &options)?,
        None => open(&path, &options)?,
    };
    volume.descriptor().expect_volume(&path, disk.volume)?;
    Ok(volume)
}

/// A disk that is open for copying; no other process can write to it meanwhile.
pub struct ExportedDisk {
    stage: Arc<dyn Stage<Plain>>,
    path: PathBuf,
}

impl ExportedDisk {
    /// Opens a data disk for reading.
    ///
    /// # Errors
    /// If it does not exist, its key is unavailable, or its volume is damaged or in use.
    pub fn open(spec: &VmSpec, name: &DiskName, keys: &VmKeys) -> Result<Self, Problem> {
        let disk = data_disk(spec, name)?;
        let volume = open_to_read(spec, disk, None, keys)?;
        let stage = assemble(volume).map_err(|error| Problem::new("export", error.to_string()))?;
        Ok(Self { stage, path: spec.volume_path(name) })
    }

    fn copy_into(
        &self,
        file: &File,
        converter: Option<Converter>,
        stop: Stop<'_>,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), Problem> {
        match converter {
            None => export_file(&*self.stage, file, &mut Progress { stop: stop.flag, report })
                .map_err(|error| self.failed(error)),
            Some(converter) => {
                converter.copy(None, Arc::clone(&self.stage), stop, report).map_err(|problem| {
                    match problem.code == ImageError::NoSpace.code() {
                        true => no_space(),
                        false => problem,
                    }
                })
            }
        }
    }

    fn failed(&self, error: TransferError) -> Problem {
        match error {
            TransferError::File(error) if error.kind() == io::ErrorKind::StorageFull => no_space(),
            TransferError::File(error) => {
                Problem::new("export", format!("the image cannot be written: {error}"))
            }
            error => Problem::new("export", format!("{} cannot be read: {error}", self.path.display())),
        }
    }
}

/// Sends the disk's content to a client, after a welcome: frames to their end, or to the error.
pub fn send(client: &GuestClient, disk: &ExportedDisk) {
    let size_bytes = disk.stage.limits().size_bytes;
    let begun = client.say(&GuestWelcome::Export { size_bytes });
    let begun = begun.and_then(|()| FrameWriter::begin(client.content()?, size_bytes));
    // The client is gone.
    let Ok(mut frames) = begun else { return };
    let mut progress = Progress { stop: client.stop().flag, report: &mut |_| {} };
    // A client that is gone, or has had enough, is no error of the disk.
    let _ = match export_stream(&*disk.stage, &mut frames, &mut progress) {
        Ok(()) => frames.finish().map(drop),
        Err(TransferError::File(_)) => Ok(()),
        Err(error) => frames.fail(disk.failed(error).to_string().as_bytes()),
    };
}

fn no_space() -> Problem {
    Problem::new("no_space", "the image cannot be written: its file system has no space left")
}

/// Copies the disk into a client's file, after a welcome. Reports the progress, and finally that
/// the copy is durable, or the error.
pub fn give(client: &GuestClient, file: &File, disk: &ExportedDisk, converter: Option<Converter>) {
    let size_bytes = disk.stage.limits().size_bytes;
    // The client is gone.
    if client.say(&GuestWelcome::Export { size_bytes }).is_err() {
        return;
    }
    let mut report = |bytes| client.report(&ExportNews::Copied { bytes });
    let end = match disk.copy_into(file, converter, client.stop(), &mut report) {
        Ok(()) => GuestEnd::Done,
        Err(problem) => GuestEnd::Error(problem),
    };
    let _ = client.say(&ExportNews::End(end));
}
