//! The HTTP interface of the control socket and the port, between requests and a
//! [`HostService`].

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequest, FromRequestParts, Path, RawQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_host::proof::check_peer;
use strongroom_host::protocol::{
    CHANGES_WAIT_MAX_S, Changes, Datastore, DatastoreRequest, FORMAT_HEADER, FORMATS, FencingRequest, Host,
    JudgeRequest, Judgement, ObservedVm, ObservedVms, Operation, OperationId, OperationRequest, Problem,
    ProblemBody, REQUEST_BYTES_MAX, Readings, ReadingsRequest, TERM_HEADER, Term, Ticket, TicketRequest,
    VM_READINGS_MAX, VmReadings, VmReadingsRequest, VmSpec, VmStatistics, VoidTicket,
};
use strongroom_serving::{BodyError, Connections, HttpLimits, read_body, serve_http};
use strongroom_types::VmId;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::operations::blocking;
use super::service::HostService;
use super::vms::no_such_vm;

/// The most connections: those of a control plane and a few people.
const CONNECTIONS_MAX: usize = 64;
/// A client may send one request after another for as long as it likes.
pub const HTTP: HttpLimits = HttpLimits {
    head_bytes: 16 << 10,
    head_lines: 64,
    head_within: Duration::from_secs(10),
    keeps_alive: true,
};
/// How long an answer waits for the end of an operation that is
/// [awaited]: well within a client's timeout.
///
/// [awaited]: strongroom_host::protocol::OperationKind::is_awaited
const AWAITED_MAX: Duration = Duration::from_secs(5);
/// How long a request's body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// Serves the requests of this machine until it is dropped.
pub async fn serve(router: Router, listener: UnixListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = Connections::new("hostd's control socket");
    loop {
        let (stream, _) = connections.accept(|| listener.accept()).await;
        if let Err(error) = check_peer(&stream) {
            tracing::warn!("{error}");
            continue;
        }
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let router = router.clone();
        connections.spawn(async move {
            connection(router, stream).await;
            drop(place);
        });
    }
}

async fn connection(router: Router, stream: UnixStream) {
    if let Err(error) = serve_http(stream, router, (), HTTP, std::future::pending()).await {
        tracing::debug!("a connection ended early: {error}");
    }
}

/// The requests that hostd answers.
pub fn router<S: HostService>(host: Arc<S>) -> Router {
    Router::new()
        .route("/v1/host", get(state_of_host::<S>))
        .route("/v1/vms", get(vms::<S>))
        .route("/v1/vms/readings", post(read_vms::<S>))
        .route("/v1/vms/{vm}", get(vm::<S>))
        .route("/v1/statistics", get(all_statistics::<S>))
        .route("/v1/vms/{vm}/statistics", get(vm_statistics::<S>))
        .route("/v1/volumes/readings", post(read_volumes::<S>))
        .route("/v1/vms/{vm}/operations", post(submit::<S>))
        .route("/v1/vms/{vm}/check", post(check::<S>))
        .route("/v1/vms/{vm}/judge", post(judge::<S>))
        .route("/v1/vms/{vm}/tickets", post(ticket::<S>))
        .route("/v1/tickets/void", post(void_ticket::<S>))
        .route("/v1/operations/{operation}", get(operation::<S>).delete(cancel::<S>))
        .route("/v1/release", post(release::<S>))
        .route("/v1/changes", get(changes::<S>))
        .route("/v1/datastores", put(add_datastore::<S>).post(look_through::<S>))
        .route("/v1/datastores/fencing", post(fence::<S>))
        .fallback(async |uri: Uri| Refused(no_such_path(&uri)))
        .method_not_allowed_fallback(async || {
            Refused(Problem::new("method", "that is not done with it here"))
        })
        .layer(middleware::from_fn(of_known_format))
        .with_state(host)
}

/// Refuses requests of a format that this program does not read.
async fn of_known_format(request: Request, next: Next) -> Response {
    match stated(request.headers(), FORMAT_HEADER) {
        Ok(None) => next.run(request).await,
        Ok(Some(format)) if FORMATS.has(format) => next.run(request).await,
        Ok(Some(format)) => {
            let message = format!("the request has format {format}, and this hostd reads {FORMATS}");
            let problem = Problem::new("format", message);
            Refused(problem.with_next_step("upgrade the older of the two, one release at a time"))
                .into_response()
        }
        Err(problem) => Refused(problem).into_response(),
    }
}

