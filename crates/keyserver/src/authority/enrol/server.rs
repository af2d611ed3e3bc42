//! The enrolment port: HTTP/1.1 over TLS by hyper. It is open to everybody who can reach it, so that each thing
//! a stranger can take has a limit.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::super::{Authority, AuthorityError, ClientCertificate, Refusal};
use super::failures::Failures;
use super::protocol::{
    CertificateResponse, ENROL_PATH, EnrolRequest, ErrorResponse, MANAGE_PATH, QUESTION_MAX_BYTES,
    RENEW_PATH, REQUEST_MAX_BYTES, RenewRequest,
};
use super::redeem::EnrolRefusal;
use super::token::EnrolmentToken;
use crate::access::{CertificateSha256, ClientId, Identity};

/// Most connections at a time; a machine that is set up needs one for a second. The next ones are closed at
/// once and may come again.
pub const CONNECTIONS_MAX: usize = 64;
/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a connection after its handshake, which is one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for a request's head within that.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request's head: hyper's least buffer.
const HEAD_MAX_BYTES: usize = 8 * 1024;
/// Lines in it: what libraries send is a dozen.
const HEAD_MAX_LINES: usize = 32;
/// How long a shutdown waits for requests under way.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the system refused a connection, which is mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What happened at the port, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnrolmentEvent {
    /// From where.
    pub peer: IpAddr,
    /// Who, if a certificate was shown and let in.
    pub by: Option<ClientId>,
    /// Path of the request; empty if there was none.
    pub request: &'static str,
    /// The certificate that was issued and its client, or the code of the refusal.
    pub outcome: Result<(ClientId, CertificateSha256), &'static str>,
}

/// The event could not be written down.
#[derive(Debug, thiserror::Error)]
#[error("it could not be put on record: {0}")]
pub struct NotRecorded(pub String);

/// Where events are written down.
pub trait EnrolmentRecord: Send + Sync {
    /// Writes `event` down; blocks until it is durable. A certificate is handed out only afterwards.
    ///
    /// # Errors
    /// [`NotRecorded`]: then it is not handed out, and whoever asks again gets the same one.
    fn record(&self, event: &EnrolmentEvent) -> Result<(), NotRecorded>;
}

/// Who answers administrators, at the same port under their certificates.
pub trait Management: Send + Sync {
    /// Answers a question, JSON to JSON; blocks. What it changes and what it refuses is on record when it returns.
    ///
    /// # Errors
    /// [`Unanswered`].
    fn answer(&self, asker: &Identity, address: IpAddr, question: &[u8]) -> Result<Vec<u8>, Unanswered>;
}

/// Why a question is not answered.
#[derive(Debug)]
pub struct Unanswered {
    /// For programs; never changes.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// Whether it is the asker's doing.
    pub by_asker: bool,
}

/// Serves enrolment, and management if there is any, on `listener` until `shutdown` is ready, then finishes what is under
/// way.
///
/// # Errors
/// [`AuthorityError::Tls`] before the first connection; none afterwards.
pub async fn serve(
    listener: TcpListener,
    authority: Arc<Authority>,
    record: Arc<dyn EnrolmentRecord>,
    management: Option<Arc<dyn Management>>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), AuthorityError> {
    let acceptor = TlsAcceptor::from(authority.enrolment_config()?);
    let port = Arc::new(Port { authority, record, management, failures: Failures::default() });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            // Takes the finished ones off the set; with none there it never is ready.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "enrolment: no connection could be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!(%peer, "enrolment: too many connections; this one is closed");
            continue;
        };
        let (port, acceptor) = (Arc::clone(&port), acceptor.clone());
        connections.spawn(async move {
            port.connection(stream, peer, acceptor).await;
            drop(place);
        });
    }
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, finished).await.is_err() {
        connections.shutdown().await;
    }
    Ok(())
}

struct Port {
    authority: Arc<Authority>,
    record: Arc<dyn EnrolmentRecord>,
    management: Option<Arc<dyn Management>>,
    failures: Failures,
}

/// Who is at the other end.
#[derive(Clone)]
struct Asker {
    peer: IpAddr,
    /// Let in by the handshake.
    certificate: Option<CertificateDer<'static>>,
}

