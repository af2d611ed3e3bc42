//! What a gate and the supervisor that records states tell each other.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Said by the gate: swtpm has written a state. It is said again only after [`RECORDED`].
pub(super) const NEW_STATE: u8 = 1;
/// Said by the supervisor: the state that swtpm had when [`NEW_STATE`] came is recorded, or a later
/// one.
pub(super) const RECORDED: u8 = 2;

/// What a gate has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// There is a state to record, and answers to the guest wait for it.
    NewState,
    /// Nothing since the last notice.
    Nothing,
    /// It has ended.
    Gone,
}

/// A connection to the gate of a running TPM. A gate has one: a newer one replaces it.
#[derive(Debug)]
pub struct StateGate(UnixStream);

impl StateGate {
    /// Connects to the gate that listens at `path`
    /// ([`RunDirectory::tpm_states`](crate::RunDirectory::tpm_states)). `None` if there is none:
    /// it has ended, or an earlier program has started swtpm without one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn connect(path: &Path) -> io::Result<Option<Self>> {
        match UnixStream::connect(path) {
            Ok(socket) => Self::adopt(socket.into()).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A connection that another process has made.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Returns what the gate has said since the last call, without waiting for it.
    ///
    /// # Errors
    /// If it says what no gate says.
    pub fn notice(&self) -> io::Result<Notice> {
        let mut word = [0];
        match (&self.0).read(&mut word) {
            Ok(0) => Ok(Notice::Gone),
            Ok(_) if word == [NEW_STATE] => Ok(Notice::NewState),
            Ok(_) => Err(io::Error::other("the TPM's gate says what no gate says")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Notice::Nothing),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Notice::Gone),
            Err(error) => Err(error),
        }
    }

    /// Says that the state of the last [`Notice::NewState`] is recorded: what waits for it passes.
    ///
    /// # Errors
    /// If the gate has ended.
    pub fn recorded(&self) -> io::Result<()> {
        (&self.0).write_all(&[RECORDED])
    }
}

impl AsFd for StateGate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<StateGate> for OwnedFd {
    fn from(gate: StateGate) -> Self {
        gate.0.into()
    }
}
