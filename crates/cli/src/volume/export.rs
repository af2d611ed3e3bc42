//! `strongroom volume export`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::Access;
use strongroom_files::FileError;
use strongroom_images::{Format, ImageError, qemu_img};
use strongroom_processes::Signals;
use strongroom_types::display_bytes;
use strongroom_worker::{Progress, assemble, export_file};

use super::image_format::{NewFormatArgument, stop_of};
use super::open::OpenArguments;
use crate::error::CliError;
use crate::new_file::NewFile;
use crate::output::Output;
use crate::progress::Meter;

/// The arguments of `export`.
#[derive(Debug, Args)]
#[command(
    after_help = "The image contains the guest's data in plain text, whatever protects the volume. Only \
its owner can read it. A failed or interrupted export leaves nothing behind.

Examples:
  strongroom volume export ./ds/vm1 vm1.qcow2 --format qcow2
  strongroom volume export ./ds/vm1 vm1.raw --format raw --key-file vm1.key"
)]
pub struct ExportArguments {
    /// Path of the volume
    path: PathBuf,

    /// Image file to write; must not exist
    destination: PathBuf,

    /// Format of the image
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
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        // Check this before a person types a passphrase in vain.
        if self.destination.symlink_metadata().is_ok() {
            return Err(CliError::DestinationExists { path: self.destination.clone() });
        }
        let (volume, _) = self.open.open(&self.path, Access::ReadOnly)?;
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let disk = assemble(volume)?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let destination = self.destination.display();
        output.remark(&format!("note: {destination} will hold the guest's data in plain text"));
        let image = NewFile::create(&self.destination)?;
        let mut meter = Meter::start(output, "exporting", size_bytes);
        let mut report = |bytes| meter.at(bytes);
        let format = Format::from(self.format);
        match format {
            Format::Raw => {
                let mut progress = Progress { stop: signals.stop_flag(), report: &mut report };
                export_file(&*disk, image.file(), &mut progress)
                    .map_err(|error| CliError::transfer(error, &self.path, "write", &self.destination))?;
            }
            _ => qemu_img::export(disk, format, &self.destination, stop_of(&signals), &mut report)
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
    /// A copy reports only that there was no space; here it was missing at the destination.
    fn name_what_failed(&self, error: ImageError) -> CliError {
        match error {
            ImageError::NoSpace => CliError::File(FileError {
                action: "write",
                path: self.destination.clone(),
                error: rustix::io::Errno::NOSPC.into(),
            }),
            error => error.into(),
        }
    }
}
