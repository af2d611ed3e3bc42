//! The client of a host's guest socket, or of its port on another machine.
//!
//! Guest data goes between this process and the VM's host alone. On another machine the host is
//! known by the digest of its certificate, which came with the ticket; the ticket is sent to no
//! other one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use rustix::net::SendFlags;
use strongroom_api::vm::Ticket;
use strongroom_files::FileError;
use strongroom_guest_relay::guest::{WELCOME_BYTES_MAX, WELCOME_WITHIN, connect, welcome};
use strongroom_host::protocol::GuestWelcome;
use strongroom_serving::relay;

use crate::error::CliError;

/// A connection to the host of a VM, for guest data.
pub struct GuestSocket {
    stream: UnixStream,
    /// What errors call it.
    place: PathBuf,
    relay: Option<JoinHandle<io::Result<()>>>,
}

/// A host that has taken a ticket: the stream is the guest's.
pub struct Guest {
    pub stream: UnixStream,
    pub welcome: GuestWelcome,
    relay: Option<JoinHandle<io::Result<()>>>,
}

impl Guest {
    /// Waits for the end of a connection of which everything has been read.
    ///
    /// # Errors
    /// If it broke off.
    pub fn ended(self) -> io::Result<()> {
        drop(self.stream);
        let panicked = |_| Err(io::Error::other("the connection was lost"));
        self.relay.map_or(Ok(()), |relay| relay.join().unwrap_or_else(panicked))
    }
}

impl GuestSocket {
    /// Connects to the host of the ticket.
    pub fn connect(ticket: &Ticket) -> Result<Self, CliError> {
        let Some(address) = ticket.address.as_deref() else { return Self::here(ticket)?.prepared() };
        let socket = match (is_of_this_machine(address), &ticket.certificate_sha256) {
            (true, None) => Self::here(ticket)?,
            // The socket is for root alone, and the port for everybody with a ticket.
            (true, Some(certificate)) => {
                Self::here(ticket).or_else(|_| Self::there(ticket, address, certificate))?
            }
            (false, Some(certificate)) => Self::there(ticket, address, certificate)?,
            (false, None) => {
                return Err(CliError::Usage(format!(
                    "the VM is on host {} ({address}), which takes clients of its own machine alone; run this command there, \
                     with --api, --api-ca and --api-token-file for this control plane, or upgrade the host",
                    ticket.host
                )));
            }
        };
        socket.prepared()
    }

    fn prepared(self) -> Result<Self, CliError> {
        let prepared = self.stream.set_read_timeout(Some(WELCOME_WITHIN));
        prepared.map_err(|error| self.failed(error))?;
        Ok(self)
    }

    fn here(ticket: &Ticket) -> Result<Self, CliError> {
        let place = PathBuf::from(&ticket.socket);
        let failed = |error| CliError::File(FileError { action: "connect to", path: place.clone(), error });
        let stream = UnixStream::connect(&place).map_err(failed)?;
        Ok(Self { stream, place, relay: None })
    }

