//! The socket: packets with files, and packets of secrets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes, SecretError};
use thiserror::Error;

use super::message::{FORMAT, FORMAT_OLDEST, decode, encode};

/// The longest message: the sessions of a guest with hundreds of memory regions, and below what a socket takes in one
/// packet without being asked to (`net.core.wmem_default`).
pub const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// The most files beside a message: the kernel's own limit (`SCM_MAX_FD`).
pub const FILES_MAX: usize = 253;

/// Why a message did not pass.
#[derive(Debug, Error)]
pub enum BirthError {
    /// What was given is no such socket: a person started the process, not a supervisor.
    #[error("the process was not started by a supervisor")]
    NotBorn,
    /// The other side is gone.
    #[error("the other process is gone")]
    Gone,
    /// Of a program that is not this one's neighbour.
    #[error(
        "the other program speaks format {found}; this one reads formats {FORMAT_OLDEST} to {FORMAT}. Upgrade one \
         release at a time"
    )]
    Format {
        /// Its format.
        found: u32,
    },
    /// No message.
    #[error("a message cannot be read: {0}")]
    Malformed(#[source] serde_json::Error),
    /// Too much for one message.
    #[error("a message of {bytes} bytes and {files} files is beyond the limit")]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// Its files.
        files: usize,
    },
    /// A message where another one had to come.
    #[error("the other process sent what was not asked for: {0}")]
    Unexpected(String),
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The kernel's word.
    #[error("the socket between the processes failed: {0}")]
    Socket(#[from] Errno),
}

/// One end of the socket that a worker is born with.
#[derive(Debug)]
pub struct BirthSocket<S = OwnedFd> {
    socket: S,
    /// What is written in: the supervisor's own, and with a worker that of the last message it got.
    format: u32,
}

impl BirthSocket {
    /// A supervisor's end, and the other one, which becomes a worker's standard input.
    pub fn pair() -> Result<(Self, OwnedFd), BirthError> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: ours, format: FORMAT }, theirs))
    }
}

impl<S: AsFd> BirthSocket<S> {
    /// A worker's end, which it was started with.
    pub fn adopt(socket: S) -> Result<Self, BirthError> {
        let is_ours = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
        if is_ours { Ok(Self { socket, format: FORMAT }) } else { Err(BirthError::NotBorn) }
    }

    /// What is written in. A worker's is its supervisor's, once that has said something.
    pub fn format(&self) -> u32 {
        self.format
    }

    /// Sends a message with files. It does not wait for room: there is always some, but with a peer that is stuck.
    pub fn send<M: Serialize>(&self, message: &M, files: &[BorrowedFd<'_>]) -> Result<(), BirthError> {
        let bytes = encode(self.format, message)?;
        if bytes.len() > MESSAGE_BYTES_MAX || files.len() > FILES_MAX {
            return Err(BirthError::TooLong { bytes: bytes.len(), files: files.len() });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        // With no files there is nothing beside: an empty list of them is none.
        if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(BirthError::TooLong { bytes: bytes.len(), files: files.len() });
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        retried(|| rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut beside, flags))?;
        Ok(())
    }

    /// Waits for a message. From here on what is sent is in its format.
    pub fn receive<M: DeserializeOwned>(&mut self) -> Result<(M, Vec<OwnedFd>), BirthError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = retried(|| {
            let into = &mut [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&self.socket, into, &mut beside, RecvFlags::CMSG_CLOEXEC)
        })?;
        let files: Vec<OwnedFd> = beside
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Err(BirthError::Gone);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(BirthError::TooLong { bytes: received.bytes, files: files.len() });
        }
        let (format, message) = decode(&bytes[..received.bytes])?;
        self.format = format;
        Ok((message, files))
    }

    /// Sends a secret as a packet of its own, straight out of its memory.
    pub fn send_secret(&self, secret: &SecretBytes) -> Result<(), BirthError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        retried(|| rustix::net::send(&self.socket, secret.expose(), flags))?;
        Ok(())
    }

    /// Waits for a secret, which goes straight into memory for secrets.
    pub fn receive_secret(&self) -> Result<SecretBytes, BirthError> {
        let mut packet = SecretBytes::zeroed(SECRET_MAX_BYTES)?;
        let (_, bytes) = retried(|| rustix::net::recv(&self.socket, packet.expose_mut(), RecvFlags::TRUNC))?;
        match bytes {
            0 => Err(BirthError::Gone),
            bytes if bytes > SECRET_MAX_BYTES => Err(BirthError::TooLong { bytes, files: 0 }),
            bytes => {
                let mut secret = SecretBytes::zeroed(bytes)?;
                secret.expose_mut().copy_from_slice(&packet.expose()[..bytes]);
                Ok(secret)
            }
        }
    }
}

