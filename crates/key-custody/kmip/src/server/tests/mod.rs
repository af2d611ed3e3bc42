//! The transport over loopback, with rustls's own client on the other side.

mod certificates;
mod conversations;
mod limits;
mod peers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use self::certificates::{Authority, Identity};
use super::*;
use crate::message::*;
use crate::protocol::*;
use crate::ttlv::{ByteString, HEADER_BYTES, Limits, Tag, message_length_bytes};

/// Longer than any step takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for an event.
async fn within<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, event).await.expect("it happens before the deadline")
}

/// Answers Discover Versions with the client's fingerprint in the correlation value, RNG Retrieve
/// with as many zeroes, and Query once the gate is opened.
struct TestService {
    started: mpsc::UnboundedSender<()>,
    gate: Arc<Notify>,
    shut_out: Option<Fingerprint>,
}

impl Service for TestService {
    async fn handle(&self, peer: &Peer, request: RequestMessage) -> ResponseMessage {
        let item = &request.items[0];
        let payload = match &item.payload {
            RequestPayload::DiscoverVersions(_) => {
                ResponsePayload::DiscoverVersions(DiscoverVersionsResponse::default())
            }
            RequestPayload::RngRetrieve(retrieve) => ResponsePayload::RngRetrieve(RngRetrieveResponse {
                data: ByteString::from(vec![0; usize::try_from(retrieve.data_length).unwrap()]),
            }),
            RequestPayload::Query(_) => {
                self.started.send(()).unwrap();
                self.gate.notified().await;
                ResponsePayload::Query(QueryResponse::default())
            }
            other => panic!("the tests ask nothing else: {other:?}"),
        };
        let mut header = ResponseHeader::new(request.header.protocol_version);
        header.server_correlation_value = Some(peer.fingerprint.to_string());
        ResponseMessage { header, items: vec![ResponseItem::success(item, payload)] }
    }

    fn admits(&self, peer: &Peer) -> bool {
        self.shut_out != Some(peer.fingerprint)
    }
}

/// An observed refusal: the reason, and the client's fingerprint.
type Report = (String, Option<Fingerprint>);

struct Reports(mpsc::UnboundedSender<Report>);

impl Observer for Reports {
    fn refused(&self, refusal: &Refusal<'_>) {
        // The receiver is gone once a test is over.
        let _ = self.0.send((format!("{:?}", refusal.reason), refusal.peer.map(|peer| peer.fingerprint)));
    }
}

/// A running server, with its test fixtures.
struct Running {
    address: SocketAddr,
    handle: ServerHandle,
    run: JoinHandle<()>,
    authority: Authority,
    client: Identity,
    gate: Arc<Notify>,
    started: mpsc::UnboundedReceiver<()>,
    reports: mpsc::UnboundedReceiver<Report>,
}

impl Running {
    async fn start(limits: ServerLimits) -> Self {
        Self::start_without(limits, None).await
    }

    /// Starts a server whose service shuts out one client, if `shut_out` is given.
    async fn start_without(limits: ServerLimits, shut_out: Option<fn(&Identity) -> Fingerprint>) -> Self {
        let authority = Authority::new("ours");
        let client = authority.issue();
        let (started, started_events) = mpsc::unbounded_channel();
        let (reports, report_events) = mpsc::unbounded_channel();
        let gate = Arc::new(Notify::new());
        let service =
            TestService { started, gate: Arc::clone(&gate), shut_out: shut_out.map(|of| of(&client)) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::new(
            listener,
            authority.server_config(&authority.issue()),
            limits,
            service,
            Reports(reports),
        );
        let (address, handle) = (server.local_address().unwrap(), server.handle());
        let run = tokio::spawn(server.run());
        Self {
            address,
            handle,
            run,
            authority,
            client,
            gate,
            started: started_events,
            reports: report_events,
        }
    }

    /// A connection with the good certificate.
    async fn connect(&self) -> Client {
        Client::connect(self.address, self.authority.client_config(Some(&self.client))).await.unwrap()
    }

    /// Waits for the next refusal.
    async fn refusal(&mut self) -> Report {
        within(self.reports.recv()).await.unwrap()
    }

    /// Waits until there are that many connections.
    async fn until_connections(&self, connections: usize) {
        within(async {
            while self.handle.connections() != connections {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Shows that the server still serves, and ends it.
    async fn serves_and_ends(self) {
        let mut client = self.connect().await;
        client.discover_versions().await.unwrap();
        self.handle.shut_down();
        within(self.run).await.unwrap();
    }
}

struct Client(TlsStream<TcpStream>);

impl Client {
    async fn connect(address: SocketAddr, tls: rustls::ClientConfig) -> std::io::Result<Self> {
        Self::connect_with(address, &Arc::new(tls)).await
    }

    async fn connect_with(address: SocketAddr, tls: &Arc<rustls::ClientConfig>) -> std::io::Result<Self> {
        let tcp = within(TcpStream::connect(address)).await?;
        let name = ServerName::try_from("localhost").unwrap();
        within(TlsConnector::from(Arc::clone(tls)).connect(name, tcp)).await.map(Self)
    }

    async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    async fn receive(&mut self) -> std::io::Result<ResponseMessage> {
        let limits = Limits::default();
        let mut message = vec![0; HEADER_BYTES];
        within(self.0.read_exact(&mut message)).await?;
        let header = message.as_slice().try_into().unwrap();
        message.resize(message_length_bytes(header, Tag::RESPONSE_MESSAGE, &limits).unwrap(), 0);
        within(self.0.read_exact(&mut message[HEADER_BYTES..])).await?;
        Ok(ResponseMessage::decode(&message, &limits).unwrap())
    }

    async fn discover_versions(&mut self) -> std::io::Result<ResponseMessage> {
        self.send(&request(RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default()))).await?;
        self.receive().await
    }

    /// Waits until the server has closed the connection, in order or not.
    async fn closed(mut self) {
        let mut byte = [0];
        assert!(matches!(within(self.0.read(&mut byte)).await, Ok(0) | Err(_)));
    }

    /// Waits for the answer that a request was not KMIP, and for the end of the connection.
    async fn refused_for(mut self, reason: ResultReason) {
        let response = self.receive().await.unwrap();
        assert_eq!(response.items.len(), 1);
        assert_eq!(response.items[0].result_status, ResultStatus::OperationFailed);
        assert_eq!(response.items[0].result_reason, Some(reason));
        self.closed().await;
    }
}

fn request(payload: RequestPayload) -> Vec<u8> {
    let header = RequestHeader::new(ProtocolVersion::V1_4);
    RequestMessage { header, items: vec![payload.into()] }.encode().to_vec()
}
