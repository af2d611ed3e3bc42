//! `strongroom vm disk import`: writes images to disks. The VM's host gets the image as an open
//! file: the control plane never sees it, and the host opens no path from outside.

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

/// The arguments of `import`.
#[derive(Debug, Args)]
#[command(after_help = "The previous content of the disk is lost.

Examples:
  strongroom vm disk import web1 disk0 debian.qcow2
  strongroom vm disk import web1 disk1 data.img --format raw")]
pub struct ImportArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk; disk0 is the first
    disk: String,

    /// Image file, or a block device
    image: PathBuf,

    #[command(flatten)]
    format: ImageArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The options for an image.
#[derive(Clone, Copy, Debug, Args)]
pub struct ImageArguments {
    /// Format of the image
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto")]
    format: FormatArgument,
}

/// An open image.
pub struct Upload {
    /// Its name, for people.
    name: String,
    file: File,
    format: ImageFormat,
    size: VolumeSize,
}

impl Upload {
    /// A file with a disk's bytes.
    pub fn raw(file: File, size: VolumeSize) -> Self {
        Self { name: "the image".to_owned(), file, format: ImageFormat::Raw, size }
    }

    /// Opens and examines the image here, where its name is known, so that a bad one is refused
    /// before any change.
    pub fn open(path: &Path, ImageArguments { format }: ImageArguments) -> Result<Self, CliError> {
        let failed = |error| CliError::File(FileError { action: "open", path: path.to_owned(), error });
        let kind = path.metadata().map_err(failed)?.file_type();
        // Opening another kind of file could block.
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

    /// Fails if the disk is smaller.
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

/// Sends an image, and waits until it has been written to the disk.
pub fn import(api: &Api, output: &Output, vm: &str, disk: &Name, image: &Upload) -> Result<Task, CliError> {
    let task = bring(api, vm, disk, image)?;
    follow(api, output, "importing", task)
}

/// Sends an image for the task that writes it to the disk.
pub fn bring(api: &Api, vm: &str, disk: &Name, image: &Upload) -> Result<Task, CliError> {
    let path = format!("/v1/vms/{}", segment(vm));
    let wanted = TicketUse::Upload { disk: disk.clone() };
    let ticket: Ticket = api.post_for(&format!("{path}/tickets"), &wanted)?;
    GuestSocket::connect(&ticket)?.send_file(&ticket, &image.file)?;
    let wish = ImportDisk { ticket: ticket.ticket, format: image.format };
    api.post(&format!("{path}/disks/{}/import", segment(disk.as_str())), &wish)
}

/// Parses the name of a disk.
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
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, disk, image, format, api } = self;
        let upload = Upload::open(image, *format)?;
        import(&api.connect()?, output, vm, &disk_name(disk)?, &upload)?;
        output.answer(&Imported { vm: vm.clone(), disk: disk.clone(), image: image.clone() })
    }
}