/// The number that a header states.
fn stated<T: FromStr>(headers: &HeaderMap, name: &str) -> Result<Option<T>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let wrong = || Problem::new("bad_request", format!("the header {name} is a number"));
    number.map(Some).ok_or_else(wrong)
}

/// Carries out an order of this term. Nothing of a greater term is admitted meanwhile, so the step
/// must be short.
async fn order<S: HostService, T: Send + 'static>(
    host: Arc<S>,
    InTerm(term): InTerm,
    step: impl FnOnce(&S) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Refused> {
    let ordered = blocking(move || {
        let _admitted = host.terms().admit(term)?;
        step(&host)
    });
    Ok(ordered.await??)
}

type Asked<S> = State<Arc<S>>;
type Answer<T> = Result<Json<T>, Refused>;

async fn state_of_host<S: HostService>(State(host): Asked<S>) -> Answer<Host> {
    Ok(Json(host.host().await?))
}

async fn vms<S: HostService>(State(host): Asked<S>) -> Json<ObservedVms> {
    Json(host.observed())
}

async fn vm<S: HostService>(State(host): Asked<S>, Named(vm): Named<VmId>) -> Answer<ObservedVm> {
    Ok(Json(host.vm(vm).ok_or_else(|| no_such_vm(vm))?))
}

async fn read_vms<S: HostService>(
    State(host): Asked<S>,
    Body(VmReadingsRequest { vms }): Body<VmReadingsRequest>,
) -> Answer<VmReadings> {
    if vms.len() > VM_READINGS_MAX {
        let message = format!("a request reads at most {VM_READINGS_MAX} VMs, not {}", vms.len());
        return Err(Refused(Problem::new("bad_request", message)));
    }
    Ok(Json(VmReadings { vms: host.vms_of(&vms) }))
}

async fn all_statistics<S: HostService>(State(host): Asked<S>) -> Json<Vec<VmStatistics>> {
    Json(host.all_statistics().await)
}

async fn vm_statistics<S: HostService>(
    State(host): Asked<S>,
    Named(vm): Named<VmId>,
) -> Answer<VmStatistics> {
    Ok(Json(host.statistics(vm).await?))
}

async fn read_volumes<S: HostService>(
    State(host): Asked<S>,
    Body(wanted): Body<ReadingsRequest>,
) -> Answer<Readings> {
    Ok(Json(host.read_volumes(wanted).await?))
}

async fn submit<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Named(vm): Named<VmId>,
    Body(wanted): Body<OperationRequest>,
) -> Result<(StatusCode, Json<Operation>), Refused> {
    let is_awaited = wanted.kind.is_awaited();
    let operation = order(Arc::clone(&host), term, move |host| host.submit(vm, wanted)).await?;
    let ended = match is_awaited {
        true => host.ended(operation.operation, AWAITED_MAX).await,
        false => None,
    };
    Ok((StatusCode::ACCEPTED, Json(ended.unwrap_or(operation))))
}

async fn check<S: HostService>(
    State(host): Asked<S>,
    Named(vm): Named<VmId>,
    Body(spec): Body<VmSpec>,
) -> Answer<()> {
    Ok(Json(host.check(vm, spec).await?))
}

async fn judge<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Named(vm): Named<VmId>,
    Body(wanted): Body<JudgeRequest>,
) -> Answer<Judgement> {
    order(Arc::clone(&host), term, |_| Ok(())).await?;
    Ok(Json(host.judge(vm, wanted).await?))
}

async fn ticket<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Named(vm): Named<VmId>,
    Body(wanted): Body<TicketRequest>,
) -> Result<(StatusCode, Json<Ticket>), Refused> {
    let ticket = order(host, term, move |host| host.ticket(vm, wanted)).await?;
    Ok((StatusCode::CREATED, Json(ticket)))
}

async fn void_ticket<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Body(VoidTicket { ticket }): Body<VoidTicket>,
) -> Answer<()> {
    order(host, term, move |host| {
        host.void_ticket(&ticket);
        Ok(())
    })
    .await?;
    Ok(Json(()))
}

async fn operation<S: HostService>(
    State(host): Asked<S>,
    Named(operation): Named<OperationId>,
) -> Answer<Operation> {
    known(operation, host.operation(operation))
}

async fn cancel<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Named(operation): Named<OperationId>,
) -> Answer<Operation> {
    let cancelled = order(host, term, move |host| Ok(host.cancel(operation))).await?;
    known(operation, cancelled)
}

fn known(operation: OperationId, found: Option<Operation>) -> Answer<Operation> {
    let none = || Problem::new("no_such_operation", format!("no operation {operation} is known"));
    Ok(Json(found.ok_or_else(none)?))
}

