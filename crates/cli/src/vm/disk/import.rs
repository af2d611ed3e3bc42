//! `strongroom vm disk import`: images into disks. The image goes to the VM's host as an open file:
//! the control plane never sees it, and the host opens no path that somebody names.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::task::Task;
use strongroom_api::vm::{ImageFormat, ImportDisk, Ticket, TicketUse};
use strongroom_files::FileError;
use strongroom_images::{Format, ImageSource};
use strongroom_types::VolumeSize;

use super::super::console::GuestSocket;
use crate::api::{Api, ApiArguments, follow, segment};
use crate::error::CliError;
use crate::output::Output;
use crate::volume::image_format::FormatArgument;

/// Which disk, and what becomes of it.
#[derive(Debug, Args)]
#[command(after_help = "What was on the disk is gone.

Examples:
  strongroom vm disk import web1 disk0 debian.qcow2
  strongroom vm disk import web1 disk1 data.img --format raw")]
pub struct ImportArguments {
    /// The VM
    vm: String,

    /// The disk: disk0 is the first
    disk: String,

    /// The image, or a block device
    image: PathBuf,

    #[command(flatten)]
    format: ImageArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// How an image is written.
#[derive(Clone, Copy, Debug, Args)]
pub struct ImageArguments {
    /// The image's format
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto")]
    format: FormatArgument,
}

/// An image that is open.
pub struct Upload {
    /// For people.
    name: String,
    file: File,
    format: ImageFormat,
    size: VolumeSize,
}

impl Upload {
    /// A file that holds a disk byte for byte.
    pub fn raw(file: File, size: VolumeSize) -> Self {
        Self { name: "the image".to_owned(), file, format: ImageFormat::Raw, size }
    }

    /// Opens and examines it here, where its name is known, so that a bad one is refused before
    /// anything is changed.
    pub fn open(path: &Path, ImageArguments { format }: ImageArguments) -> Result<Self, CliError> {
        let failed = |error| CliError::File(FileError { action: "open", path: path.to_owned(), error });
        let kind = path.metadata().map_err(failed)?.file_type();
        // Opening anything else could block.
        if !kind.is_file() && !kind.is_block_device() {
            return Err(CliError::Usage(format!("{} is neither a file nor a block device", path.display())));
        }
        let file = File::open(path).map_err(failed)?;
        let source = ImageSource::examine(file.try_clone().map_err(failed)?, path, format.into())?;
        let format = match source.format() {
            Format::Raw => ImageFormat::Raw,
            Format::Qcow2 => ImageFormat::Qcow2,
            Format::Vmdk => ImageFormat::Vmdk,
            Format::Vhdx => ImageFormat::Vhdx,
        };
        Ok(Self { name: path.display().to_string(), file, format, size: source.size() })
    }

    /// Refuses to put it into a disk that is smaller.
    pub fn fits(&self, disk: &str, disk_size: VolumeSize) -> Result<(), CliError> {
        if self.size <= disk_size {
            return Ok(());
        }
        let (name, size, least_mib) = (&self.name, self.size, self.size.bytes().div_ceil(1 << 20));
        Err(CliError::Usage(format!(
            "{name} holds a disk of {size}, and {disk} is to have {disk_size}; give it {least_mib}M or more"
        )))
    }
}

/// Hands an image over, and waits until it is in the disk.
pub fn import(api: &Api, output: &Output, vm: &str, disk: &Name, image: &Upload) -> Result<Task, CliError> {
    let task = bring(api, vm, disk, image)?;
    follow(api, output, "importing", task)
}

/// Hands an image over, for the task that puts it into the disk.
pub fn bring(api: &Api, vm: &str, disk: &Name, image: &Upload) -> Result<Task, CliError> {
    let path = format!("/v1/vms/{}", segment(vm));
    let wanted = TicketUse::Upload { disk: disk.clone() };
    let ticket: Ticket = api.post_for(&format!("{path}/tickets"), &wanted)?;
    GuestSocket::connect(&ticket)?.send_file(&ticket, &image.file)?;
    let wish = ImportDisk { ticket: ticket.ticket, format: image.format };
    api.post(&format!("{path}/disks/{}/import", segment(disk.as_str())), &wish)
}

/// The name of a disk that somebody has given.
pub fn disk_name(text: &str) -> Result<Name, CliError> {
    Name::new(text).map_err(|error| CliError::Usage(error.to_string()))
}

#[derive(Serialize)]
struct Imported {
    vm: String,
    disk: String,
    image: PathBuf,
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} holds {}", self.disk, self.vm, self.image.display())
    }
}

impl ImportArguments {
    /// Does it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, disk, image, format, api } = self;
        let upload = Upload::open(image, *format)?;
        import(&api.connect()?, output, vm, &disk_name(disk)?, &upload)?;
        output.answer(&Imported { vm: vm.clone(), disk: disk.clone(), image: image.clone() })
    }
}
