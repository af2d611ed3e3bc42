//! Examines an image, and copies its content into a disk.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_io::{Disk, Plain};
use strongroom_types::{SECTOR_BYTES, SizeError, VolumeSize};
use strongroom_worker::{Progress, TransferError, import_file};

use super::references::refuse_references;
use super::{Format, FormatChoice, ImageError, Stop, qemu_img};

/// An examined image: its format and size are known, and it has no references to other files.
#[derive(Debug)]
pub struct ImageSource {
    file: File,
    name: PathBuf,
    format: Format,
    size: VolumeSize,
}

impl ImageSource {
    /// Examines the image `file`. `name` is used in errors and to guess its format. The file is
    /// only read, and no other file is opened.
    ///
    /// # Errors
    /// The reasons why it cannot be used.
    pub fn examine(file: File, name: &Path, format: FormatChoice) -> Result<Self, ImageError> {
        let kind = file.metadata().map_err(|error| examining(name, error))?.file_type();
        // Any other kind of file could block, or never end.
        if !kind.is_file() && !kind.is_block_device() {
            let error = std::io::Error::other("it is neither a file nor a block device");
            return Err(examining(name, error));
        }
        let format = format.decide(&file, name)?;
        refuse_references(format, &file, name)?;
        let size_bytes = match format {
            Format::Raw => raw_size_bytes(&file).map_err(|error| examining(name, error))?,
            _ => qemu_img::virtual_size_bytes(format, &file, name)?,
        };
        let size = volume_size(size_bytes, format, name)?;
        if format != Format::Raw {
            qemu_img::refuse_damaged(format, &file, name, size_bytes)?;
        }
        Ok(Self { file, name: name.to_owned(), format, size })
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The size of the disk that it holds.
    pub fn size(&self) -> VolumeSize {
        self.size
    }

    /// Copies its content to the beginning of a disk that reads as zeroes and is at least as large,
    /// and makes it durable. `report` is called with the count of bytes that are done.
    ///
    /// # Errors
    /// [`ImageError::NoSpace`] if the disk has no room left, [`ImageError::Interrupted`], and other
    /// reasons why it cannot be copied.
    pub fn copy_into(
        &self,
        disk: Arc<dyn Disk<Plain>>,
        stop: Stop<'_>,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), ImageError> {
        match self.format {
            Format::Raw => {
                let mut progress = Progress { stop: stop.flag, report };
                import_file(&self.file, self.size.bytes(), &*disk, &mut progress)
                    .map_err(|error| self.transfer(error))
            }
            format => qemu_img::import(format, &self.file, &self.name, disk, stop, report),
        }
    }

    fn transfer(&self, error: TransferError) -> ImageError {
        match error {
            TransferError::Stopped => ImageError::Interrupted,
            TransferError::File(error) => ImageError::File { action: "read", path: self.name.clone(), error },
            TransferError::Volume(strongroom_io::IoError::NoSpace) => ImageError::NoSpace,
            error => ImageError::Disk(error),
        }
    }
}

fn examining(path: &Path, error: std::io::Error) -> ImageError {
    ImageError::File { action: "examine", path: path.to_owned(), error }
}

/// The size of a raw image. Seeking also works for a block device.
fn raw_size_bytes(mut file: &File) -> Result<u64, std::io::Error> {
    file.seek(SeekFrom::End(0))
}

fn volume_size(size_bytes: u64, format: Format, path: &Path) -> Result<VolumeSize, ImageError> {
    VolumeSize::new(size_bytes).map_err(|error| {
        let next = match (&error, format) {
            (SizeError::Sector(_), Format::Raw) => {
                let padded = size_bytes.next_multiple_of(SECTOR_BYTES);
                format!("; if it is a whole disk, pad it with: truncate -s {padded} {}", path.display())
            }
            _ => String::new(),
        };
        ImageError::Size { path: path.to_owned(), error, next }
    })
}
