//! The server: a thread that accepts connections, and the life of all of them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strongroom_io::{Disk, Io, IoError, Plain, Reactor, Request, Thread, Waker};
use strongroom_memory::BufferPool;
use strongroom_ring::{Interest, Ring, RingError};
use thiserror::Error;

use super::connection::{Connection, End, Shared};
use super::connections::{Connections, Order};
use super::export::Export;
use super::protocol::{CONNECTIONS_MAX, DRAIN_TIMEOUT, HANDSHAKE_TIMEOUT, STAGE_MEMORY_BYTES};
use super::socket::Socket;
use super::tls::TlsConfig;
use super::uri::uri;
use crate::listen::{Address, ListenError, Listener};

/// How long the server sleeps after the system had no descriptor for another connection.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// Submission entries of the accepting thread's ring: a listener, a waker, and the last flush.
const ACCEPT_RING_DEPTH: usize = 8;

/// Where a server listens. TCP comes with TLS, always.
#[derive(Clone, Debug)]
pub enum Listen {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP with mutual TLS.
    Tls {
        /// The address.
        address: SocketAddr,
        /// Who may come.
        tls: TlsConfig,
    },
}

/// What a server serves, and how.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// Where.
    pub listen: Listen,
    /// Under which name.
    pub export: Export,
    /// The most connections at once.
    pub connections_max: usize,
    /// How long a client's negotiation may take.
    pub handshake_timeout: Duration,
    /// How long stopping waits for what is in flight.
    pub drain_timeout: Duration,
}

impl NbdConfig {
    /// The usual limits.
    pub fn new(listen: Listen, export: Export) -> Self {
        Self {
            listen,
            export,
            connections_max: CONNECTIONS_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nowhere to listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A name or description beyond the protocol's longest string.
    #[error("the name or description of the export has more than 4096 bytes")]
    LongName,
    /// No event loop.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The event loop cannot watch the listening socket.
    #[error("cannot wait for connections: {0}")]
    Watch(#[source] IoError),
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// What went wrong while a server stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// The disk did not finish in time. Clients are cut off; the threads end when the disk does.
    #[error("{connections} connections still had requests in the disk after {timeout:?}")]
    Busy {
        /// Count of connections that are not ended.
        connections: usize,
        /// The time given.
        timeout: Duration,
    },
    /// The last flush failed: what clients wrote and did not flush may be lost in a power cut.
    #[error("the last flush failed: {0}")]
    Flush(#[source] IoError),
    /// A thread ended by a bug.
    #[error("a thread of the server panicked")]
    Panicked,
}

/// A running server. Dropping it stops it.
pub struct NbdServer {
    uri: String,
    stopping: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<Result<(), StopError>>>,
}

impl fmt::Debug for NbdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NbdServer({})", self.uri)
    }
}

impl NbdServer {
    /// Starts to serve `disk`. When it returns, clients can connect.
    pub fn start(config: NbdConfig, disk: Arc<dyn Disk<Plain>>) -> Result<Self, StartError> {
        if !config.export.is_valid() {
            return Err(StartError::LongName);
        }
        let listener = Listener::bind(&match &config.listen {
            Listen::Unix(path) => Address::Unix(path.clone()),
            Listen::Tls { address, .. } => Address::Tcp(*address),
        })?;
        let uri = uri(listener.address(), &config.export.name);
        let stopping = Arc::new(AtomicBool::new(false));
        let (started, start) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("nbd".to_owned())
            .spawn({
                let stopping = Arc::clone(&stopping);
                move || Acceptor::run(config, listener, disk, &stopping, &started)
            })
            .map_err(StartError::Thread)?;
        match start.recv() {
            Ok(Ok(waker)) => Ok(Self { uri, stopping, waker, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StartError::Thread(io::Error::other("the thread ended at once"))),
        }
    }

    /// What a client is to be given to connect.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Stops: accepts no more connections, answers what is in flight and refuses what is new, flushes the disk, and ends
    /// all threads. Clients that stay longer than the configured time are cut off.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.stop_and_join()
    }

    fn stop_and_join(&mut self) -> Result<(), StopError> {
        self.stopping.store(true, Ordering::SeqCst);
        self.waker.wake();
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| StopError::Panicked)?,
            None => Ok(()),
        }
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop_and_join() {
            tracing::error!(uri = self.uri, %error, "the NBD server did not stop cleanly");
        }
    }
}

/// The accepting thread.
struct Acceptor<'a> {
    config: NbdConfig,
    shared: Arc<Shared>,
    ring: Ring,
    stopping: &'a AtomicBool,
    connections: Arc<Connections>,
    /// Accepted while all places were taken, and about to get that of the connection that negotiates longest.
    newcomer: Option<Socket>,
    threads: Vec<JoinHandle<()>>,
    count: u64,
}

impl<'a> Acceptor<'a> {
    fn run(
        config: NbdConfig,
        listener: Listener,
        disk: Arc<dyn Disk<Plain>>,
        stopping: &'a AtomicBool,
        started: &SyncSender<Result<Arc<Waker>, StartError>>,
    ) -> Result<(), StopError> {
        let ring = match Ring::new(ACCEPT_RING_DEPTH) {
            Ok(ring) => ring,
            Err(error) => {
                let _ = started.send(Err(error.into()));
                return Ok(());
            }
        };
        let tls = match &config.listen {
            Listen::Unix(_) => None,
            Listen::Tls { tls, .. } => Some(Arc::clone(&tls.server)),
        };
        let shared = Arc::new(Shared {
            export: config.export.clone(),
            disk,
            tls,
            handshake_timeout: config.handshake_timeout,
        });
        let mut acceptor = Self {
            connections: Connections::new(ring.waker()),
            config,
            shared,
            ring,
            stopping,
            newcomer: None,
            threads: Vec::new(),
            count: 0,
        };
        let serving = acceptor.serve(&listener, started);
        drop(listener);
        match serving {
            Ok(()) => acceptor.stop(),
            Err(error) => {
                tracing::error!(%error, "the NBD server cannot wait for connections any more");
                acceptor.stop()
            }
        }
    }

