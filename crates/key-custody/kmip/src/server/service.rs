//! The service that answers requests, and its clients.

use std::fmt;
use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use strongroom_crypto::mac::sha256;

use crate::message::{RequestMessage, ResponseMessage};

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// Answers a request. It runs to its end even if the client disconnects or its certificate is
    /// withdrawn meanwhile; only a shutdown that exceeds its time drops it.
    fn handle(&self, peer: &Peer, request: RequestMessage) -> impl Future<Output = ResponseMessage> + Send;

    /// Whether a client whose handshake succeeded may stay. It is called once the connection can be
    /// closed by [`ServerHandle::close_peers`](super::ServerHandle::close_peers). To withdraw a
    /// certificate, first return `false` here and then close its connections; none slips through
    /// between the two.
    fn admits(&self, _peer: &Peer) -> bool {
        true
    }
}

/// The SHA-256 of a whole certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(sha256(certificate))
    }
}

impl fmt::Display for Fingerprint {
    /// 64 hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A client whose certificate was verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer {
    /// The client's own certificate, DER.
    pub certificate: CertificateDer<'static>,
    /// Its SHA-256.
    pub fingerprint: Fingerprint,
    /// The client's address.
    pub address: SocketAddr,
}

impl Peer {
    /// The client with that certificate at that address.
    pub fn new(certificate: CertificateDer<'static>, address: SocketAddr) -> Self {
        Self { fingerprint: Fingerprint::of(&certificate), certificate, address }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Peer({} at {})", self.fingerprint, self.address)
    }
}
