//! A connection's bytes, in the clear or under TLS, behind one interface that never blocks.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

use super::socket::Socket;

/// Bytes of TLS records taken from the socket in one call: four records of the largest size.
const RECORDS_BYTES: usize = 64 << 10;

/// Bytes of encrypted replies that may wait for the socket. Further replies wait unencrypted, where
/// they are not copied.
const ENCRYPTED_BYTES_MAX: usize = 256 << 10;

/// How the bytes of a connection are sent.
pub enum Transport {
    /// In the clear.
    Clear(Arc<Socket>),
    /// Under TLS.
    Tls(Box<TlsTransport>),
}

/// A TLS connection over a socket.
pub struct TlsTransport {
    socket: Arc<Socket>,
    tls: ServerConnection,
    /// Records that were received and not yet decrypted: `records[start..end]`.
    records: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Transport {
    /// Continues under TLS. The client sends first.
    pub fn start_tls(socket: &Arc<Socket>, config: &Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let mut tls = ServerConnection::new(Arc::clone(config))?;
        tls.set_buffer_limit(Some(ENCRYPTED_BYTES_MAX));
        Ok(Transport::Tls(Box::new(TlsTransport {
            socket: Arc::clone(socket),
            tls,
            records: vec![0; RECORDS_BYTES].into(),
            start: 0,
            end: 0,
        })))
    }

    /// Whether TLS is still being set up.
    pub fn is_handshaking(&self) -> bool {
        match self {
            Transport::Clear(_) => false,
            Transport::Tls(transport) => transport.tls.is_handshaking(),
        }
    }

    /// Receives into the slices. Zero bytes mean the end; `WouldBlock` means that the socket must
    /// become readable first.
    pub fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Transport::Clear(socket) => socket.receive(into),
            Transport::Tls(transport) => transport.receive(into),
        }
    }

    /// Sends from the slices, as much as there is room for. `WouldBlock` means that the socket must
    /// become writable first.
    pub fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Transport::Clear(socket) => socket.send(from),
            Transport::Tls(transport) => transport.send(from),
        }
    }

    /// Sends encrypted bytes that wait; `WouldBlock` if some of them must wait longer.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Clear(_) => Ok(()),
            Transport::Tls(transport) => transport.flush(),
        }
    }

    /// Whether a receive that took less than it had room for has emptied the socket.
    pub fn short_means_empty(&self) -> bool {
        matches!(self, Transport::Clear(_))
    }

    /// Sends TLS's closing alert, if there is room for it.
    pub fn close(&mut self) {
        if let Transport::Tls(transport) = self {
            transport.tls.send_close_notify();
            let _ = transport.flush();
        }
    }
}

impl TlsTransport {
    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read_vectored(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // An end without a closing alert. NBD itself delimits requests, so a truncation is
                // always noticed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            self.receive_records()?;
        }
    }

    fn receive_records(&mut self) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.end = self.socket.receive(&mut [IoSliceMut::new(&mut self.records[..])])?;
        }
        let mut records = &self.records[self.start..self.end];
        // With no bytes, rustls learns that the stream has ended.
        self.tls.read_tls(&mut records)?;
        self.start = self.end - records.len();
        let processed = self.tls.process_new_packets();
        // Send handshake messages, and the alert that reports an error to the client.
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock && processed.is_ok() => return Err(error),
            _ => {}
        }
        processed.map(drop).map_err(io::Error::other)
    }

    fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let taken = self.tls.writer().write_vectored(from)?;
        match self.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Outgoing(&self.socket))?;
        }
        Ok(())
    }
}

/// A socket with the interface that rustls needs.
struct Outgoing<'a>(&'a Socket);

impl Write for Outgoing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
