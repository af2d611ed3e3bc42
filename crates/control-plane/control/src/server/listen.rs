//! Connections: TLS, limits, and an orderly end.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rustls::ServerConfig;
use strongroom_api::{ErrorCode, Problem};
use strongroom_page::{API_POLICY, EVERY_ANSWER};
use strongroom_serving::{Connections, HttpLimits, Limits, Place, Places, serve_http, shake_hands};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing::Instrument;

use super::problem::{Refusal, RequestId, complete};
use super::sign_in::SignIns;
use super::{Api, ask, document, page, relay, routes};
use crate::client_key::ClientKey;
use crate::engine::Control;
use crate::guest_relay::GuestRelay;
use crate::passwords::PasswordHash;

/// The most connections. One counts as known from its first request with a token on; connections
/// without one cannot exclude others.
const PLACES: Limits = Limits { strangers: 128, known: 512, of_one: 384 };
/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a request, from its head to the answer's head: more than the longest wait for a task.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
/// A console sends its requests one after another on a connection.
const HTTP: HttpLimits = HttpLimits {
    head_bytes: 16 * 1024,
    head_lines: 64,
    head_within: Duration::from_secs(60),
    keeps_alive: true,
};
/// How long the end waits for requests in progress.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The sign-ins by identity providers that are finished at a time, of known networks and of others.
const PROVIDER_SIGN_INS: usize = 4;
/// The place of a connection. A request with a token assigns it to the token's holder.
#[derive(Clone)]
pub(super) struct ConnectionPlace {
    /// The place.
    pub place: Arc<Place<String>>,
    /// The client's address.
    pub from: IpAddr,
    /// The key that the client has proved to have.
    pub key: Option<ClientKey>,
}

/// Serves the API until `stop` completes, and then finishes requests in progress.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    control: Arc<Control>,
    passwords: Arc<dyn PasswordHash>,
    relay: Option<Arc<dyn GuestRelay>>,
    stop: impl Future<Output = ()>,
) {
    let ending = watch::Sender::new(false);
    let (counts, sign_ins) = (Arc::default(), Arc::default());
    let provider_sign_ins = Arc::new(SignIns::with_room(PROVIDER_SIGN_INS));
    let ending_soon = ending.subscribe();
    let api = Api { control, counts, passwords, sign_ins, provider_sign_ins, relay, ending: ending_soon };
    let router = router(&api);
    let acceptor = TlsAcceptor::from(tls);
    let places = Places::new("the API", PLACES);
    let mut connections = Connections::new("the API");
    tokio::pin!(stop);
    loop {
        let (stream, peer) = tokio::select! {
            () = &mut stop => break,
            accepted = connections.accept(|| listener.accept()) => accepted,
        };
        let place = ConnectionPlace { place: Arc::new(places.enter(peer.ip())), from: peer.ip(), key: None };
        let (router, acceptor, ending) = (router.clone(), acceptor.clone(), ending.subscribe());
        let counts = Arc::clone(&api.counts);
        connections.spawn(async move {
            counts.connections.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                () = place.place.displaced() => {}
                () = connection(stream, peer, acceptor, router, &place, ending) => {}
            }
            counts.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    ending.send_replace(true);
    connections.drain(SHUTDOWN_TIMEOUT).await;
}

/// The operations, with their middleware.
fn router(api: &Api) -> Router {
    let (router, openapi) = routes::router(api).split_for_parts();
    document::keep(openapi);
    router
        .route(relay::PATH, get(relay::answer))
        .fallback(page::answer)
        .method_not_allowed_fallback(|| async {
            let problem = Problem::new(ErrorCode::MethodNotAllowed, "this path takes other methods");
            Refusal(problem.next("/openapi.json says which"))
        })
        .layer(middleware::from_fn_with_state(api.clone(), answer))
        .with_state(api.clone())
}

/// Applies to each answer: it is in time, names its request, is counted, and is not cached on its
/// way unless it is of the page. Browsers neither frame it nor run what it contains.
async fn answer(State(api): State<Api>, request: Request, next: Next) -> Response {
    let id = RequestId::fresh();
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, async {
        match ask::received(request).await {
            Ok(request) => next.run(request).await,
            Err(problem) => Refusal(problem).into_response(),
        }
    });
    let response = answered.instrument(tracing::info_span!("request", %id)).await.unwrap_or_else(|_| {
        let problem = Problem::new(ErrorCode::Timeout, "the request took too long");
        Refusal(problem.next("see whether it was carried out, and try again")).into_response()
    });
    let mut response = complete(response, &id);
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(API_POLICY));
    for (name, value) in EVERY_ANSWER {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    api.counts.answered(response.status().as_u16());
    response
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    router: Router,
    place: &ConnectionPlace,
    mut ending: watch::Receiver<bool>,
) {
    // Answers are small, and none should wait for the previous one.
    let _ = stream.set_nodelay(true);
    let stream = match shake_hands(&acceptor, stream, HANDSHAKE_TIMEOUT).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%peer, %error, "no TLS"),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let place = ConnectionPlace { key: shown.and_then(ClientKey::of_shown), ..place.clone() };
    let told = async move {
        // The sender outlives all connections.
        let _ = ending.wait_for(|ending| *ending).await;
    };
    if let Err(error) = serve_http(stream, router, place, HTTP, told).await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}
