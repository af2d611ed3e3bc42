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
use tokio_rustls::TlsAcceptor;

use super::http::HTTP;

/// The most connections: those of a control plane, each for one request, and some of strangers,
/// who cannot exclude it.
const PLACES: Limits = Limits { strangers: 64, known: 128, of_one: 128 };
/// Timeout of a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

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
    let acceptor = match tls.config() {
        Ok(config) => TlsAcceptor::from(config),
        Err(error) => return tracing::error!("hostd's certificate cannot be used: {error}"),
    };
    let stream = match shake_hands(&acceptor, stream, HANDSHAKE_WITHIN).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%peer, %error, "no TLS"),
    };
    if let Err(full) = place.known_as(&ControlPlane) {
        return tracing::warn!(%peer, %full, "a connection of the control plane was closed");
    }
    if let Err(error) = serve_http(stream, router, (), HTTP, std::future::pending()).await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}
