//! Where the bytes of an image are: in a file, or with a client that is asked for them.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use strongroom_io::{Disk, Plain};

use super::ImageError;
use super::sandbox::Sandbox;
use super::socket::{PrivateSocket, SOCKET_NAME};

/// An image file in the sandbox: the program's stdin.
pub(crate) const FILE: &str = "/proc/self/fd/0";
/// Where the directory with the socket of an image is in the sandbox.
const SOCKET_DIRECTORY: &str = "/image";

/// The bytes of an image.
pub trait ImageBytes {
    /// Reads bytes from an offset on, and returns how many; 0 at the end.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// The size of the image, in bytes.
    ///
    /// # Errors
    /// If it is unknown.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Whether it is a block device, which is a raw image.
    fn is_device(&self) -> bool;
}

impl ImageBytes for File {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }

    /// Seeking also works for a block device.
    fn size_bytes(&self) -> io::Result<u64> {
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn is_device(&self) -> bool {
        self.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
    }
}

/// An image that is no file of this machine. As a disk it has the image's bytes, with zeroes up to
/// a whole sector, and is read-only.
pub trait RemoteImage: ImageBytes + Disk<Plain> {}

impl<I: ImageBytes + Disk<Plain>> RemoteImage for I {}

/// Reads until the buffer is full or the image ends.
pub(crate) fn read_up_to(image: &dyn ImageBytes, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match image.read_at(offset.saturating_add(length as u64), &mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// `text` with an image's own name in place of those that it has in the sandbox.
pub(crate) fn with_real_name(text: &str, name: &str) -> String {
    text.replace(FILE, name).replace(&served_in(SOCKET_DIRECTORY), name)
}

/// What `qemu-img` calls a disk that is served in a directory of the sandbox, as it repeats it.
pub(crate) fn served_in(directory: &str) -> String {
    format!("nbd+unix://?socket={directory}/{SOCKET_NAME}")
}

/// How a sandboxed program reaches an image.
#[derive(Clone, Copy)]
pub(crate) enum Reached<'a> {
    File(&'a File),
    /// As a disk that is served there.
    Socket(&'a PrivateSocket),
}

impl Reached<'_> {
    /// What `qemu-img` calls it.
    pub fn name(self) -> String {
        match self {
            Self::File(_) => FILE.to_owned(),
            Self::Socket(_) => served_in(SOCKET_DIRECTORY),
        }
    }

    /// Puts it into a sandbox.
    pub fn within(self, sandbox: Sandbox) -> Result<Sandbox, ImageError> {
        match self {
            Self::File(file) => sandbox.with_input(file),
            Self::Socket(socket) => {
                Ok(sandbox.with_directory(socket.directory(), Path::new(SOCKET_DIRECTORY)))
            }
        }
    }
}