    /// Accepts until it is told to stop.
    fn serve(
        &mut self,
        listener: &Listener,
        started: &SyncSender<Result<Arc<Waker>, StartError>>,
    ) -> Result<(), IoError> {
        let token = match self.ring.watch(listener, Interest::default()) {
            Ok(token) => token,
            Err(error) => {
                let _ = started.send(Err(StartError::Watch(error)));
                return Ok(());
            }
        };
        let _ = started.send(Ok(self.ring.waker()));
        while !self.stopping.load(Ordering::SeqCst) {
            self.join_ended();
            let pause = self.accept(listener);
            if pause.is_none() && self.newcomer.is_none() {
                self.ring.rearm(token, Interest::READABLE);
            }
            self.ring.wait(pause)?;
            self.ring.take_ready(&mut Vec::new());
        }
        self.ring.unwatch(token);
        Ok(())
    }

    /// Accepts whoever waits, as far as there is room. Says how long to pause where the system has no room.
    fn accept(&mut self, listener: &Listener) -> Option<Duration> {
        loop {
            let socket = match self.newcomer.take() {
                Some(newcomer) => newcomer,
                None => match listener.accept() {
                    Ok(Some(socket)) => Socket::new(socket),
                    Ok(None) => return None,
                    Err(errno) => {
                        tracing::error!(%errno, "cannot accept an NBD connection");
                        let full =
                            matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS);
                        return full.then_some(OUT_OF_DESCRIPTORS_PAUSE);
                    }
                },
            };
            if self.connections.len() < self.config.connections_max {
                self.start(socket);
            } else if self.connections.abandon_oldest_negotiation() {
                self.newcomer = Some(socket);
                return None;
            } else {
                let connections_max = self.config.connections_max;
                tracing::warn!(peer = %socket.peer(), connections_max, "NBD connection refused: all places are taken");
            }
        }
    }

    fn start(&mut self, socket: Socket) {
        if self.shared.tls.is_some()
            && let Err(error) = socket.prepare_tcp()
        {
            tracing::warn!(%error, "an NBD connection failed before it began");
            return;
        }
        self.count += 1;
        let id = self.count;
        let membership = self.connections.join(id, Arc::new(socket));
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new().name(format!("nbd-{id}")).spawn(move || {
            let peer = membership.member().peer.clone();
            tracing::debug!(%peer, id, "NBD connection");
            match Connection::serve(shared, membership) {
                End::Closed | End::Gone | End::Abandoned => {
                    tracing::debug!(%peer, id, "NBD connection ended")
                }
                end => tracing::warn!(%peer, id, reason = %end, "NBD connection ended"),
            }
        });
        match spawned {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::error!(%error, "no thread for an NBD connection"),
        }
    }

    /// Joins the threads that have ended. A thread's place is free before it has ended, hence the list may be longer than
    /// the count of connections for a moment.
    fn join_ended(&mut self) {
        let (ended, running) =
            std::mem::take(&mut self.threads).into_iter().partition(|thread| thread.is_finished());
        self.threads = running;
        let ended: Vec<JoinHandle<()>> = ended;
        for thread in ended {
            if thread.join().is_err() {
                tracing::error!("a thread of the NBD server panicked");
            }
        }
    }

    /// Ends all connections and flushes the disk.
    fn stop(&mut self) -> Result<(), StopError> {
        self.newcomer = None;
        let deadline = Instant::now() + self.config.drain_timeout;
        self.connections.tell_all(Order::Drain);
        if !self.await_connections(deadline) {
            tracing::warn!("NBD clients did not end in time and are cut off");
            self.connections.tell_all(Order::Abandon);
            // What is left then is the disk's, and it was given its time: once more is enough.
            if !self.await_connections(Instant::now() + self.config.drain_timeout) {
                return Err(StopError::Busy {
                    connections: self.connections.len(),
                    timeout: self.config.drain_timeout,
                });
            }
        }
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| StopError::Panicked)?;
        }
        self.flush().map_err(StopError::Flush)
    }

    /// Waits until every connection has ended; `false` if the deadline came first.
    fn await_connections(&self, deadline: Instant) -> bool {
        while self.connections.len() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ring.wait(Some(left)).is_err() {
                return false;
            }
        }
        true
    }

    fn flush(&self) -> Result<(), IoError> {
        if self.shared.disk.limits().read_only {
            return Ok(());
        }
        let pool = BufferPool::new(STAGE_MEMORY_BYTES).map_err(|_| IoError::from(Errno::NOMEM))?;
        let thread = Thread { pool, reactor: Rc::new(self.ring.clone()) };
        let mut channel = self.shared.disk.open(&thread, 1)?;
        channel.submit(Io { tag: 0, request: Request::Flush });
        channel.kick();
        let mut done = Vec::new();
        loop {
            channel.poll(&mut done);
            if let Some(end) = done.pop() {
                return end.result;
            }
            self.ring.wait(None)?;
        }
    }
}
