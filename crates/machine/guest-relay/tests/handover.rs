//! A TLS connection of a real client is handed over in the middle, and the relay goes on with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use strongroom_api::vm::Ticket;
use strongroom_guest_relay::{HandedFiles, Handover, OtherCipher, run};
use strongroom_host::wire::Wire;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

const TICKET: &str = "07070707070707070707070707070707";

/// A relay that serves what is handed over at its wire.
struct Relay {
    wire: Wire,
    running: std::thread::JoinHandle<io::Result<()>>,
}

impl Relay {
    fn start() -> Self {
        let (wire, theirs) = Wire::pair().unwrap();
        let theirs = Wire::adopt(theirs).unwrap();
        Self { wire, running: std::thread::spawn(move || run(&theirs)) }
    }

    /// It ends with the control plane's end of the wire.
    fn end(self) {
        drop(self.wire);
        self.running.join().unwrap().unwrap();
    }
}

fn ticket() -> Ticket {
    Ticket {
        ticket: TICKET.to_owned(),
        expires_unix_seconds: 0,
        socket: String::new(),
        host: "host1".to_owned(),
        address: None,
        certificate_sha256: None,
    }
}

/// A client's connection whose request was answered with 101, and the server's end of it.
async fn upgraded(
    suite: CipherSuite,
) -> (client::TlsStream<TcpStream>, tokio_rustls::server::TlsStream<TcpStream>) {
    let pair = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&pair).unwrap().der().clone();
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|one| one.suite() == suite);
    let provider = Arc::new(provider);
    let versions = [&rustls::version::TLS13];
    let mut served = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivatePkcs8KeyDer::from(pair.serialize_der()).into())
        .unwrap();
    served.enable_secret_extraction = true;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connecting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    };
    let accepting = async {
        let stream = listener.accept().await.unwrap().0;
        TlsAcceptor::from(Arc::new(served)).accept(stream).await.unwrap()
    };
    tokio::join!(connecting, accepting)
}

/// Reads a request for a WebSocket, and answers it.
async fn answer(server: &mut tokio_rustls::server::TlsStream<TcpStream>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(server.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n\r\n",
        derive_accept_key(key.as_bytes())
    );
    server.write_all(answer.as_bytes()).await.unwrap();
    server.flush().await.unwrap();
}

/// A browser whose connection a relay has, and its guest.
async fn carried(relay: &Relay) -> (WebSocketStream<client::TlsStream<TcpStream>>, UnixStream, UnixStream) {
    let (client, mut server) = upgraded(CipherSuite::TLS13_AES_256_GCM_SHA384).await;
    let asking = client_async("wss://localhost/relay", client);
    let (browser, ()) = tokio::join!(asking, answer(&mut server));
    let (socket, tls) = server.into_inner();
    let handover = Handover::new(tls.dangerous_extract_secrets().unwrap(), ticket()).unwrap();
    let (host, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs.into_std().unwrap());
    let (leash, held) = UnixStream::pair().unwrap();
    let held = OwnedFd::from(held.into_std().unwrap());
    let files = HandedFiles { browser: socket.as_fd(), leash: held.as_fd(), host: Some(theirs.as_fd()) };
    handover.send(&relay.wire, files).unwrap();
    (browser.unwrap().0, host, leash)
}

