//! The port, over real connections.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::super::failures::{FAILURES_MAX, WINDOW};
use super::super::protocol::{ENROL_PATH, RENEW_PATH, REQUEST_MAX_BYTES};
use super::*;

/// Longer than any step of a passing test.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

#[derive(Default)]
struct Record {
    events: Mutex<Vec<EnrolmentEvent>>,
    full: AtomicBool,
}

impl EnrolmentRecord for Record {
    fn record(&self, event: &EnrolmentEvent) -> Result<(), NotRecorded> {
        if self.full.load(Ordering::SeqCst) {
            return Err(NotRecorded("no room".to_owned()));
        }
        self.events.lock().push(event.clone());
        Ok(())
    }
}

/// A separate server, which ends when this is dropped.
struct Port {
    authority: Arc<Authority>,
    record: Arc<Record>,
    address: SocketAddr,
    socket: std::path::PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    _run: tempfile::TempDir,
    _place: Place,
}

impl Port {
    fn new() -> Self {
        let place = Place::new();
        let (authority, record) = (place.open(), Arc::new(Record::default()));
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let (served, recorded) = (authority.clone(), record.clone());
        let run = tempfile::tempdir().unwrap();
        let socket = run.path().join("administration.sock");
        let path = socket.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let shutdown = async { drop(stopped.await) };
                let socket = Some(tokio::net::UnixListener::bind(path).unwrap());
                let listeners = server::Listeners { port: listener, socket };
                server::serve(listeners, served, recorded, None, shutdown).await.unwrap();
            });
        });
        let address = told.recv_timeout(DEADLINE).unwrap();
        let (stop, thread) = (Some(stop), Some(thread));
        Self { authority, record, address, socket, stop, thread, _run: run, _place: place }
    }

    fn client(&self) -> Client {
        Client::new(&self.address.to_string()).unwrap()
    }

    fn token(&self) -> EnrolmentToken {
        token(&self.authority, noon())
    }

    fn outcomes(&self) -> Vec<Result<(), &'static str>> {
        self.record.events.lock().drain(..).map(|event| event.outcome.map(|_| ())).collect()
    }

    /// Sends `bytes` over TLS without a certificate, and reads to the end.
    fn talk(&self, bytes: &[u8]) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.roots(noon())[0].clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let tcp = std::net::TcpStream::connect(self.address).unwrap();
        tcp.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut stream = StreamOwned::new(tls, tcp);
        let mut answer = Vec::new();
        // The server may finish before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }
}

