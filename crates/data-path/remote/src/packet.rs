//! Packets: a message as JSON with its length before it, and data after it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_wire::{PacketError, PacketSocket, encode};

use crate::message::{FORMATS, PACKET_BYTES_MAX};

/// The most files of a packet: those of a new lane.
const FILES_MAX: usize = 3;

/// The length of a message, before it.
const LENGTH_BYTES: usize = 4;

/// A message that was received, with its data and files.
pub(crate) struct Received<'room, M> {
    pub(crate) message: M,
    pub(crate) data: &'room [u8],
    pub(crate) files: Vec<OwnedFd>,
}

/// Why nothing was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The other process has closed the socket, or has ended.
    Gone,
    /// It does not keep to the protocol, or the socket failed.
    Broken(Errno),
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Gone => Self::CONNRESET,
            Failure::Broken(errno) => errno,
        }
    }
}

impl From<PacketError> for Failure {
    fn from(error: PacketError) -> Self {
        match error {
            PacketError::Gone => Self::Gone,
            PacketError::Stuck => Self::Broken(Errno::AGAIN),
            PacketError::TooLong { .. } => Self::Broken(Errno::MSGSIZE),
            PacketError::Socket(errno) => Self::Broken(errno),
        }
    }
}

pub(crate) fn send<M: Serialize>(
    socket: &PacketSocket,
    message: &M,
    data: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<(), Failure> {
    let text = encode(FORMATS.newest, message).map_err(|_| Failure::Broken(Errno::INVAL))?;
    let packet = [&(text.len() as u32).to_le_bytes(), text.as_slice(), data].concat();
    if packet.len() > PACKET_BYTES_MAX {
        return Err(Failure::Broken(Errno::MSGSIZE));
    }
    Ok(socket.send(&packet, files)?)
}

pub(crate) fn receive<'room, M: DeserializeOwned>(
    socket: &PacketSocket<impl AsFd>,
    room: &'room mut [u8],
) -> Result<Received<'room, M>, Failure> {
    let (packet, files) = socket.receive(room, FILES_MAX)?;
    let broken = Failure::Broken(Errno::BADMSG);
    let Some((length, rest)) = packet.split_first_chunk::<LENGTH_BYTES>() else { return Err(broken) };
    let length = u32::from_le_bytes(*length) as usize;
    let Some((text, data)) = rest.split_at_checked(length) else { return Err(broken) };
    match FORMATS.decode(text) {
        Ok((_, message)) => Ok(Received { message, data, files }),
        Err(_) => Err(broken),
    }
}
