//! Shipping to real receivers over TLS: our own on rustls, which fails on request, and
//! `openssl s_server`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use strongroom_audit::syslog::{Collector, ShipOptions, Shipper};
use strongroom_audit::{AuditError, AuditLog, Options, Retention};
use support::{SMALL, document, open, record};

/// Longer than any step of a passing test.
const DEADLINE: Duration = Duration::from_secs(60);

const QUICK: ShipOptions = ShipOptions {
    confirm_lines: 50,
    confirm_interval: Duration::from_millis(300),
    timeout: DEADLINE,
    retry_least: Duration::from_millis(10),
    retry_most: Duration::from_millis(50),
};

struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

fn identity() -> Identity {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    Identity { certificate: made.cert.der().clone(), key: made.signing_key.serialize_der() }
}

impl Identity {
    fn server(&self) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::try_from(self.key.clone()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![self.certificate.clone()], key).unwrap())
    }

    fn collector(&self, port: u16) -> Collector {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Collector {
            name: "test".into(),
            host: "localhost".into(),
            port,
            tls: Arc::new(tls),
            origin: "kms1".into(),
        }
    }
}

/// How a receiver treats a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Good,
    /// Closes cleanly after this many messages, with more in flight.
    LeavesAfter(usize),
    /// Resets the connection after this many messages.
    ResetsAfter(usize),
    /// Neither reads nor closes after this many messages, until the receiver lets go.
    HoldsAfter(usize),
}

/// A receiver: all messages of all connections, in the order in which they came.
struct Receiver {
    port: u16,
    messages: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
    lets_go: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Receiver {
    fn start(identity: &Identity, manners: Vec<Manner>) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), identity, manners)
    }

    /// Listens with these manners for its first connections; later ones are good.
    fn on(listener: TcpListener, identity: &Identity, manners: Vec<Manner>) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (messages, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (ending, lets_go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (config, all, count, end) =
            (identity.server(), Arc::clone(&messages), Arc::clone(&connections), Arc::clone(&ending));
        let until = Arc::clone(&lets_go);
        let thread = std::thread::spawn(move || {
            for tcp in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let manner =
                    manners.get(count.fetch_add(1, Ordering::SeqCst)).copied().unwrap_or(Manner::Good);
                serve(tcp.unwrap(), &config, manner, &all, &until);
            }
        });
        Self { port, messages, connections, lets_go, ending, thread: Some(thread) }
    }

    fn messages(&self) -> Vec<String> {
        self.messages.lock().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(
    tcp: TcpStream,
    config: &Arc<ServerConfig>,
    manner: Manner,
    all: &Mutex<Vec<String>>,
    lets_go: &AtomicBool,
) {
    let tls = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), tcp);
    let mut reader = BufReader::with_capacity(512, tls);
    let mut count = 0;
    while let Some(message) = message(&mut reader) {
        all.lock().push(message);
        count += 1;
        match manner {
            Manner::LeavesAfter(after) if count >= after => break,
            Manner::ResetsAfter(after) if count >= after => return,
            Manner::HoldsAfter(after) if count >= after => {
                while !lets_go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                return;
            }
            _ => {}
        }
    }
    let tls = reader.get_mut();
    tls.conn.send_close_notify();
    let _ = tls.conn.complete_io(&mut tls.sock);
}

