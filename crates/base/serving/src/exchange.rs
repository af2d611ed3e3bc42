//! HTTP requests over a connection, and their responses.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// Limits on a server's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeLimits {
    /// Bytes of the response's head.
    pub head_bytes: usize,
    /// Bytes of the response's body.
    pub body_bytes: usize,
}

/// A response.
#[derive(Debug)]
pub struct Answered {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

/// The reasons why there is no response.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// The connection ended, or the response is not HTTP.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// The response's body could not be read, or is too long.
    #[error("{0}")]
    Body(String),
}

impl ExchangeError {
    /// Whether the request was not sent, because the connection had ended before.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Connection(error) if error.is_canceled() || error.is_closed())
    }
}

/// A connection that carries one request after another. It is closed when it is dropped.
#[derive(Debug)]
pub struct ClientConnection {
    sender: SendRequest<Full<Bytes>>,
    limits: ExchangeLimits,
}

impl ClientConnection {
    /// Speaks HTTP over a stream, in a task of the present runtime.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        limits: ExchangeLimits,
    ) -> Result<Self, ExchangeError> {
        let (sender, connection) =
            http1::Builder::new().max_buf_size(limits.head_bytes).handshake(TokioIo::new(stream)).await?;
        // It ends with the sender. The exchange returns its error.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, limits })
    }

    /// Sends a request and reads its response. The caller sets the deadline; a connection with a
    /// request that was given up is dropped.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answered, ExchangeError> {
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, self.limits.body_bytes).collect().await;
        let body = body.map_err(|error| ExchangeError::Body(error.to_string()))?;
        Ok(Answered { status: head.status, body: body.to_bytes() })
    }
}

/// Sends one request over a stream and reads its response. The caller sets the deadline.
///
/// # Errors
/// [`ExchangeError`].
pub async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    limits: ExchangeLimits,
) -> Result<Answered, ExchangeError> {
    ClientConnection::over(stream, limits).await?.exchange(request).await
}
