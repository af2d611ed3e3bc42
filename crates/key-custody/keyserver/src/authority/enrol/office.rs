//! The requests at the enrolment port and at this machine's socket, and their answers.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use rustls::pki_types::CertificateDer;
use serde::de::DeserializeOwned;
use strongroom_serving::{BodyError, read_body};
use strongroom_types::unix_milliseconds_now;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::super::{Authority, AuthorityError, ClientCertificate, Refusal};
use super::failures::Failures;
use super::protocol::{
    CLOCK_PATH, CertificateResponse, ClockResponse, ENROL_PATH, EnrolRequest, ErrorResponse, MANAGE_PATH,
    QUESTION_MAX_BYTES, RENEW_PATH, REQUEST_MAX_BYTES, REVOCATIONS_PATH, RenewRequest,
};
use super::redeem::EnrolRefusal;
use super::server::{EnrolmentEvent, EnrolmentRecord, Management, Origin, REQUEST_TIMEOUT, Unanswered};
use super::token::EnrolmentToken;
use crate::access::ClientId;

/// Answers requests, and counts failures by address.
pub(super) struct Office {
    authority: Arc<Authority>,
    record: Arc<dyn EnrolmentRecord>,
    failures: Failures,
}

/// States the time.
async fn clock() -> Response {
    let body = serde_json::to_vec(&ClockResponse { unix_milliseconds: unix_milliseconds_now() });
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body.unwrap_or_default()).into_response()
}

/// The client at the other end of a connection.
#[derive(Clone)]
pub(super) struct Asker {
    pub peer: Origin,
    /// The certificate that the handshake accepted.
    pub certificate: Option<CertificateDer<'static>>,
}

/// The routes: enrolment, renewal, and administrators' questions if there is a [`Management`].
pub(super) fn router(office: &Arc<Office>, management: Option<Arc<dyn Management>>) -> Router {
    let mut router = Router::new()
        .route(ENROL_PATH, post(enrol))
        .route(RENEW_PATH, post(renew))
        .route(CLOCK_PATH, post(clock))
        .route(REVOCATIONS_PATH, post(revocations));
    if let Some(management) = management {
        router = router.route(
            MANAGE_PATH,
            post(
                async |State(office): State<Arc<Office>>, Extension(asker): Extension<Asker>, body: Body| {
                    office.manage(management, asker, body).await
                },
            ),
        );
    }
    router
        .fallback(async |State(office): State<Arc<Office>>, Extension(asker): Extension<Asker>| {
            office
                .answer(&asker, Err(Denied::new(StatusCode::NOT_FOUND, "not-found", "there is nothing here")))
        })
        .method_not_allowed_fallback(
            async |State(office): State<Arc<Office>>, Extension(asker): Extension<Asker>| {
                let message = "only POST is taken here";
                office.answer(&asker, Err(Denied::new(StatusCode::METHOD_NOT_ALLOWED, "method", message)))
            },
        )
        .with_state(Arc::clone(office))
}

async fn enrol(
    State(office): State<Arc<Office>>,
    Extension(asker): Extension<Asker>,
    body: Body,
) -> Response {
    office.issue(ENROL_PATH, asker, body).await
}

async fn renew(
    State(office): State<Arc<Office>>,
    Extension(asker): Extension<Asker>,
    body: Body,
) -> Response {
    office.issue(RENEW_PATH, asker, body).await
}

async fn revocations(
    State(office): State<Arc<Office>>,
    Extension(asker): Extension<Asker>,
    body: Body,
) -> Response {
    office.state_revocations(asker, body).await
}

impl Office {
    /// An office of that authority, which records every issued certificate.
    pub fn new(authority: Arc<Authority>, record: Arc<dyn EnrolmentRecord>) -> Self {
        Self { authority, record, failures: Failures::default() }
    }

    /// Clients at the socket never wait.
    pub fn has_to_wait(&self, peer: Origin) -> bool {
        matches!(peer, Origin::Network(address) if self.failures.has_to_wait(address, Instant::now()))
    }

    /// Counts a failure against the peer's address.
    pub fn has_failed(&self, peer: Origin) {
        if let Origin::Network(address) = peer {
            self.failures.count(address, Instant::now());
        }
    }

    /// A refused certificate is put on record; noise is not.
    pub async fn handshake_failed(self: &Arc<Self>, peer: Origin, error: &io::Error) {
        self.has_failed(peer);
        let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        let Some(refusal) = tls.and_then(Refusal::of_handshake) else {
            return tracing::debug!(%peer, %error, "enrolment: no TLS");
        };
        let event = EnrolmentEvent { peer, by: None, request: "", outcome: Err(refusal.code()) };
        let office = Arc::clone(self);
        let recorded = tokio::task::spawn_blocking(move || office.record.record(&event)).await;
        if !matches!(recorded, Ok(Ok(()))) {
            tracing::error!(%peer, "enrolment: a refusal could not be put on record");
        }
    }

