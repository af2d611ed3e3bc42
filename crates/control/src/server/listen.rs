//! Connections: TLS, limits, and an end in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use strongroom_api::{ErrorCode, Problem};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::problem::Refusal;
use super::{Api, document, routes};
use crate::engine::Control;

/// Most connections at a time; the next ones are closed at once and may come again.
const CONNECTIONS_MAX: usize = 512;
/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a request's head, also after the one before.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a request, from its head to its answer's head: a wait for a task, and some more.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
/// Bytes of a request's head.
const HEAD_MAX_BYTES: usize = 16 * 1024;
/// Lines in it.
const HEAD_MAX_LINES: usize = 64;
/// How long an end waits for requests under way.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the system refused a connection, which is mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the API until `stop` is ready, then finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    control: Arc<Control>,
    stop: impl Future<Output = ()>,
) {
    let ending = watch::Sender::new(false);
    let api = Api { control, counts: Arc::default(), ending: ending.subscribe() };
    let router = router(&api);
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!(%peer, "too many connections; this one is closed");
            continue;
        };
        let (router, acceptor, ending) = (router.clone(), acceptor.clone(), ending.subscribe());
        let counts = Arc::clone(&api.counts);
        connections.spawn(async move {
            counts.connections.fetch_add(1, Ordering::Relaxed);
            connection(stream, peer, acceptor, router, ending).await;
            counts.connections.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
    ending.send_replace(true);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, finished).await.is_err() {
        connections.shutdown().await;
    }
}

/// The operations with what stands before them.
fn router(api: &Api) -> Router {
    let (router, openapi) = routes::router(api).split_for_parts();
    document::keep(openapi);
    router
        .fallback(|| async { Refusal(Problem::new(ErrorCode::NoSuchPath, "there is nothing at this path")) })
        .method_not_allowed_fallback(|| async {
            Refusal(Problem::new(ErrorCode::MethodNotAllowed, "this path takes other methods"))
        })
        .layer(middleware::from_fn_with_state(api.clone(), answer))
        .with_state(api.clone())
}

/// Each answer: in time, counted, and not kept by anybody on its way.
async fn answer(State(api): State<Api>, request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    let mut response = answered.unwrap_or_else(|_| {
        Refusal(Problem::new(ErrorCode::Timeout, "the request took too long")).into_response()
    });
    let headers = response.headers_mut();
    headers.insert("cache-control", axum::http::HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", axum::http::HeaderValue::from_static("nosniff"));
    api.counts.answered(response.status().as_u16());
    response
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    router: Router,
    mut ending: watch::Receiver<bool>,
) {
    // A console of small answers: none waits for the one before.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "no TLS"),
        Err(_) => return tracing::debug!(%peer, "a TLS handshake took too long"),
    };
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_MAX_BYTES)
        .max_headers(HEAD_MAX_LINES)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let told = async move {
        // The sender outlives all connections.
        let _ = ending.wait_for(|ending| *ending).await;
    };
    tokio::pin!(connection, told);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}
