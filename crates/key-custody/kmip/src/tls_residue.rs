//! Wipes the data that TLS would leave in memory.

use std::io::{self, Read};

use rustls::ConnectionCommon;

/// Wipes the data that a connection has received and handed out. rustls decrypts in its read buffer
/// and keeps that for the connection's lifetime: a received key would stay there until longer data
/// overwrites it.
pub(crate) fn wipe_received<Data>(connection: &mut ConnectionCommon<Data>) {
    // rustls offers all of the buffer except unread data.
    let _ = connection.read_tls(&mut Wipes);
}

/// A reader that zeroes the buffer and returns no bytes.
struct Wipes;

impl Read for Wipes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(0);
        Err(io::ErrorKind::WouldBlock.into())
    }
}
