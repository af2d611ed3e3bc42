//! A connected stream socket that never blocks.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sockopt};

/// How long a TCP connection is idle before the kernel probes the peer: a host that lost its power
/// sends nothing, and occupies a place until that is noticed.
const KEEPALIVE_IDLE: std::time::Duration = std::time::Duration::from_secs(30);

/// A connected stream socket that never blocks. It is shared with threads that check its state or
/// cut it from outside.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// The peer at the other end, for the log.
#[derive(Clone, Debug)]
pub struct Peer(String);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Socket {
    /// Wraps an accepted socket that is set not to block.
    pub fn new(accepted: OwnedFd) -> Self {
        Self(accepted)
    }

    /// Configures TCP: small replies are sent at once, and a dead peer is noticed.
    pub fn prepare_tcp(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.0, true)?;
        sockopt::set_socket_keepalive(&self.0, true)?;
        sockopt::set_tcp_keepidle(&self.0, KEEPALIVE_IDLE)?;
        Ok(())
    }

    /// The process at the other end of a unix socket, or the address at the other end of a TCP
    /// connection.
    pub fn peer(&self) -> Peer {
        if let Ok(credentials) = sockopt::socket_peercred(&self.0)
            && credentials.pid.as_raw_nonzero().get() > 0
        {
            let (pid, uid) = (credentials.pid.as_raw_nonzero(), credentials.uid.as_raw());
            return Peer(format!("process {pid} of user {uid}"));
        }
        let address = rustix::net::getpeername(&self.0).ok().flatten();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        Peer(address.map_or_else(|| "an unknown peer".to_owned(), |address| address.to_string()))
    }

    /// Receives into the slices, one after another. Zero bytes are the end.
    pub fn receive(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(retry(|| rustix::io::readv(&self.0, into))?)
    }

    /// Sends from the slices, one after another, without SIGPIPE.
    pub fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(retry(|| {
            rustix::net::sendmsg(&self.0, from, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
        })?)
    }

    /// Whether the peer has closed at least its sending side, or the connection failed. Received
    /// bytes may still wait.
    pub fn is_hung_up(&self) -> bool {
        let mut state = [PollFd::new(&self.0, PollFlags::RDHUP)];
        match poll(&mut state, Some(&Timespec::default())) {
            Ok(_) => !state[0].revents().is_empty(),
            // EINTR cannot happen to a poll that does not sleep, and nothing else can to one of an
            // open socket.
            Err(_) => false,
        }
    }

    /// Ends the connection in both directions, even if other processes hold the socket.
    pub fn shut_down(&self) {
        // If the peer is gone already, this fails, which is fine too.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            result => return result,
        }
    }
}
