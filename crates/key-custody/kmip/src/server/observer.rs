//! Observers of refusals.

use std::net::SocketAddr;

use super::Peer;
use crate::codec::DecodeError;

/// Receives every connection or request that the transport refuses, before the client gets the
/// refusal; the audit log is one. It is called on the connection's task, so it must not block for
/// long.
pub trait Observer: Send + Sync + 'static {
    /// Called for each refusal.
    fn refused(&self, refusal: &Refusal<'_>);
}

/// A refusal.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// The client's address.
    pub address: SocketAddr,
    /// The client, if the handshake got as far as its certificate.
    pub peer: Option<&'a Peer>,
    /// The reason.
    pub reason: &'a RefusalReason,
}

/// Why a connection or request was refused.
#[derive(Debug, thiserror::Error)]
pub enum RefusalReason {
    /// The limit of connections is reached.
    #[error("there are {0} connections already")]
    Connections(usize),
    /// The limit of connections with this certificate is reached.
    #[error("there are {0} connections with this certificate already")]
    ConnectionsOfOnePeer(usize),
    /// The handshake failed: no certificate, or an expired, revoked or foreign one, or no TLS at
    /// all.
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    /// The handshake took too long.
    #[error("the TLS handshake took too long")]
    HandshakeTime,
    /// The TLS configuration admitted a client without a certificate; the transport does not.
    #[error("the client has no certificate")]
    NoCertificate,
    /// The service does not admit the certificate.
    #[error("the certificate is not admitted")]
    NotAdmitted,
    /// The request is not KMIP.
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    /// The request took too long to arrive.
    #[error("the request took too long to arrive")]
    RequestTime,
    /// The client took too long to read the response.
    #[error("the client took too long to read the response")]
    ResponseTime,
    /// The connection was closed because its certificate was withdrawn, with a request in progress.
    #[error("the certificate was withdrawn while a request was under way")]
    Withdrawn,
}
