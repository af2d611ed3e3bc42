//! Carries one command and its response.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use zeroize::Zeroizing;

use super::TpmDevice;

/// Longest response: TPMs report 4096 in practice, which is the kernel's buffer.
pub(super) const RESPONSE_BYTES_MAX: usize = 4096;
/// Bytes of a header: tag, size, code.
pub(super) const HEADER_BYTES: usize = 10;
/// Longest wait for a TPM behind a socket. The slowest TPMs need seconds to make a primary key; for
/// devices the kernel has its own limits.
const SOCKET_WAIT: Duration = Duration::from_secs(30);

pub(super) enum Transport {
    Device(File),
    Socket(UnixStream),
}

impl Transport {
    pub fn open(device: &TpmDevice) -> io::Result<Self> {
        match device {
            TpmDevice::Device { path } => {
                Ok(Self::Device(OpenOptions::new().read(true).write(true).open(path)?))
            }
            TpmDevice::Socket { path } => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(SOCKET_WAIT))?;
                stream.set_write_timeout(Some(SOCKET_WAIT))?;
                Ok(Self::Socket(stream))
            }
        }
    }

    /// Sends `command` and reads its response, whose header has its length.
    pub fn transact(&mut self, command: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut response = Zeroizing::new(vec![0; RESPONSE_BYTES_MAX]);
        let length = match self {
            // The kernel takes a command in one write and gives its response in one read.
            Self::Device(device) => {
                device.write_all(command)?;
                device.read(&mut response)?
            }
            Self::Socket(stream) => {
                stream.write_all(command)?;
                stream.read_exact(&mut response[..HEADER_BYTES])?;
                let length = stated_length(&response);
                let rest = response
                    .get_mut(HEADER_BYTES..length)
                    .ok_or_else(|| io::Error::other("its response has an impossible length"))?;
                stream.read_exact(rest)?;
                length
            }
        };
        if length < HEADER_BYTES || stated_length(&response) != length {
            return Err(io::Error::other("its response is cut short"));
        }
        response.truncate(length);
        Ok(response)
    }
}

/// The length in a header; always readable, because the buffer is longer than a header.
fn stated_length(response: &[u8]) -> usize {
    let mut size = [0; 4];
    size.copy_from_slice(&response[2..6]);
    u32::from_be_bytes(size) as usize
}
