//! Serves HTTP/1.1 requests with a router, within limits.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// Limits on a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Bytes of a request's head; hyper's least buffer is 8 KiB.
    pub head_bytes: usize,
    /// Header lines of a request.
    pub head_lines: usize,
    /// The time for a request's head, counted from the previous response on.
    pub head_within: Duration,
    /// Whether a connection serves another request after the first one.
    pub keeps_alive: bool,
}

/// Serves the requests of one connection until the client ends it, or until `ending` is ready and
/// the current request is answered. Handlers find `peer` in the request's extensions.
///
/// # Errors
/// If the connection ended in another way.
pub async fn serve_http<Peer: Clone + Send + Sync + 'static>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    peer: Peer,
    limits: HttpLimits,
    ending: impl Future<Output = ()>,
) -> Result<(), hyper::Error> {
    let operations = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        operations.call(request)
    });
    let connection = http1::Builder::new()
        .keep_alive(limits.keeps_alive)
        .max_buf_size(limits.head_bytes)
        .max_headers(limits.head_lines)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_within)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection, ending);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// The reasons why a request's body is not read.
#[derive(Debug, Error)]
pub enum BodyError {
    /// It exceeds the limit, in bytes.
    #[error("the request's body has more than {0} bytes")]
    TooLong(usize),
    /// It did not arrive in time.
    #[error("the request's body did not come in time")]
    Late,
    /// The connection ended, or the request is not HTTP.
    #[error("the request's body ended early")]
    CutShort,
}

/// Reads a request's body of at most `longest_bytes`.
///
/// # Errors
/// [`BodyError`].
pub async fn read_body(body: Body, longest_bytes: usize, within: Duration) -> Result<Bytes, BodyError> {
    match tokio::time::timeout(within, Limited::new(body, longest_bytes).collect()).await {
        Err(_) => Err(BodyError::Late),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLong(longest_bytes)),
        Ok(Err(_)) => Err(BodyError::CutShort),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}
