//! One HTTP request over a connection, and its response.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
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

/// Sends a request and reads its response. The caller sets the deadline.
///
/// # Errors
/// [`ExchangeError`].
pub async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    limits: ExchangeLimits,
) -> Result<Answered, ExchangeError> {
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(limits.head_bytes).handshake(TokioIo::new(stream)).await?;
    let talk = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, limits.body_bytes).collect().await;
        let body = body.map_err(|error| ExchangeError::Body(error.to_string()))?;
        Ok(Answered { status: head.status, body: body.to_bytes() })
    };
    tokio::pin!(talk, connection);
    // The connection drives the exchange. If it ends first, it has failed, and the exchange then
    // returns the error.
    let mut is_open = true;
    loop {
        tokio::select! {
            answered = &mut talk => return answered,
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}
