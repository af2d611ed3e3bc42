//! Who hears of refusals.

use std::net::SocketAddr;

use super::Peer;
use crate::codec::DecodeError;

/// Someone who is told of every connection or request that the transport refused, before the client
/// is: the audit log. Called on the task of that connection, so it must not block for long.
pub trait Observer: Send + Sync + 'static {
    /// Something was refused.
    fn refused(&self, refusal: &Refusal<'_>);
}

/// A refusal.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// Where the connection comes from.
    pub address: SocketAddr,
    /// Whose certificate it has, if the handshake came so far.
    pub peer: Option<&'a Peer>,
    /// Why.
    pub reason: &'a RefusalReason,
}

/// Why a connection or request was refused.
#[derive(Debug, thiserror::Error)]
pub enum RefusalReason {
    /// There are as many connections as there may be.
    #[error("there are {0} connections already")]
    Connections(usize),
    /// There are as many connections with this certificate as there may be.
    #[error("there are {0} connections with this certificate already")]
    ConnectionsOfOnePeer(usize),
    /// The handshake failed: no certificate, or an expired, revoked or foreign one, or no TLS at
    /// all.
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    /// The handshake took too long.
    #[error("the TLS handshake took too long")]
    HandshakeTime,
    /// The TLS configuration let a client without a certificate in. The transport does not.
    #[error("the client has no certificate")]
    NoCertificate,
    /// The service does not admit the certificate.
    #[error("the certificate is not admitted")]
    NotAdmitted,
    /// The request is no request of KMIP.
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    /// The request took too long to arrive.
    #[error("the request took too long to arrive")]
    RequestTime,
    /// The client took too long to read the response.
    #[error("the client took too long to read the response")]
    ResponseTime,
    /// The connection was closed because its certificate was withdrawn, with a request under way.
    #[error("the certificate was withdrawn while a request was under way")]
    Withdrawn,
}