impl Port {
    /// Ends the server, so that all pending events are recorded.
    fn finish(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        self.thread.take().map_or(Ok(()), std::thread::JoinHandle::join).unwrap();
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let outcome = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            outcome.unwrap_or(Ok(())).unwrap();
        }
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn a_host_enrols_and_renews_and_each_is_on_record() {
    let port = Port::new();
    let peer = Peer::new();
    let response = port.client().enrol(&port.token(), &peer.request).unwrap();
    assert_eq!((response.role, response.name), (Role::Host, name("host-1")));
    let (certificate, root) = (der(&response.certificate), der(&response.authorities));
    assert_eq!(CertificateSha256::of(&root), port.authority.fingerprint());
    let identity = port.authority.identify(&certificate, noon()).unwrap();
    assert_eq!(identity.client, response.client);

    let next = Peer::new();
    let renewed = port.client().renew(&[root], certificate.clone(), &peer.pkcs8, &next.request).unwrap();
    assert_eq!(renewed.client, response.client);
    let events: Vec<_> = port.record.events.lock().drain(..).collect();
    let issued = |pem: &str| Ok((response.client, CertificateSha256::of(&der(pem))));
    assert_eq!(events.len(), 2);
    assert_eq!((events[0].request, events[0].by), (ENROL_PATH, None));
    assert_eq!(events[0].outcome, issued(&response.certificate));
    assert_eq!((events[1].request, events[1].by), (RENEW_PATH, Some(response.client)));
    assert_eq!(events[1].outcome, issued(&renewed.certificate));
}

#[test]
fn a_stolen_or_replayed_token_is_refused_and_on_record() {
    let port = Port::new();
    let (token, peer) = (port.token(), Peer::new());
    let first = port.client().enrol(&token, &peer.request).unwrap();
    assert_eq!(port.client().enrol(&token, &peer.request).unwrap(), first);
    match port.client().enrol(&token, &Peer::new().request).unwrap_err() {
        ClientError::Refused { code, .. } => assert_eq!(code, "token-used"),
        other => panic!("{other}"),
    }
    assert_eq!(port.outcomes(), [Ok(()), Ok(()), Err("token-used")]);
}

#[test]
fn an_impostor_is_not_shown_the_token() {
    let (port, other) = (Port::new(), Port::new());
    let outcome = other.client().enrol(&port.token(), &Peer::new().request);
    assert!(matches!(outcome, Err(ClientError::Impostor { .. })), "{outcome:?}");
    assert_eq!(other.outcomes(), []);
    // The right authority under a name that its certificate does not have.
    let by_other_name = Client::new(&port.address.to_string().replace("127.0.0.1", "127.0.0.2")).unwrap();
    let outcome = by_other_name.enrol(&port.token(), &Peer::new().request);
    assert!(
        matches!(outcome, Err(ClientError::Impostor { .. } | ClientError::Unreachable { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_token_from_before_a_roll_over_finds_its_server() {
    let port = Port::new();
    let token = port.token();
    port.authority.roll_over(super::super::super::limits::CA_OVERLAP, noon()).unwrap();
    let response = port.client().enrol(&token, &Peer::new().request).unwrap();
    assert_eq!(response.authorities.matches("BEGIN CERTIFICATE").count(), 2);
}

#[test]
fn nothing_is_handed_out_without_a_record_and_nothing_is_lost_by_it() {
    let port = Port::new();
    let (token, peer) = (port.token(), Peer::new());
    port.record.full.store(true, Ordering::SeqCst);
    match port.client().enrol(&token, &peer.request).unwrap_err() {
        ClientError::Refused { code, .. } => assert_eq!(code, "unavailable"),
        other => panic!("{other}"),
    }
    port.record.full.store(false, Ordering::SeqCst);
    port.client().enrol(&token, &peer.request).unwrap();
    assert_eq!(port.outcomes(), [Ok(())]);
}

#[test]
fn a_revoked_client_renews_nothing() {
    let mut port = Port::new();
    let peer = Peer::new();
    let response = port.client().enrol(&port.token(), &peer.request).unwrap();
    port.authority.revoke_client(response.client, "stolen", noon()).unwrap();
    let present = der(&response.certificate);
    let root = der(&response.authorities);
    let outcome = port.client().renew(&[root], present, &peer.pkcs8, &Peer::new().request);
    assert!(matches!(outcome, Err(ClientError::Tls { .. })), "{outcome:?}");
    // A refused handshake is put on record after the client has learnt of it.
    port.finish();
    assert_eq!(port.outcomes(), [Ok(()), Err("certificate-revoked")]);
}

#[test]
fn requests_that_are_none_are_answered_with_what_is_wrong() {
    let port = Port::new();
    let post = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    };
    let signing_request = "x".repeat(REQUEST_MAX_BYTES);
    let too_long = format!("{{\"signing_request\":\"{signing_request}\"}}");
    let renewal = serde_json::to_string(&RenewRequest { signing_request: Peer::new().request }).unwrap();
    for (bytes, status, code) in [
        (b"GET /v1/enrol HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), 405, "method"),
        (post("/", "{}"), 404, "not-found"),
        (post(ENROL_PATH, "no JSON"), 400, "malformed"),
        (post(ENROL_PATH, "{\"token\":\"t\",\"signing_request\":\"\"}"), 400, "token-malformed"),
        (post(ENROL_PATH, &too_long), 413, "too-long"),
        (post(RENEW_PATH, &renewal), 403, "certificate-missing"),
    ] {
        let answer = port.talk(&bytes);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{answer}");
    }
}

#[test]
fn who_has_a_certificate_is_served_whatever_others_do_at_its_address() {
    let port = Port::new();
    let peer = Peer::new();
    let enrolled = port.client().enrol(&port.token(), &peer.request).unwrap();
    let (certificate, root) = (der(&enrolled.certificate), der(&enrolled.authorities));
    let renews = || {
        let roots = std::slice::from_ref(&root);
        port.client().renew(roots, certificate.clone(), &peer.pkcs8, &Peer::new().request).unwrap();
    };
    // More failures than an address may have, until a client without a certificate must wait.
    while port.talk(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("HTTP/1.1") {
        let mut garbage = std::net::TcpStream::connect(port.address).unwrap();
        garbage.write_all(b"no TLS at all\r\n\r\n").unwrap();
    }
    renews();
    // More silent connections than there are places.
    let silent: Vec<_> = (0..300).map(|_| std::net::TcpStream::connect(port.address).unwrap()).collect();
    renews();
    drop(silent);
    renews();
}

#[test]
fn noise_gets_nothing_and_the_noisy_wait() {
    let port = Port::new();
    let head_too_long = format!("POST {ENROL_PATH} HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    let head_too_many = format!("POST {ENROL_PATH} HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(100));
    for bytes in [head_too_long.as_bytes(), head_too_many.as_bytes(), b"\0\0\0\0\r\n\r\n"] {
        let answer = port.talk(bytes);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    // After too many failures neither this client nor others at its address get an answer. Failures
    // expire, so a slow machine needs more of them.
    let begun = Instant::now();
    let mut failures = 0;
    loop {
        if !port.talk(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_empty() {
            failures += 1;
        } else if let Err(error) = port.client().enrol(&port.token(), &Peer::new().request) {
            assert!(matches!(error, ClientError::Tls { .. }), "{error:?}");
            break;
        }
        assert!(
            failures <= FAILURES_MAX || begun.elapsed() >= WINDOW,
            "{failures} failures, and it need not wait"
        );
    }
}

/// Connections arrive faster than handshakes finish, so none succeeds at the port; the socket has
/// its own places.
#[test]
fn whatever_comes_to_the_port_is_not_in_the_way_of_the_socket() {
    let port = Port::new();
    let address = port.address;
    let done = AtomicBool::new(false);
    // If no server listens at the socket, the client uses the port.
    let elsewhere = port.client().by_socket(&port.socket.with_extension("none"), "localhost").unwrap();
    elsewhere.enrol(&port.token(), &Peer::new().request).unwrap();
    port.outcomes();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut silent = std::collections::VecDeque::new();
                while !done.load(Ordering::SeqCst) {
                    silent.extend(std::net::TcpStream::connect(address));
                    if silent.len() > 200 {
                        silent.pop_front();
                    }
                }
            });
        }
        for _ in 0..3 {
            let client = port.client().by_socket(&port.socket, "localhost").unwrap();
            let peer = Peer::new();
            let enrolled = client.enrol(&port.token(), &peer.request);
            if enrolled.is_err() {
                done.store(true, Ordering::SeqCst);
            }
            enrolled.unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    let events: Vec<_> = port.record.events.lock().drain(..).collect();
    assert!(matches!(events[0].peer, server::Origin::Socket { .. }), "{events:?}");
}
