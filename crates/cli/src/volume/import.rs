//! `strongroom volume import`.

use std::fmt;
use std::fs::{File, OpenOptions as FileOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{Access, CreateOptions, DatastoreError, OpenOptions, describe, open};
use strongroom_files::FileError;
use strongroom_images::{ImageError, ImageSource};
use strongroom_processes::Signals;
use strongroom_types::display_bytes;
use strongroom_worker::assemble_destaged;

use super::create::ProvisioningArguments;
use super::describe::VolumeFacts;
use super::image_format::{FormatArgument, stop_of};
use super::staged::StagedVolume;
use crate::error::CliError;
use crate::keys::{NewKeyArguments, VolumeKey};
use crate::output::Output;
use crate::progress::Meter;

/// The arguments of `import`.
#[derive(Debug, Args)]
#[command(after_help = "Images in other formats than raw are read by qemu-img in a sandbox that contains \
nothing else. An image that refers to another file (backing file, data file, extents) is refused. With \
--format auto the format is detected from the image's first bytes, but an image named .raw or .img that \
starts like another format is refused, because its guest may have written that. A failed or interrupted \
import leaves nothing behind.

Examples:
  strongroom volume import disk.qcow2 ./ds/vm1
  strongroom volume import /dev/vg0/vm1 ./ds/vm1 --key-file vm1.key")]
pub struct ImportArguments {
    /// Image file, or a block device
    source: PathBuf,

    /// Path of the new volume
    path: PathBuf,

    /// Format of the image
    #[arg(long, value_enum, default_value = "auto")]
    format: FormatArgument,

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
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let file = open_image(&self.source)?;
        let image = ImageSource::examine(file, &self.source, self.format.into())?;
        // Check this before a person thinks of a passphrase in vain.
        if self.path.symlink_metadata().is_ok() {
            return Err(DatastoreError::Exists { path: self.path.clone() }.into());
        }
        let key = self.key.for_new_volume(&self.path)?;
        let options = CreateOptions {
            size: image.size(),
            provisioning: self.provisioning.into(),
            protection: key.protection(),
            log_bytes: None,
            integrity: self.provisioning.tags.integrity(),
        };
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let staged = StagedVolume::create(&self.path, &options)?;
        let filled = self.fill(staged.path(), &key, &image, &signals, output);
        filled.map_err(|error| self.name_what_failed(error, &image))?;
        staged.finish()?;
        let volume = VolumeFacts::from(&describe(&self.path)?);
        output.answer(&Imported { source: self.source.clone(), format: image.format().name(), volume })
    }

    fn fill(
        &self,
        path: &Path,
        key: &VolumeKey,
        image: &ImageSource,
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
        Ok(image.copy_into(disk, stop_of(signals), &mut |bytes| meter.at(bytes))?)
    }

    /// A copy reports only that there was no space or that the volume failed; here it is known
    /// which one.
    fn name_what_failed(&self, error: CliError, image: &ImageSource) -> CliError {
        match error {
            CliError::Image(ImageError::NoSpace) => {
                let needed = format!("up to {}", image.size());
                DatastoreError::Full { path: self.path.clone(), needed }.into()
            }
            CliError::Image(ImageError::Disk(error)) => CliError::Transfer { path: self.path.clone(), error },
            error => error,
        }
    }
}

/// Opens a regular file or a block device; another kind of file could block, or never end.
fn open_image(path: &Path) -> Result<File, CliError> {
    let failed = |error| CliError::File(FileError { action: "open", path: path.to_owned(), error });
    let kind = path.metadata().map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(CliError::Usage(format!("{} is neither a file nor a block device", path.display())));
    }
    FileOptions::new().read(true).open(path).map_err(failed)
}