impl Port {
    async fn connection(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, acceptor: TlsAcceptor) {
        let peer = peer.ip();
        if self.failures.has_to_wait(peer, Instant::now()) {
            tracing::debug!(%peer, "enrolment: failed too often; closed");
            return;
        }
        let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.handshake_failed(peer, &error).await,
            Err(_) => return self.failures.count(peer, Instant::now()),
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let asker = Asker { peer, certificate: shown.map(|certificate| certificate.clone().into_owned()) };
        let service = service_fn(|request| {
            let (port, asker) = (Arc::clone(&self), asker.clone());
            async move { Ok::<_, Infallible>(port.answer(request, asker).await) }
        });
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(HEAD_MAX_BYTES)
            .max_headers(HEAD_MAX_LINES)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        match tokio::time::timeout(REQUEST_TIMEOUT, connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "enrolment: a connection ended early");
                self.failures.count(peer, Instant::now());
            }
            Err(_) => self.failures.count(peer, Instant::now()),
        }
    }

    /// A certificate that is not let in is on record; noise is not.
    async fn handshake_failed(self: &Arc<Self>, peer: IpAddr, error: &std::io::Error) {
        self.failures.count(peer, Instant::now());
        let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        let Some(refusal) = tls.and_then(Refusal::of_handshake) else {
            return tracing::debug!(%peer, %error, "enrolment: no TLS");
        };
        let event = EnrolmentEvent { peer, by: None, request: "", outcome: Err(refusal.code()) };
        let port = Arc::clone(self);
        let recorded = tokio::task::spawn_blocking(move || port.record.record(&event)).await;
        if !matches!(recorded, Ok(Ok(()))) {
            tracing::error!(%peer, "enrolment: a refusal could not be put on record");
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, asker: Asker) -> Response<Full<Bytes>> {
        let peer = asker.peer;
        let (status, body) = match self.clone().done(request, asker).await {
            Ok(body) => (StatusCode::OK, body),
            Err(denied) => {
                if denied.status.is_client_error() {
                    self.failures.count(peer, Instant::now());
                }
                let body = ErrorResponse { code: denied.code.to_owned(), message: denied.message };
                (denied.status, serde_json::to_vec(&body).unwrap_or_default())
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        response
    }

    async fn done(self: Arc<Self>, request: Request<Incoming>, asker: Asker) -> Result<Vec<u8>, Denied> {
        let path = match request.uri().path() {
            ENROL_PATH => ENROL_PATH,
            RENEW_PATH => RENEW_PATH,
            MANAGE_PATH if self.management.is_some() => MANAGE_PATH,
            _ => return Err(Denied::new(StatusCode::NOT_FOUND, "not-found", "there is nothing here")),
        };
        if request.method() != Method::POST {
            return Err(Denied::new(StatusCode::METHOD_NOT_ALLOWED, "method", "only POST is taken here"));
        }
        // A stranger's question is read no further than a stranger's request.
        let longest_bytes = match asker.certificate {
            Some(_) if path == MANAGE_PATH => QUESTION_MAX_BYTES,
            _ => REQUEST_MAX_BYTES,
        };
        let body = Limited::new(request.into_body(), longest_bytes).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Denied::new(StatusCode::PAYLOAD_TOO_LARGE, "too-long", "the request is too long")
            } else {
                Denied::new(StatusCode::BAD_REQUEST, "cut-short", "the request ended early")
            }
        })?;
        let body = body.to_bytes();
        // The store blocks for the device, and so does the record.
        let work = tokio::task::spawn_blocking(move || match &self.management {
            Some(management) if path == MANAGE_PATH => self.manage(management.as_ref(), &body, &asker),
            _ => {
                let issued = CertificateResponse::from(self.redeem(path, &body, &asker)?);
                serde_json::to_vec(&issued).map_err(|_| Denied::unavailable())
            }
        });
        work.await.unwrap_or_else(|_| Err(Denied::unavailable()))
    }

    /// Has a question answered for whom the certificate names now; blocks.
    fn manage(&self, management: &dyn Management, body: &[u8], asker: &Asker) -> Result<Vec<u8>, Denied> {
        let certificate = asker.certificate.as_ref().ok_or(Refusal::NoCertificate)?;
        let identity = self.authority.identify(certificate, OffsetDateTime::now_utc())?;
        management.answer(&identity, asker.peer, body).map_err(|unanswered| {
            let Unanswered { code, message, by_asker } = unanswered;
            let status =
                if by_asker { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::SERVICE_UNAVAILABLE };
            Denied { status, code, message }
        })
    }

    /// Does what is asked and puts it on record; blocks.
    fn redeem(&self, path: &'static str, body: &[u8], asker: &Asker) -> Result<ClientCertificate, Denied> {
        let now = OffsetDateTime::now_utc();
        let mut by = None;
        let outcome =
            if path == ENROL_PATH { self.enrol(body, now) } else { self.renew(body, asker, &mut by, now) };
        let event = EnrolmentEvent {
            peer: asker.peer,
            by,
            request: path,
            outcome: match &outcome {
                Ok(issued) => Ok((issued.record.client, issued.record.sha256())),
                Err(denied) => Err(denied.code),
            },
        };
        match self.record.record(&event) {
            Ok(()) => outcome,
            Err(error) => {
                tracing::error!(%error, peer = %asker.peer, "enrolment: nothing is handed out without a record");
                Err(Denied::unavailable())
            }
        }
    }

    fn enrol(&self, body: &[u8], now: OffsetDateTime) -> Result<ClientCertificate, Denied> {
        let request: EnrolRequest = read(body)?;
        let token = EnrolmentToken::read(&request.token).map_err(|_| EnrolRefusal::Malformed)?;
        Ok(self.authority.enrol(&token, request.signing_request.as_bytes(), now)?)
    }

    fn renew(
        &self,
        body: &[u8],
        asker: &Asker,
        by: &mut Option<ClientId>,
        now: OffsetDateTime,
    ) -> Result<ClientCertificate, Denied> {
        let request: RenewRequest = read(body)?;
        let certificate = asker.certificate.as_ref().ok_or(Refusal::NoCertificate)?;
        // Anew: it may have been revoked since the handshake.
        let present = self.authority.identify(certificate, now)?;
        *by = Some(present.client);
        Ok(self.authority.renew(&present, request.signing_request.as_bytes(), now)?)
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Denied> {
    serde_json::from_slice(body).map_err(|_| {
        Denied::new(StatusCode::BAD_REQUEST, "malformed", "the request is not the JSON that belongs here")
    })
}

/// An answer that hands nothing out.
#[derive(Debug)]
struct Denied {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Denied {
    fn new(status: StatusCode, code: &'static str, message: &str) -> Self {
        Self { status, code, message: message.to_owned() }
    }

    fn unavailable() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the server cannot do this now; try again")
    }
}

impl From<EnrolRefusal> for Denied {
    fn from(refusal: EnrolRefusal) -> Self {
        let status = match &refusal {
            EnrolRefusal::Malformed | EnrolRefusal::SigningRequest(_) => StatusCode::BAD_REQUEST,
            EnrolRefusal::Unknown | EnrolRefusal::Expired => StatusCode::UNAUTHORIZED,
            EnrolRefusal::OtherKey | EnrolRefusal::Revoked => StatusCode::FORBIDDEN,
            EnrolRefusal::Used => StatusCode::CONFLICT,
            EnrolRefusal::Unavailable(error) => {
                tracing::error!(%error, "enrolment: a token could not be redeemed");
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self::new(status, refusal.code(), &refusal.to_string())
    }
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Self::new(StatusCode::FORBIDDEN, refusal.code(), &refusal.to_string())
    }
}

impl From<AuthorityError> for Denied {
    fn from(error: AuthorityError) -> Self {
        match error {
            AuthorityError::Refused(refusal) => refusal.into(),
            AuthorityError::SigningRequest(error) => EnrolRefusal::SigningRequest(error).into(),
            AuthorityError::Limit { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many-certificates", &error.to_string())
            }
            AuthorityError::Unknown { .. } => Self::new(
                StatusCode::FORBIDDEN,
                "not-issued-here",
                "the certificate was not issued here, so it is not renewed here",
            ),
            other => EnrolRefusal::Unavailable(other).into(),
        }
    }
}
