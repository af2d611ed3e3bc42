//! The client's side of enrolment, blocking: for commands and hosts.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, header};
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, RootCertStore, version};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_memory::secret::SecretBytes;
use strongroom_serving::{Answered, ExchangeError, ExchangeLimits, exchange};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use webpki::{EndEntityCert, KeyUsage};
use zeroize::Zeroizing;

use super::super::signatures::verifies_signatures;
use super::protocol::{
    ANSWER_MAX_BYTES, CLOCK_PATH, CertificateResponse, ClockResponse, ENROL_PATH, EnrolRequest,
    ErrorResponse, MANAGE_PATH, QUESTION_MAX_BYTES, RENEW_PATH, REQUEST_MAX_BYTES, RESPONSE_MAX_BYTES,
    REVOCATIONS_PATH, RenewRequest, RevocationsResponse,
};
use super::token::EnrolmentToken;
use crate::access::CertificateSha256;

/// Time for the whole exchange: connection, handshake, request and answer.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request to the enrolment port failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server's address is invalid.
    #[error("'{0}' is no server; write NAME:PORT or ADDRESS:PORT")]
    Server(String),
    /// The server cannot be reached.
    #[error(
        "the key server at {server} cannot be reached: {source}; is `strongroom serve` or `strongroom keyserver run` running there?"
    )]
    Unreachable {
        /// The server.
        server: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The server does not belong to the token's authority, or to the known authorities.
    #[error("{server} is not of the authority {authority}: do not go on, it may be an impostor ({reason})")]
    Impostor {
        /// The server.
        server: String,
        /// The expected authority.
        authority: String,
        /// What is wrong with its certificate.
        reason: String,
    },
    /// Another TLS failure; the server may have refused the certificate.
    #[error("TLS with {server} failed: {reason}")]
    Tls {
        /// The server.
        server: String,
        /// The library's error.
        reason: String,
    },
    /// The server refused.
    #[error("{message} ({code})")]
    Refused {
        /// For programs.
        code: String,
        /// For people.
        message: String,
    },
    /// The server did not answer in time.
    #[error("{server} did not answer within {} seconds", TIMEOUT.as_secs())]
    TimedOut {
        /// The server.
        server: String,
    },
    /// The answer is invalid.
    #[error("{server} answered what it should not: {reason}")]
    Answer {
        /// The server.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The client's own key or certificate cannot be used.
    #[error("the present certificate and key cannot be used: {0}")]
    Present(#[source] rustls::Error),
}

/// Talks to one server's enrolment port, or to its socket on this machine.
#[derive(Debug, Clone)]
pub struct Client {
    server: String,
    name: ServerName<'static>,
    local: Option<Local>,
}

/// The socket of a server of this machine.
#[derive(Debug, Clone)]
struct Local {
    socket: PathBuf,
    name: ServerName<'static>,
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Client {
    /// Creates a client of the server at `NAME:PORT` or `ADDRESS:PORT` (IPv6 in brackets).
    ///
    /// # Errors
    /// [`ClientError::Server`].
    pub fn new(server: &str) -> Result<Self, ClientError> {
        let refused = || ClientError::Server(server.to_owned());
        let (host, port) = server.rsplit_once(':').ok_or_else(refused)?;
        port.parse::<u16>().map_err(|_| refused())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned()).map_err(|_| refused())?;
        Ok(Self { server: server.to_owned(), name, local: None })
    }

    /// Prefers the server's socket on this machine, which load on the port does not affect. If the
    /// socket does not accept the connection, uses the port. `name` is a name in the server's
    /// certificate.
    ///
    /// # Errors
    /// [`ClientError::Server`].
    pub fn by_socket(self, socket: &Path, name: &str) -> Result<Self, ClientError> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| ClientError::Server(name.to_owned()))?;
        Ok(Self { local: Some(Local { socket: socket.to_owned(), name }), ..self })
    }

    /// Redeems `token` for the key of `signing_request` (PEM). The server must prove that it
    /// belongs to the token's authority before the token is sent. Blocks for up to [`TIMEOUT`];
    /// after an error other than [`ClientError::Refused`] the same call may be repeated.
    ///
    /// # Errors
    /// The failure.
    pub fn enrol(
        &self,
        token: &EnrolmentToken,
        signing_request: &str,
    ) -> Result<CertificateResponse, ClientError> {
        let verifier = Arc::new(OfAuthority::new(token.authority()));
        let config = builder().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        let request = EnrolRequest { token: token.reveal(), signing_request: signing_request.to_owned() };
        self.ask(config, token.authority().to_string(), ENROL_PATH, &request)
    }

    /// Returns the time of the server, which must prove that it belongs to this authority, in
    /// milliseconds since 1970. Changes nothing.
    ///
    /// # Errors
    /// The failure.
    pub fn clock(&self, authority: CertificateSha256) -> Result<u64, ClientError> {
        let verifier = Arc::new(OfAuthority::new(authority));
        let config = builder().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        let told: ClockResponse = self.ask(config, authority.to_string(), CLOCK_PATH, &())?;
        Ok(told.unix_milliseconds)
    }

    /// Returns what is revoked, authenticated by the caller's certificate. Changes nothing.
    ///
    /// # Errors
    /// The failure.
    pub fn revocations(
        &self,
        authorities: &[CertificateDer<'static>],
        present: CertificateDer<'static>,
        key: &SecretBytes,
    ) -> Result<RevocationsResponse, ClientError> {
        let config = config_of(authorities, present, key)?;
        self.ask(config, names_of(authorities), REVOCATIONS_PATH, &())
    }

    /// Requests another certificate for the key of `signing_request` (PEM), authenticated by the
    /// present one. The client trusts `authorities`.
    ///
    /// # Errors
    /// The failure.
    pub fn renew(
        &self,
        authorities: &[CertificateDer<'static>],
        present: CertificateDer<'static>,
        key: &SecretBytes,
        signing_request: &str,
    ) -> Result<CertificateResponse, ClientError> {
        let config = config_of(authorities, present, key)?;
        let request = RenewRequest { signing_request: signing_request.to_owned() };
        self.ask(config, names_of(authorities), RENEW_PATH, &request)
    }

    /// Sends an administrator's question, authenticated by the caller's certificate. Which answer
    /// it has is known to [`management`](crate::management), whose [`Client::manage`] calls this.
    ///
    /// # Errors
    /// The failure.
    pub(crate) fn ask_management<Answer: DeserializeOwned + Send>(
        &self,
        authorities: &[CertificateDer<'static>],
        present: CertificateDer<'static>,
        key: &SecretBytes,
        question: &(impl Serialize + Sync),
    ) -> Result<Answer, ClientError> {
        let config = config_of(authorities, present, key)?;
        self.ask(config, names_of(authorities), MANAGE_PATH, question)
    }

    /// Runs on a thread of its own, so that it can be called from any thread that may block, with
    /// or without a runtime.
    fn ask<Answer: DeserializeOwned + Send>(
        &self,
        config: ClientConfig,
        authority: String,
        path: &'static str,
        request: &(impl Serialize + Sync),
    ) -> Result<Answer, ClientError> {
        let answer =
            |reason: &str| ClientError::Answer { server: self.server.clone(), reason: reason.to_owned() };
        let longest_bytes = if path == MANAGE_PATH { QUESTION_MAX_BYTES } else { REQUEST_MAX_BYTES };
        let mut body = Zeroizing::new(Vec::with_capacity(longest_bytes));
        serde_json::to_writer(&mut *body, request).map_err(|_| answer("the request cannot be written"))?;
        let unreachable = |source| ClientError::Unreachable { server: self.server.clone(), source };
        let exchange = || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unreachable)?;
            runtime.block_on(async {
                let exchange = self.exchange(config, &authority, path, body);
                let timed_out = |_| ClientError::TimedOut { server: self.server.clone() };
                tokio::time::timeout(TIMEOUT, exchange).await.map_err(timed_out)?
            })
        };
        std::thread::scope(|scope| scope.spawn(exchange).join())
            .unwrap_or_else(|_| Err(answer("the exchange broke off")))
    }

    async fn exchange<Answer: DeserializeOwned>(
        &self,
        config: ClientConfig,
        authority: &str,
        path: &'static str,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<Answer, ClientError> {
        let server = || self.server.clone();
        let answer = |reason: String| ClientError::Answer { server: server(), reason };
        let unreachable = |source| ClientError::Unreachable { server: server(), source };
        let (stream, name) = self.connect().await.map_err(unreachable)?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| self.handshake_failed(&error, authority))?;
        let request = Request::post(path)
            .header(header::HOST, self.server.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from_owner(body)))
            .map_err(|error| answer(error.to_string()))?;
        let is_long = path == MANAGE_PATH || path == REVOCATIONS_PATH;
        let body_bytes = if is_long { ANSWER_MAX_BYTES } else { RESPONSE_MAX_BYTES };
        let limits = ExchangeLimits { head_bytes: RESPONSE_MAX_BYTES, body_bytes };
        let Answered { status, body } =
            exchange(stream, request, limits).await.map_err(|error| match error {
                ExchangeError::Connection(error) => self.talk_failed(&error),
                ExchangeError::Body(reason) => answer(reason),
            })?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| answer(error.to_string()));
        }
        match serde_json::from_slice::<ErrorResponse>(&body) {
            Ok(ErrorResponse { code, message }) => Err(ClientError::Refused { code, message }),
            Err(_) => Err(answer(format!("status {status} without a reason"))),
        }
    }

    /// Connects, and returns the expected name of the server's certificate.
    async fn connect(&self) -> std::io::Result<(Box<dyn Stream>, ServerName<'static>)> {
        if let Some(Local { socket, name }) = &self.local {
            match UnixStream::connect(socket).await {
                Ok(stream) => return Ok((Box::new(stream), name.clone())),
                // A server of an earlier release has no socket; the port reports any other problem.
                Err(error) => {
                    tracing::debug!(socket = %socket.display(), %error, "not reached by its socket")
                }
            }
        }
        Ok((Box::new(TcpStream::connect(&self.server).await?), self.name.clone()))
    }

    fn handshake_failed(&self, error: &std::io::Error, authority: &str) -> ClientError {
        let server = self.server.clone();
        match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(reason)) => {
                ClientError::Impostor { server, authority: authority.to_owned(), reason: reason.to_string() }
            }
            _ => ClientError::Tls { server, reason: error.to_string() },
        }
    }

    /// In TLS 1.3 the server's verdict on the client's certificate arrives after the client's
    /// handshake, in place of the first answer.
    fn talk_failed(&self, error: &hyper::Error) -> ClientError {
        let mut reason = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            reason = error.to_string();
            cause = error.source();
        }
        ClientError::Tls { server: self.server.clone(), reason }
    }
}

