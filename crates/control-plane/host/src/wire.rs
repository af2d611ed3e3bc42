//! JSON packets with files, between hostd and the supervisor of a VM.
//!
//! Both ends come from one release, or from neighbouring ones; a packet with another format is
//! refused. Sending never blocks: a peer that does not read is stuck, and its connection is closed.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_wire::{FormatError, Formats, PacketError, PacketSocket};
use thiserror::Error;
use zeroize::Zeroizing;

/// The formats of all packets.
pub const FORMATS: Formats = Formats { oldest: 1, newest: 1 };

/// The longest packet, in bytes: a VM with its grants fits, and a socket takes it in one packet by
/// default (`net.core.wmem_default`).
pub const PACKET_BYTES_MAX: usize = 160 << 10;

/// The most files with a packet: those of a request for a worker, which are the socket for the
/// answer, the listening socket, the page of counters and two pages of limits.
const FILES_MAX: usize = 5;

/// Why a packet could not be exchanged.
#[derive(Debug, Error)]
pub enum WireError {
    /// The peer has closed the connection.
    #[error("the other process is gone")]
    Gone,
    /// The peer sent nothing in this time.
    #[error("the other process has said nothing for {0:?}")]
    Silent(Duration),
    /// The packet cannot be sent or received.
    #[error(transparent)]
    Packet(PacketError),
    /// The packet's format is not supported.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl From<PacketError> for WireError {
    fn from(error: PacketError) -> Self {
        match error {
            PacketError::Gone => Self::Gone,
            error => Self::Packet(error),
        }
    }
}

impl From<Errno> for WireError {
    fn from(errno: Errno) -> Self {
        Self::Packet(errno.into())
    }
}

impl From<serde_json::Error> for WireError {
    fn from(error: serde_json::Error) -> Self {
        Self::Format(error.into())
    }
}

#[derive(Serialize, Deserialize)]
struct Packet<T> {
    format: u32,
    #[serde(flatten)]
    content: T,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Wire(PacketSocket);

impl Wire {
    /// Makes a connected pair.
    pub fn pair() -> Result<(Self, OwnedFd), WireError> {
        let (ours, theirs) = PacketSocket::pair()?;
        Ok((Self(ours), theirs))
    }

    /// Wraps a socket that was accepted, connected or inherited; `None` if it is not a packet
    /// socket.
    pub fn adopt(socket: OwnedFd) -> Option<Self> {
        PacketSocket::adopt(socket).map(Self)
    }

    /// The same end once more.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let socket = self.0.as_fd().try_clone_to_owned()?;
        PacketSocket::adopt(socket).map(Self).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Sends a message with files.
    pub fn send<M: Serialize>(&self, message: &M, files: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        // The message may hold grants.
        let packet = Packet { format: FORMATS.newest, content: message };
        let bytes = Zeroizing::new(serde_json::to_vec(&packet)?);
        if bytes.len() > PACKET_BYTES_MAX || files.len() > FILES_MAX {
            return Err(PacketError::TooLong { bytes: bytes.len(), files: files.len() }.into());
        }
        Ok(self.0.send(&bytes, files)?)
    }

    /// Waits for a message.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), WireError> {
        let mut room = Zeroizing::new(vec![0; PACKET_BYTES_MAX]);
        let (bytes, files) = self.0.receive(&mut room, FILES_MAX)?;
        FORMATS.of(bytes)?;
        Ok((serde_json::from_slice::<Packet<M>>(bytes)?.content, files))
    }

    /// Waits for a message for at most this time.
    pub fn receive_within<M: DeserializeOwned>(
        &self,
        within: Duration,
    ) -> Result<(M, Vec<OwnedFd>), WireError> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(WireError::Silent(within)),
                Ok(_) => return self.receive(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Closes the connection in both directions. A thread of this process that waits for a message
    /// wakes up.
    pub fn hang_up(&self) {
        self.0.hang_up();
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Starts a process whose standard input is a wire. It has none of this process's environment.
///
/// # Errors
/// If it cannot be started.
pub fn start_on_wire(program: &Path, arguments: &[OsString]) -> std::io::Result<(Wire, Child)> {
    let (wire, theirs) = Wire::pair().map_err(std::io::Error::other)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(theirs).stdout(Stdio::null()).stderr(Stdio::inherit());
    Ok((wire, command.spawn()?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Word {
        Hello(String),
    }

    fn pair() -> (Wire, Wire) {
        let (ours, theirs) = Wire::pair().unwrap();
        (ours, Wire::adopt(theirs).unwrap())
    }

    #[test]
    fn words_and_files_pass_and_an_end_is_seen() {
        let (ours, theirs) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"beside").unwrap();
        ours.send(&Word::Hello("x".to_owned()), &[file.as_fd()]).unwrap();
        let (word, files) = theirs.receive::<Word>().unwrap();
        assert_eq!(word, Word::Hello("x".to_owned()));
        let mut received = std::fs::File::from(files.into_iter().next().unwrap());
        received.rewind().unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "beside");
        drop(ours);
        assert!(matches!(theirs.receive::<Word>(), Err(WireError::Gone)));
    }

    #[test]
    fn what_is_too_long_strange_or_unread_is_told() {
        let (ours, theirs) = pair();
        let long = Word::Hello("x".repeat(PACKET_BYTES_MAX));
        assert!(matches!(ours.send(&long, &[]), Err(WireError::Packet(PacketError::TooLong { .. }))));
        let longest = Word::Hello("x".repeat(PACKET_BYTES_MAX - 64));
        ours.send(&longest, &[]).unwrap();
        assert_eq!(theirs.receive::<Word>().unwrap().0, longest);
        for (text, expected) in
            [(r#"{"format":2,"Hello":"x"}"#, "Format(Unknown"), (r#"{"format":1}"#, "Format(Malformed")]
        {
            ours.0.send(text.as_bytes(), &[]).unwrap();
            let error = theirs.receive::<Word>().unwrap_err();
            assert!(format!("{error:?}").starts_with(expected), "{error:?}");
        }
        let silent = theirs.receive_within::<Word>(Duration::from_millis(1));
        assert!(matches!(silent, Err(WireError::Silent(_))));
        let stuck = (0..1_000_000).find_map(|_| ours.send(&longest, &[]).err());
        assert!(matches!(stuck, Some(WireError::Packet(PacketError::Stuck))));
    }
}
