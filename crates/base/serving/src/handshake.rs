//! TLS with a deadline.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Why there is no TLS on a connection.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The peer took too long.
    #[error("the TLS handshake took too long")]
    Late,
    /// The peer speaks no TLS, or was not let in.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// Shakes hands as the server.
///
/// # Errors
/// [`HandshakeError`].
pub async fn shake_hands<Stream: AsyncRead + AsyncWrite + Unpin>(
    acceptor: &TlsAcceptor,
    stream: Stream,
    within: Duration,
) -> Result<TlsStream<Stream>, HandshakeError> {
    let shaken = tokio::time::timeout(within, acceptor.accept(stream)).await;
    Ok(shaken.map_err(|_| HandshakeError::Late)??)
}
