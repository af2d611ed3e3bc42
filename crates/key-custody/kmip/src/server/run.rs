//! The server, which accepts connections, and its handle, which reconfigures and ends it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use strongroom_serving::{Connections, Limits, Places};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::debug;

use super::connection;
use super::registry::{Order, Registry};
use super::{Fingerprint, Observer, Peer, Refusal, RefusalReason, ServerLimits, Service};

/// A server that accepts connections while [`run`](Self::run) is polled.
pub struct Server<S> {
    listener: TcpListener,
    shared: Arc<Shared<S>>,
    places: Places<Fingerprint>,
    handle: ServerHandle,
}

/// State shared by all connections.
pub(super) struct Shared<S> {
    pub service: S,
    pub observer: Box<dyn Observer>,
    pub limits: ServerLimits,
    /// Memory for requests, a permit for each KiB.
    pub memory: Semaphore,
}

impl<S> Shared<S> {
    pub fn refuse(&self, address: SocketAddr, peer: Option<&Peer>, reason: &RefusalReason) {
        debug!(%address, ?peer, %reason, "refused");
        self.observer.refused(&Refusal { address, peer, reason });
    }
}

/// Reconfigures and ends a server from any task.
#[derive(Clone)]
pub struct ServerHandle {
    tls: Arc<watch::Sender<Arc<ServerConfig>>>,
    registry: Arc<Registry>,
    shutdown: Arc<watch::Sender<bool>>,
}

impl<S: Service> Server<S> {
    /// Creates a server on that listener.
    ///
    /// `tls` must ask for client certificates and verify them. Sessions are never resumed, whatever
    /// `tls` allows: a resumed session would skip verifying the certificate, which may have expired
    /// or been revoked meanwhile.
    pub fn new(
        listener: TcpListener,
        tls: ServerConfig,
        limits: ServerLimits,
        service: S,
        observer: impl Observer,
    ) -> Self {
        let places = Places::new(
            "KMIP",
            Limits {
                strangers: limits.handshakes,
                known: limits.connections,
                of_one: limits.connections_of_one_peer,
            },
        );
        let memory = Semaphore::new(limits.requests_kib.min(Semaphore::MAX_PERMITS));
        let shared = Arc::new(Shared { service, observer: Box::new(observer), limits, memory });
        let handle = ServerHandle {
            tls: Arc::new(watch::Sender::new(without_resumption(tls))),
            registry: Arc::default(),
            shutdown: Arc::new(watch::Sender::new(false)),
        };
        Self { listener, shared, places, handle }
    }

    /// The handle that reconfigures and ends this server.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Where the server listens.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until [`ServerHandle::shut_down`], and then until the last response is read or the
    /// shutdown time is over.
    pub async fn run(self) {
        let mut shutdown = self.handle.shutdown.subscribe();
        let mut connections = Connections::new("KMIP");
        loop {
            let (tcp, address) = tokio::select! {
                biased;
                () = told_to_shut_down(&mut shutdown) => break,
                accepted = connections.accept(|| self.listener.accept()) => accepted,
            };
            self.admit(tcp, address, &mut connections);
        }
        drop(self.listener);
        self.handle.registry.drain();
        connections.drain(self.shared.limits.shutdown_time).await;
    }

    fn admit(&self, tcp: TcpStream, address: SocketAddr, connections: &mut Connections) {
        let slot = self.handle.registry.enter(self.places.enter(address.ip()));
        let tls = Arc::clone(&self.handle.tls.borrow());
        connections.spawn(connection::serve(Arc::clone(&self.shared), tcp, address, tls, slot));
    }
}

impl ServerHandle {
    /// Serves new connections with that configuration from now on, for example with a new
    /// certificate. Existing connections keep theirs.
    pub fn replace_tls(&self, tls: ServerConfig) {
        self.tls.send_replace(without_resumption(tls));
    }

    /// Closes the connections of chosen peers and returns their number. A request in progress runs
    /// to its end, unanswered. See [`Service::admits`] for how to withdraw a certificate.
    pub fn close_peers(&self, chosen: impl Fn(&Peer) -> bool) -> usize {
        self.registry.order_peers(Order::Close, chosen)
    }

    /// The number of connections, including those in their handshake.
    pub fn connections(&self) -> usize {
        self.registry.len()
    }

    /// Ends the server: it accepts no new connections, closes idle ones and answers requests in
    /// progress.
    pub fn shut_down(&self) {
        self.shutdown.send_replace(true);
    }
}

async fn told_to_shut_down(shutdown: &mut watch::Receiver<bool>) {
    // The sender lives in the server's own handle, so this ends only with an order.
    let _ = shutdown.wait_for(|shutdown| *shutdown).await;
}

fn without_resumption(mut tls: ServerConfig) -> Arc<ServerConfig> {
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    tls.max_early_data_size = 0;
    Arc::new(tls)
}
