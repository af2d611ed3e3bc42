//! The client of hostd.
//!
//! Each request opens a connection: requests are few, and a connection to a unix socket is cheap.
//! Every request has a deadline.

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
    Readings, ReadingsRequest, Ticket, TicketRequest, VmSpec, VmStatistics,
};

/// Timeout of ordinary requests. hostd never waits for a key server or a disk before it answers
/// them.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Timeout of readings of volumes, which wait for the datastore's disk.
const READS_WITHIN: Duration = Duration::from_secs(30);
/// Timeout of a judgement of a configuration, for which keys are fetched.
const JUDGES_WITHIN: Duration = Duration::from_secs(90);

/// Size limits of hostd's answers.
const LIMITS: ExchangeLimits = ExchangeLimits { head_bytes: 16 << 10, body_bytes: ANSWER_BYTES_MAX };

/// Why a request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// hostd cannot be reached, or closed the connection.
    #[error("cannot reach hostd at {socket}: {reason}; is it running?")]
    Unreachable {
        /// hostd's socket.
        socket: PathBuf,
        /// The reason.
        reason: String,
    },
    /// hostd did not answer in time.
    #[error("hostd at {socket} has not answered within {within:?}")]
    Silent {
        /// hostd's socket.
        socket: PathBuf,
        /// The timeout.
        within: Duration,
    },
    /// The answer is invalid: the program is not hostd, or has an incompatible version.
    #[error("hostd at {socket} answers what is not understood: {reason}")]
    Nonsense {
        /// hostd's socket.
        socket: PathBuf,
        /// The error in the answer.
        reason: String,
    },
    /// hostd refused the request.
    #[error("{problem}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// hostd's reason.
        problem: Problem,
    },
}

/// A client of one hostd.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the hostd that listens at `socket` (`<run>/hostd/control.sock`). Does not
    /// connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The path of hostd's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the state of the host.
    ///
    /// # Errors
    /// [`ClientError`], as for all methods here.
    pub async fn host(&self) -> Result<Host, ClientError> {
        self.get("/v1/host").await
    }

    /// Returns all VMs of the host.
    pub async fn vms(&self) -> Result<ObservedVms, ClientError> {
        self.get("/v1/vms").await
    }

    /// Returns one VM; [`ClientError::Refused`] with 404 if it does not exist.
    pub async fn vm(&self, vm: VmId) -> Result<ObservedVm, ClientError> {
        self.get(&format!("/v1/vms/{vm}")).await
    }

    /// Returns the disk counters of a VM.
    pub async fn statistics(&self, vm: VmId) -> Result<VmStatistics, ClientError> {
        self.get(&format!("/v1/vms/{vm}/statistics")).await
    }

    /// Returns the disk counters of all running VMs.
    pub async fn all_statistics(&self) -> Result<Vec<VmStatistics>, ClientError> {
        self.get("/v1/statistics").await
    }

    /// Reads volumes of VMs; each reading has its own answer.
    pub async fn read_volumes(&self, request: &ReadingsRequest) -> Result<Readings, ClientError> {
        self.send(Method::POST, "/v1/volumes/readings", Some(request), READS_WITHIN).await
    }

    /// Requests an operation. Returns its state at the time of the answer, which is usually queued.
    pub async fn operate(&self, vm: VmId, request: &OperationRequest) -> Result<Operation, ClientError> {
        self.send(Method::POST, &format!("/v1/vms/{vm}/operations"), Some(request), ANSWERS_WITHIN).await
    }

    /// Returns the objections to a configuration as the one that the VM's supervisor wrote.
    pub async fn judge(&self, request: &JudgeRequest) -> Result<Judgement, ClientError> {
        let path = format!("/v1/vms/{}/judge", request.spec.id);
        self.send(Method::POST, &path, Some(request), JUDGES_WITHIN).await
    }

    /// Checks whether this host can run a VM with this configuration. Changes nothing.
    pub async fn check(&self, spec: &VmSpec) -> Result<(), ClientError> {
        self.send(Method::POST, &format!("/v1/vms/{}/check", spec.id), Some(spec), ANSWERS_WITHIN).await
    }

    /// Returns the state of an operation; [`ClientError::Refused`] with 404 if this run of hostd
    /// does not know it.
    pub async fn operation(&self, operation: OperationId) -> Result<Operation, ClientError> {
        self.get(&format!("/v1/operations/{operation}")).await
    }

    /// Requests the cancellation of an operation.
    pub async fn cancel(&self, operation: OperationId) -> Result<Operation, ClientError> {
        let path = format!("/v1/operations/{operation}");
        self.send(Method::DELETE, &path, None::<&()>, ANSWERS_WITHIN).await
    }

    /// Requests a ticket.
    pub async fn ticket(&self, vm: VmId, request: &TicketRequest) -> Result<Ticket, ClientError> {
        self.send(Method::POST, &format!("/v1/vms/{vm}/tickets"), Some(request), ANSWERS_WITHIN).await
    }

    /// Returns the changes after number `after`: at once if there are some, otherwise as soon as
    /// there are, and none after `wait`.
    pub async fn changes(&self, after: u64, wait: Duration) -> Result<Changes, ClientError> {
        let wait_s = wait.as_secs().min(CHANGES_WAIT_MAX_S);
        let path = format!("/v1/changes?after={after}&wait_s={wait_s}");
        self.send(Method::GET, &path, None::<&()>, Duration::from_secs(wait_s) + ANSWERS_WITHIN).await
    }

    /// Makes hostd use a directory as a datastore.
    pub async fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, ClientError> {
        self.send(Method::PUT, "/v1/datastores", Some(request), ANSWERS_WITHIN).await
    }

    /// Makes hostd rescan a datastore for VMs that other programs added or removed.
    ///
    /// # Errors
    /// [`ClientError`]; also if another datastore is now at this path.
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