    fn answer(&self, asker: &Asker, outcome: Result<Zeroizing<Vec<u8>>, Denied>) -> Response {
        let (status, body) = match outcome {
            Ok(body) => (StatusCode::OK, Bytes::from_owner(body)),
            Err(denied) => {
                if denied.status.is_client_error() {
                    self.has_failed(asker.peer);
                }
                let body = ErrorResponse { code: denied.code.to_owned(), message: denied.message };
                (denied.status, serde_json::to_vec(&body).unwrap_or_default().into())
            }
        };
        let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let unkept = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        (status, [json, unkept], body).into_response()
    }

    /// Answers a request for a certificate.
    async fn issue(self: Arc<Self>, path: &'static str, asker: Asker, body: Body) -> Response {
        let office = Arc::clone(&self);
        let by = asker.clone();
        let work = move |body: &[u8]| {
            let issued = CertificateResponse::from(office.redeem(path, body, &by)?);
            serde_json::to_vec(&issued).map(Zeroizing::new).map_err(|_| Denied::unavailable())
        };
        let outcome = done(body, REQUEST_MAX_BYTES, work).await;
        self.answer(&asker, outcome)
    }

    /// States what is revoked, to a client that is admitted itself.
    async fn state_revocations(self: Arc<Self>, asker: Asker, body: Body) -> Response {
        let office = Arc::clone(&self);
        let by = asker.clone();
        let work = move |_: &[u8]| {
            let certificate = by.certificate.as_ref().ok_or(Refusal::NoCertificate)?;
            let now = OffsetDateTime::now_utc();
            office.authority.identify(certificate, now)?;
            let revoked = office.authority.revocations(now);
            serde_json::to_vec(&revoked).map(Zeroizing::new).map_err(|_| Denied::unavailable())
        };
        let outcome = done(body, REQUEST_MAX_BYTES, work).await;
        self.answer(&asker, outcome)
    }

    /// Answers a question for the client that the certificate names now.
    async fn manage(self: Arc<Self>, management: Arc<dyn Management>, asker: Asker, body: Body) -> Response {
        // A client without a certificate may send no more than an enrolment request.
        let longest_bytes = if asker.certificate.is_some() { QUESTION_MAX_BYTES } else { REQUEST_MAX_BYTES };
        let office = Arc::clone(&self);
        let by = asker.clone();
        let work = move |body: &[u8]| {
            let certificate = by.certificate.as_ref().ok_or(Refusal::NoCertificate)?;
            let identity = office.authority.identify(certificate, OffsetDateTime::now_utc())?;
            management.answer(&identity, by.peer, body).map_err(Denied::from)
        };
        let outcome = done(body, longest_bytes, work).await;
        self.answer(&asker, outcome)
    }

    /// Performs the request and puts it on record; blocks.
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
        // Identify again: it may have been revoked since the handshake.
        let present = self.authority.identify(certificate, now)?;
        *by = Some(present.client);
        Ok(self.authority.renew(&present, request.signing_request.as_bytes(), now)?)
    }
}

/// Reads the body, and performs the request on a thread that may block, as the store and the record
/// do.
async fn done(
    body: Body,
    longest_bytes: usize,
    work: impl FnOnce(&[u8]) -> Result<Zeroizing<Vec<u8>>, Denied> + Send + 'static,
) -> Result<Zeroizing<Vec<u8>>, Denied> {
    let body: Bytes = read_body(body, longest_bytes, REQUEST_TIMEOUT).await?;
    let done = tokio::task::spawn_blocking(move || work(&body)).await;
    done.unwrap_or_else(|_| Err(Denied::unavailable()))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Denied> {
    serde_json::from_slice(body).map_err(|_| {
        Denied::new(StatusCode::BAD_REQUEST, "malformed", "the request is not the JSON that belongs here")
    })
}

/// A refusal.
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

impl From<BodyError> for Denied {
    fn from(error: BodyError) -> Self {
        let message = error.to_string();
        match error {
            BodyError::TooLong(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-long", &message),
            BodyError::CutShort | BodyError::Late => {
                Self::new(StatusCode::BAD_REQUEST, "cut-short", &message)
            }
        }
    }
}

impl From<Unanswered> for Denied {
    fn from(unanswered: Unanswered) -> Self {
        let Unanswered { code, message, by_asker } = unanswered;
        let status =
            if by_asker { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::SERVICE_UNAVAILABLE };
        Self { status, code, message }
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
