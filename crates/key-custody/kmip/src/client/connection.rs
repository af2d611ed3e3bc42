//! One TLS connection to one server, with a deadline for each exchange.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, Stream};
use zeroize::Zeroizing;

use super::address::ServerAddress;
use super::deadline::Deadline;
use crate::tls_residue::wipe_received;
use crate::ttlv::{HEADER_BYTES, Limits, Tag, TtlvError, message_length_bytes};

/// Why a connection was not made.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// The name cannot be resolved.
    Name(io::Error),
    /// No server listens, or the network is down.
    Tcp(io::Error),
    /// The TLS handshake failed.
    Tls(rustls::Error),
    /// The server did not answer in time.
    Silent,
}

/// Why an exchange failed. The connection is unusable afterwards.
#[derive(Debug)]
pub(super) struct ExchangeFailure {
    pub(super) cause: ExchangeCause,
    /// Whether the server had begun to answer.
    pub(super) answered: bool,
}

#[derive(Debug)]
pub(super) enum ExchangeCause {
    /// The connection ended or broke.
    Lost(io::Error),
    /// The server, or TLS, ended it with an alert.
    Tls(rustls::Error),
    /// No complete answer arrived in time.
    Silent,
    /// The answer is not a message.
    Message(TtlvError),
}

pub(super) struct Connection {
    tls: ClientConnection,
    socket: DeadlineSocket,
    config: Arc<ClientConfig>,
    tcp_took: Duration,
}

