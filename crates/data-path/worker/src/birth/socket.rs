//! The socket: packets with files, and packets of secrets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes, SecretError};
pub use strongroom_wire::FILES_MAX;
use strongroom_wire::{FormatError, PacketError, PacketSocket, encode};
use thiserror::Error;

use super::message::FORMATS;

/// The longest message: it has room for the sessions of a guest with hundreds of memory regions,
/// and is below a socket's default limit for one packet (`net.core.wmem_default`).
pub const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// The reasons why a message was not sent or received.
#[derive(Debug, Error)]
pub enum BirthError {
    /// The descriptor is not such a socket: a person started the process, not a supervisor.
    #[error("the process was not started by a supervisor")]
    NotBorn,
    /// The other side is gone.
    #[error("the other process is gone")]
    Gone,
    /// It cannot be sent or received.
    #[error(transparent)]
    Packet(PacketError),
    /// Its format is not supported.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A message that was not expected.
    #[error("the other process sent what was not asked for: {0}")]
    Unexpected(String),
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl From<PacketError> for BirthError {
    fn from(error: PacketError) -> Self {
        match error {
            PacketError::Gone => Self::Gone,
            error => Self::Packet(error),
        }
    }
}

impl From<Errno> for BirthError {
    fn from(errno: Errno) -> Self {
        Self::Packet(errno.into())
    }
}

impl From<serde_json::Error> for BirthError {
    fn from(error: serde_json::Error) -> Self {
        Self::Format(error.into())
    }
}

/// One end of the socket that a worker is started with.
#[derive(Debug)]
pub struct BirthSocket<S = OwnedFd> {
    socket: PacketSocket<S>,
    /// The format of sent messages: a supervisor's own, or, in a worker, that of the last message
    /// received.
    format: u32,
}

impl BirthSocket {
    /// Makes a supervisor's end, and the other end, which becomes a worker's standard input.
    pub fn pair() -> Result<(Self, OwnedFd), BirthError> {
        let (socket, theirs) = PacketSocket::pair()?;
        Ok((Self { socket, format: FORMATS.newest }, theirs))
    }

    /// The socket itself, to pass on to another process.
    pub fn into_socket(self) -> OwnedFd {
        self.socket.into_socket()
    }
}

impl<S: AsFd> BirthSocket<S> {
    /// Adopts a worker's end, with which it was started, or a supervisor's end that was used in
    /// another process before.
    pub fn adopt(socket: S) -> Result<Self, BirthError> {
        let socket = PacketSocket::adopt(socket).ok_or(BirthError::NotBorn)?;
        Ok(Self { socket, format: FORMATS.newest })
    }

    /// Ends the connection for both sides.
    pub fn hang_up(&self) {
        self.socket.hang_up();
    }

    /// The format of sent messages. A worker uses its supervisor's, once it has received a message.
    pub fn format(&self) -> u32 {
        self.format
    }

    /// Sends a message with files. It does not wait for room in the socket; only a peer that is
    /// stuck leaves none.
    pub fn send<M: Serialize>(&self, message: &M, files: &[BorrowedFd<'_>]) -> Result<(), BirthError> {
        let bytes = encode(self.format, message)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(PacketError::TooLong { bytes: bytes.len(), files: files.len() }.into());
        }
        Ok(self.socket.send(&bytes, files)?)
    }

    /// Waits for a message. From then on messages are sent in its format.
    pub fn receive<M: DeserializeOwned>(&mut self) -> Result<(M, Vec<OwnedFd>), BirthError> {
        let mut room = vec![0; MESSAGE_BYTES_MAX];
        let (bytes, files) = self.socket.receive(&mut room, FILES_MAX)?;
        let (format, message) = FORMATS.decode(bytes)?;
        self.format = format;
        Ok((message, files))
    }

    /// Sends a secret as a separate packet, directly from its memory.
    pub fn send_secret(&self, secret: &SecretBytes) -> Result<(), BirthError> {
        Ok(self.socket.send(secret.expose(), &[])?)
    }

    /// Waits for a secret, which is received directly into secret memory.
    pub fn receive_secret(&self) -> Result<SecretBytes, BirthError> {
        let mut packet = SecretBytes::zeroed(SECRET_MAX_BYTES)?;
        let bytes = self.socket.receive_into(packet.expose_mut())?;
        let mut secret = SecretBytes::zeroed(bytes)?;
        secret.expose_mut().copy_from_slice(&packet.expose()[..bytes]);
        Ok(secret)
    }
}

impl<S: AsFd> AsFd for BirthSocket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use rustix::net::SendFlags;

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
        assert!(matches!(refused, Err(BirthError::Packet(PacketError::TooLong { files: 254, .. }))));
        let long = Report::Failed { reason: "x".repeat(MESSAGE_BYTES_MAX) };
        assert!(matches!(supervisor.send(&long, &[]), Err(BirthError::Packet(PacketError::TooLong { .. }))));
    }

    #[test]
    fn the_largest_message_passes_and_a_larger_packet_does_not() {
        let (supervisor, mut worker) = pair();
        let null = File::open("/dev/null").unwrap();
        let empty = encode(FORMATS.newest, &Report::Failed { reason: String::new() }).unwrap().len();
        let largest = Report::Failed { reason: "x".repeat(MESSAGE_BYTES_MAX - empty) };
        supervisor.send(&largest, &vec![null.as_fd(); FILES_MAX]).unwrap();
        let (received, files) = worker.receive::<Report>().unwrap();
        assert_eq!((received == largest, files.len()), (true, FILES_MAX));
        rustix::net::send(&supervisor, &vec![b' '; MESSAGE_BYTES_MAX + 1], SendFlags::empty()).unwrap();
        assert!(matches!(worker.receive::<Report>(), Err(BirthError::Packet(PacketError::TooLong { .. }))));
        rustix::net::send(&supervisor, &vec![b' '; SECRET_MAX_BYTES + 1], SendFlags::empty()).unwrap();
        assert!(matches!(worker.receive_secret(), Err(BirthError::Packet(PacketError::TooLong { .. }))));
    }

    #[test]
    fn a_person_is_no_supervisor() {
        let pipe = std::io::pipe().unwrap().0;
        assert!(matches!(BirthSocket::adopt(pipe), Err(BirthError::NotBorn)));
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(BirthSocket::adopt(stream), Err(BirthError::NotBorn)));
    }
}
