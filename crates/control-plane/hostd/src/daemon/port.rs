//! hostd's port, for the control plane on another machine: mutual TLS, and behind it the same
//! requests as at the control socket.
//!
//! The TLS configuration admits one peer only, the control plane of this host, by its certificate.
//! Nothing in a request decides who its sender is.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use strongroom_serving::{Connections, Limits, Place, Places, serve_http, shake_hands};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;

use super::http::HTTP;

/// The most connections: those of a control plane, each with one request at a time, and some of
/// strangers, who cannot exclude it.
const PLACES: Limits = Limits { strangers: 64, known: 128, of_one: 128 };
/// Timeout of a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection is served. The control plane opens another one, and certificates are
/// verified anew.
const AGE_MAX: Duration = Duration::from_secs(300);
/// The interval of looks whether a connection's certificate is still the present one.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// The TLS of the port.
pub trait PortTls: Debug + Send + Sync {
    /// Returns the present configuration; certificates are renewed while hostd runs. It must admit
    /// no peer but the control plane.
    ///
    /// # Errors
    /// If the certificate or its key cannot be used.
    fn config(&self) -> io::Result<Arc<ServerConfig>>;
}

/// The options of the port.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Its address.
    pub listen: SocketAddr,
    /// Its TLS.
    pub tls: Arc<dyn PortTls>,
}

/// Who has a place: the one peer that the TLS admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ControlPlane;

/// Serves requests until it is dropped.
pub async fn serve(router: Router, listener: TcpListener, tls: Arc<dyn PortTls>) {
    let places = Places::new("hostd's port", PLACES);
    let mut connections = Connections::new("hostd's port");
    loop {
        let (stream, peer) = connections.accept(|| listener.accept()).await;
        let (router, tls, place) = (router.clone(), Arc::clone(&tls), places.enter(peer.ip()));
        connections.spawn(async move {
            tokio::select! {
                () = place.displaced() => {}
                () = connection(router, stream, peer, &*tls, &place) => {}
            }
        });
    }
}

async fn connection(
    router: Router,
    stream: TcpStream,
    peer: SocketAddr,
    tls: &dyn PortTls,
    place: &Place<ControlPlane>,
) {
    // Answers are small, and none should wait for the previous one.
    let _ = stream.set_nodelay(true);
    let config = match tls.config() {
        Ok(config) => config,
        Err(error) => return tracing::error!("hostd's certificate cannot be used: {error}"),
    };
    let acceptor = TlsAcceptor::from(Arc::clone(&config));
    let stream = match shake_hands(&acceptor, stream, HANDSHAKE_WITHIN).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%peer, %error, "no TLS"),
    };
    if let Err(full) = place.known_as(&ControlPlane) {
        return tracing::warn!(%peer, %full, "a connection of the control plane was closed");
    }
    if let Err(error) = serve_http(stream, router, (), HTTP, outdated(tls, &config)).await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// Waits until a connection that was opened under this configuration is to end: the certificate was
/// renewed or cannot be used any more, or the connection is old.
async fn outdated(tls: &dyn PortTls, opened_under: &Arc<ServerConfig>) {
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
    struct Renewable(Mutex<Arc<ServerConfig>>);

    impl PortTls for Renewable {
        fn config(&self) -> io::Result<Arc<ServerConfig>> {
            Ok(Arc::clone(&self.0.lock()))
        }
    }

    fn config() -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let none = Arc::new(ResolvesServerCertUsingSni::new());
        Arc::new(config.unwrap().with_no_client_auth().with_cert_resolver(none))
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
