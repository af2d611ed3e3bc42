//! TLS handshakes with a deadline.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, ClientHello};
use rustls::{ClientConfig, ServerConfig};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, TlsConnector, client, server};

/// The reasons why a TLS handshake fails.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The peer took too long.
    #[error("the TLS handshake took too long")]
    Late,
    /// The peer does not use TLS, or was refused.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// Performs the handshake as the server.
///
/// # Errors
/// [`HandshakeError`].
pub async fn shake_hands<Stream: AsyncRead + AsyncWrite + Unpin>(
    acceptor: &TlsAcceptor,
    stream: Stream,
    within: Duration,
) -> Result<server::TlsStream<Stream>, HandshakeError> {
    let shaken = tokio::time::timeout(within, acceptor.accept(stream)).await;
    Ok(shaken.map_err(|_| HandshakeError::Late)??)
}

/// Performs the handshake as the server, with the configuration that `choose` takes for what the
/// client announces.
///
/// # Errors
/// [`HandshakeError`], also if there is no configuration for the client.
pub async fn shake_hands_choosing<Stream: AsyncRead + AsyncWrite + Unpin>(
    choose: impl FnOnce(&ClientHello<'_>) -> io::Result<Arc<ServerConfig>>,
    stream: Stream,
    within: Duration,
) -> Result<server::TlsStream<Stream>, HandshakeError> {
    let shaken = async {
        let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let config = choose(&begun.client_hello())?;
        begun.into_stream(config).await
    };
    Ok(tokio::time::timeout(within, shaken).await.map_err(|_| HandshakeError::Late)??)
}

/// Performs the handshake as a client of the server `name`.
///
/// # Errors
/// [`HandshakeError`].
pub async fn shake_hands_with<Stream: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    stream: Stream,
    within: Duration,
) -> Result<client::TlsStream<Stream>, HandshakeError> {
    let shaken = tokio::time::timeout(within, TlsConnector::from(config).connect(name, stream)).await;
    Ok(shaken.map_err(|_| HandshakeError::Late)??)
}
