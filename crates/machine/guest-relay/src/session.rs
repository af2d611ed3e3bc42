//! A browser's WebSocket, and the guest behind it.
//!
//! The first message is a text: the host's welcome, or what went wrong, as JSON. Then each binary
//! message is bytes of the stream, in either direction.

use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Serialize;
use strongroom_host::protocol::{GuestWelcome, Problem, ProblemBody};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use zeroize::Zeroizing;

use crate::guest::{GuestStream, connect, enter};
use crate::handover::{Handover, Received};
use crate::tls_stream::TlsStream;

/// The longest message of a browser, in bytes.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// The bytes of a guest that one message has at most.
const BUFFER_BYTES: usize = 64 << 10;
/// How often a browser is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(30);

type Browser = TlsStream<TcpStream>;

/// The first message.
#[derive(Serialize)]
#[serde(untagged)]
enum First {
    Welcome { welcome: GuestWelcome },
    Refused(ProblemBody),
}

/// Serves a connection that was handed over, until one of its ends has gone, or its leash.
pub(crate) async fn serve(received: Received) {
    let Received { handover, browser, leash, host } = received;
    let ended = tokio::select! {
        ended = carried(handover, browser, host) => ended,
        ended = gone(leash) => ended.map_err(Error::from),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of a browser ended early");
    }
}

/// Waits until the control plane ends a connection.
async fn gone(leash: OwnedFd) -> io::Result<()> {
    let leash = StdUnixStream::from(leash);
    leash.set_nonblocking(true)?;
    // Nothing is ever said on it.
    UnixStream::from_std(leash)?.read(&mut [0]).await.map(drop)
}

async fn carried(handover: Handover, browser: OwnedFd, host: Option<OwnedFd>) -> Result<(), Error> {
    let (receiving, sending) = handover.directions().ok_or_else(|| io::Error::other("the keys are none"))?;
    let socket = StdTcpStream::from(browser);
    socket.set_nonblocking(true)?;
    let stream = TlsStream::new(TcpStream::from_std(socket)?, receiving, sending);
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .max_write_buffer_size(4 * BUFFER_BYTES);
    let mut browser = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let ticket = handover.ticket();
    let entered = async {
        let mut guest: Box<dyn GuestStream> = match (host, &ticket.address, &ticket.certificate_sha256) {
            (Some(host), _, _) => {
                let host = StdUnixStream::from(host);
                host.set_nonblocking(true).map_err(Problem::system)?;
                Box::new(UnixStream::from_std(host).map_err(Problem::system)?)
            }
            (None, Some(address), Some(certificate)) => {
                let connected = connect(address, certificate).await;
                Box::new(connected.map_err(|error| {
                    Problem::new("unreachable", format!("host {} at {address}: {error}", ticket.host))
                })?)
            }
            (None, _, _) => {
                return Err(Problem::new(
                    "unreachable",
                    format!("host {} takes clients of its own machine alone", ticket.host),
                ));
            }
        };
        let welcome = enter(&mut *guest, ticket).await?;
        Ok((guest, welcome))
    };
    let (guest, first) = match entered.await {
        Ok((guest, welcome)) => (Some(guest), First::Welcome { welcome }),
        Err(error) => (None, First::Refused(ProblemBody { error })),
    };
    let first = serde_json::to_string(&first).map_err(io::Error::other)?;
    browser.send(Message::text(first)).await?;
    match guest {
        Some(guest) => pass(browser, guest).await,
        None => browser.close(closing(CloseCode::Policy, "refused")).await,
    }
}

fn closing(code: CloseCode, reason: &'static str) -> Option<CloseFrame> {
    Some(CloseFrame { code, reason: reason.into() })
}

/// Passes bytes on in both directions until one of the ends has nothing more to say.
async fn pass(browser: WebSocketStream<Browser>, guest: Box<dyn GuestStream>) -> Result<(), Error> {
    let (to_browser, from_browser) = browser.split();
    let (from_guest, to_guest) = split(guest);
    tokio::select! {
        ended = forth(from_browser, to_guest) => ended,
        ended = back(from_guest, to_browser) => ended,
    }
}

async fn forth(
    mut browser: SplitStream<WebSocketStream<Browser>>,
    mut guest: impl AsyncWrite + Unpin,
) -> Result<(), Error> {
    while let Some(message) = browser.next().await {
        match message? {
            Message::Binary(bytes) => {
                guest.write_all(&bytes).await?;
                guest.flush().await?;
            }
            Message::Close(_) => break,
            Message::Text(_) => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
    Ok(guest.shutdown().await?)
}

async fn back(
    mut guest: impl AsyncRead + Unpin,
    mut browser: SplitSink<WebSocketStream<Browser>, Message>,
) -> Result<(), Error> {
    let mut buffer = Zeroizing::new(vec![0; BUFFER_BYTES]);
    loop {
        let Ok(read) = tokio::time::timeout(PING_EVERY, guest.read(&mut buffer)).await else {
            // One that has gone without a word is noticed by the kernel when this is not taken.
            browser.send(Message::Ping(Vec::new().into())).await?;
            continue;
        };
        match read? {
            0 => return browser.send(Message::Close(closing(CloseCode::Normal, "ended"))).await,
            count => browser.send(Message::binary(buffer[..count].to_vec())).await?,
        }
    }
}