    fn there(ticket: &Ticket, address: &str, certificate: &str) -> Result<Self, CliError> {
        let place = PathBuf::from(format!("host {} at {address}", ticket.host));
        let failed = |error| CliError::File(FileError { action: "connect to", path: place.clone(), error });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CliError::Runtime)?;
        let connected = runtime.block_on(connect(address, certificate)).map_err(failed)?;
        let (stream, theirs) = UnixStream::pair().map_err(failed)?;
        theirs.set_nonblocking(true).map_err(failed)?;
        let pass_on = move || {
            runtime.block_on(async { relay(tokio::net::UnixStream::from_std(theirs)?, connected).await })
        };
        let relay = thread::Builder::new().name("guest".to_owned()).spawn(pass_on).map_err(failed)?;
        Ok(Self { stream, place, relay: Some(relay) })
    }

    /// Whether the host is on another machine, to which no open file can be sent.
    pub fn is_away(&self) -> bool {
        self.relay.is_some()
    }

    /// Sends the ticket with an open file.
    pub fn enter_with_file(self, ticket: &Ticket, file: &impl AsFd) -> Result<Guest, CliError> {
        let hello = hello(ticket)?;
        let (first, rest) = hello.split_at(1);
        let sent = strongroom_wire::send(&self.stream, first, &[file.as_fd()], SendFlags::empty());
        sent.map_err(|errno| self.failed(errno.into()))?;
        (&self.stream).write_all(rest).map_err(|error| self.failed(error))?;
        self.welcomed()
    }

    /// Sends the ticket; then the stream is the guest's.
    pub fn enter(self, ticket: &Ticket) -> Result<Guest, CliError> {
        (&self.stream).write_all(&hello(ticket)?).map_err(|error| self.failed(error))?;
        self.welcomed()
    }

    fn welcomed(self) -> Result<Guest, CliError> {
        let welcome = self.welcome()?;
        self.stream.set_read_timeout(None).map_err(|error| self.failed(error))?;
        Ok(Guest { stream: self.stream, welcome, relay: self.relay })
    }

    /// Reads a line byte by byte, because the bytes after it are the guest's.
    fn welcome(&self) -> Result<GuestWelcome, CliError> {
        let mut line = Vec::new();
        let mut one = BufReader::with_capacity(1, (&self.stream).take(WELCOME_BYTES_MAX));
        one.read_until(b'\n', &mut line).map_err(|error| self.failed(error))?;
        match welcome(&line) {
            Some(Ok(welcome)) => Ok(welcome),
            Some(Err(error)) => Err(CliError::Api { code: error.code.clone(), message: error.to_string() }),
            None => Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn failed(&self, error: io::Error) -> CliError {
        CliError::File(FileError { action: "speak to", path: self.place.clone(), error })
    }
}

/// Whether an address is one of this machine: only then can a socket have it.
fn is_of_this_machine(address: &str) -> bool {
    let address = address.parse::<SocketAddr>().map(|address| SocketAddr::new(address.ip(), 0));
    address.is_ok_and(|address| UdpSocket::bind(address).is_ok())
}

fn hello(ticket: &Ticket) -> Result<Vec<u8>, CliError> {
    strongroom_guest_relay::guest::hello(ticket).map_err(|reason| CliError::Usage(reason.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection, version};
    use strongroom_host::protocol::GUEST_PROTOCOL;
    use strongroom_keyserver::access::CertificateSha256;

    use super::*;

    const TICKET: &str = "07070707070707070707070707070707";

    fn ticket(address: &str, certificate: &CertificateSha256) -> Ticket {
        Ticket {
            ticket: TICKET.to_owned(),
            expires_unix_seconds: 0,
            socket: String::new(),
            host: "host2".to_owned(),
            address: Some(address.to_owned()),
            certificate_sha256: Some(certificate.to_string()),
        }
    }

    #[test]
    fn a_host_with_another_certificate_gets_nothing() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["host".to_owned()]).unwrap();
        let certificate = certificate.self_signed(&pair).unwrap().der().clone();
        let right = CertificateSha256::of(&certificate);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(pair.serialize_der()).into())
            .unwrap();
        config.alpn_protocols = vec![GUEST_PROTOCOL.to_vec()];
        let config = Arc::new(config);
        for (stated, is_right) in [(right, true), (CertificateSha256::of(b"another"), false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let config = Arc::clone(&config);
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut tls = ServerConnection::new(config).unwrap();
                let mut heard = Vec::new();
                // An end in disorder is the client's that has gone.
                let _ = rustls::Stream::new(&mut tls, &mut stream).read_to_end(&mut heard);
                String::from_utf8(heard).unwrap()
            });
            let ticket = ticket(&address, &stated);
            let socket = GuestSocket::there(&ticket, &address, ticket.certificate_sha256.as_deref().unwrap());
            assert_eq!(socket.is_ok(), is_right);
            if let Ok(socket) = socket {
                (&socket.stream).write_all(&hello(&ticket).unwrap()).unwrap();
                socket.stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            assert_eq!(server.join().unwrap().contains(TICKET), is_right);
        }
    }
}
