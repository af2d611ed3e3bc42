//! `/relay`: a browser's WebSocket to a guest. The request is admitted here, by the ticket that the
//! page was given for it, and answered with 101. Then the connection itself, with the keys of its
//! TLS, goes to another process ([`GuestRelay`](crate::guest_relay::GuestRelay)).
//!
//! The page says the ticket where it names the protocols that it speaks, in no address. It is of
//! the caller who asks, and is taken once.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CONNECTION, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use base64ct::{Base64, Encoding};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use strongroom_api::vm::Ticket;
use strongroom_api::{ErrorCode, Problem};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::Api;
use super::problem::Refusal;
use super::routes::blocking;
use super::token::{caller_of_browser, refuse, still_counts};
use crate::engine::holders::Shown;
use crate::engine::tickets::TakenTicket;
use crate::guest_relay::{GuestRelay, HandedOver};

/// The path, which is no operation of the API: what passes is between a browser and a guest.
pub(super) const PATH: &str = "/relay";
/// The protocol that the page speaks there.
const PROTOCOL: &str = "strongroom-guest";
/// What comes before the ticket among the protocols.
const TICKET: &str = "strongroom-ticket.";
/// What a server proves that it has read of the key (RFC 6455, 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// How often a connection is looked at when nothing changes.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// The name under which refusals are recorded.
const NAME: &str = "relay";

/// Admits a WebSocket, and has it handed over.
pub(super) async fn answer(State(api): State<Api>, mut request: Request) -> Result<Response, Refusal> {
    let (caller, shown) = match caller_of_browser(&api, &request, NAME) {
        Ok(known) => known,
        Err(none) => return Err(none.refused(&api).await),
    };
    let asked = Asked::of(request.headers());
    let Ok(Asked { accept, ticket }) = asked else {
        let problem = Problem::new(ErrorCode::Malformed, "this is no request for a WebSocket of the page");
        return Err(Refusal(
            problem.next("consoles and screens are opened in the page, or on the command line"),
        ));
    };
    let Some(relay) = api.relay.clone() else {
        let problem =
            Problem::new(ErrorCode::Unavailable, "this control plane carries no consoles to browsers");
        return Err(Refusal(problem.next("use the command line")));
    };
    let taken = {
        let caller = caller.clone();
        blocking(api.clone(), move |control| {
            let taken = control.take_ticket(&caller, &ticket)?;
            let host = connect_here(&taken.ticket)?;
            Ok((taken, host))
        })
    };
    let (taken, host) = match taken.await {
        Ok(taken) => taken,
        Err(Refusal(problem)) if problem.code == ErrorCode::Forbidden => {
            return Err(refuse(&api, caller, NAME, problem).await);
        }
        Err(refusal) => return Err(refusal),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let ticket = taken.ticket.clone();
        match hand_over(upgrade, ticket, host, relay).await {
            Ok(leash) => hold(api, shown, taken, leash).await,
            Err(error) => tracing::warn!(%error, "a browser's connection to a guest was not handed over"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// What a request for a WebSocket says.
struct Asked {
    accept: HeaderValue,
    ticket: String,
}

/// A request is none for a WebSocket of the page.
struct NotAsked;

impl Asked {
    fn of(headers: &HeaderMap) -> Result<Self, NotAsked> {
        let one = |name: &HeaderName| {
            let mut values = headers.get_all(name).iter();
            match (values.next(), values.next()) {
                (Some(value), None) => value.to_str().map_err(|_| NotAsked),
                (_, _) => Err(NotAsked),
            }
        };
        let has = |name: &HeaderName, wanted: &str| {
            one(name).is_ok_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted)))
        };
        let key = one(&SEC_WEBSOCKET_KEY)?;
        // A browser always says where the page is from that asks.
        let is_websocket = has(&CONNECTION, "upgrade")
            && has(&UPGRADE, "websocket")
            && one(&SEC_WEBSOCKET_VERSION)? == "13"
            && Base64::decode_vec(key).is_ok_and(|key| key.len() == 16)
            && headers.contains_key(ORIGIN);
        let mut protocols = one(&SEC_WEBSOCKET_PROTOCOL)?.split(',').map(str::trim);
        let ticket = match (protocols.next(), protocols.next(), protocols.next()) {
            (Some(PROTOCOL), Some(ticket), None) => ticket.strip_prefix(TICKET).ok_or(NotAsked)?,
            (_, _, _) => return Err(NotAsked),
        };
        let mut proof = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        proof.update(key.as_bytes());
        proof.update(GUID);
        let accept = HeaderValue::try_from(Base64::encode_string(proof.finish().as_ref()));
        match (is_websocket, accept) {
            (true, Ok(accept)) => Ok(Self { accept, ticket: ticket.to_owned() }),
            (_, _) => Err(NotAsked),
        }
    }
}

/// Connects to a host that takes clients of its own machine alone, if that is this one.
fn connect_here(ticket: &Ticket) -> Result<Option<UnixStream>, Problem> {
    if ticket.address.is_some() && ticket.certificate_sha256.is_some() {
        return Ok(None);
    }
    UnixStream::connect(&ticket.socket).map(Some).map_err(|error| {
        let problem =
            Problem::new(ErrorCode::Unavailable, format!("host {} cannot be reached: {error}", ticket.host));
        problem.next("a host on another machine takes browsers at its port: `serve --listen-guests`")
    })
}

/// Takes the connection out of the server after its answer, and hands it over with the keys from
/// there on. Returns the end of its leash.
async fn hand_over(
    upgrade: OnUpgrade,
    ticket: Ticket,
    host: Option<UnixStream>,
    relay: Arc<dyn GuestRelay>,
) -> io::Result<tokio::net::UnixStream> {
    let upgraded: Upgraded = upgrade.await.map_err(io::Error::other)?;
    let other = || io::Error::other("the connection is none of this server");
    let parts = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().map_err(|_| other())?;
    // A browser says nothing before it has read the answer.
    if !parts.read_buf.is_empty() {
        return Err(io::Error::other("the browser has said something too early"));
    }
    let (socket, tls) = parts.io.into_inner().into_inner();
    let secrets = tls.dangerous_extract_secrets().map_err(io::Error::other)?;
    let (ours, leash) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let connection = HandedOver { secrets, browser: socket.into_std()?, leash, ticket, host };
    // The relay may have to be started first.
    let taken =
        tokio::task::spawn_blocking(move || relay.take(connection)).await.map_err(io::Error::other)?;
    taken.map_err(io::Error::other)?;
    tokio::net::UnixStream::from_std(ours)
}

/// Holds the leash of a connection until that has ended, or the session of its browser, its
/// caller's right to it or the permission of the VM's policy has: the connection ends then.
async fn hold(mut api: Api, shown: Shown, taken: TakenTicket, mut leash: tokio::net::UnixStream) {
    let mut changes = api.control.inventory.changes();
    loop {
        changes.mark_unchanged();
        if !still_counts(&api.control, &shown) || !api.control.may_go_on(&taken) {
            return;
        }
        tokio::select! {
            // A session also ends by time.
            _ = tokio::time::timeout(LOOK_EVERY, changes.changed()) => {}
            _ = leash.read_u8() => return,
            _ = api.ending.wait_for(|ending| *ending) => return,
        }
    }
}
