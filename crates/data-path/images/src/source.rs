//! Examines an image, and copies its content into a disk.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_io::{Disk, Plain};
use strongroom_types::{SECTOR_BYTES, SizeError, VolumeSize};
use strongroom_worker::{Progress, TransferError, copy_disk, import_file};

use super::place::{ImageBytes, Reached, RemoteImage};
use super::references::refuse_references;
use super::socket::{PrivateSocket, ServedDisk};
use super::{Format, FormatChoice, ImageError, Stop, qemu_img};

/// An examined image: its format and size are known, and it has no references to other files.
#[derive(Debug)]
pub struct ImageSource {
    place: Place,
    name: PathBuf,
    format: Format,
    size: VolumeSize,
}

/// Where an examined image is.
enum Place {
    File(File),
    Remote(Arc<dyn RemoteImage>),
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File(_) => "File",
            Self::Remote(_) => "Remote",
        })
    }
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
        let format = decided(format, &file, name)?;
        let size = match format {
            Format::Raw => raw_size(&file, name)?,
            format => judged_size(format, Reached::File(&file), name)?,
        };
        Ok(Self { place: Place::File(file), name: name.to_owned(), format, size })
    }

    /// As [`examine`](Self::examine), for an image that is no file here.
    ///
    /// # Errors
    /// Also if it cannot be served to `qemu-img`.
    pub fn examine_remote(
        image: Arc<dyn RemoteImage>,
        name: &Path,
        format: FormatChoice,
    ) -> Result<Self, ImageError> {
        let format = decided(format, &*image, name)?;
        let size = match format {
            Format::Raw => raw_size(&*image, name)?,
            format => {
                let socket = PrivateSocket::make(None)?;
                let served = ServedDisk::on(socket.listener(), Arc::clone(&image) as Arc<dyn Disk<Plain>>)?;
                let size = judged_size(format, Reached::Socket(&socket), name);
                served.stop()?;
                size?
            }
        };
        Ok(Self { place: Place::Remote(image), name: name.to_owned(), format, size })
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
        let size_bytes = self.size.bytes();
        match (&self.place, self.format) {
            (Place::File(file), Format::Raw) => {
                let mut progress = Progress { stop: stop.flag, report };
                import_file(file, size_bytes, &*disk, &mut progress).map_err(|error| self.transfer(error))
            }
            (Place::Remote(image), Format::Raw) => {
                let mut progress = Progress { stop: stop.flag, report };
                copy_disk(&**image, &*disk, &mut progress).map_err(|error| self.transfer(error))
            }
            (Place::File(file), format) => qemu_img::import(format, file, &self.name, disk, stop, report),
            (Place::Remote(image), format) => {
                qemu_img::import_remote(format, Arc::clone(image), &self.name, disk, stop, report)
            }
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

/// The format of an image that refers to no other file.
fn decided(choice: FormatChoice, image: &dyn ImageBytes, name: &Path) -> Result<Format, ImageError> {
    let format = choice.decide(image, name)?;
    refuse_references(format, image, name)?;
    Ok(format)
}

fn raw_size(image: &dyn ImageBytes, name: &Path) -> Result<VolumeSize, ImageError> {
    let size_bytes = image.size_bytes().map_err(|error| examining(name, error))?;
    volume_size(size_bytes, Format::Raw, name)
}

/// The size of the disk in an image that `qemu-img` finds to be whole.
fn judged_size(format: Format, image: Reached<'_>, name: &Path) -> Result<VolumeSize, ImageError> {
    let size_bytes = qemu_img::virtual_size_bytes(format, image, name)?;
    let size = volume_size(size_bytes, format, name)?;
    qemu_img::refuse_damaged(format, image, name, size_bytes)?;
    Ok(size)
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