fn text(message: Option<Result<Message, Error>>) -> Value {
    serde_json::from_str(message.unwrap().unwrap().to_text().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_goes_on_with_its_guest() {
    let relay = Relay::start();
    let (mut browser, mut host, _leash) = carried(&relay).await;
    let mut lines = BufReader::new(&mut host);
    let mut hello = String::new();
    lines.read_line(&mut hello).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&hello).unwrap()["ticket"], TICKET);
    host.write_all(b"{\"console\":{\"writer\":true}}\nlogin: ").await.unwrap();
    assert_eq!(text(browser.next().await), json!({ "welcome": { "console": { "writer": true } } }));
    assert_eq!(browser.next().await.unwrap().unwrap().into_data(), "login: ");

    // More than a record, a message of the guest's and the buffers of the sockets, in both
    // directions.
    let long: Vec<u8> = (0..8 << 20).map(|at: u32| (at / 251) as u8).collect();
    let sent = long.clone();
    let (mut from_host, mut to_host) = host.into_split();
    let says = tokio::spawn(async move {
        to_host.write_all(&sent).await.unwrap();
        to_host
    });
    let hears = tokio::spawn(async move {
        let mut heard = vec![0; 8 << 20];
        from_host.read_exact(&mut heard).await.unwrap();
        (heard, from_host)
    });
    let (mut to_relay, mut from_relay) = browser.split();
    let pieces: Vec<Message> = long.chunks(200_000).map(|piece| Message::binary(piece.to_vec())).collect();
    let types = tokio::spawn(async move {
        for piece in pieces {
            to_relay.send(piece).await.unwrap();
        }
        to_relay
    });
    let mut shown = Vec::new();
    while shown.len() < long.len() {
        shown.extend_from_slice(&from_relay.next().await.unwrap().unwrap().into_data());
    }
    assert!(shown == long);
    let (heard, mut from_host) = hears.await.unwrap();
    assert!(heard == long);

    // The browser goes, and so does the guest's client.
    types.await.unwrap().close().await.unwrap();
    assert_eq!(from_host.read(&mut [0; 1]).await.unwrap(), 0);
    drop(says.await.unwrap());
    relay.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_told_why_there_is_no_guest_and_when_it_ends() {
    let relay = Relay::start();
    let (mut browser, mut host, _leash) = carried(&relay).await;
    host.write_all(b"{\"error\":{\"code\":\"no_ticket\",\"message\":\"it was used already\"}}\n")
        .await
        .unwrap();
    let told = text(browser.next().await);
    assert_eq!(told["error"]["code"], "no_ticket", "{told}");
    assert!(matches!(browser.next().await, Some(Ok(Message::Close(_)))));

    let (mut browser, mut host, _leash) = carried(&relay).await;
    host.write_all(b"\"vnc\"\nRFB 003.008\n").await.unwrap();
    let mut hello = String::new();
    BufReader::new(host).read_line(&mut hello).await.unwrap();
    assert_eq!(text(browser.next().await), json!({ "welcome": "vnc" }));
    assert_eq!(browser.next().await.unwrap().unwrap().into_data(), "RFB 003.008\n");
    assert!(matches!(browser.next().await, Some(Ok(Message::Close(_)))));
    drop(browser);
    relay.end();
}

/// Without its leash, a connection ends at both ends.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_control_plane_ends_is_over() {
    let relay = Relay::start();
    let (mut browser, mut host, mut leash) = carried(&relay).await;
    host.write_all(b"\"vnc\"\n").await.unwrap();
    assert_eq!(text(browser.next().await), json!({ "welcome": "vnc" }));
    let mut hello = String::new();
    let mut lines = BufReader::new(&mut host);
    lines.read_line(&mut hello).await.unwrap();
    leash.shutdown().await.unwrap();
    assert_eq!(lines.read(&mut [0; 1]).await.unwrap(), 0);
    assert!(!matches!(browser.next().await, Some(Ok(Message::Binary(_)))));
    // The other way round, the control plane notices.
    let (mut browser, mut host, mut leash) = carried(&relay).await;
    host.write_all(b"\"vnc\"\n").await.unwrap();
    assert_eq!(text(browser.next().await), json!({ "welcome": "vnc" }));
    drop(browser);
    assert_eq!(leash.read(&mut [0; 1]).await.unwrap(), 0);
    relay.end();
}

/// Records that were changed, repeated or made up end the connection, and the guest gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_browsers_reaches_no_guest() {
    let relay = Relay::start();
    for attack in
        [&[23_u8, 3, 3, 0, 40][..], &[22, 3, 3, 0, 1, 0], &[23, 3, 3, 255, 255], b"GET / HTTP/1.1\r\n"]
    {
        let (browser, mut host, _leash) = carried(&relay).await;
        host.write_all(b"\"vnc\"\n").await.unwrap();
        let (mut socket, _) = browser.into_inner().into_inner();
        socket.write_all(attack).await.unwrap();
        socket.write_all(&[0; 64]).await.unwrap();
        let mut heard = String::new();
        let mut lines = BufReader::new(&mut host);
        lines.read_line(&mut heard).await.unwrap();
        assert!(heard.contains(TICKET));
        heard.clear();
        lines.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "", "{attack:?}");
    }
    relay.end();
}

#[tokio::test]
async fn another_cipher_is_not_handed_over() {
    for suite in [CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256] {
        let (_client, server) = upgraded(suite).await;
        let secrets = server.into_inner().1.dangerous_extract_secrets().unwrap();
        assert!(matches!(Handover::new(secrets, ticket()), Err(OtherCipher)));
    }
}
