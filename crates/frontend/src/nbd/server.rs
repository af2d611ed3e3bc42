//! The server: a lane that accepts connections, and the life of all of them.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strongroom_io::{Disk, Io, IoError, Plain, Reactor, Request, Thread, Waker};
use strongroom_memory::BufferPool;
use strongroom_ring::{Busy, Interest, Job, Lanes, Ring};
use thiserror::Error;

use super::connection::{Connection, End, Shared};
use super::connections::{Connections, Order};
use super::export::Export;
use super::protocol::{CONNECTIONS_MAX, DRAIN_TIMEOUT, HANDSHAKE_TIMEOUT, STAGE_MEMORY_BYTES};
use super::socket::Socket;
use super::tls::TlsConfig;
use super::uri::uri;
use crate::listen::{Address, Listener};

/// How long the server sleeps after the system had no descriptor for another connection.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// What a server serves, and how.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// Under which name.
    pub export: Export,
    /// Who may come over TCP. A unix socket is for whom its file's mode admits.
    pub tls: Option<TlsConfig>,
    /// The most connections at once.
    pub connections_max: usize,
    /// How long a client's negotiation may take.
    pub handshake_timeout: Duration,
    /// How long stopping waits for what is in flight.
    pub drain_timeout: Duration,
}

impl NbdConfig {
    /// A unix socket's configuration, with the usual limits.
    pub fn new(export: Export) -> Self {
        Self {
            export,
            tls: None,
            connections_max: CONNECTIONS_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }

    /// Count of lanes that a server takes: one that accepts, and one for each connection.
    pub fn lanes(&self) -> usize {
        self.connections_max + 1
    }
}

/// Why a server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// TCP without TLS, which would show the volume to everybody.
    #[error("over TCP NBD is served under TLS alone")]
    TcpWithoutTls,
    /// TLS on a unix socket, whose peers are known by other means.
    #[error("on a unix socket NBD is served without TLS")]
    TlsWithoutTcp,
    /// A name or description beyond the protocol's longest string.
    #[error("the name or description of the export has more than 4096 bytes")]
    LongName,
    /// Fewer idle lanes than [`NbdConfig::lanes`].
    #[error("the server takes {needed} threads, and {idle} are free")]
    Lanes {
        /// How many it takes.
        needed: usize,
        /// How many there are.
        idle: usize,
    },
    /// The event loop cannot watch the listening socket.
    #[error("cannot wait for connections: {0}")]
    Watch(#[source] IoError),
    /// The lane that was to accept ended by a bug.
    #[error("a thread of the server panicked")]
    Panicked,
}

/// What went wrong while a server stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// The disk did not finish in time. Clients are cut off; the lanes are idle when the disk has done its part.
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
    acceptor: Option<Job<Result<(), StopError>>>,
}

impl fmt::Debug for NbdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NbdServer({})", self.uri)
    }
}

impl NbdServer {
    /// Starts to serve `disk` to those who connect to `listener`, on [so many](NbdConfig::lanes) lanes. When it returns,
    /// clients are accepted. It makes no thread and no ring of its own, then or later.
    pub fn start(
        config: NbdConfig,
        listener: Listener,
        disk: Arc<dyn Disk<Plain>>,
        lanes: Lanes,
    ) -> Result<Self, StartError> {
        match (listener.address(), &config.tls) {
            (Address::Tcp(_), None) => return Err(StartError::TcpWithoutTls),
            (Address::Unix(_), Some(_)) => return Err(StartError::TlsWithoutTcp),
            (Address::Tcp(_), Some(_)) | (Address::Unix(_), None) => {}
        }
        if !config.export.is_valid() {
            return Err(StartError::LongName);
        }
        let (needed, idle) = (config.lanes(), lanes.idle());
        if idle < needed {
            return Err(StartError::Lanes { needed, idle });
        }
        let uri = uri(listener.address(), &config.export.name);
        let stopping = Arc::new(AtomicBool::new(false));
        let (started, start) = sync_channel(1);
        let acceptor = lanes.run({
            let (stopping, lanes) = (Arc::clone(&stopping), lanes.clone());
            move |ring| Acceptor::run(config, listener, disk, lanes, ring, &stopping, &started)
        });
        let Ok(acceptor) = acceptor else {
            return Err(StartError::Lanes { needed, idle: 0 });
        };
        let waker = start.recv().unwrap_or(Err(StartError::Panicked))?;
        Ok(Self { uri, stopping, waker, acceptor: Some(acceptor) })
    }