impl<S: AsFd> AsFd for BirthSocket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Again after an interruption; who is gone is told from what failed.
fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, BirthError> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(BirthError::Gone),
            answer => return Ok(answer?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::super::message::{Order, Report};
    use super::*;

    fn pair() -> (BirthSocket, BirthSocket) {
        let (supervisor, worker) = BirthSocket::pair().unwrap();
        (supervisor, BirthSocket::adopt(worker).unwrap())
    }

    #[test]
    fn messages_pass_with_their_files_and_secrets_between_them() {
        let (supervisor, mut worker) = pair();
        let (mut readable, written) = std::io::pipe().unwrap();
        supervisor.send(&Order::Suspend, &[written.as_fd()]).unwrap();
        let secret = SecretBytes::random(64).unwrap();
        supervisor.send_secret(&secret).unwrap();
        drop(written);
        let (order, files): (Order, _) = worker.receive().unwrap();
        assert_eq!((order, files.len()), (Order::Suspend, 1));
        assert_eq!(worker.receive_secret().unwrap(), secret);
        drop(files);
        let mut nothing = Vec::new();
        assert_eq!(readable.read_to_end(&mut nothing).unwrap(), 0, "the last copy of the file is closed");
        drop(supervisor);
        assert!(matches!(worker.receive::<Order>(), Err(BirthError::Gone)));
        assert!(matches!(worker.send(&Report::Keyed, &[]), Err(BirthError::Gone)));
    }

    #[test]
    fn what_is_too_much_is_refused_before_it_is_sent() {
        let (supervisor, _worker) = pair();
        let null = File::open("/dev/null").unwrap();
        let files = vec![null.as_fd(); FILES_MAX + 1];
        let refused = supervisor.send(&Order::End, &files);
        assert!(matches!(refused, Err(BirthError::TooLong { files: 254, .. })));
        let long = Report::Failed { reason: "x".repeat(MESSAGE_BYTES_MAX) };
        assert!(matches!(supervisor.send(&long, &[]), Err(BirthError::TooLong { .. })));
    }

    #[test]
    fn the_largest_message_passes_and_a_larger_packet_does_not() {
        let (supervisor, mut worker) = pair();
        let null = File::open("/dev/null").unwrap();
        let empty = encode(FORMAT, &Report::Failed { reason: String::new() }).unwrap().len();
        let largest = Report::Failed { reason: "x".repeat(MESSAGE_BYTES_MAX - empty) };
        supervisor.send(&largest, &vec![null.as_fd(); FILES_MAX]).unwrap();
        let (received, files) = worker.receive::<Report>().unwrap();
        assert_eq!((received == largest, files.len()), (true, FILES_MAX));
        rustix::net::send(&supervisor, &vec![b' '; MESSAGE_BYTES_MAX + 1], SendFlags::empty()).unwrap();
        assert!(matches!(worker.receive::<Report>(), Err(BirthError::TooLong { .. })));
        rustix::net::send(&supervisor, &vec![b' '; SECRET_MAX_BYTES + 1], SendFlags::empty()).unwrap();
        assert!(matches!(worker.receive_secret(), Err(BirthError::TooLong { .. })));
    }

    #[test]
    fn a_person_is_no_supervisor() {
        let pipe = std::io::pipe().unwrap().0;
        assert!(matches!(BirthSocket::adopt(pipe), Err(BirthError::NotBorn)));
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(BirthSocket::adopt(stream), Err(BirthError::NotBorn)));
    }
}