#[track_caller]
fn wait_until(awaited: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "{awaited}: not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

/// A port reserved for this test, which refuses connections until a receiver listens.
fn deaf() -> (TcpListener, u16) {
    use rustix::net::{AddressFamily, SocketType, bind, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A frame of RFC 5425, 4.3; none at the end of the connection.
fn message(from: &mut impl BufRead) -> Option<String> {
    let mut length = Vec::new();
    from.read_until(b' ', &mut length).ok().filter(|count| *count > 0)?;
    let length: usize = std::str::from_utf8(length.strip_suffix(b" ")?).ok()?.parse().ok()?;
    let mut message = vec![0; length];
    from.read_exact(&mut message).ok()?;
    Some(String::from_utf8(message).unwrap())
}

fn line_of(message: &str) -> &str {
    &message[message.find("] {").unwrap() + 2..]
}

fn sequence_of(line: &str) -> u64 {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line["sequence"].as_u64().unwrap()
}

/// All lines of a log, as its files have them.
fn lines_of(path: &Path) -> Vec<String> {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    files.sort();
    files
        .iter()
        .flat_map(|file| {
            std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

fn write(log: &AuditLog, count: u64) -> u64 {
    (0..count).fold(0, |_, n| log.append(&record(n)).wait().unwrap().sequence)
}

/// Checks that each line arrived at least once, first arrivals in order, and all byte for byte.
fn check(messages: &[String], lines: &[String], through: u64) {
    let mut seen = BTreeMap::new();
    let mut last = 0;
    for message in messages {
        assert!(message.contains(" kms1 strongroom "), "{message}");
        let line = line_of(message);
        let sequence = sequence_of(line);
        assert!(sequence <= last + 1, "line {sequence} came before line {}", last + 1);
        last = last.max(sequence);
        seen.insert(sequence, line);
    }
    assert!(last >= through, "{last} of {through}");
    assert!(seen.iter().all(|(sequence, line)| lines[*sequence as usize - 1] == **line));
    assert_eq!(seen.len() as u64, last);
}

#[test]
fn every_line_arrives_as_it_stands_and_the_cursor_outlives_the_process() {
    let (directory, document, identity) = (tempfile::tempdir().unwrap(), document(), identity());
    let receiver = Receiver::start(&identity, Vec::new());
    let log = open(directory.path(), &document, SMALL);
    let through = write(&log, 120);
    let shipper = Shipper::start(&log, identity.collector(receiver.port), QUICK).unwrap();
    assert!(shipper.wait_for(through, DEADLINE), "{:?}", shipper.status());
    let through = write(&log, 30);
    assert!(shipper.wait_for(through, DEADLINE), "{:?}", shipper.status());
    drop(shipper);
    drop(log);
    check(&receiver.messages(), &lines_of(directory.path()), through);
    let confirmed = receiver.messages().len();
    let log = open(directory.path(), &document, SMALL);
    let through = write(&log, 5);
    let shipper = Shipper::start(&log, identity.collector(receiver.port), QUICK).unwrap();
    assert!(shipper.status().confirmed >= confirmed as u64 - 1);
    assert!(shipper.wait_for(through, DEADLINE), "{:?}", shipper.status());
    drop((shipper, log));
    let (messages, lines) = (receiver.messages(), lines_of(directory.path()));
    check(&messages, &lines, through);
    assert_eq!(
        messages.len(),
        messages.iter().map(|message| line_of(message)).collect::<std::collections::BTreeSet<_>>().len()
    );
}

#[test]
fn a_receiver_that_goes_wrong_gets_everything_again_from_the_cursor_on() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
    let manners = vec![
        Manner::LeavesAfter(7),
        Manner::ResetsAfter(1),
        Manner::ResetsAfter(20),
        Manner::Good,
        Manner::LeavesAfter(20),
        Manner::LeavesAfter(1),
        Manner::Good,
        Manner::ResetsAfter(20),
    ];
    let wrong = manners.iter().filter(|manner| **manner != Manner::Good).count() as u64;
    let good = manners.len() as u64 - wrong;
    let receiver = Receiver::start(&identity, manners);
    let log = open(directory.path(), &document(), SMALL);
    // All at once, so that every connection has as many lines as it may, and many of them are in
    // flight when it ends, however slow the machine.
    let through = write(&log, 400);
    let patient = ShipOptions { confirm_interval: DEADLINE * 10, ..QUICK };
    let shipper = Shipper::start(&log, identity.collector(receiver.port), patient).unwrap();
    // The first one after them has confirmed its lines.
    assert!(shipper.wait_for((good + 1) * QUICK.confirm_lines, DEADLINE), "{:?}", shipper.status());
    let status = shipper.status();
    assert!(status.failures >= wrong && status.trouble.is_none(), "{status:?}");
    assert!(shipper.finish(through, DEADLINE));
    drop(log);
    check(&receiver.messages(), &lines_of(directory.path()), through);
    assert!(receiver.messages().len() as u64 > through, "some came twice");
}

#[test]
fn nothing_is_confirmed_before_the_receiver_has_closed_the_connection() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
    let receiver = Receiver::start(&identity, vec![Manner::HoldsAfter(5)]);
    let log = open(directory.path(), &document(), Options::default());
    let through = write(&log, 20);
    let shipper = Shipper::start(&log, identity.collector(receiver.port), QUICK).unwrap();
    wait_until("some have arrived", || receiver.messages().len() == 5);
    assert!(!shipper.wait_for(1, Duration::from_secs(1)), "it may still lose what it has not read");
    receiver.lets_go.store(true, Ordering::SeqCst);
    assert!(shipper.wait_for(through, DEADLINE), "{:?}", shipper.status());
    drop((shipper, log));
    check(&receiver.messages(), &lines_of(directory.path()), through);
    assert!(receiver.messages().len() as u64 >= through + 5, "what was not confirmed came again");
}

#[test]
fn a_receiver_that_is_not_there_is_tried_until_it_is() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
    let (listener, port) = deaf();
    let log = open(directory.path(), &document(), Options::default());
    let through = write(&log, 10);
    let shipper = Shipper::start(&log, identity.collector(port), QUICK).unwrap();
    wait_until("it was tried", || shipper.status().failures > 0);
    rustix::net::listen(&listener, 16).unwrap();
    let receiver = Receiver::on(listener, &identity, Vec::new());
    assert!(shipper.wait_for(through, DEADLINE), "{:?}", shipper.status());
    drop(shipper);
    check(&receiver.messages(), &lines_of(directory.path()), through);
}

#[test]
fn the_last_lines_are_confirmed_at_once_at_the_end() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
    let receiver = Receiver::start(&identity, Vec::new());
    let log = open(directory.path(), &document(), Options::default());
    let patient = ShipOptions { confirm_lines: u64::MAX, confirm_interval: DEADLINE * 10, ..QUICK };
    let shipper = Shipper::start(&log, identity.collector(receiver.port), patient).unwrap();
    let through = write(&log, 7);
    assert!(!shipper.wait_for(through, Duration::from_millis(100)), "nothing hurries it");
    assert!(shipper.finish(through, DEADLINE));
    check(&receiver.messages(), &lines_of(directory.path()), through);
}

#[test]
fn a_receiver_of_another_name_gets_nothing() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
    let receiver = Receiver::start(&identity, Vec::new());
    let log = open(directory.path(), &document(), Options::default());
    write(&log, 3);
    let stranger = self::identity();
    let shipper = Shipper::start(&log, stranger.collector(receiver.port), QUICK).unwrap();
    wait_until("it was tried again", || receiver.connections.load(Ordering::SeqCst) >= 3);
    let status = shipper.status();
    assert_eq!(status.confirmed, 0);
    assert!(status.trouble.is_some_and(|trouble| trouble.contains("no TLS to localhost")));
    assert!(receiver.messages().is_empty());
}

#[test]
fn a_log_that_has_less_than_was_confirmed_is_noticed() {
    let (directory, document, identity) = (tempfile::tempdir().unwrap(), document(), identity());
    let receiver = Receiver::start(&identity, Vec::new());
    let log = open(directory.path(), &document, Options::default());
    let through = write(&log, 20);
    let shipper = Shipper::start(&log, identity.collector(receiver.port), QUICK).unwrap();
    assert!(shipper.wait_for(through, DEADLINE));
    drop((shipper, log));
    let file = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|end| end == "jsonl")).unwrap();
    let text: String = lines_of(directory.path())[..10].iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(file, text).unwrap();
    let log = open(directory.path(), &document, Options::default());
    let refused = Shipper::start(&log, identity.collector(receiver.port), QUICK).unwrap_err();
    assert!(
        matches!(&refused, AuditError::Damaged { reason, .. } if reason.contains("has confirmed line")),
        "{refused}"
    );
    for name in ["", "../x", "a_b", &"x".repeat(33)] {
        let unnamed = Collector { name: name.into(), ..identity.collector(1) };
        assert!(matches!(Shipper::start(&log, unnamed, QUICK), Err(AuditError::Io { .. })), "{name}");
    }
    let named = Collector { name: format!("-{}", "x".repeat(31)), ..identity.collector(1) };
    assert!(Shipper::start(&log, named, QUICK).is_ok());
}

