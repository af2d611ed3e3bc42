//! The packets between a launcher and its process, and between a supervisor and a monitor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SendFlags;
use strongroom_wire::{PacketSocket, Received};

/// The longest packet: ten times the arguments of the largest machine.
pub const PACKET_BYTES_MAX: usize = 128 << 10;
/// The most files with a packet: more than one for each network card.
pub const FILES_MAX: usize = 16;

/// Makes a connected pair.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = PacketSocket::pair()?;
    Ok((ours.into_socket(), theirs))
}

/// Sends a packet, and waits for room in the socket.
pub fn send(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    if bytes.len() > PACKET_BYTES_MAX || files.len() > FILES_MAX {
        return Err(Errno::MSGSIZE);
    }
    strongroom_wire::send(socket, bytes, files, SendFlags::empty()).map(drop)
}

/// Waits for a packet, which must fit into `bytes`. `None` at the end of the connection.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> Result<Option<Received>, Errno> {
    received(socket, bytes, FILES_MAX)
}

/// Waits for a packet of a peer that must not send files; returns its length.
pub fn receive_without_files(socket: impl AsFd, bytes: &mut [u8]) -> Result<Option<usize>, Errno> {
    Ok(received(socket, bytes, 0)?.map(|received| received.bytes))
}

fn received(socket: impl AsFd, bytes: &mut [u8], files_max: usize) -> Result<Option<Received>, Errno> {
    let received = strongroom_wire::receive(socket, bytes, files_max)?;
    Ok((received.bytes > 0).then_some(received))
}
