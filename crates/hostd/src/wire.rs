//! Packets of JSON, with files beside them, between hostd and the supervisor of a VM.
//!
//! Both ends are of one program, or of neighbouring releases of it; a packet of another format is refused. Sending never
//! waits: a peer that does not read is one that is stuck, and is given up.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

/// The format of all packets.
pub const FORMAT: u32 = 1;

/// The longest packet, in bytes: a VM with its grants, and below what a socket takes in one packet without being asked to
/// (`net.core.wmem_default`).
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
    /// It does not read.
    #[error("the other process does not read what it is sent")]
    Stuck,
    /// No packet of ours.
    #[error("a packet cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Of a program that is too new or too old.
    #[error("the other program speaks format {0}, this one {FORMAT}; upgrade one release at a time")]
    Format(u32),
    /// Too much for one.
    #[error("a packet of {0} bytes is beyond the limit")]
    TooLong(usize),
    /// The kernel's word.
    #[error("the socket failed: {0}")]
    Socket(#[from] Errno),
}

#[derive(Serialize, Deserialize)]
struct Packet<T> {
    format: u32,
    #[serde(flatten)]
    content: T,
}

#[derive(Deserialize)]
struct Head {
    format: u32,
}

/// One end.
#[derive(Debug)]
pub struct Wire(OwnedFd);

impl Wire {
    /// Two ends.
    pub fn pair() -> Result<(Self, OwnedFd), WireError> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), theirs))
    }

    /// An end that was accepted, connected or inherited; nothing if it is no such socket.
    pub fn adopt(socket: OwnedFd) -> Option<Self> {
        let is_ours = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
        is_ours.then_some(Self(socket))
    }

    /// Sends a message with files.
    pub fn send<M: Serialize>(&self, message: &M, files: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        // It may hold grants.
        let bytes = Zeroizing::new(serde_json::to_vec(&Packet { format: FORMAT, content: message })?);
        if bytes.len() > PACKET_BYTES_MAX || files.len() > FILES_MAX {
            return Err(WireError::TooLong(bytes.len()));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(WireError::TooLong(bytes.len()));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut beside, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(WireError::Stuck),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(WireError::Gone),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for a message.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), WireError> {
        let mut bytes = Zeroizing::new(vec![0; PACKET_BYTES_MAX]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let into = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, into, &mut beside, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(WireError::Gone),
                received => break received?,
            }
        };
        let mut files = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if received.bytes == 0 {
            return Err(WireError::Gone);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(WireError::TooLong(received.bytes));
        }
        let bytes = &bytes[..received.bytes];
        match serde_json::from_slice::<Head>(bytes)?.format {
            FORMAT => Ok((serde_json::from_slice::<Packet<M>>(bytes)?.content, files)),
            other => Err(WireError::Format(other)),
        }
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
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
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
        assert!(matches!(ours.send(&long, &[]), Err(WireError::TooLong(_))));
        let longest = Word::Hello("x".repeat(PACKET_BYTES_MAX - 64));
        ours.send(&longest, &[]).unwrap();
        assert_eq!(theirs.receive::<Word>().unwrap().0, longest);
        for (text, expected) in [(r#"{"format":2,"Hello":"x"}"#, "Format"), (r#"{"format":1}"#, "Malformed")]
        {
            rustix::net::send(&ours.0, text.as_bytes(), SendFlags::empty()).unwrap();
            let error = theirs.receive::<Word>().unwrap_err();
            assert!(format!("{error:?}").starts_with(expected), "{error:?}");
        }
        let silent = theirs.receive_within::<Word>(Duration::from_millis(1));
        assert!(matches!(silent, Err(WireError::Silent(_))));
        let stuck = (0..1_000_000).find_map(|_| ours.send(&longest, &[]).err());
        assert!(matches!(stuck, Some(WireError::Stuck)));
    }
}
