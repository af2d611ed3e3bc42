//! What TLS would leave in memory.

use std::io::{self, Read};

use rustls::ConnectionCommon;

/// Wipes what a connection has received and handed out. rustls decrypts in the buffer that it reads
/// into, and keeps that for as long as the connection: a key that came would be in there until
/// something longer comes.
pub(crate) fn wipe_received<Data>(connection: &mut ConnectionCommon<Data>) {
    // It is offered all of the buffer but what is still to be read.
    let _ = connection.read_tls(&mut Wipes);
}

/// Brings nothing, into a buffer of zeroes.
struct Wipes;

impl Read for Wipes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(0);
        Err(io::ErrorKind::WouldBlock.into())
    }
}
