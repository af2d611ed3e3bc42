//! How fast a channel is from memory to memory, and what it costs: encrypted records and those with
//! a tag alone, beside TLS 1.3 by rustls, in turns, over the same kind of connection on loopback.
//!
//! `cargo run --release -p strongroom-migrate --example channel_speed [MEBIBYTES] [ROUNDS]`
//!
//! One thread sends and one receives. The rate of a pair of cores is what the busier of the two
//! does in a second of its processor time, so it does not depend on what else the machine does.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an instrument for one person at a terminal")]

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{CipherSuite, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use strongroom_keyserver::grant::Secrecy;
use strongroom_memory::secret::SecretBytes;
use strongroom_migrate::record::{Opener, Sealer};
use strongroom_migrate::relay::{Inbound, Outbound};

/// A guest's memory: more than the caches hold.
const MEMORY_BYTES: usize = 256 << 20;
/// What QEMU's sends are, at the most.
const READ_BYTES: usize = 512 << 10;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>().unwrap());
    let bytes = arguments.next().unwrap_or(4096) << 20;
    let rounds = arguments.next().unwrap_or(9);
    let memory = Arc::new(content(MEMORY_BYTES));
    let tls = Tls::new();
    let mut measured: [Vec<Round>; 4] = Default::default();
    let subjects: [(&str, &dyn Fn() -> Round); 4] = [
        ("records", &|| records(&memory, bytes, Secrecy::Encrypted)),
        ("tags", &|| records(&memory, bytes, Secrecy::Plain)),
        ("rustls", &|| tls.pass(&memory, bytes)),
        ("plain", &|| plain(&memory, bytes)),
    ];
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let subject = (round + turn) % subjects.len();
            measured[subject].push(subjects[subject].1());
        }
    }
    println!("{} MiB, {rounds} rounds in turns, medians", bytes >> 20);
    println!("subject    GiB/s a pair   wall   sender CPU s/GiB   receiver CPU s/GiB");
    for ((name, _), rounds) in subjects.iter().zip(&measured) {
        let gib = bytes as f64 / f64::from(1 << 30);
        let median = |of: &dyn Fn(&Round) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "{name:<10} {:>12.2} {:>6.2} {:>18.3} {:>20.3}",
            median(&|round| gib / round.sender.max(round.receiver).as_secs_f64()),
            median(&|round| gib / round.wall.as_secs_f64()),
            median(&|round| round.sender.as_secs_f64() / gib),
            median(&|round| round.receiver.as_secs_f64() / gib),
        );
    }
}

struct Round {
    wall: Duration,
    sender: Duration,
    receiver: Duration,
}

fn content(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut content = Vec::with_capacity(length);
    while content.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        content.extend_from_slice(&state.to_le_bytes());
    }
    content
}

/// Measures a sender and a receiver over a connection.
fn measure(
    send: impl FnOnce(TcpStream) + Send + 'static,
    receive: impl FnOnce(TcpStream) + Send + 'static,
) -> Round {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (from, _) = listener.accept().unwrap();
    to.set_nodelay(true).unwrap();
    let began = Instant::now();
    let sender = thread::spawn(move || timed(|| send(to)));
    let receiver = thread::spawn(move || timed(|| receive(from)));
    let (sender, receiver) = (sender.join().unwrap(), receiver.join().unwrap());
    Round { wall: began.elapsed(), sender, receiver }
}

fn timed(run: impl FnOnce()) -> Duration {
    run();
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Memory that is read from again and again, as if by the kernel: with a copy.
struct Memory {
    memory: Arc<Vec<u8>>,
    at: usize,
    left: usize,
}

impl Read for Memory {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.left).min(self.memory.len() - self.at);
        into[..count].copy_from_slice(&self.memory[self.at..self.at + count]);
        self.at = (self.at + count) % self.memory.len();
        self.left -= count;
        Ok(count)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for place in into {
            let room = (READ_BYTES - total).min(place.len());
            let count = self.read(&mut place[..room])?;
            total += count;
            if count < place.len() {
                break;
            }
        }
        Ok(total)
    }
}

