//! The client of hostd.
//!
//! It connects to a unix socket or, over mutual TLS, to a port of another machine, and keeps
//! connections for a while (`kept.rs`). Every request has a deadline.

use std::fmt::{self, Debug, Display};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_serving::{Answered, ClientConnection, ExchangeLimits, HandshakeError, shake_hands_with};
use strongroom_types::{VmId, VolumeId};
use strongroom_wire::Formats;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::kept::{Kept, Opened};
use crate::protocol::{
    ANSWER_BYTES_MAX, CHANGES_WAIT_MAX_S, Changes, Datastore, DatastoreRequest, DiskName, FORMAT_HEADER,
    FORMAT_WITH_CLUSTERS, FORMAT_WITH_TERMS, FORMAT_WITH_VM_READINGS, FORMATS, FencingRequest, Host,
    JudgeRequest, Judgement, ObservedVm, ObservedVms, Operation, OperationId, OperationRequest, Problem,
    ProblemBody, Reading, ReadingRequest, Readings, ReadingsRequest, TERM_HEADER, Term, Ticket, TicketId,
    TicketRequest, VM_READINGS_MAX, VmReadings, VmReadingsRequest, VmSpec, VmStatistics, VoidTicket,
    VolumeQuestion,
};

/// Timeout of ordinary requests. hostd never waits for a key server or a disk before it answers
/// them, but some seconds for an operation that is awaited
/// ([`OperationKind::is_awaited`](crate::protocol::OperationKind::is_awaited)).
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Timeout of a request that connects hostd to a cluster, whose monitors have half a minute.
const ADDS_CLUSTERS_WITHIN: Duration = Duration::from_secs(75);
/// Timeout of readings of volumes, which wait for the datastore's disk.
const READS_WITHIN: Duration = Duration::from_secs(30);
/// Timeout of a judgement of a configuration, for which keys are fetched.
const JUDGES_WITHIN: Duration = Duration::from_secs(90);

/// Timeout of a connection to another machine, and of its TLS handshake.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection that was [prepared](Client::prepare) is of use at least. It is a part of
/// the time for which an idle one is kept.
pub const READY_FOR: Duration = Duration::from_secs(2);

/// Size limits of hostd's answers.
const LIMITS: ExchangeLimits = ExchangeLimits { head_bytes: 16 << 10, body_bytes: ANSWER_BYTES_MAX };

/// Why a request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// hostd cannot be reached, closed the connection, or is another one than was expected.
    #[error("cannot reach hostd at {at}: {reason}; is it running?")]
    Unreachable {
        /// hostd's socket or address.
        at: String,
        /// The reason.
        reason: String,
    },
    /// The certificate of the machine with hostd has ended.
    #[error(
        "the certificate of hostd at {at} has ended, so it may be anybody; the log of `strongroom serve` there says how it gets another one"
    )]
    CertificateEnded {
        /// hostd's address.
        at: String,
    },
    /// hostd did not answer in time.
    #[error("hostd at {at} has not answered within {within:?}")]
    Silent {
        /// hostd's socket or address.
        at: String,
        /// The timeout.
        within: Duration,
    },
    /// The answer is invalid: the program is not hostd, or has an incompatible version.
    #[error("hostd at {at} answers what is not understood: {reason}")]
    Nonsense {
        /// hostd's socket or address.
        at: String,
        /// The error in the answer.
        reason: String,
    },
    /// hostd reads no format that this program writes, or not the one that the request needs.
    #[error(
        "hostd at {at} reads {theirs}, and this needs {needed}; upgrade the older of the two, one release at a time"
    )]
    Formats {
        /// hostd's socket or address.
        at: String,
        /// The formats that it reads.
        theirs: Formats,
        /// The formats that were needed.
        needed: Formats,
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

/// The TLS of connections to one host: who the client is, and which host may answer.
pub trait HostTls: Debug + Send + Sync {
    /// Returns the present configuration; certificates are renewed while the client is in use.
    ///
    /// # Errors
    /// If the certificate or its key cannot be used.
    fn config(&self) -> io::Result<Arc<ClientConfig>>;
}

/// How hostd is reached.
#[derive(Clone, Debug)]
enum Way {
    /// By its socket on this machine.
    Socket(PathBuf),
    /// By its port on another one.
    Port { address: SocketAddr, tls: Arc<dyn HostTls> },
}

/// A way with the TLS of the next connection.
enum PresentWay<'client> {
    Socket(&'client Path),
    Port { address: SocketAddr, config: Arc<ClientConfig> },
}

impl Way {
    fn now(&self) -> io::Result<PresentWay<'_>> {
        Ok(match self {
            Self::Socket(path) => PresentWay::Socket(path),
            Self::Port { address, tls } => PresentWay::Port { address: *address, config: tls.config()? },
        })
    }
}

