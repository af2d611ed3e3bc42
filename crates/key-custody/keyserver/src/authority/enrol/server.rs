//! Enrolment and administration: HTTP/1.1 over TLS by hyper, at a port and at a socket of this
//! machine.
//!
//! The port is open to every client that can reach it, so each resource that a stranger can use has
//! a limit. The socket is for the server's own user and root, and has its own places, so that load
//! on the port never blocks this machine's administration. At both, certificates identify the
//! client.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustix::process::Uid;
use strongroom_serving::{
    Connections, HandshakeError, HttpLimits, Limits, Place, Places, serve_http, shake_hands,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use super::super::{Authority, AuthorityError};
use super::office::{self, Asker, Office};
use crate::access::{CertificateSha256, ClientId, Identity};

/// Most connections at a time. Enrolling a machine needs one for a second, and so does each request
/// of a client with a certificate. Clients without one cannot lock those out.
const PLACES: Limits = Limits { strangers: 64, known: 64, of_one: 32 };
/// The same for the socket, where all clients are on this machine.
const SOCKET_PLACES: Limits = Limits { strangers: 32, known: 64, of_one: 64 };
/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a connection after its handshake, which is one request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// One request a connection. hyper's smallest buffer is 8 KiB, and libraries send a dozen header
/// lines.
const HTTP: HttpLimits = HttpLimits {
    head_bytes: 8 * 1024,
    head_lines: 32,
    head_within: Duration::from_secs(5),
    keeps_alive: false,
};
/// How long a shutdown waits for requests in progress.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The port.
    Network(IpAddr),
    /// The socket of this machine.
    Socket {
        /// The user of the other end.
        uid: u32,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(formatter),
            Self::Socket { uid } => write!(formatter, "administration socket, uid {uid}"),
        }
    }
}

/// An event at the port or the socket, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnrolmentEvent {
    /// Its origin.
    pub peer: Origin,
    /// The client, if its certificate was accepted.
    pub by: Option<ClientId>,
    /// Path of the request; empty if there was none.
    pub request: &'static str,
    /// The certificate that was issued and its client, or the code of the refusal.
    pub outcome: Result<(ClientId, CertificateSha256), &'static str>,
}

/// The event could not be recorded.
#[derive(Debug, thiserror::Error)]
#[error("it could not be put on record: {0}")]
pub struct NotRecorded(pub String);

/// The record of events.
pub trait EnrolmentRecord: Send + Sync {
    /// Records `event`; blocks until it is durable. A certificate is handed out only afterwards.
    ///
    /// # Errors
    /// [`NotRecorded`]: then the certificate is not handed out, and a repeated request gets the
    /// same one.
    fn record(&self, event: &EnrolmentEvent) -> Result<(), NotRecorded>;
}

/// Answers administrators, who are identified by their certificates.
pub trait Management: Send + Sync {
    /// Answers a question, JSON to JSON; blocks. Changes and refusals are on record when it
    /// returns. An answer may hold a token.
    ///
    /// # Errors
    /// [`Unanswered`].
    fn answer(
        &self,
        asker: &Identity,
        origin: Origin,
        question: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Unanswered>;
}

/// Why a question was not answered.
#[derive(Debug)]
pub struct Unanswered {
    /// For programs; never changes.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// Whether the client is at fault.
    pub by_asker: bool,
}

/// The listeners of enrolment and administration.
#[derive(Debug)]
pub struct Listeners {
    /// The port.
    pub port: TcpListener,
    /// The socket of this machine, if there is one.
    pub socket: Option<UnixListener>,
}

/// Serves enrolment, and management if given, until `shutdown` is ready, then finishes the requests
/// in progress.
///
/// # Errors
/// [`AuthorityError::Tls`] before the first connection; none afterwards.
pub async fn serve(
    listeners: Listeners,
    authority: Arc<Authority>,
    record: Arc<dyn EnrolmentRecord>,
    management: Option<Arc<dyn Management>>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), AuthorityError> {
    let acceptor = TlsAcceptor::from(authority.enrolment_config()?);
    let office = Arc::new(Office::new(authority, record));
    let port = Arc::new(Port { acceptor, router: office::router(&office, management), office });
    let Listeners { port: listener, socket } = listeners;
    let places = Places::new("enrolment", PLACES);
    let own_places = Places::new("administration", SOCKET_PLACES);
    let own_uid = rustix::process::geteuid();
    let mut connections = Connections::new("enrolment");
    tokio::pin!(shutdown);
    loop {
        let next = || async {
            tokio::select! {
                accepted = accept_local(socket.as_ref(), own_uid) => accepted.map(Accepted::Local),
                accepted = listener.accept() => accepted.map(|(stream, peer)| Accepted::Remote(stream, peer.ip())),
            }
        };
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = connections.accept(next) => accepted,
        };
        match accepted {
            Accepted::Remote(stream, address) => {
                let place = places.enter(address);
                connections.spawn(Arc::clone(&port).placed(stream, Origin::Network(address), place));
            }
            Accepted::Local(Some((stream, uid))) => {
                let place = own_places.enter(Ipv4Addr::LOCALHOST.into());
                connections.spawn(Arc::clone(&port).placed(stream, Origin::Socket { uid }, place));
            }
            Accepted::Local(None) => {}
        }
    }
    connections.drain(SHUTDOWN_TIMEOUT).await;
    Ok(())
}

