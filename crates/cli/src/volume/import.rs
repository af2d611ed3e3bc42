//! `strongroom volume import`.

use std::fmt;
use std::fs::{File, OpenOptions as FileOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{Access, CreateOptions, DatastoreError, OpenOptions, describe, open};
use strongroom_io::IoError;
use strongroom_types::{SECTOR_BYTES, SizeError, VolumeSize, display_bytes};
use strongroom_worker::{Progress, TransferError, assemble_destaged, import_file};

use super::create::ProvisioningArguments;
use super::describe::VolumeFacts;
use super::staged::StagedVolume;
use crate::error::CliError;
use crate::image::{Format, FormatChoice, ImageError, qemu_img, refuse_references};
use crate::keys::{NewKeyArguments, VolumeKey};
use crate::output::Output;
use crate::progress::Meter;
use crate::signals::Signals;

/// Which image, and which volume it becomes.
#[derive(Debug, Args)]
#[command(
    after_help = "Images of other formats than raw are read by qemu-img in a sandbox that holds nothing else. An image that refers to \
another file (backing file, data file, extents) is refused. With --format auto the format is taken from the image's \
first bytes, but an image named .raw or .img that starts as another format is refused: its guest may have written that. \
An import that fails or is interrupted leaves nothing behind.

Examples:
  strongroom volume import disk.qcow2 ./ds/vm1
  strongroom volume import /dev/vg0/vm1 ./ds/vm1 --key-file vm1.key"
)]
pub struct ImportArguments {
    /// The image, or a block device
    source: PathBuf,

    /// The new volume
    path: PathBuf,

    /// The image's format
    #[arg(long, value_enum, default_value = "auto")]
    format: FormatChoice,

    #[command(flatten)]
    provisioning: ProvisioningArguments,

    #[command(flatten)]
    key: NewKeyArguments,
}

#[derive(Serialize)]
struct Imported {
    source: PathBuf,
    format: &'static str,
    #[serde(flatten)]
    volume: VolumeFacts,
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, format, volume } = self;
        let protection = if volume.encryption.is_some() { "encrypted" } else { "NOT encrypted" };
        let (size, allocated) = (display_bytes(volume.size_bytes), display_bytes(volume.allocated_bytes));
        let (source, path) = (source.display(), volume.path.display());
        write!(f, "imported {source} ({format}) as {path}: {size}, {allocated} allocated, {protection}")
    }
}

impl ImportArguments {
    /// Makes the volume and fills it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let file = open_image(&self.source)?;
        let format = self.format.decide(&file, &self.source)?;
        refuse_references(format, &file, &self.source)?;
        let size_bytes = match format {
            Format::Raw => raw_size_bytes(&file, &self.source)?,
            _ => qemu_img::virtual_size_bytes(format, &file, &self.source)?,
        };
        let size = volume_size(size_bytes, format, &self.source)?;
        if format != Format::Raw {
            qemu_img::refuse_damaged(format, &file, &self.source, size_bytes)?;
        }
        // Nobody should think of a passphrase for a volume that cannot be made.
        if self.path.symlink_metadata().is_ok() {
            return Err(DatastoreError::Exists { path: self.path.clone() }.into());
        }
        let key = self.key.for_new_volume(&self.path)?;
        let options = CreateOptions {
            size,
            provisioning: self.provisioning.into(),
            protection: key.protection(),
            log_bytes: None,
            integrity: self.provisioning.integrity,
        };
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let staged = StagedVolume::create(&self.path, &options)?;
        let filled = self.fill(staged.path(), &key, format, &file, &signals, output);
        filled.map_err(|error| self.name_what_is_full(error, size))?;
        staged.finish()?;
        let volume = VolumeFacts::from(&describe(&self.path)?);
        output.answer(&Imported { source: self.source.clone(), format: format.name(), volume })
    }

    fn fill(
        &self,
        path: &Path,
        key: &VolumeKey,
        format: Format,
        file: &File,
        signals: &Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        let options = OpenOptions {
            protection: key.protection(),
            access: Access::ReadWrite,
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        let volume = open(path, &options)?;
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let disk = assemble_destaged(volume)?;
        let mut meter = Meter::start(output, "importing", size_bytes);
        let mut report = |bytes| meter.at(bytes);
        match format {
            Format::Raw => {
                let mut progress = Progress { stop: signals.stop_flag(), report: &mut report };
                import_file(file, size_bytes, &*disk, &mut progress)
                    .map_err(|error| CliError::transfer(error, &self.path, "read", &self.source))
            }
            _ => qemu_img::import(format, file, &self.source, disk, signals, &mut report),
        }
    }
}

impl ImportArguments {
    /// A copy says only that there was no room; it was the datastore that had none.
    fn name_what_is_full(&self, error: CliError, size: VolumeSize) -> CliError {
        let full = match &error {
            CliError::Image(ImageError::NoSpace) => true,
            CliError::Transfer { error: TransferError::Volume(error), .. } => *error == IoError::NoSpace,
            _ => false,
        };
        let needed = format!("up to {size}");
        if full { DatastoreError::Full { path: self.path.clone(), needed }.into() } else { error }
    }
}

/// Opens a regular file or a block device; anything else could block, or never end.
fn open_image(path: &Path) -> Result<File, CliError> {
    let failed = |error| CliError::File { action: "open", path: path.to_owned(), error };
    let kind = path.metadata().map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(CliError::Usage(format!("{} is neither a file nor a block device", path.display())));
    }
    FileOptions::new().read(true).open(path).map_err(failed)
}

fn raw_size_bytes(mut file: &File, path: &Path) -> Result<u64, CliError> {
    // Of a block device, only seeking tells the size.
    file.seek(SeekFrom::End(0)).map_err(|error| CliError::File {
        action: "examine",
        path: path.to_owned(),
        error,
    })
}

fn volume_size(size_bytes: u64, format: Format, path: &Path) -> Result<VolumeSize, CliError> {
    VolumeSize::new(size_bytes).map_err(|error| {
        let next = match (&error, format) {
            (SizeError::Sector(_), Format::Raw) => {
                let padded = size_bytes.next_multiple_of(SECTOR_BYTES);
                format!("; if it is a whole disk, pad it with: truncate -s {padded} {}", path.display())
            }
            _ => String::new(),
        };
        CliError::Size { path: path.to_owned(), error, next }
    })
}
