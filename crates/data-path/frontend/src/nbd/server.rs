//! The server from its owner's side: its configuration, start and end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use strongroom_io::{Disk, IoError, Plain, Waker};
use strongroom_ring::{Job, Lanes};
use strongroom_statistics::Recorders;
use thiserror::Error;

use super::acceptor::Acceptor;
use super::connections::Order;
use super::export::Export;
use super::protocol::{CONNECTIONS_MAX, DRAIN_TIMEOUT, HANDSHAKE_TIMEOUT};
use super::tls::TlsConfig;
use super::uri::uri;
use crate::listen::{Address, Listener};

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The export.
    pub export: Export,
    /// TLS, and the clients admitted over TCP. Access to a unix socket is controlled by its file's
    /// mode.
    pub tls: Option<TlsConfig>,
    /// The most connections at once.
    pub connections_max: usize,
    /// How long a client's negotiation may take.
    pub handshake_timeout: Duration,
    /// How long stopping waits for requests in flight.
    pub drain_timeout: Duration,
    /// The recorders of connections' requests.
    pub recorders: Recorders,
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
            recorders: Recorders::none(),
        }
    }

    /// Count of lanes that a server needs: one that accepts, and one for each connection.
    pub fn lanes(&self) -> usize {
        self.connections_max + 1
    }
}

/// The reasons why a server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// TCP without TLS, which would expose the volume to everyone.
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
        /// How many it needs.
        needed: usize,
        /// How many are idle.
        idle: usize,
    },
    /// The event loop cannot watch the listening socket.
    #[error("cannot wait for connections: {0}")]
    Watch(#[source] IoError),
    /// The lane that was to accept ended by a bug.
    #[error("a thread of the server panicked")]
    Panicked,
}

/// The errors of stopping a server.
#[derive(Debug, Error)]
pub enum StopError {
    /// The disk did not finish in time. Clients are cut off; the lanes are idle when the disk has
    /// done its part.
    #[error("{connections} connections still had requests in the disk after {timeout:?}")]
    Busy {
        /// Count of connections that have not ended.
        connections: usize,
        /// The time given.
        timeout: Duration,
    },
    /// The last flush failed: writes that clients did not flush may be lost in a power cut.
    #[error("the last flush failed: {0}")]
    Flush(#[source] IoError),
    /// A thread ended by a bug.
    #[error("a thread of the server panicked")]
    Panicked,
}

/// A running server. Dropping it stops it.
pub struct NbdServer {
    uri: String,
    /// The [`Order`] to the server and all its connections.
    order: Arc<AtomicU8>,
    waker: Arc<Waker>,
    acceptor: Option<Job<Result<(), StopError>>>,
}

impl fmt::Debug for NbdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NbdServer({})", self.uri)
    }
}

impl NbdServer {
    /// Starts to serve `disk` to clients that connect to `listener`, on [that
    /// many](NbdConfig::lanes) lanes. When it returns, clients are accepted. The server never makes
    /// a thread or a ring itself.
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
        let order = Arc::new(AtomicU8::new(Order::Serve as u8));
        let (started, start) = sync_channel(1);
        let acceptor = lanes.run({
            let (order, lanes) = (Arc::clone(&order), lanes.clone());
            move |ring| Acceptor::run(config, listener, disk, lanes, ring, &order, &started)
        });
        let Ok(acceptor) = acceptor else {
            return Err(StartError::Lanes { needed, idle: 0 });
        };
        let waker = start.recv().unwrap_or(Err(StartError::Panicked))?;
        Ok(Self { uri, order, waker, acceptor: Some(acceptor) })
    }

    /// The URI that a client needs to connect.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Stops: accepts no more connections, answers requests in flight and refuses new ones, flushes
    /// the disk, and releases all lanes. Clients that stay longer than the configured time are cut
    /// off.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.stop_and_join(Order::Drain)
    }

    /// Stops for a successor on the same socket: cuts all clients off, waits until the disk has
    /// finished their requests, flushes it, and releases all lanes. A client that reconnects, as
    /// QEMU's does, repeats unanswered requests and only sees a pause; refusals, as from
    /// [`Self::stop`], would become errors in its guest.
    pub fn hand_over(mut self) -> Result<(), StopError> {
        self.stop_and_join(Order::Abandon)
    }

    fn stop_and_join(&mut self, order: Order) -> Result<(), StopError> {
        self.order.store(order as u8, Ordering::SeqCst);
        self.waker.wake();
        match self.acceptor.take() {
            Some(acceptor) => acceptor.join().map_err(|_| StopError::Panicked)?,
            None => Ok(()),
        }
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop_and_join(Order::Drain) {
            tracing::error!(uri = self.uri, %error, "the NBD server did not stop cleanly");
        }
    }
}