/// An accepted connection.
enum Accepted {
    Remote(TcpStream, IpAddr),
    /// `None` if its user may not administer.
    Local(Option<(UnixStream, u32)>),
}

/// The next connection at the socket; waits forever without a socket.
async fn accept_local(socket: Option<&UnixListener>, own: Uid) -> io::Result<Option<(UnixStream, u32)>> {
    let Some(socket) = socket else { return std::future::pending().await };
    let (stream, _) = socket.accept().await?;
    let uid = stream.peer_cred()?.uid();
    if !may_administer(uid, own) {
        tracing::warn!(uid, "administration: a connection of another user was closed");
        return Ok(None);
    }
    Ok(Some((stream, uid)))
}

/// The socket's file mode already keeps other users out; this check also holds if the mode was
/// changed.
fn may_administer(uid: u32, own: Uid) -> bool {
    uid == own.as_raw() || uid == Uid::ROOT.as_raw()
}

/// State shared by all connections.
struct Port {
    acceptor: TlsAcceptor,
    office: Arc<Office>,
    router: Router,
}

impl Port {
    /// Serves a connection until it ends or another takes its place.
    async fn placed(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: Origin,
        place: Place<CertificateSha256>,
    ) {
        tokio::select! {
            () = place.displaced() => {}
            () = self.connection(stream, peer, &place) => {}
        }
    }

    async fn connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: Origin,
        place: &Place<CertificateSha256>,
    ) {
        let stream = match shake_hands(&self.acceptor, stream, HANDSHAKE_TIMEOUT).await {
            Ok(stream) => stream,
            Err(HandshakeError::Failed(error)) => return self.office.handshake_failed(peer, &error).await,
            Err(HandshakeError::Late) => return self.office.has_failed(peer),
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let asker = Asker { peer, certificate: shown.map(|certificate| certificate.clone().into_owned()) };
        // Other clients may have failed from the same address: a client with a certificate is not
        // delayed for them.
        let welcome = match &asker.certificate {
            Some(certificate) => place.known_as(&CertificateSha256::of(certificate)).is_ok(),
            None => !self.office.has_to_wait(peer),
        };
        if !welcome {
            tracing::debug!(%peer, "enrolment: failed too often, or too many connections; closed");
            return;
        }
        let served = serve_http(stream, self.router.clone(), asker, HTTP, std::future::pending());
        match tokio::time::timeout(REQUEST_TIMEOUT, served).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "enrolment: a connection ended early");
                self.office.has_failed(peer);
            }
            Err(_) => self.office.has_failed(peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_for_the_servers_own_user_and_root() {
        let own = Uid::from_raw(991);
        assert!(may_administer(991, own) && may_administer(0, own));
        assert!(!may_administer(1000, own) && !may_administer(990, own));
    }
}
