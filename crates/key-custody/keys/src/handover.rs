//! Hands a KEK from one process of this machine to another when no provider can supply it: through
//! a pipe, whose reading end is passed over a socket. A pipe is kernel memory: it is never swapped,
//! belongs to no file system, and is empty once it was read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use strongroom_memory::secret::SecretBytes;

use crate::error::KeyError;
use crate::kek::{KEK_BYTES, Kek, KekSource};

impl Kek {
    /// The reading end of a pipe that holds the key, all of it.
    pub fn to_pipe(&self) -> io::Result<OwnedFd> {
        let (reader, mut writer) = io::pipe()?;
        // The key is far smaller than the pipe, and there is no other writer.
        writer.write_all(self.secret().expose())?;
        Ok(reader.into())
    }

    /// Reads the key, which comes from `source`, from a pipe. It does not wait for the writer.
    ///
    /// # Errors
    /// [`KeyError::NotHandedOver`] if it is not a pipe, or does not hold exactly 32 bytes.
    pub fn from_pipe(pipe: OwnedFd, source: KekSource) -> Result<Self, KeyError> {
        Self::new(read_pipe(pipe).map_err(KeyError::NotHandedOver)?, source)
    }
}

fn read_pipe(pipe: OwnedFd) -> io::Result<SecretBytes> {
    use std::os::unix::fs::FileTypeExt;
    let mut pipe = File::from(pipe);
    if !pipe.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is no pipe"));
    }
    fcntl_setfl(pipe.as_fd(), OFlags::NONBLOCK)?;
    let mut key = SecretBytes::zeroed(KEK_BYTES).map_err(io::Error::other)?;
    pipe.read_exact(key.expose_mut())?;
    // A further byte means that it is not a key.
    match pipe.read(&mut [0])? {
        0 => Ok(key),
        _ => Err(io::Error::other("it holds more than a key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kek() -> Kek {
        KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; KEK_BYTES]).unwrap()).unwrap()
    }

    #[test]
    fn a_key_passes_once() {
        let pipe = kek().to_pipe().unwrap();
        let copy = pipe.try_clone().unwrap();
        let taken = Kek::from_pipe(pipe, KekSource::KeyFile {}).unwrap();
        assert_eq!(taken.id(), kek().id());
        assert!(matches!(Kek::from_pipe(copy, KekSource::KeyFile {}), Err(KeyError::NotHandedOver(_))));
    }

    #[test]
    fn what_is_no_pipe_or_no_key_is_refused_without_waiting() {
        let refused = |pipe: OwnedFd| Kek::from_pipe(pipe, KekSource::KeyFile {}).unwrap_err().to_string();
        let text = refused(File::open("/dev/zero").unwrap().into());
        assert_eq!(text, "the new key was not handed over: it is no pipe");
        for bytes in [0, 31, 33] {
            let (reader, mut writer) = io::pipe().unwrap();
            writer.write_all(&vec![1; bytes]).unwrap();
            // The writing end stays open.
            refused(reader.into());
        }
    }
}