/// Memory that is written to again and again.
struct Sink {
    memory: Vec<u8>,
    at: usize,
}

impl Sink {
    fn new() -> Self {
        Self { memory: vec![1; MEMORY_BYTES / 4], at: 0 }
    }
}

impl Write for Sink {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = from.len().min(self.memory.len() - self.at);
        self.memory[self.at..self.at + count].copy_from_slice(&from[..count]);
        self.at = (self.at + count) % self.memory.len();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn records(memory: &Arc<Vec<u8>>, bytes: usize, secrecy: Secrecy) -> Round {
    let key = SecretBytes::random(32).unwrap();
    let sealer = Sealer::new(key.duplicate().unwrap(), secrecy).unwrap();
    let opener = Opener::new(key, secrecy).unwrap();
    let mut from = Memory { memory: Arc::clone(memory), at: 0, left: bytes };
    measure(
        move |wire| {
            let mut outbound = Outbound::new(sealer).unwrap();
            while outbound.pass(&mut from, &wire, |_| true).unwrap() > 0 {}
        },
        move |wire| {
            let mut inbound = Inbound::new(opener).unwrap();
            let mut sink = Sink::new();
            while !inbound.has_ended() {
                inbound.pass(&wire, &mut sink).unwrap();
            }
        },
    )
}

fn plain(memory: &Arc<Vec<u8>>, bytes: usize) -> Round {
    let mut from = Memory { memory: Arc::clone(memory), at: 0, left: bytes };
    measure(
        move |mut wire| {
            let mut buffer = vec![0; READ_BYTES];
            while let count @ 1.. = from.read(&mut buffer).unwrap() {
                wire.write_all(&buffer[..count]).unwrap();
            }
        },
        move |mut wire| {
            let (mut sink, mut buffer) = (Sink::new(), vec![0; READ_BYTES]);
            while let count @ 1.. = wire.read(&mut buffer).unwrap() {
                sink.write_all(&buffer[..count]).unwrap();
            }
        },
    )
}

/// Both ends of TLS 1.3 with AES-256-GCM.
struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    fn new() -> Self {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_256_GCM_SHA384);
        let provider = Arc::new(provider);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = params.self_signed(&key).unwrap().into();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())
            .unwrap();
        // The client does not read them, so its end would be a reset.
        server.send_tls13_tickets = 0;
        Self { client: Arc::new(client), server: Arc::new(server) }
    }

    fn pass(&self, memory: &Arc<Vec<u8>>, bytes: usize) -> Round {
        let (client, server) = (Arc::clone(&self.client), Arc::clone(&self.server));
        let memory = Arc::clone(memory);
        measure(
            move |mut wire| {
                let name = ServerName::try_from("localhost").unwrap();
                let mut tls = ClientConnection::new(client, name).unwrap();
                // What a connection keeps at the most, as much as a batch of records here.
                tls.set_buffer_limit(Some(READ_BYTES));
                let mut stream = rustls::Stream::new(&mut tls, &mut wire);
                let mut left = bytes;
                for piece in memory.chunks(READ_BYTES).cycle() {
                    let piece = &piece[..piece.len().min(left)];
                    if piece.is_empty() {
                        break;
                    }
                    stream.write_all(piece).unwrap();
                    left -= piece.len();
                }
                stream.flush().unwrap();
            },
            move |mut wire| {
                let mut tls = ServerConnection::new(server).unwrap();
                let mut stream = rustls::Stream::new(&mut tls, &mut wire);
                let (mut sink, mut buffer) = (Sink::new(), vec![0; READ_BYTES]);
                let mut left = bytes;
                while left > 0 {
                    let count = stream.read(&mut buffer).unwrap();
                    sink.write_all(&buffer[..count]).unwrap();
                    left -= count;
                }
            },
        )
    }
}