impl PresentWay<'_> {
    fn config(&self) -> Option<&Arc<ClientConfig>> {
        match self {
            Self::Socket(_) => None,
            Self::Port { config, .. } => Some(config),
        }
    }
}

impl Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => Display::fmt(&path.display(), f),
            Self::Port { address, .. } => Display::fmt(address, f),
        }
    }
}

/// A client of one hostd.
#[derive(Clone, Debug)]
pub struct Client {
    way: Way,
    term: Arc<AtomicU64>,
    /// The formats that hostd reads, once it has stated them.
    formats: Arc<Mutex<Option<Formats>>>,
    kept: Arc<Kept<ClientConnection>>,
}

impl Client {
    /// A client of the hostd of this machine, which listens at `socket`
    /// (`<run>/hostd/control.sock`). Does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self::by(Way::Socket(socket.into()))
    }

    /// A client of the hostd that listens at `address` of another machine. Does not connect yet.
    pub fn at(address: SocketAddr, tls: Arc<dyn HostTls>) -> Self {
        Self::by(Way::Port { address, tls })
    }

    fn by(way: Way) -> Self {
        Self { way, term: Arc::default(), formats: Arc::default(), kept: Arc::default() }
    }

    /// Sets the term of later requests, also of clones.
    pub fn set_term(&self, term: Term) {
        self.term.store(term.0, Ordering::Relaxed);
    }

    /// Sees to it that a request within [`READY_FOR`] needs no handshake, unless another one is
    /// quicker.
    ///
    /// # Errors
    /// [`ClientError`]; a request then says so, too.
    pub async fn prepare(&self) -> Result<(), ClientError> {
        let way = self.way.now().map_err(|error| self.unreachable(error))?;
        if !self.kept.has_for(READY_FOR, way.config(), Instant::now()) {
            let opened = Opened::new(self.connect(&way).await?, way.config().cloned());
            self.kept.put(opened, Instant::now());
        }
        Ok(())
    }

    /// Closes the connections that are not in use, also those of clones. From now on, each request
    /// has a connection of its own.
    pub fn end_connections(&self) {
        self.kept.end();
    }

    /// Returns the state of the host.
    ///
    /// # Errors
    /// [`ClientError`], as for all methods here.
    pub async fn host(&self) -> Result<Host, ClientError> {
        let host: Host = self.get("/v1/host").await?;
        *self.formats.lock() = Some(host.formats);
        self.format(FORMATS)?;
        Ok(host)
    }

    /// Returns all VMs of the host.
    pub async fn vms(&self) -> Result<ObservedVms, ClientError> {
        self.get("/v1/vms").await
    }

    /// Returns one VM; [`ClientError::Refused`] with 404 if it does not exist.
    pub async fn vm(&self, vm: VmId) -> Result<ObservedVm, ClientError> {
        self.get(&format!("/v1/vms/{vm}")).await
    }

    /// Returns the states of those of the VMs that the host has. A host of a former version is
    /// asked for one after another.
    pub async fn vms_of(&self, vms: &[VmId]) -> Result<Vec<ObservedVm>, ClientError> {
        let mut found = Vec::with_capacity(vms.len());
        if self.format(FORMATS)? < FORMAT_WITH_VM_READINGS {
            for vm in vms {
                match self.vm(*vm).await {
                    Ok(vm) => found.push(vm),
                    Err(ClientError::Refused { status: 404, .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(found);
        }
        for some in vms.chunks(VM_READINGS_MAX) {
            let request = VmReadingsRequest { vms: some.to_vec() };
            let read: VmReadings =
                self.send(Method::POST, "/v1/vms/readings", Some(&request), ANSWERS_WITHIN).await?;
            found.extend(read.vms);
        }
        Ok(found)
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

    /// Returns the volume id of a VM's disk, from its descriptor, unverified.
    pub async fn volume(&self, vm: VmId, disk: &DiskName) -> Result<VolumeId, ClientError> {
        if self.formats.lock().is_none() {
            self.host().await?;
        }
        self.format(Formats { oldest: FORMAT_WITH_TERMS, ..FORMATS })?;
        let reading = ReadingRequest { vm, disk: disk.clone(), question: VolumeQuestion::Identity };
        let Readings { readings } = self.read_volumes(&ReadingsRequest { readings: vec![reading] }).await?;
        match readings.into_iter().next() {
            Some(Reading::Identity(volume)) => Ok(volume),
            // The volume was read, and is none.
            Some(Reading::Problem(problem)) => Err(ClientError::Refused { status: 409, problem }),
            Some(Reading::Space(_) | Reading::Map(_)) | None => {
                Err(self.nonsense("it was asked which volume a disk is"))
            }
        }
    }

    /// Requests an operation. Returns its state at the time of the answer, which is usually queued,
    /// or the end of one that is awaited.
    pub async fn operate(&self, vm: VmId, request: &OperationRequest) -> Result<Operation, ClientError> {
        let oldest = request.kind.least_format().max(FORMATS.oldest);
        self.format(Formats { oldest, ..FORMATS })?;
        self.send(Method::POST, &format!("/v1/vms/{vm}/operations"), Some(request), ANSWERS_WITHIN).await
    }

    /// Returns the objections to a configuration as the one that the VM's supervisor wrote.
    pub async fn judge(&self, request: &JudgeRequest) -> Result<Judgement, ClientError> {
        let path = format!("/v1/vms/{}/judge", request.spec.id);
        self.send(Method::POST, &path, Some(request), JUDGES_WITHIN).await
    }

    /// Checks whether this host can run a VM with this configuration. Changes nothing.
    pub async fn check(&self, spec: &VmSpec) -> Result<(), ClientError> {
        self.format(Formats { oldest: spec.least_format(), ..FORMATS })?;
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

    /// Ends a ticket that nobody has presented.
    pub async fn void_ticket(&self, ticket: &TicketId) -> Result<(), ClientError> {
        let request = VoidTicket { ticket: ticket.clone() };
        self.send(Method::POST, "/v1/tickets/void", Some(&request), ANSWERS_WITHIN).await
    }

    /// Returns the changes after number `after`: at once if there are some, otherwise as soon as
    /// there are, and none after `wait`.
    pub async fn changes(&self, after: u64, wait: Duration) -> Result<Changes, ClientError> {
        let wait_s = wait.as_secs().min(CHANGES_WAIT_MAX_S);
        let path = format!("/v1/changes?after={after}&wait_s={wait_s}");
        self.send(Method::GET, &path, None::<&()>, Duration::from_secs(wait_s) + ANSWERS_WITHIN).await
    }

    /// Makes hostd use a directory, or pools of a cluster, as a datastore.
    pub async fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, ClientError> {
        let (oldest, within) = match request.ceph {
            Some(_) => (FORMAT_WITH_CLUSTERS, ADDS_CLUSTERS_WITHIN),
            None => (FORMATS.oldest, ANSWERS_WITHIN),
        };
        self.format(Formats { oldest, ..FORMATS })?;
        self.send(Method::PUT, "/v1/datastores", Some(request), within).await
    }

    /// Makes hostd rescan a datastore for VMs that other programs added or removed.
    ///
    /// # Errors
    /// [`ClientError`]; also if another datastore is now at this path.
    pub async fn look_through(&self, request: &DatastoreRequest) -> Result<Datastore, ClientError> {
        self.send(Method::POST, "/v1/datastores", Some(request), ANSWERS_WITHIN).await
    }

    /// Has the host fence, or admit, another host of a datastore.
    pub async fn fence(&self, request: &FencingRequest) -> Result<(), ClientError> {
        self.format(Formats { oldest: FORMAT_WITH_CLUSTERS, ..FORMATS })?;
        self.send(Method::POST, "/v1/datastores/fencing", Some(request), ADDS_CLUSTERS_WITHIN).await
    }

    /// Ends the direction of the host, durably: it refuses all orders until it joins again.
    pub async fn release(&self) -> Result<(), ClientError> {
        self.send(Method::POST, "/v1/release", None::<&()>, ANSWERS_WITHIN).await
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
            .header(TERM_HEADER, self.term.load(Ordering::Relaxed))
            .header(FORMAT_HEADER, self.format(FORMATS)?)
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.nonsense(error))?;
        let answered = tokio::time::timeout(within, self.exchange(request)).await;
        let silent = |_| ClientError::Silent { at: self.way.to_string(), within };
        let Answered { status, body } = answered.map_err(silent)??;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| self.nonsense(error));
        }
        let ProblemBody { error: problem } =
            serde_json::from_slice(&body).map_err(|error| self.nonsense(format!("{status}, and {error}")))?;
        Err(ClientError::Refused { status: status.as_u16(), problem })
    }

    /// The newest of the `needed` formats that hostd reads; the oldest while it has not stated
    /// them.
    fn format(&self, needed: Formats) -> Result<u32, ClientError> {
        let Some(theirs) = *self.formats.lock() else { return Ok(needed.oldest) };
        let wrong = || ClientError::Formats { at: self.way.to_string(), theirs, needed };
        needed.common(theirs).ok_or_else(wrong)
    }

    /// Sends a request over a kept connection or a new one. One that hostd may have received is not
    /// repeated unless it is a reading: orders have ids, but a grant that came with one is spent.
    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answered, ClientError> {
        let way = self.way.now().map_err(|error| self.unreachable(error))?;
        while let Some(mut kept) = self.kept.take(way.config(), Instant::now()) {
            match kept.connection.exchange(request.clone()).await {
                Ok(answered) => {
                    self.kept.put(kept, Instant::now());
                    return Ok(answered);
                }
                // hostd was restarted, or the connection was cut while it was idle.
                Err(error) if error.is_unsent() || request.method() == Method::GET => {}
                Err(error) => return Err(self.unreachable(error)),
            }
        }
        let mut opened = Opened::new(self.connect(&way).await?, way.config().cloned());
        let answered = opened.connection.exchange(request).await;
        let answered = answered.map_err(|error| self.unreachable(error))?;
        self.kept.put(opened, Instant::now());
        Ok(answered)
    }

    async fn connect(&self, way: &PresentWay<'_>) -> Result<ClientConnection, ClientError> {
        match way {
            PresentWay::Socket(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| self.unreachable(error))?;
                self.over(stream).await
            }
            PresentWay::Port { address, config } => {
                let connected = tokio::time::timeout(CONNECTS_WITHIN, TcpStream::connect(address)).await;
                let stream = connected
                    .map_err(|_| self.unreachable("the connection took too long"))?
                    .map_err(|error| self.unreachable(error))?;
                stream.set_nodelay(true).map_err(|error| self.unreachable(error))?;
                // The verifier of `config` knows the host by its certificate, and not by a name.
                let name = ServerName::IpAddress(address.ip().into());
                let shaken = shake_hands_with(Arc::clone(config), name, stream, CONNECTS_WITHIN).await;
                self.over(shaken.map_err(|error| self.not_shaken(&error))?).await
            }
        }
    }

    async fn over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<ClientConnection, ClientError> {
        ClientConnection::over(stream, LIMITS).await.map_err(|error| self.unreachable(error))
    }

    fn not_shaken(&self, error: &HandshakeError) -> ClientError {
        let tls = match error {
            HandshakeError::Late => None,
            HandshakeError::Failed(error) => error.get_ref().and_then(|error| error.downcast_ref()),
        };
        match tls {
            Some(rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => ClientError::CertificateEnded { at: self.way.to_string() },
            _ => self.unreachable(error),
        }
    }

    fn unreachable(&self, error: impl Display) -> ClientError {
        ClientError::Unreachable { at: self.way.to_string(), reason: error.to_string() }
    }

    fn nonsense(&self, error: impl Display) -> ClientError {
        ClientError::Nonsense { at: self.way.to_string(), reason: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use crate::protocol::{OperationKind, VmGeneration};

    use super::*;

    /// What a hostd of the former version says about itself; it states no formats.
    const FORMER: &str = include_str!("../../hostd/tests/former/host-state.json");

    /// A host that answers each request with this; returns the heads of the requests.
    async fn answers(listener: UnixListener, answer: Value, requests: usize) -> Vec<String> {
        let mut heads = Vec::new();
        for _ in 0..requests {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            heads.push(String::from_utf8(head).unwrap());
            let body = answer.to_string();
            let said = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(said.as_bytes()).await.unwrap();
        }
        heads
    }

    fn with_formats(oldest: u32, newest: u32) -> Value {
        let mut host: Value = serde_json::from_str(FORMER).unwrap();
        host["formats"] = json!({ "oldest": oldest, "newest": newest, "later": true });
        host["later"] = json!([{ "deep": 1 }]);
        host
    }

    /// Asks a host for its state twice. Returns the outcome, and the head of the second request.
    async fn asked(answer: Value) -> (Result<Host, ClientError>, String) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = Client::new(path);
        client.set_term(Term(7));
        let ask = async {
            let _ = client.host().await;
            client.host().await
        };
        let (host, heads) = tokio::join!(ask, answers(listener, answer, 2));
        (host, heads.last().unwrap().clone())
    }

    #[tokio::test]
    async fn the_newest_common_format_is_written_and_news_of_a_newer_host_are_no_error() {
        let newest = FORMATS.newest;
        for (answer, format) in [
            (serde_json::from_str(FORMER).unwrap(), 1),
            (with_formats(1, 3), 3),
            (with_formats(2, newest + 1), newest),
        ] {
            let (host, head) = asked(answer).await;
            host.unwrap();
            assert!(head.contains(&format!("{FORMAT_HEADER}: {format}\r\n")), "{head}");
            assert!(head.contains(&format!("{TERM_HEADER}: 7\r\n")), "{head}");
        }
    }

    #[tokio::test]
    async fn a_host_without_a_common_format_and_a_former_one_are_refused_what_they_do_not_read() {
        let place = tempfile::tempdir().unwrap();
        let later = with_formats(FORMATS.newest + 1, FORMATS.newest + 2);
        for (number, answer) in [later, serde_json::from_str(FORMER).unwrap()].into_iter().enumerate() {
            let path = place.path().join(number.to_string());
            let listener = UnixListener::bind(&path).unwrap();
            let client = Client::new(path);
            let disk = "disk0".parse().unwrap();
            let (refused, _) =
                tokio::join!(client.volume(VmId::random(), &disk), answers(listener, answer, 1));
            let refused = refused.unwrap_err();
            assert!(matches!(refused, ClientError::Formats { .. }), "{refused}");
            assert!(refused.to_string().contains("upgrade the older of the two"), "{refused}");
        }
    }

    #[tokio::test]
    async fn what_a_former_host_does_not_know_is_not_sent_to_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = Client::new(path);
        let (host, _) = tokio::join!(client.host(), answers(listener, with_formats(1, 3), 1));
        host.unwrap();
        let spec = VmSpec::for_tests("web1", true);
        let renamed = VmSpec { directory: Some("shop1".parse().unwrap()), ..spec.clone() };
        let ordered = VmSpec { boot_order: vec!["disk0".parse().unwrap()], ..spec };
        for spec in [renamed, ordered] {
            let refused = client.check(&spec).await.unwrap_err();
            assert!(matches!(refused, ClientError::Formats { .. }), "{refused}");
            let kind = OperationKind::Configure { spec: Box::new(spec.clone()) };
            let (operation, generation) = (OperationId::random(), VmGeneration(0));
            let request = OperationRequest { operation, generation, kind, grants: Vec::new() };
            let refused = client.operate(spec.id, &request).await.unwrap_err();
            assert!(matches!(refused, ClientError::Formats { .. }), "{refused}");
        }
    }

    /// A host that answers as many requests on each connection as it is told, and closes it then.
    async fn serves(listener: UnixListener, requests_of_each: &[usize]) -> usize {
        let mut connections = 0;
        for requests in requests_of_each {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections += 1;
            for _ in 0..*requests {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let said = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{FORMER}", FORMER.len());
                stream.write_all(said.as_bytes()).await.unwrap();
            }
        }
        connections
    }

    #[tokio::test]
    async fn requests_share_a_connection_and_a_reading_outlives_its_end() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = Client::new(path);
        let ask = async {
            for _ in 0..4 {
                client.host().await.unwrap();
            }
            client.end_connections();
            for _ in 0..2 {
                client.host().await.unwrap();
            }
        };
        let ((), connections) = tokio::join!(ask, serves(listener, &[3, 1, 1, 1]));
        assert_eq!(connections, 4);
    }

    #[tokio::test]
    async fn an_order_that_hostd_may_have_received_is_not_repeated() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = Client::new(path);
        let host = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in [Some(FORMER), None] {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let Some(body) = answer else { break };
                let said = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(said.as_bytes()).await.unwrap();
            }
            drop(stream);
            tokio::time::timeout(Duration::from_millis(200), listener.accept()).await.is_err()
        };
        let ask = async {
            client.host().await.unwrap();
            client.release().await
        };
        let (released, came_once) = tokio::join!(ask, host);
        assert!(matches!(released, Err(ClientError::Unreachable { .. })), "{released:?}");
        assert!(came_once);
    }

    /// Answers requests on one connection, each with a status and a body. Returns their first
    /// lines.
    async fn answers_one_after_another(listener: UnixListener, answers: &[(u16, Value)]) -> Vec<String> {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut lines = Vec::new();
        for (status, body) in answers {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            for _ in 0..length.map_or(0, |length| length.parse().unwrap()) {
                stream.read_u8().await.unwrap();
            }
            lines.push(head.lines().next().unwrap().to_owned());
            let body = body.to_string();
            let said = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(said.as_bytes()).await.unwrap();
        }
        lines
    }

    #[tokio::test]
    async fn several_vms_are_read_with_one_request_and_from_a_former_host_one_after_another() {
        let vms = [VmId::from_bytes([1; 16]), VmId::from_bytes([2; 16])];
        let gone = json!({ "error": { "code": "no_such_vm", "message": "gone" } });
        let one_by_one = vms.map(|vm| format!("GET /v1/vms/{vm} HTTP/1.1"));
        for (newest, answers, expected) in [
            (2, vec![(404, gone.clone()), (404, gone)], one_by_one.to_vec()),
            (3, vec![(200, json!({ "vms": [] }))], vec!["POST /v1/vms/readings HTTP/1.1".to_owned()]),
        ] {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let client = Client::new(path);
            let answers = [vec![(200, with_formats(1, newest))], answers].concat();
            let ask = async {
                client.host().await.unwrap();
                client.vms_of(&vms).await.unwrap()
            };
            let (found, lines) = tokio::join!(ask, answers_one_after_another(listener, &answers));
            assert_eq!((found.len(), &lines[1..]), (0, &expected[..]), "format {newest}");
        }
    }
}
