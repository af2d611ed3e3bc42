//! What the control plane needs of the process that carries guest data for browsers.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use rustls::ExtractedSecrets;
use strongroom_api::vm::Ticket;

/// A connection of a browser that was answered with 101. What follows is a WebSocket, and the
/// guest's.
pub struct HandedOver {
    /// The traffic keys of its TLS connection from here on.
    pub secrets: ExtractedSecrets,
    /// Its socket.
    pub browser: TcpStream,
    /// The connection ends when the other end of this does, and this with the connection.
    pub leash: UnixStream,
    /// The ticket for the guest.
    pub ticket: Ticket,
    /// A connection to the host, if that takes clients of this machine alone.
    pub host: Option<UnixStream>,
}

/// Why a connection was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotTaken(pub String);

/// Carries guest data, in a process of its own: none of it passes through the control plane.
pub trait GuestRelay: Send + Sync {
    /// Takes a connection. The control plane keeps nothing of it but the other end of its leash.
    ///
    /// # Errors
    /// [`NotTaken`]; the browser sees a connection that ends.
    fn take(&self, connection: HandedOver) -> Result<(), NotTaken>;
}