#[test]
fn a_collector_that_comes_after_files_have_gone_gets_the_rest() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
    let receiver = Receiver::start(&identity, Vec::new());
    let log = open(directory.path(), &document(), SMALL);
    write(&log, 60);
    assert!(log.retain(&Retention { keep_bytes: Some(24 * 1024), ..Retention::default() }).unwrap() > 0);
    let (first, through) = (log.size().unwrap().first_sequence, write(&log, 1));
    let shipper = Shipper::start(&log, identity.collector(receiver.port), QUICK).unwrap();
    assert!(shipper.wait_for(through, DEADLINE), "{:?}", shipper.status());
    assert_eq!(sequence_of(line_of(&receiver.messages()[0])), first);
}

/// Ends with the test.
struct Openssl(Child);

impl Drop for Openssl {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn openssl_receives_it_too() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("certificate"), &identity.certificate).unwrap();
    std::fs::write(files.path().join("key"), &identity.key).unwrap();
    let child = Command::new("openssl")
        .args(["s_server", "-accept", "127.0.0.1:0", "-certform", "DER", "-keyform", "DER"])
        .args(["-cert", "certificate", "-key", "key", "-ign_eof", "-naccept", "1"])
        .current_dir(files.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut openssl = Openssl(child);
    let mut said = BufReader::new(openssl.0.stdout.take().unwrap());
    let mut line = String::new();
    let port = loop {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "openssl listens");
        if let Some(address) = line.strip_prefix("ACCEPT ") {
            break address.trim().rsplit(':').next().unwrap().parse().unwrap();
        }
    };
    let log = open(directory.path(), &document(), Options::default());
    let through = write(&log, 25);
    let shipper = Shipper::start(&log, identity.collector(port), QUICK).unwrap();
    assert!(shipper.wait_for(through, DEADLINE), "{:?}", shipper.status());
    drop((shipper, log));
    let mut text = Vec::new();
    said.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(lines_of(directory.path())[..through as usize].iter().all(|line| text.contains(line.as_str())));
}
