//! Whole packets with file descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use thiserror::Error;

use crate::files::{receive, retried, send};

/// The reasons why a packet was not sent or received.
#[derive(Debug, Error)]
pub enum PacketError {
    /// The other process has closed its end, or has ended.
    #[error("the other process is gone")]
    Gone,
    /// The other process does not read, and the socket is full.
    #[error("the other process does not read what it is sent")]
    Stuck,
    /// The packet is too long, or has too many descriptors.
    #[error("a packet with {files} files is longer than {bytes} bytes, or has more files than it may")]
    TooLong {
        /// Bytes of the packet, or of the buffer that it did not fit into.
        bytes: usize,
        /// The count of its descriptors.
        files: usize,
    },
    /// The kernel's error.
    #[error("the socket between two processes failed: {0}")]
    Socket(#[from] Errno),
}

/// One end of a pair of sockets that keep packets whole (`SOCK_SEQPACKET`).
#[derive(Debug)]
pub struct PacketSocket<S = OwnedFd>(S);

impl PacketSocket {
    /// Makes both ends; the second is to be inherited or sent.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn pair() -> Result<(Self, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), theirs))
    }

    /// The socket itself, to pass it to another process.
    pub fn into_socket(self) -> OwnedFd {
        self.0
    }
}

impl<S: AsFd> PacketSocket<S> {
    /// Wraps an accepted, connected or inherited socket. `None` if it is not a unix socket that
    /// keeps packets whole.
    pub fn adopt(socket: S) -> Option<Self> {
        let is_one = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
        is_one.then_some(Self(socket))
    }

    /// Sends a packet with descriptors, without waiting for space.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
        match send(&self.0, bytes, files, SendFlags::DONTWAIT) {
            Ok(_) => Ok(()),
            Err(Errno::MSGSIZE) => Err(PacketError::TooLong { bytes: bytes.len(), files: files.len() }),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// Waits for a packet. Returns its part of `into`, and its descriptors.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn receive<'into>(
        &self,
        into: &'into mut [u8],
        files_max: usize,
    ) -> Result<(&'into [u8], Vec<OwnedFd>), PacketError> {
        let longest = into.len();
        let received = receive(&self.0, into, files_max).map_err(|errno| match errno {
            Errno::MSGSIZE => PacketError::TooLong { bytes: longest, files: files_max },
            errno => refused(errno),
        })?;
        match into.get(..received.bytes) {
            Some(bytes) if !bytes.is_empty() => Ok((bytes, received.files)),
            _ => Err(PacketError::Gone),
        }
    }

    /// Waits for a packet without descriptors, and writes it directly to `into`; returns its
    /// length.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn receive_into(&self, into: &mut [u8]) -> Result<usize, PacketError> {
        let longest = into.len();
        match retried(|| rustix::net::recv(&self.0, &mut *into, RecvFlags::TRUNC)) {
            Ok((_, 0)) => Err(PacketError::Gone),
            Ok((_, bytes)) if bytes > longest => Err(PacketError::TooLong { bytes, files: 0 }),
            Ok((_, bytes)) => Ok(bytes),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// Ends the connection for both sides, and for threads of this process that wait for a packet.
    pub fn hang_up(&self) {
        // It fails if the peer has already closed the connection.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

impl<S: AsFd> AsFd for PacketSocket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn refused(errno: Errno) -> PacketError {
    match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => PacketError::Gone,
        Errno::AGAIN => PacketError::Stuck,
        errno => PacketError::Socket(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn packets_stay_whole_and_an_end_is_seen() {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let theirs = PacketSocket::adopt(theirs).unwrap();
        ours.send(b"first", &[ours.as_fd()]).unwrap();
        ours.send(b"second", &[]).unwrap();
        let mut room = [0; 16];
        let (bytes, files) = theirs.receive(&mut room, 1).unwrap();
        assert_eq!((bytes, files.len()), (&b"first"[..], 1));
        assert_eq!(theirs.receive_into(&mut room).unwrap(), 6);
        drop((ours, files));
        assert!(matches!(theirs.receive(&mut room, 1), Err(PacketError::Gone)));
        assert!(matches!(theirs.receive_into(&mut room), Err(PacketError::Gone)));
        assert!(matches!(theirs.send(b"x", &[]), Err(PacketError::Gone)));
    }

    #[test]
    fn what_is_too_long_is_refused_and_what_nobody_reads_is_not_waited_for() {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let theirs = PacketSocket::adopt(theirs).unwrap();
        let mut room = [0; 4];
        ours.send(b"12345", &[]).unwrap();
        assert!(matches!(theirs.receive(&mut room, 0), Err(PacketError::TooLong { .. })));
        ours.send(b"12345", &[]).unwrap();
        assert!(matches!(theirs.receive_into(&mut room), Err(PacketError::TooLong { bytes: 5, .. })));
        let stuck = (0..1_000_000).find_map(|_| ours.send(&[0; 4096], &[]).err());
        assert!(matches!(stuck, Some(PacketError::Stuck)), "{stuck:?}");
    }

    #[test]
    fn other_sockets_are_not_taken() {
        let (stream, _other) = UnixStream::pair().unwrap();
        assert!(PacketSocket::adopt(stream).is_none());
        assert!(PacketSocket::adopt(std::fs::File::open("/dev/null").unwrap()).is_none());
    }
}
