//! hostd's port, for other machines: its control plane, and clients with tickets.
//!
//! Both come over TLS, and say which they are when they begin (ALPN). The control plane shows its
//! certificate, and behind it are the same requests as at the control socket. Clients with tickets
//! show none; they get what the guest socket gives, and until a ticket has been taken they are
//! strangers. Nothing in a request decides who its sender is.
//!
//! hostd ends the TLS of a client with a ticket, so guest data passes through its memory in the
//! clear. It does not look into it, and writes none of it anywhere.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout};
use rustls::{ClientConfig, ServerConfig};
use strongroom_host::protocol::{GUEST_PROTOCOL, GuestPort};
use strongroom_serving::{Connections, Limits, Place, Places, relay, serve_http, shake_hands_choosing};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_rustls::server::TlsStream;

use super::http::HTTP;
use super::{Hostd, guest};

/// The most connections: those of a control plane, each with one request at a time, as many of
/// clients whose tickets have been taken, and some of strangers, who cannot exclude either.
const PLACES: Limits = Limits { strangers: 64, known: 256, of_one: 128 };
/// Timeout of a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection of the control plane is served. It opens another one, and certificates are
/// verified anew.
const AGE_MAX: Duration = Duration::from_secs(300);
/// The interval of looks whether a connection's certificate is still the present one.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// After how long without an answer of its machine a client with a ticket is gone. It may be silent
/// for as long as it likes: a console has a person in front of it.
const GONE_AFTER: Duration = Duration::from_secs(60);
/// The interval of questions to the machine of a silent client.
const ASKS_EVERY: Duration = Duration::from_secs(15);

/// The TLS of the port.
pub trait PortTls: Debug + Send + Sync {
    /// Returns the present configuration; certificates are renewed while hostd runs.
    ///
    /// # Errors
    /// If the certificate or its key cannot be used.
    fn config(&self) -> io::Result<Arc<PortConfig>>;

    /// Returns the TLS of a client with a ticket, which admits the host with this certificate alone
    /// (SHA-256, 64 hexadecimal digits).
    ///
    /// # Errors
    /// If that is no digest, or there is no TLS 1.3.
    fn to_host(&self, certificate_sha256: &str) -> io::Result<Arc<ClientConfig>>;
}

/// The TLS of the port under one certificate.
#[derive(Debug)]
pub struct PortConfig {
    /// For the control plane: it admits no other peer.
    pub control: Arc<ServerConfig>,
    /// For clients with tickets: it admits everybody who speaks [`GUEST_PROTOCOL`].
    pub guests: Arc<ServerConfig>,
    /// SHA-256 of the certificate, as 64 hexadecimal digits.
    pub certificate_sha256: String,
}

/// The options of the port.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Its address.
    pub listen: SocketAddr,
    /// Its TLS.
    pub tls: Arc<dyn PortTls>,
}

impl PortOptions {
    /// The port, as clients with tickets hear of it.
    ///
    /// # Errors
    /// If its certificate cannot be used.
    pub fn for_guests(&self) -> io::Result<GuestPort> {
        let certificate_sha256 = self.tls.config()?.certificate_sha256.clone();
        Ok(GuestPort { listen: self.listen, certificate_sha256 })
    }
}

/// Who has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Peer {
    ControlPlane,
    /// All clients whose tickets have been taken.
    Guests,
}

/// Serves requests until it is dropped; `guests` is the hostd whose guests are reached.
pub async fn serve(router: Router, guests: Option<Arc<Hostd>>, listener: TcpListener, tls: Arc<dyn PortTls>) {
    let places = Places::new("hostd's port", PLACES);
    let mut connections = Connections::new("hostd's port");
    loop {
        let (stream, peer) = connections.accept(|| listener.accept()).await;
        let (router, guests) = (router.clone(), guests.clone());
        let (tls, place) = (Arc::clone(&tls), places.enter(peer.ip()));
        connections.spawn(async move {
            tokio::select! {
                () = place.displaced() => {}
                () = connection(router, guests, stream, peer, &*tls, &place) => {}
            }
        });
    }
}

