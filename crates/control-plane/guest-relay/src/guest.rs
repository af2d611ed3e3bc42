//! The connection to the host of a VM, for guest data.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use strongroom_api::vm::Ticket;
use strongroom_host::protocol::{FORMAT, GUEST_PROTOCOL, GuestHello, GuestWelcome, Problem, ProblemBody};
use strongroom_keyserver::authority::peer::connecting_as_stranger;
use strongroom_serving::shake_hands_with;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// The timeout of a host's first response.
pub const WELCOME_WITHIN: Duration = Duration::from_secs(30);
/// The longest welcome, in bytes.
pub const WELCOME_BYTES_MAX: u64 = 64 * 1024;
/// The timeout of a connection to another machine, and of its handshake.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// The name that is sent to a host, which nobody compares.
const HOST: &str = "host.strongroom";

/// A stream of bytes to and from a host.
pub trait GuestStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> GuestStream for S {}

/// Connects to the port of a host, which is known by the digest of its certificate.
///
/// # Errors
/// If it does not answer, or has another certificate.
pub async fn connect(address: &str, certificate_sha256: &str) -> io::Result<impl GuestStream + use<>> {
    let unclear = || io::Error::new(io::ErrorKind::InvalidData, "its address and certificate cannot be read");
    let address: SocketAddr = address.parse().map_err(|_| unclear())?;
    let certificate = certificate_sha256.parse().map_err(|_| unclear())?;
    let config = connecting_as_stranger(certificate, GUEST_PROTOCOL).map_err(io::Error::other)?;
    let name = ServerName::try_from(HOST).map_err(io::Error::other)?;
    let connected = tokio::time::timeout(CONNECTS_WITHIN, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    shake_hands_with(Arc::new(config), name, stream, CONNECTS_WITHIN).await.map_err(io::Error::other)
}

/// The line with which a client begins.
///
/// # Errors
/// If the ticket is none.
pub fn hello(ticket: &Ticket) -> Result<Vec<u8>, &'static str> {
    let hello = GuestHello { format: FORMAT, ticket: ticket.ticket.parse()? };
    let mut line = serde_json::to_vec(&hello).map_err(|_| "the ticket cannot be written")?;
    line.push(b'\n');
    Ok(line)
}

/// Reads the line with which a host answers. `None` is no answer of a host.
pub fn welcome(line: &[u8]) -> Option<Result<GuestWelcome, Problem>> {
    serde_json::from_slice(line)
        .ok()
        .map(Ok)
        .or_else(|| serde_json::from_slice::<ProblemBody>(line).ok().map(|body| Err(body.error)))
}

/// Shows a host the ticket. After its welcome the stream is the guest's.
///
/// # Errors
/// The host's refusal; `unreachable` if it does not answer.
pub async fn enter(stream: &mut dyn GuestStream, ticket: &Ticket) -> Result<GuestWelcome, Problem> {
    let unreachable = |reason: &dyn std::fmt::Display| {
        Problem::new("unreachable", format!("host {}: {reason}", ticket.host))
    };
    let hello = hello(ticket).map_err(|reason| unreachable(&reason))?;
    let answered = async {
        stream.write_all(&hello).await?;
        stream.flush().await?;
        // Byte by byte, because what follows is the guest's.
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') && (line.len() as u64) < WELCOME_BYTES_MAX {
            line.push(stream.read_u8().await?);
        }
        io::Result::Ok(line)
    };
    let line = match tokio::time::timeout(WELCOME_WITHIN, answered).await {
        Err(_) => return Err(unreachable(&"it does not answer")),
        Ok(line) => line.map_err(|error| unreachable(&error))?,
    };
    welcome(&line).unwrap_or_else(|| Err(unreachable(&"it answers something else")))
}