/// TLS to a server of one of the `authorities`, with a client certificate.
fn config_of(
    authorities: &[CertificateDer<'static>],
    present: CertificateDer<'static>,
    key: &SecretBytes,
) -> Result<ClientConfig, ClientError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(ClientError::Present)?;
    }
    let key = PrivatePkcs8KeyDer::from(key.expose().to_vec());
    builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![present], key.into())
        .map_err(ClientError::Present)
}

/// The names of the expected authorities.
fn names_of(authorities: &[CertificateDer<'static>]) -> String {
    let known: Vec<_> = authorities.iter().map(|der| CertificateSha256::of(der).to_string()).collect();
    known.join(" or ")
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13, &version::TLS12]);
    versions.expect("the library's own provider has suites for both versions")
}

/// Accepts a server of one authority that is known only by its fingerprint: the server sends the
/// authority's certificate along.
struct OfAuthority {
    authority: CertificateSha256,
    algorithms: WebPkiSupportedAlgorithms,
}

impl OfAuthority {
    fn new(authority: CertificateSha256) -> Self {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        Self { authority, algorithms }
    }
}

impl ServerCertVerifier for OfAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let authority = intermediates
            .iter()
            .find(|certificate| CertificateSha256::of(certificate) == self.authority)
            .ok_or(CertificateError::UnknownIssuer)?;
        let anchor =
            webpki::anchor_from_trusted_cert(authority).map_err(|_| CertificateError::BadEncoding)?;
        let leaf = EndEntityCert::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        leaf.verify_for_usage(
            self.algorithms.all,
            &[anchor],
            intermediates,
            now,
            KeyUsage::server_auth(),
            None,
            None,
        )
        .map_err(|error| match error {
            webpki::Error::CertExpired { .. } => CertificateError::Expired,
            webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
            _ => CertificateError::UnknownIssuer,
        })?;
        leaf.verify_is_valid_for_subject_name(name).map_err(|_| CertificateError::NotValidForName)?;
        Ok(ServerCertVerified::assertion())
    }

    verifies_signatures!();
}

impl fmt::Debug for OfAuthority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OfAuthority").field("authority", &self.authority).finish_non_exhaustive()
    }
}
