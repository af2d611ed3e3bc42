//! `strongroom volume export`.

use std::fmt;
use std::fs::{File, OpenOptions as FileOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::Access;
use strongroom_images::{Format, ImageError, qemu_img};
use strongroom_types::display_bytes;
use strongroom_worker::{Progress, assemble, export_file};

use super::image_format::NewFormatArgument;
use super::open::OpenArguments;
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;
use crate::signals::Signals;

/// Which volume, and what it becomes.
#[derive(Debug, Args)]
#[command(
    after_help = "The image holds the guest's data in plain text, whatever protects the volume. Only its owner may read it. An export \
that fails or is interrupted leaves nothing behind.

Examples:
  strongroom volume export ./ds/vm1 vm1.qcow2 --format qcow2
  strongroom volume export ./ds/vm1 vm1.raw --format raw --key-file vm1.key"
)]
pub struct ExportArguments {
    /// The volume
    path: PathBuf,

    /// The new image; must not exist
    destination: PathBuf,

    /// The image's format
    #[arg(long, value_enum)]
    format: NewFormatArgument,

    #[command(flatten)]
    open: OpenArguments,
}

#[derive(Serialize)]
struct Exported {
    path: PathBuf,
    destination: PathBuf,
    format: &'static str,
    size_bytes: u64,
    encrypted: bool,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, destination, format, size_bytes, .. } = self;
        let (path, destination) = (path.display(), destination.display());
        write!(
            f,
            "exported {path} as {destination} ({format}): {}, not encrypted",
            display_bytes(*size_bytes)
        )
    }
}

impl ExportArguments {
    /// Writes the image.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        // Nobody should type a passphrase for an image that cannot be made.
        if self.destination.symlink_metadata().is_ok() {
            return Err(CliError::DestinationExists { path: self.destination.clone() });
        }
        let (volume, _) = self.open.open(&self.path, Access::ReadOnly)?;
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let disk = assemble(volume)?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let destination = self.destination.display();
        output.remark(&format!("note: {destination} will hold the guest's data in plain text"));
        let image = NewImage::create(&self.destination)?;
        let mut meter = Meter::start(output, "exporting", size_bytes);
        let mut report = |bytes| meter.at(bytes);
        let format = Format::from(self.format);
        match format {
            Format::Raw => {
                let mut progress = Progress { stop: signals.stop_flag(), report: &mut report };
                export_file(&*disk, &image.file, &mut progress)
                    .map_err(|error| CliError::transfer(error, &self.path, "write", &self.destination))?;
            }
            _ => qemu_img::export(disk, format, &self.destination, signals.as_stop(), &mut report)
                .map_err(|error| self.name_what_failed(error))?,
        }
        drop(meter);
        image.finish()?;
        output.answer(&Exported {
            path: self.path.clone(),
            destination: self.destination.clone(),
            format: format.name(),
            size_bytes,
            encrypted: false,
        })
    }
}

impl ExportArguments {
    /// A copy says only that there was no room; it was the destination that had none.
    fn name_what_failed(&self, error: ImageError) -> CliError {
        match error {
            ImageError::NoSpace => CliError::File {
                action: "write",
                path: self.destination.clone(),
                error: rustix::io::Errno::NOSPC.into(),
            },
            error => error.into(),
        }
    }
}

/// An image under construction; unless it is finished, it is removed.
struct NewImage<'a> {
    path: &'a Path,
    file: File,
    finished: bool,
}

impl<'a> NewImage<'a> {
    fn create(path: &'a Path) -> Result<Self, CliError> {
        let created = FileOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = created.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => CliError::DestinationExists { path: path.to_owned() },
            _ => CliError::File { action: "create", path: path.to_owned(), error },
        })?;
        Ok(Self { path, file, finished: false })
    }

    /// Makes it and its name durable.
    fn finish(mut self) -> Result<(), CliError> {
        let parent =
            self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = self.file.sync_all().and_then(|()| File::open(parent)?.sync_all());
        synced.map_err(|error| CliError::File { action: "write", path: self.path.to_owned(), error })?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for NewImage<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // Whoever is told of the failure sees what is left, if anything.
            let _ = std::fs::remove_file(self.path);
        }
    }
}
