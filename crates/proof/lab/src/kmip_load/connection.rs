//! One connection to a server.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use thiserror::Error;

use super::message::{self, HEADER_BYTES};

/// How long a server may keep silent.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Why the load failed.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A certificate or key cannot be read.
    #[error("{path}: {reason}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The server's address is invalid.
    #[error("'{0}' is no server: write HOST:PORT")]
    Server(String),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The name of the server cannot be in a certificate.
    #[error("the server's name: {0}")]
    Name(#[from] InvalidDnsNameError),
    /// The connection failed or broke.
    #[error("{server}: {error}")]
    Connection {
        /// The server.
        server: String,
        /// The system's error.
        error: io::Error,
    },
    /// The server refused a request.
    #[error("{server}: {step} was refused, or answered with something else; is this client allowed to?")]
    Refused {
        /// The server.
        server: String,
        /// The request.
        step: &'static str,
    },
    /// The result cannot be written.
    #[error("the result cannot be written: {0}")]
    Output(io::Error),
}

/// The client's identity, the server, and their authority.
#[derive(Clone, Debug)]
pub struct Identity {
    server: String,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Identity {
    /// `server` is `HOST:PORT`; the files are PEM.
    ///
    /// # Errors
    /// [`LoadError::Pem`], [`LoadError::Server`], [`LoadError::Tls`], [`LoadError::Name`].
    pub fn new(server: &str, authority: &Path, certificate: &Path, key: &Path) -> Result<Self, LoadError> {
        let host = server.rsplit_once(':').ok_or_else(|| LoadError::Server(server.to_owned()))?.0;
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots.add(root)?;
        }
        let key_of = |bytes: Vec<u8>| PrivateKeyDer::from_pem_slice(&bytes);
        let key = key_of(read(key)?).map_err(|error| pem_error(key, error))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(certificate)?, key)?;
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        Ok(Self { server: server.to_owned(), config: Arc::new(config), name })
    }

    /// Connects; the handshake is over when this returns.
    pub(super) fn connect(&self) -> Result<Connection, LoadError> {
        let failed = |error| LoadError::Connection { server: self.server.clone(), error };
        let socket = TcpStream::connect(&self.server).map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        socket.set_read_timeout(Some(SILENCE_MAX)).map_err(failed)?;
        let session = ClientConnection::new(Arc::clone(&self.config), self.name.clone())?;
        let mut stream = StreamOwned::new(session, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(failed)?;
        }
        Ok(Connection { server: self.server.clone(), stream, answer: Vec::new() })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|error| pem_error(path, error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    all.map_err(|error| pem_error(path, error))
}

fn pem_error(path: &Path, error: impl ToString) -> LoadError {
    LoadError::Pem { path: path.to_owned(), reason: error.to_string() }
}

/// A connection; one request at a time.
#[derive(Debug)]
pub(super) struct Connection {
    server: String,
    stream: StreamOwned<ClientConnection, TcpStream>,
    answer: Vec<u8>,
}

impl Connection {
    /// Sends a request and reads the whole answer.
    pub(super) fn ask(&mut self, request: &[u8]) -> Result<&[u8], LoadError> {
        self.exchange(request)
            .map_err(|error| LoadError::Connection { server: self.server.clone(), error })?;
        Ok(&self.answer)
    }

    /// As [`ask`](Self::ask), but the answer must be the expected one.
    pub(super) fn demand(
        &mut self,
        step: &'static str,
        request: &[u8],
        expected: fn(&[u8]) -> bool,
    ) -> Result<&[u8], LoadError> {
        let server = self.server.clone();
        let answer = self.ask(request)?;
        if expected(answer) { Ok(answer) } else { Err(LoadError::Refused { server, step }) }
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request)?;
        self.stream.flush()?;
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header)?;
        let length = message::length_after(&header)
            .ok_or_else(|| io::Error::other("the answer is no message, or a very long one"))?;
        self.answer.resize(length, 0);
        self.stream.read_exact(&mut self.answer)
    }
}
