//! The HTTP of the control socket: from requests to [`Hostd`], and back.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::vms::no_such_vm;
use super::{Hostd, operations};
use crate::proof::check_peer;
use crate::protocol::{
    CHANGES_WAIT_MAX_S, DatastoreRequest, JudgeRequest, OperationRequest, Problem, ProblemBody,
    REQUEST_BYTES_MAX, TicketRequest, VmSpec,
};

/// Connections at once: a control plane's, and a few people's.
const CONNECTIONS_MAX: usize = 64;
/// The longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// For a request's head to come.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// For its body.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Before it is tried again to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is dropped.
pub async fn serve(hostd: Arc<Hostd>, listener: UnixListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("no connection can be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Err(error) = check_peer(&stream) {
            tracing::warn!("{error}");
            continue;
        }
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let hostd = Arc::clone(&hostd);
        tokio::spawn(async move {
            connection(hostd, stream).await;
            drop(place);
        });
    }
}

async fn connection(hostd: Arc<Hostd>, stream: UnixStream) {
    let service = service_fn(|request| {
        let hostd = Arc::clone(&hostd);
        async move { Ok::<_, Infallible>(answer(&hostd, request).await) }
    });
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!("a connection ended early: {error}");
    }
}

/// A status, and a body.
struct Answer(StatusCode, Vec<u8>);

impl Answer {
    fn of(status: StatusCode, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self(status, body),
            Err(error) => Self(
                StatusCode::INTERNAL_SERVER_ERROR,
                problem_body(Problem::new("internal", error.to_string())),
            ),
        }
    }

    fn ok(body: &impl Serialize) -> Self {
        Self::of(StatusCode::OK, body)
    }

    fn refused(problem: Problem) -> Self {
        Self(status_of(&problem.code), problem_body(problem))
    }
}

fn problem_body(problem: Problem) -> Vec<u8> {
    serde_json::to_vec(&ProblemBody { error: problem }).unwrap_or_default()
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

async fn answer(hostd: &Arc<Hostd>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let Answer(status, body) = route(hostd, request).await.unwrap_or_else(Answer::refused);
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

async fn route(hostd: &Arc<Hostd>, request: Request<Incoming>) -> Result<Answer, Problem> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let method = request.method().clone();
    let unknown = || Problem::new("no_such_path", format!("{path} is nothing here"));
    let id = |text: &str| text.parse().map_err(|_| unknown());
    Ok(match (method, parts.as_slice()) {
        (Method::GET, ["v1", "host"]) => Answer::ok(&hostd.host().await?),
        (Method::GET, ["v1", "vms"]) => Answer::ok(&hostd.observed()),
        (Method::GET, ["v1", "vms", vm]) => {
            let vm = id(vm)?;
            Answer::ok(&hostd.vms.get(vm).ok_or_else(|| no_such_vm(vm))?)
        }
        (Method::POST, ["v1", "vms", vm, "operations"]) => {
            let vm = id(vm)?;
            let wanted: OperationRequest = body(request).await?;
            Answer::of(StatusCode::ACCEPTED, &hostd.submit(vm, wanted)?)
        }
        (Method::POST, ["v1", "vms", vm, "check"]) => {
            let vm = id(vm)?;
            let spec: VmSpec = body(request).await?;
            Answer::ok(&operations::check(hostd, vm, spec).await?)
        }
        (Method::POST, ["v1", "vms", vm, "judge"]) => {
            let vm = id(vm)?;
            let wanted: JudgeRequest = body(request).await?;
            Answer::ok(&operations::judge(hostd, vm, wanted).await?)
        }
        (Method::POST, ["v1", "vms", vm, "tickets"]) => {
            let vm = id(vm)?;
            let wanted: TicketRequest = body(request).await?;
            Answer::of(StatusCode::CREATED, &hostd.ticket(vm, wanted)?)
        }
        (method @ (Method::GET | Method::DELETE), ["v1", "operations", operation]) => {
            let operation = operation.parse().map_err(|_| unknown())?;
            let found = match method {
                Method::GET => hostd.queue.get(operation),
                _ => hostd.queue.cancel(operation),
            };
            let none = || Problem::new("no_such_operation", format!("no operation {operation} is known"));
            Answer::ok(&found.ok_or_else(none)?)
        }
        (Method::GET, ["v1", "changes"]) => {
            let (after, wait) = changes_query(request.uri().query().unwrap_or_default())?;
            Answer::ok(&hostd.changes.after(after, wait).await)
        }
        (Method::PUT, ["v1", "datastores"]) => {
            let wanted: DatastoreRequest = body(request).await?;
            Answer::ok(&hostd.add_datastore(wanted).await?)
        }
        (Method::POST, ["v1", "datastores"]) => {
            let wanted: DatastoreRequest = body(request).await?;
            Answer::ok(&hostd.look_through(wanted).await?)
        }
        (_, ["v1", "host" | "vms" | "changes" | "datastores", ..] | ["v1", "operations", _]) => {
            return Err(Problem::new("method", "that is not done with it here"));
        }
        _ => return Err(unknown()),
    })
}

fn changes_query(query: &str) -> Result<(u64, Duration), Problem> {
    let (mut after, mut wait_s) = (0, 0);
    for (name, value) in
        query.split('&').filter(|part| !part.is_empty()).filter_map(|part| part.split_once('='))
    {
        let number = || value.parse().map_err(|_| Problem::new("bad_request", format!("{name} is a number")));
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
    Ok((after, Duration::from_secs(wait_s.min(CHANGES_WAIT_MAX_S))))
}

async fn body<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Problem> {
    let bad = |reason: String| Problem::new("bad_request", reason);
    let collected = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_WITHIN, collected).await {
        Err(_) => return Err(bad("the body has not come in time".to_owned())),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err(Problem::new("too_long", format!("a body has at most {REQUEST_BYTES_MAX} bytes")));
        }
        Ok(Err(error)) => return Err(bad(error.to_string())),
        Ok(Ok(body)) => body.to_bytes(),
    };
    serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))
}
