//! The control plane's interface to machines that join as hosts: their certificates, and
//! connections to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use strongroom_api::Name;
use strongroom_types::ClientId;

use crate::host::Host;
use crate::keys::KeyProblem;

/// A machine that may join, as the key server knows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Admission {
    /// The token for its first certificate, which can be used once.
    pub token: String,
    /// The token's id, which is not secret.
    pub token_id: String,
    /// When the token expires, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// The client that the machine becomes.
    pub client: ClientId,
    /// The address at which the key server enrols.
    pub enrolment: SocketAddr,
    /// The address at which the key server hands out keys.
    pub kmip: SocketAddr,
    /// A name in the key server's certificate.
    pub server_name: Option<String>,
    /// SHA-256 of the certificate of its authority, in hexadecimal.
    pub authority: String,
    /// The control plane as a client of the key server.
    pub control: ClientId,
}

/// Lets machines join. Calls block, with a timeout of their own.
pub trait Joining: Send + Sync {
    /// Makes a token for a machine that becomes the host `name`.
    ///
    /// # Errors
    /// [`KeyProblem`]. A token of which nobody knows expires.
    fn admit(&self, name: &Name, valid: Duration) -> Result<Admission, KeyProblem>;

    /// Ends a token and the certificates of the client that was made with it. May be repeated.
    ///
    /// # Errors
    /// [`KeyProblem`]; then the certificates may still be valid.
    fn expel(&self, token_id: &str, client: ClientId) -> Result<(), KeyProblem>;

    /// The host at `address`, which must prove that it is this client. Does not connect yet.
    fn connect(&self, address: SocketAddr, client: ClientId) -> Arc<dyn Host>;
}
