//! The lane that accepts connections, starts each on its own lane, and flushes the disk when all
//! have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strongroom_io::{Disk, IoError, Plain, Reactor, Waker};
use strongroom_ring::{Busy, Interest, Job, Lanes, Ring};

use super::connection::{Connection, End, Shared};
use super::connections::{Connections, Order};
use super::protocol::STAGE_MEMORY_BYTES;
use super::server::{NbdConfig, StartError, StopError};
use super::socket::Socket;
use crate::last_flush::flush;
use crate::listen::Listener;

/// How long the server sleeps when the system has no descriptor for another connection.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// The lane that accepts.
pub struct Acceptor<'a> {
    config: NbdConfig,
    shared: Arc<Shared>,
    lanes: Lanes,
    ring: &'a Ring,
    /// An [`Order`].
    order: &'a AtomicU8,
    connections: Arc<Connections>,
    /// A connection accepted while all places were taken. It will get the place of the connection
    /// that has negotiated longest.
    newcomer: Option<Socket>,
    /// A connection that has a place, and waits for the lane of the one that had it before, which
    /// becomes free a moment later.
    unstarted: Option<Service>,
    jobs: Vec<Job<()>>,
    count: u64,
}

/// A connection, from its first byte to its last.
type Service = Box<dyn FnOnce(&Ring) + Send>;

impl<'a> Acceptor<'a> {
    /// Accepts until `order` is no longer to serve and the lane is woken, and then stops. Sends to
    /// `started` whether it began, and its waker.
    pub fn run(
        config: NbdConfig,
        listener: Listener,
        disk: Arc<dyn Disk<Plain>>,
        lanes: Lanes,
        ring: &'a Ring,
        order: &'a AtomicU8,
        started: &SyncSender<Result<Arc<Waker>, StartError>>,
    ) -> Result<(), StopError> {
        let shared = Arc::new(Shared {
            export: config.export.clone(),
            disk,
            tls: config.tls.as_ref().map(|tls| Arc::clone(&tls.server)),
            handshake_timeout: config.handshake_timeout,
            recorders: config.recorders.clone(),
        });
        let mut acceptor = Self {
            connections: Connections::new(ring.waker()),
            config,
            shared,
            lanes,
            ring,
            order,
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

    /// Accepts connections until it is stopped.
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
        while self.order.load(Ordering::SeqCst) == Order::Serve as u8 {
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

    /// Accepts waiting connections while there is room. Returns how long to pause if the system has
    /// no room.
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

    /// Forgets the connections that have ended. A connection's place becomes free before its lane,
    /// so the list may briefly be longer than the count of connections.
    fn join_ended(&mut self) {
        for job in self.jobs.extract_if(.., |job| job.poll_end()) {
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
        let hands_over = self.order.load(Ordering::SeqCst) == Order::Abandon as u8;
        self.connections.tell_all(if hands_over { Order::Abandon } else { Order::Drain });
        if !self.await_connections(deadline) {
            tracing::warn!("NBD clients did not end in time and are cut off");
            self.connections.tell_all(Order::Abandon);
            // What remains then depends on the disk, which has already had its time: one more
            // timeout is enough.
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
        flush(&*self.shared.disk, self.ring, STAGE_MEMORY_BYTES).map_err(StopError::Flush)
    }

    /// Waits until every connection has ended. Returns `false` if the deadline came first.
    fn await_connections(&self, deadline: Instant) -> bool {
        while self.connections.len() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ring.wait(Some(left)).is_err() {
                return false;
            }
        }
        true
    }
}