impl Connection {
    /// Connects and shakes hands.
    pub(super) fn open(
        address: &ServerAddress,
        name: ServerName<'static>,
        config: Arc<ClientConfig>,
        deadline: Deadline,
    ) -> Result<Self, ConnectFailure> {
        let begun = Instant::now();
        let stream = connect(address, deadline)?;
        let tcp_took = begun.elapsed();
        stream.set_nodelay(true).map_err(ConnectFailure::Tcp)?;
        let mut tls = ClientConnection::new(Arc::clone(&config), name).map_err(ConnectFailure::Tls)?;
        let mut socket = DeadlineSocket { stream, deadline };
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).map_err(|error| match of_tls(error) {
                Ok(tls) => ConnectFailure::Tls(tls),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => ConnectFailure::Silent,
                Err(error) => ConnectFailure::Tcp(error),
            })?;
        }
        Ok(Self { tls, socket, config, tcp_took })
    }

    /// The negotiated TLS version.
    pub(super) fn tls_version(&self) -> Option<ProtocolVersion> {
        self.tls.protocol_version()
    }

    /// The time to resolve and reach the server, before TLS.
    pub(super) fn tcp_took(&self) -> Duration {
        self.tcp_took
    }

    /// Whether it was made with exactly these certificates.
    pub(super) fn is_of(&self, config: &Arc<ClientConfig>) -> bool {
        Arc::ptr_eq(&self.config, config)
    }

    /// Whether the connection has been quiet since the last answer. This detects a connection that
    /// the server closed meanwhile, before a request is lost on it.
    pub(super) fn check_quiet(&mut self) -> bool {
        self.look().unwrap_or(false)
    }

    fn look(&mut self) -> io::Result<bool> {
        self.socket.stream.set_nonblocking(true)?;
        let quiet = loop {
            match self.tls.read_tls(&mut self.socket.stream) {
                Ok(0) => break false,
                // TLS 1.3 has messages of its own between answers.
                Ok(_) => {
                    let state = self.tls.process_new_packets().map_err(io::Error::other)?;
                    if state.peer_has_closed() || state.plaintext_bytes_to_read() > 0 {
                        break false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        self.socket.stream.set_nonblocking(false)?;
        Ok(quiet)
    }

    /// Sends a request and waits for the whole answer. The answer's buffer is allocated once, at
    /// its final size, and wiped.
    pub(super) fn exchange(
        &mut self,
        request: &[u8],
        answer: Tag,
        limits: &Limits,
        deadline: Deadline,
    ) -> Result<Zeroizing<Vec<u8>>, ExchangeFailure> {
        self.socket.deadline = deadline;
        let mut stream = Stream::new(&mut self.tls, &mut self.socket);
        let before = |error| ExchangeFailure { cause: of_exchange(error), answered: false };
        stream.write_all(request).and_then(|()| stream.flush()).map_err(before)?;
        let mut header = [0; HEADER_BYTES];
        let mut filled = 0;
        while filled < HEADER_BYTES {
            let failed = |error| ExchangeFailure { cause: of_exchange(error), answered: filled > 0 };
            match stream.read(&mut header[filled..]) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let malformed = |error| ExchangeFailure { cause: ExchangeCause::Message(error), answered: true };
        let length_bytes = message_length_bytes(header, answer, limits).map_err(malformed)?;
        let mut message = Zeroizing::new(vec![0; length_bytes]);
        message[..HEADER_BYTES].copy_from_slice(&header);
        stream
            .read_exact(&mut message[HEADER_BYTES..])
            .map_err(|error| ExchangeFailure { cause: of_exchange(error), answered: true })?;
        wipe_received(&mut self.tls);
        Ok(message)
    }

    /// Sends a close notification; errors do not matter.
    pub(super) fn close(mut self) {
        self.tls.send_close_notify();
        let _ = self.socket.stream.set_nonblocking(true);
        let _ = self.tls.write_tls(&mut self.socket.stream);
    }
}

/// Tries the addresses of a name one after the other, each with its share of the remaining time.
fn connect(address: &ServerAddress, deadline: Deadline) -> Result<TcpStream, ConnectFailure> {
    let addresses = resolve(address, deadline)?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (number, candidate) in addresses.iter().enumerate() {
        let left = deadline.left().map_err(|_| ConnectFailure::Silent)?;
        let share = left / u32::try_from(addresses.len() - number).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(candidate, share.max(SOCKET_TIMEOUT_MIN)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    if last.kind() == io::ErrorKind::TimedOut {
        Err(ConnectFailure::Silent)
    } else {
        Err(ConnectFailure::Tcp(last))
    }
}

/// The addresses of a host. The system's resolver has no deadline, so a thread resolves the name.
/// If it takes too long it is abandoned, and ends with the resolver's own time-out.
fn resolve(address: &ServerAddress, deadline: Deadline) -> Result<Vec<SocketAddr>, ConnectFailure> {
    if let Ok(ip) = address.host().parse() {
        return Ok(vec![SocketAddr::new(ip, address.port())]);
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let wanted = (address.host().to_owned(), address.port());
    std::thread::Builder::new()
        .name("kmip-resolve".to_owned())
        .spawn(move || {
            // The caller may have stopped waiting.
            let _ = sender.send(wanted.to_socket_addrs().map(Iterator::collect::<Vec<_>>));
        })
        .map_err(ConnectFailure::Name)?;
    let left = deadline.left().map_err(|_| ConnectFailure::Silent)?;
    let found =
        receiver.recv_timeout(left).map_err(|_| ConnectFailure::Silent)?.map_err(ConnectFailure::Name)?;
    if found.is_empty() { Err(ConnectFailure::Name(io::ErrorKind::NotFound.into())) } else { Ok(found) }
}

/// The shortest time-out given to the kernel, which takes zero for "none".
const SOCKET_TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// A socket whose every call ends at the deadline, so that a server cannot stretch an answer by
/// dripping it.
struct DeadlineSocket {
    stream: TcpStream,
    deadline: Deadline,
}

impl DeadlineSocket {
    fn left(&self) -> io::Result<Option<Duration>> {
        Ok(Some(self.deadline.left()?.max(SOCKET_TIMEOUT_MIN)))
    }
}

/// On a blocking socket the kernel reports a time-out as `WouldBlock`.
fn of_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for DeadlineSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer).map_err(of_timeout)
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer).map_err(of_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The TLS error within an I/O error, if there is one.
fn of_tls(error: io::Error) -> Result<rustls::Error, io::Error> {
    error.downcast::<rustls::Error>()
}

fn of_exchange(error: io::Error) -> ExchangeCause {
    match of_tls(error) {
        Ok(tls) => ExchangeCause::Tls(tls),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => ExchangeCause::Silent,
        Err(error) => ExchangeCause::Lost(error),
    }
}
