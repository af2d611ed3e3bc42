//! From a disk of a VM that is off into a file that a client has opened.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use strongroom_datastore::file::{Access, OpenOptions, describe, open};
use strongroom_images::{Format, ImageError, Stop, qemu_img};
use strongroom_io::{Disk as Stage, Plain};
use strongroom_worker::{Progress, TransferError, assemble, export_file};

use super::keys::VmKeys;
use super::own_volume::protection;
use crate::protocol::{
    Disk, DiskKind, DiskName, ExportNews, GuestEnd, GuestWelcome, ImageFormat, Problem, VmSpec,
};

/// How long the last I/O of whoever had the volume may take.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How often a client is told how far it is.
const TELLS_EVERY: Duration = Duration::from_millis(500);

/// A disk that is open to be copied out; nobody can write to it meanwhile.
pub struct ExportedDisk {
    stage: Arc<dyn Stage<Plain>>,
    format: Format,
    path: PathBuf,
}

impl ExportedDisk {
    /// Opens a disk that keeps data, for reading.
    ///
    /// # Errors
    /// If there is none; if its key cannot be had; if its volume is damaged or in use.
    pub fn open(spec: &VmSpec, name: &DiskName, format: ImageFormat, keys: &VmKeys) -> Result<Self, Problem> {
        let is_meant = |disk: &&Disk| disk.name == *name && disk.kind == DiskKind::Data;
        let none =
            || Problem::new("no_such_disk", format!("VM {} has no disk {name} that keeps data", spec.name));
        let disk = spec.disks.iter().find(is_meant).ok_or_else(none)?;
        let format = match format {
            ImageFormat::Raw => Format::Raw,
            ImageFormat::Qcow2 => Format::Qcow2,
            ImageFormat::Vmdk => Format::Vmdk,
            ImageFormat::Vhdx => Format::Vhdx,
            ImageFormat::Auto => {
                return Err(Problem::new("bad_request", "an image is written in a format that is said"));
            }
        };
        let path = spec.volume_path(name);
        let of_volume =
            |error: strongroom_datastore::file::DatastoreError| Problem::new(error.code(), error.to_string());
        let descriptor = describe(&path).map_err(of_volume)?.descriptor;
        let kek = keys.hold_for(&disk.key, Some(&descriptor));
        let kek = kek.map_err(|error| Problem::new(error.code(), error.to_string()))?;
        let options = OpenOptions {
            protection: protection(kek.as_deref()),
            access: Access::ReadOnly,
            lock_wait: LOCK_WAIT,
            least_generation: disk.least_generation,
        };
        let volume = open(&path, &options).map_err(of_volume)?;
        volume.descriptor().expect_volume(&path, disk.volume).map_err(of_volume)?;
        let stage = assemble(volume).map_err(|error| Problem::new("export", error.to_string()))?;
        Ok(Self { stage, format, path })
    }

    fn copy_into(&self, file: &File, stop: Stop<'_>, report: &mut dyn FnMut(u64)) -> Result<(), Problem> {
        match self.format {
            Format::Raw => export_file(&*self.stage, file, &mut Progress { stop: stop.flag, report })
                .map_err(|error| self.failed(error)),
            Format::Qcow2 | Format::Vmdk | Format::Vhdx => {
                qemu_img::export_into(Arc::clone(&self.stage), self.format, file, stop, report)
                    .map_err(image_problem)
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

fn image_problem(error: ImageError) -> Problem {
    match error {
        ImageError::NoSpace => no_space(),
        error => Problem::new(error.code(), error.to_string()),
    }
}

fn no_space() -> Problem {
    Problem::new("no_space", "the image cannot be written: its file system has no space left")
}

/// Copies the disk into a client's file, after a welcome, and tells it how far it is until all of it is durable, or why not.
pub fn give(client: UnixStream, file: &File, disk: &ExportedDisk) -> Result<(), Problem> {
    let system = |error: io::Error| Problem::new("system", error.to_string());
    client.set_nonblocking(false).map_err(system)?;
    let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| system(errno.into()))?;
    let gone = AtomicBool::new(false);
    let size_bytes = disk.stage.limits().size_bytes;
    // Whoever does not hear it has no use for the image.
    if line(&client, &GuestWelcome::Export { size_bytes }).is_err() {
        return Ok(());
    }
    let mut told = None::<Instant>;
    let mut report = |bytes| {
        if told.is_some_and(|told| told.elapsed() < TELLS_EVERY) {
            return;
        }
        told = Some(Instant::now());
        if line(&client, &ExportNews::Copied { bytes }).is_err() {
            gone.store(true, Ordering::Relaxed);
            let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
        }
    };
    let end = match disk.copy_into(file, Stop { flag: &gone, wake: wake.as_fd() }, &mut report) {
        Ok(()) => GuestEnd::Done,
        Err(problem) => GuestEnd::Error(problem),
    };
    let _ = line(&client, &ExportNews::End(end));
    Ok(())
}

fn line(mut client: &UnixStream, said: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    client.write_all(&line)
}