    /// What a client is to be given to connect.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Stops: accepts no more connections, answers what is in flight and refuses what is new, flushes the disk, and gives
    /// all lanes back. Clients that stay longer than the configured time are cut off.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.stop_and_join()
    }

    fn stop_and_join(&mut self) -> Result<(), StopError> {
        self.stopping.store(true, Ordering::SeqCst);
        self.waker.wake();
        match self.acceptor.take() {
            Some(acceptor) => acceptor.join().map_err(|_| StopError::Panicked)?,
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

/// The lane that accepts.
struct Acceptor<'a> {
    config: NbdConfig,
    shared: Arc<Shared>,
    lanes: Lanes,
    ring: &'a Ring,
    stopping: &'a AtomicBool,
    connections: Arc<Connections>,
    /// Accepted while all places were taken, and about to get that of the connection that negotiates longest.
    newcomer: Option<Socket>,
    /// Has a place, and waits for the lane of the connection that had it, which comes a moment later.
    unstarted: Option<Service>,
    jobs: Vec<Job<()>>,
    count: u64,
}

/// A connection, from its first byte to its last.
type Service = Box<dyn FnOnce(&Ring) + Send>;

impl<'a> Acceptor<'a> {
    fn run(
        config: NbdConfig,
        listener: Listener,
        disk: Arc<dyn Disk<Plain>>,
        lanes: Lanes,
        ring: &'a Ring,
        stopping: &'a AtomicBool,
        started: &SyncSender<Result<Arc<Waker>, StartError>>,
    ) -> Result<(), StopError> {
        let shared = Arc::new(Shared {
            export: config.export.clone(),
            disk,
            tls: config.tls.as_ref().map(|tls| Arc::clone(&tls.server)),
            handshake_timeout: config.handshake_timeout,
        });
        let mut acceptor = Self {
            connections: Connections::new(ring.waker()),
            config,
            shared,
            lanes,
            ring,
            stopping,
            newcomer: None,
            unstarted: None,
            jobs: Vec::new(),
            count: 0,
        };
        let serving = acceptor.serve(&listener, started);
        drop(listener);
        if let Err(error) = serving {
            tracing::error!(%error, "the NBD server cannot wait for connections any more");
        }
        acceptor.stop()
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
            if pause.is_none() && self.newcomer.is_none() && self.unstarted.is_none() {
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
            if let Some(service) = self.unstarted.take() {
                self.start(service);
                if self.unstarted.is_some() {
                    return None;
                }
            }
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
                self.unstarted = self.admit(socket);
            } else if self.connections.abandon_oldest_negotiation() {
                self.newcomer = Some(socket);
                return None;
            } else {
                let connections_max = self.config.connections_max;
                tracing::warn!(peer = %socket.peer(), connections_max, "NBD connection refused: all places are taken");
            }
        }
    }

    /// Gives a connection its place among the others.
    fn admit(&mut self, socket: Socket) -> Option<Service> {
        if self.shared.tls.is_some()
            && let Err(error) = socket.prepare_tcp()
        {
            tracing::warn!(%error, "an NBD connection failed before it began");
            return None;
        }
        self.count += 1;
        let id = self.count;
        let membership = self.connections.join(id, Arc::new(socket));
        let shared = Arc::clone(&self.shared);
        Some(Box::new(move |ring| {
            let peer = membership.member().peer.clone();
            tracing::debug!(%peer, id, "NBD connection");
            match Connection::serve(shared, membership, ring) {
                End::Closed | End::Gone | End::Abandoned => {
                    tracing::debug!(%peer, id, "NBD connection ended")
                }
                end => tracing::warn!(%peer, id, reason = %end, "NBD connection ended"),
            }
        }))
    }

    /// Starts to serve a connection, or keeps it until a lane is idle.
    fn start(&mut self, service: Service) {
        match self.lanes.run(service) {
            Ok(job) => self.jobs.push(job),
            Err(Busy(service)) => {
                self.unstarted = Some(service);
                self.lanes.wake_when_idle(&self.ring.waker());
            }
        }
    }

    /// Forgets the connections that have ended. A connection's place is free before its lane is, hence the list may be
    /// longer than the count of connections for a moment.
    fn join_ended(&mut self) {
        for job in self.jobs.extract_if(.., |job| job.is_finished()) {
            if job.join().is_err() {
                tracing::error!("a connection of the NBD server panicked");
            }
        }
    }

    /// Ends all connections and flushes the disk.
    fn stop(&mut self) -> Result<(), StopError> {
        self.newcomer = None;
        self.unstarted = None;
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
        for job in self.jobs.drain(..) {
            job.join().map_err(|_| StopError::Panicked)?;
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
