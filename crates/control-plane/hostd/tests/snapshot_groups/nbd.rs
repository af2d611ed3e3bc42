//! A minimal NBD client: one request at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::SOON;

pub struct NbdClient(UnixStream);

impl NbdClient {
    /// Connects to the server's only export.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SOON))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME with the empty name.
        stream.write_all(&3_u32.to_be_bytes())?;
        stream.write_all(&[b"IHAVEOPT".as_slice(), &1_u32.to_be_bytes(), &0_u32.to_be_bytes()].concat())?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        Ok(Self(stream))
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut packet = Vec::with_capacity(28 + bytes.len());
        packet.extend(0x2560_9513_u32.to_be_bytes());
        packet.extend([0, 0, 0, 1]);
        packet.extend(offset.to_be_bytes());
        packet.extend(offset.to_be_bytes());
        packet.extend((bytes.len() as u32).to_be_bytes());
        packet.extend(bytes);
        self.0.write_all(&packet)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        match u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]) {
            0 => Ok(()),
            error => Err(io::Error::other(format!("the server answered with error {error}"))),
        }
    }
}