async fn connection(
    router: Router,
    guests: Option<Arc<Hostd>>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: &dyn PortTls,
    place: &Place<Peer>,
) {
    // Answers are small, and none should wait for the previous one.
    let _ = stream.set_nodelay(true);
    let config = match tls.config() {
        Ok(config) => config,
        Err(error) => return tracing::error!("hostd's certificate cannot be used: {error}"),
    };
    let shaken = shake_hands_choosing(
        |hello| {
            let mut protocols = hello.alpn().into_iter().flatten();
            let is_guest = protocols.any(|protocol| protocol == GUEST_PROTOCOL);
            Ok(Arc::clone(if is_guest { &config.guests } else { &config.control }))
        },
        stream,
        HANDSHAKE_WITHIN,
    );
    let stream = match shaken.await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%peer, %error, "no TLS"),
    };
    // Only the configuration without certificates knows this protocol.
    if stream.get_ref().1.alpn_protocol() == Some(GUEST_PROTOCOL) {
        let Some(hostd) = guests else { return };
        if let Err(error) = guest(hostd, stream, place).await {
            tracing::debug!(%peer, %error, "a guest's connection ended early");
        }
        return;
    }
    if let Err(full) = place.known_as(&Peer::ControlPlane) {
        return tracing::warn!(%peer, %full, "a connection of the control plane was closed");
    }
    if let Err(error) = serve_http(stream, router, (), HTTP, outdated(tls, &config)).await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// Serves a client with a ticket, as the guest socket does.
async fn guest(hostd: Arc<Hostd>, stream: TlsStream<TcpStream>, place: &Place<Peer>) -> io::Result<()> {
    notice_loss(stream.get_ref().0)?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = tokio::net::UnixStream::from_std(ours)?;
    let taken = Arc::new(Notify::new());
    let redeemed = Arc::clone(&taken);
    // It ends soon if the client has no ticket, or leaves: `theirs` has the guest socket's timeout.
    thread::Builder::new()
        .name("ticket".to_owned())
        .spawn(move || guest::take_up(&hostd, theirs, &|| redeemed.notify_one()))?;
    let known = async {
        taken.notified().await;
        match place.known_as(&Peer::Guests) {
            Ok(()) => std::future::pending().await,
            Err(full) => io::Error::other(full),
        }
    };
    tokio::select! {
        ended = relay(stream, ours) => ended,
        full = known => Err(full),
    }
}

/// Has the kernel end the connection if the machine of its client is gone.
pub fn notice_loss(stream: &TcpStream) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, ASKS_EVERY)?;
    set_tcp_keepintvl(stream, ASKS_EVERY)?;
    let gone_after_ms = u32::try_from(GONE_AFTER.as_millis()).unwrap_or(u32::MAX);
    Ok(set_tcp_user_timeout(stream, gone_after_ms)?)
}

/// Waits until a connection that was opened under this configuration is to end: the certificate was
/// renewed or cannot be used any more, or the connection is old.
async fn outdated(tls: &dyn PortTls, opened_under: &Arc<PortConfig>) {
    let until = Instant::now() + AGE_MAX;
    while Instant::now() < until {
        sleep(LOOKS_EVERY).await;
        if !tls.config().is_ok_and(|present| Arc::ptr_eq(&present, opened_under)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    #[derive(Debug)]
    struct Renewable(Mutex<Arc<PortConfig>>);

    impl PortTls for Renewable {
        fn config(&self) -> io::Result<Arc<PortConfig>> {
            Ok(Arc::clone(&self.0.lock()))
        }

        fn to_host(&self, _: &str) -> io::Result<Arc<ClientConfig>> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn config() -> Arc<PortConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let none = Arc::new(ResolvesServerCertUsingSni::new());
        let config = Arc::new(config.unwrap().with_no_client_auth().with_cert_resolver(none));
        Arc::new(PortConfig {
            control: Arc::clone(&config),
            guests: config,
            certificate_sha256: String::new(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_with_the_certificate_that_it_was_opened_under_and_when_it_is_old() {
        let first = config();
        let tls = Renewable(Mutex::new(Arc::clone(&first)));
        let began = Instant::now();
        outdated(&tls, &first).await;
        assert_eq!(began.elapsed(), AGE_MAX);
        *tls.0.lock() = config();
        let renewed = Instant::now();
        outdated(&tls, &first).await;
        assert_eq!(renewed.elapsed(), LOOKS_EVERY);
    }
}
