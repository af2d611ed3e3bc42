//! The key server behind KMIP's transport: each request is answered for the client that its
//! certificate names at that moment.

use std::sync::Arc;

use strongroom_kmip::message::{RequestMessage, ResponseMessage};
use strongroom_kmip::protocol::ResultReason;
use strongroom_kmip::server::{Peer, ServerHandle, Service};
use time::OffsetDateTime;

use crate::access::{CertificateSha256, Identity};
use crate::authority::{self, Authority, Refusal, Revoked};
use crate::caller::Caller;
use crate::server::KeyServer;

/// The KMIP service of a [`KeyServer`], with clients from an [`Authority`].
pub struct KmipService {
    server: Arc<KeyServer>,
    authority: Arc<Authority>,
}

impl KmipService {
    /// A service for the transport.
    pub fn new(server: Arc<KeyServer>, authority: Arc<Authority>) -> Self {
        Self { server, authority }
    }

    fn identify(&self, peer: &Peer) -> Result<Arc<Identity>, Refusal> {
        self.authority.identify(&peer.certificate, OffsetDateTime::now_utc())
    }
}

impl Service for KmipService {
    async fn handle(&self, peer: &Peer, request: RequestMessage) -> ResponseMessage {
        match self.identify(peer) {
            Ok(identity) => self.server.handle(Caller::new(identity, Some(peer.address)), &request).await,
            Err(refusal) => {
                tracing::warn!(%peer.address, %peer.fingerprint, code = refusal.code(), "a request was refused");
                ResponseMessage::failure(
                    request.header.protocol_version,
                    ResultReason::AuthenticationNotSuccessful,
                    format!("{}: {refusal}", refusal.code()),
                )
            }
        }
    }

    fn admits(&self, peer: &Peer) -> bool {
        self.identify(peer).is_ok()
    }
}

/// Closes the connections of revoked certificates. A renewed certificate in its grace period is
/// refused at its first request after the period.
pub struct ClosesRevoked {
    authority: Arc<Authority>,
    transport: ServerHandle,
}

impl ClosesRevoked {
    /// Watches `authority` for the connections of `transport`.
    pub fn watch(authority: &Arc<Authority>, transport: ServerHandle) {
        authority.observe(Arc::new(Self { authority: Arc::clone(authority), transport }));
    }
}

impl authority::Observer for ClosesRevoked {
    fn revoked(&self, revoked: &Revoked) {
        let now = OffsetDateTime::now_utc();
        let closed =
            self.transport.close_peers(|peer| self.authority.identify(&peer.certificate, now).is_err());
        tracing::info!(client = %revoked.client, closed, "connections were closed after a revocation");
    }

    fn refused(&self, _: &CertificateSha256, _: Refusal) {
        // The transport's observer receives refused handshakes.
    }
}
