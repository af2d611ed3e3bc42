//! Packets of JSON, with files beside them, between hostd and the supervisor of a VM.
//!
//! Both ends are of one program, or of neighbouring releases of it; a packet of another format is
//! refused. Sending never waits: a peer that does not read is one that is stuck, and is given up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// The longest packet, in bytes: a VM with its grants, and below what a socket takes in one packet
/// without being asked to (`net.core.wmem_default`).
pub const PACKET_BYTES_MAX: usize = 160 << 10;

/// The most files beside a packet.
const FILES_MAX: usize = 4;

/// Why a packet did not pass.
#[derive(Debug, Error)]
pub enum WireError {
    /// The other side is gone.
    #[error("the other process is gone")]
    Gone,
    /// It says nothing.
    #[error("the other process has said nothing for {0:?}")]
    Silent(Duration),
    /// It cannot be sent or received.
    #[error(transparent)]
    Packet(PacketError),
    /// It is not read.
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

/// One end.
#[derive(Debug)]
pub struct Wire(PacketSocket);

impl Wire {
    /// Two ends.
    pub fn pair() -> Result<(Self, OwnedFd), WireError> {
        let (ours, theirs) = PacketSocket::pair()?;
        Ok((Self(ours), theirs))
    }

    /// An end that was accepted, connected or inherited; nothing if it is no such socket.
    pub fn adopt(socket: OwnedFd) -> Option<Self> {
        PacketSocket::adopt(socket).map(Self)
    }

    /// Sends a message with files.
    pub fn send<M: Serialize>(&self, message: &M, files: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        // It may hold grants.
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

    /// The same, for at most so long.
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

    /// Ends it for both sides, also for a thread of this process that waits for a message.
    pub fn hang_up(&self) {
        self.0.hang_up();
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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