async fn changes<S: HostService>(State(host): Asked<S>, RawQuery(query): RawQuery) -> Answer<Changes> {
    let Changed { after, wait } = Changed::read(query.as_deref().unwrap_or_default())?;
    Ok(Json(host.changes_after(after, wait).await))
}

async fn release<S: HostService>(State(host): Asked<S>, term: InTerm) -> Answer<()> {
    order(Arc::clone(&host), term, |_| Ok(())).await?;
    order(host, InTerm(Term::LAST), |_| Ok(())).await?;
    Ok(Json(()))
}

// The disk of a datastore may not answer, so these do not keep a greater term waiting.

async fn add_datastore<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Body(wanted): Body<DatastoreRequest>,
) -> Answer<Datastore> {
    order(Arc::clone(&host), term, |_| Ok(())).await?;
    Ok(Json(host.add_datastore(wanted).await?))
}

async fn look_through<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Body(wanted): Body<DatastoreRequest>,
) -> Answer<Datastore> {
    order(Arc::clone(&host), term, |_| Ok(())).await?;
    Ok(Json(host.look_through(wanted).await?))
}

async fn fence<S: HostService>(
    State(host): Asked<S>,
    term: InTerm,
    Body(wanted): Body<FencingRequest>,
) -> Answer<()> {
    order(Arc::clone(&host), term, |_| Ok(())).await?;
    Ok(Json(host.fence(wanted).await?))
}

/// The body of an answer.
struct Json<T>(T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => json(body),
            Err(error) => Refused(Problem::new("internal", error.to_string())).into_response(),
        }
    }
}

fn json(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// A refused request.
struct Refused(Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = status_of(&self.0.code);
        let body = serde_json::to_vec(&ProblemBody { error: self.0 }).unwrap_or_default();
        (status, json(body)).into_response()
    }
}

fn status_of(code: &str) -> StatusCode {
    match code {
        "no_such_path" | "no_such_vm" | "no_such_operation" => StatusCode::NOT_FOUND,
        "bad_request" | "bad_spec" => StatusCode::BAD_REQUEST,
        "too_long" => StatusCode::PAYLOAD_TOO_LARGE,
        "busy" | "too_many_tickets" | "too_many_datastores" => StatusCode::TOO_MANY_REQUESTS,
        "internal" | "system" => StatusCode::INTERNAL_SERVER_ERROR,
        "method" => StatusCode::METHOD_NOT_ALLOWED,
        _ => StatusCode::CONFLICT,
    }
}

fn no_such_path(uri: &Uri) -> Problem {
    Problem::new("no_such_path", format!("{} is nothing here", uri.path()))
}

/// An id in a path.
struct Named<T>(T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(id)| Self(id)).map_err(|_| Refused(no_such_path(&parts.uri)))
    }
}

/// The term of an order: 0 if its sender states none, as one of the former version does.
struct InTerm(Term);

impl<S: Send + Sync> FromRequestParts<S> for InTerm {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        Ok(Self(stated(&parts.headers, TERM_HEADER)?.unwrap_or_default()))
    }
}

/// The body of a request.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        let body = read_body(request.into_body(), REQUEST_BYTES_MAX, BODY_WITHIN).await;
        let body = body.map_err(|error| {
            let code = match error {
                BodyError::TooLong(_) => "too_long",
                BodyError::Late | BodyError::CutShort => "bad_request",
            };
            Problem::new(code, error.to_string())
        })?;
        let read = serde_json::from_slice(&body);
        read.map(Self).map_err(|error| Refused(Problem::new("bad_request", error.to_string())))
    }
}

/// The query of a request for changes: the last number that the client knows, and how long to wait.
struct Changed {
    after: u64,
    wait: Duration,
}

impl Changed {
    fn read(query: &str) -> Result<Self, Problem> {
        let (mut after, mut wait_s) = (0, 0);
        for (name, value) in
            query.split('&').filter(|part| !part.is_empty()).filter_map(|part| part.split_once('='))
        {
            let number =
                || value.parse().map_err(|_| Problem::new("bad_request", format!("{name} is a number")));
            match name {
                "after" => after = number()?,
                "wait_s" => wait_s = number()?,
                _ => {
                    return Err(Problem::new(
                        "bad_request",
                        format!("'{name}' is nothing that is asked for here"),
                    ));
                }
            }
        }
        let wait = Duration::from_secs(wait_s.min(CHANGES_WAIT_MAX_S));
        Ok(Self { after, wait })
    }
}
