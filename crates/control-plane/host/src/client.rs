//! Asking a hostd.
//!
//! One connection a request: they are few, and a unix socket's cost nothing. Everything has a
//! deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_serving::{Answered, ExchangeLimits};
use strongroom_types::VmId;
use thiserror::Error;
use tokio::net::UnixStream;

use crate::protocol::{
    ANSWER_BYTES_MAX, CHANGES_WAIT_MAX_S, Changes, Datastore, DatastoreRequest, Host, JudgeRequest,
    Judgement, ObservedVm, ObservedVms, Operation, OperationId, OperationRequest, Problem, ProblemBody,
    Ticket, TicketRequest, VmSpec, VmStatistics,
};

/// For what hostd answers at once. It never waits for a key server or a disk before it answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long it may take to judge a configuration, for which keys are fetched.
const JUDGES_WITHIN: Duration = Duration::from_secs(90);

/// What hostd answers at most.
const LIMITS: ExchangeLimits = ExchangeLimits { head_bytes: 16 << 10, body_bytes: ANSWER_BYTES_MAX };

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// hostd cannot be reached, or hung up.
    #[error("cannot reach hostd at {socket}: {reason}; is it running?")]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// Why not.
        reason: String,
    },
    /// It did not answer in time.
    #[error("hostd at {socket} has not answered within {within:?}")]
    Silent {
        /// Its socket.
        socket: PathBuf,
        /// The time given.
        within: Duration,
    },
    /// Its answer makes no sense: another program, or one of another version.
    #[error("hostd at {socket} answers what is not understood: {reason}")]
    Nonsense {
        /// Its socket.
        socket: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It refused.
    #[error("{problem}")]
    Refused {
        /// The status of its answer.
        status: u16,
        /// Why.
        problem: Problem,
    },
}

/// A hostd.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The one that listens at `socket` (`<run>/hostd/control.sock`). It is not asked yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// How the host is.
    ///
    /// # Errors
    /// As all of these: [`ClientError`].
    pub async fn host(&self) -> Result<Host, ClientError> {
        self.get("/v1/host").await
    }

    /// All its VMs.
    pub async fn vms(&self) -> Result<ObservedVms, ClientError> {
        self.get("/v1/vms").await
    }

    /// One of them; [`ClientError::Refused`] with 404 if there is none.
    pub async fn vm(&self, vm: VmId) -> Result<ObservedVm, ClientError> {
        self.get(&format!("/v1/vms/{vm}")).await
    }

    /// What a VM's guest asked of its disks.
    pub async fn statistics(&self, vm: VmId) -> Result<VmStatistics, ClientError> {
        self.get(&format!("/v1/vms/{vm}/statistics")).await
    }

    /// The same, of all VMs that run.
    pub async fn all_statistics(&self) -> Result<Vec<VmStatistics>, ClientError> {
        self.get("/v1/statistics").await
    }

    /// Asks for an operation. The answer is how far it is, which is not far.
    pub async fn operate(&self, vm: VmId, request: &OperationRequest) -> Result<Operation, ClientError> {
        self.send(Method::POST, &format!("/v1/vms/{vm}/operations"), Some(request), ANSWERS_WITHIN).await
    }

    /// What speaks against a configuration being what the VM's supervisor wrote.
    pub async fn judge(&self, request: &JudgeRequest) -> Result<Judgement, ClientError> {
        let path = format!("/v1/vms/{}/judge", request.spec.id);
        self.send(Method::POST, &path, Some(request), JUDGES_WITHIN).await
    }

    /// Whether a VM can be made as it is wanted; nothing is changed.
    pub async fn check(&self, spec: &VmSpec) -> Result<(), ClientError> {
        self.send(Method::POST, &format!("/v1/vms/{}/check", spec.id), Some(spec), ANSWERS_WITHIN).await
    }

    /// How far an operation is; [`ClientError::Refused`] with 404 for one that this run of hostd
    /// does not know.
    pub async fn operation(&self, operation: OperationId) -> Result<Operation, ClientError> {
        self.get(&format!("/v1/operations/{operation}")).await
    }

    /// Asks to end an operation early.
    pub async fn cancel(&self, operation: OperationId) -> Result<Operation, ClientError> {
        let path = format!("/v1/operations/{operation}");
        self.send(Method::DELETE, &path, None::<&()>, ANSWERS_WITHIN).await
    }

    /// Asks for a ticket.
    pub async fn ticket(&self, vm: VmId, request: &TicketRequest) -> Result<Ticket, ClientError> {
        self.send(Method::POST, &format!("/v1/vms/{vm}/tickets"), Some(request), ANSWERS_WITHIN).await
    }

    /// What has changed after number `after`: at once if something has, else as soon as something
    /// does, and nothing after `wait`.
    pub async fn changes(&self, after: u64, wait: Duration) -> Result<Changes, ClientError> {
        let wait_s = wait.as_secs().min(CHANGES_WAIT_MAX_S);
        let path = format!("/v1/changes?after={after}&wait_s={wait_s}");
        self.send(Method::GET, &path, None::<&()>, Duration::from_secs(wait_s) + ANSWERS_WITHIN).await
    }

    /// Has it use a directory as a datastore.
    pub async fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, ClientError> {
        self.send(Method::PUT, "/v1/datastores", Some(request), ANSWERS_WITHIN).await
    }

    /// Has a datastore that it uses looked through once more, for VMs that came or went without it.
    ///
    /// # Errors
    /// [`ClientError`]; also if another datastore is in its place now.
    pub async fn look_through(&self, request: &DatastoreRequest) -> Result<Datastore, ClientError> {
        self.send(Method::POST, "/v1/datastores", Some(request), ANSWERS_WITHIN).await
    }

    async fn get<Answer: DeserializeOwned>(&self, path: &str) -> Result<Answer, ClientError> {
        self.send(Method::GET, path, None::<&()>, ANSWERS_WITHIN).await
    }

    async fn send<Answer: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        within: Duration,
    ) -> Result<Answer, ClientError> {
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| self.nonsense(error))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "hostd")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.nonsense(error))?;
        let answered = tokio::time::timeout(within, self.exchange(request)).await;
        let Answered { status, body } =
            answered.map_err(|_| ClientError::Silent { socket: self.socket.clone(), within })??;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| self.nonsense(error));
        }
        let ProblemBody { error: problem } =
            serde_json::from_slice(&body).map_err(|error| self.nonsense(format!("{status}, and {error}")))?;
        Err(ClientError::Refused { status: status.as_u16(), problem })
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answered, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(error))?;
        let exchanged = strongroom_serving::exchange(stream, request, LIMITS).await;
        exchanged.map_err(|error| self.unreachable(error))
    }

    fn unreachable(&self, error: impl std::fmt::Display) -> ClientError {
        ClientError::Unreachable { socket: self.socket.clone(), reason: error.to_string() }
    }

    fn nonsense(&self, error: impl std::fmt::Display) -> ClientError {
        ClientError::Nonsense { socket: self.socket.clone(), reason: error.to_string() }
    }
}
