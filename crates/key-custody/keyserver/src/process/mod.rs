//! The key server as a process: assembles its rooms, serves, and shuts down in order.
//!
//! | file | what |
//! |---|---|
//! | `open` | opens the state directory, and finishes a restore |
//! | `record` | audit records of the server's events |
//! | `upkeep` | periodic maintenance |
//! | `sweep` | destructions that fall due |
//!
//! **Order of shutdown.** The ports stop accepting requests and finish those in progress; then the
//! upkeep ends; then the audit log signs its last head and is closed; then the store.

mod open;
mod record;
mod repeated;
mod sweep;
mod upkeep;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use strongroom_audit::syslog::{Collector, ShipOptions, Shipper};
use strongroom_audit::{AuditError, Retention};
use strongroom_kmip::server::{Server, ServerLimits};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

pub use self::open::{OpenStateError, open_state};
use self::record::AuditRecord;
use crate::authority::AuthorityError;
use crate::authority::enrol;
use crate::authority::enrol::server::Listeners;
use crate::broker::{Broker, Upstream};
use crate::granting::LedgeredGrants;
use crate::management::{Brokering, Management};
use crate::objects::clock::SystemClock;
use crate::objects::dependents::Dependents;
use crate::objects::destruction::Destructions;
use crate::objects::sealing::SealingError;
use crate::recovery::ServerSource;
use crate::server::{Foundations, KeyServer};
use crate::service::{ClosesRevoked, KmipService};
use crate::settings::Settings;
use crate::state::{State, StateError};

/// How long shutdown waits for the collector to confirm the last lines of the audit log. It does
/// not wait for a failing collector.
const LAST_LINES_WAIT: Duration = Duration::from_secs(10);

/// The listeners and settings of a server.
#[derive(Debug)]
pub struct ProcessSettings {
    /// The KMIP port.
    pub kmip: SocketAddr,
    /// The port for enrolment.
    pub enrolment: SocketAddr,
    /// The listening socket for administration by this machine, if there is one.
    pub administration: Option<OwnedFd>,
    /// The enabled KMIP operations.
    pub offered: Settings,
    /// The limits of the KMIP port.
    pub limits: ServerLimits,
    /// The collector of the audit log.
    pub collector: Option<Collector>,
    /// The retention of audit log files. With a collector, files go only once it has confirmed
    /// them.
    pub retention: Retention,
    /// The external providers that the server brokers.
    pub upstream: Option<Arc<dyn Upstream>>,
    /// The minimum delay of a destruction, in seconds.
    pub destruction_delay_min_seconds: i64,
}

/// Why a server failed to start or serve.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Its state cannot be opened.
    #[error(transparent)]
    State(#[from] StateError),
    /// The authority failed.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// No keys can be derived.
    #[error(transparent)]
    Sealing(#[from] SealingError),
    /// A port cannot be listened on.
    #[error("cannot listen on {address} ({what}): {error}; is another server running there?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The port's purpose.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The administration socket cannot be used.
    #[error("the administration socket cannot be used: {0}")]
    Socket(io::Error),
    /// The audit log cannot be shipped.
    #[error("the audit log cannot be shipped: {0}")]
    Shipping(AuditError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A server that listens but does not serve yet.
pub struct KeyServerProcess {
    state: State,
    server: Server<KmipService>,
    record: Arc<AuditRecord>,
    destructions: Arc<Destructions>,
    enrolment: Listeners,
    addresses: Addresses,
    shipper: Option<Arc<Shipper>>,
    retention: Retention,
    brokering: Brokering,
}

/// A server's addresses: the configured ports, or the kernel's choice for port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// KMIP.
    pub kmip: SocketAddr,
    /// Enrolment.
    pub enrolment: SocketAddr,
}

impl KeyServerProcess {
    /// Begins to listen. Clients that connect now wait until [`run`](Self::run). A key with
    /// `dependents` cannot be destroyed.
    ///
    /// # Errors
    /// [`ProcessError`].
    pub async fn bind(
        state: State,
        settings: ProcessSettings,
        dependents: Arc<dyn Dependents>,
    ) -> Result<Self, ProcessError> {
        let record = Arc::new(AuditRecord::new(Arc::clone(&state.audit)));
        let clock = Arc::new(SystemClock);
        let (store, signers) = (Arc::clone(&state.store), Arc::clone(&state.authority));
        let foundations = Foundations {
            grants: Arc::new(LedgeredGrants::new(Arc::clone(&store), signers, Arc::clone(&clock) as _)),
            store,
            clock,
            observer: Arc::clone(&record) as _,
            dependents,
        };
        let broker = settings.upstream.map(Broker::new).map(Arc::new);
        let keys = KeyServer::new(foundations, &state.objects_key, settings.offered)?;
        let keys = Arc::new(keys.with_broker(broker.clone()));
        let brokering = Brokering { objects: keys.objects(), broker };
        let destructions = Destructions::new(Arc::clone(&state.store), keys.objects(), keys.inquiry());
        let destructions = Arc::new(destructions.with_delay_min(settings.destruction_delay_min_seconds));
        let listener = listen(settings.kmip, "KMIP").await?;
        let port = listen(settings.enrolment, "enrolment").await?;
        let socket = settings.administration.map(unix_listener).transpose().map_err(ProcessError::Socket)?;
        let enrolment = Listeners { port, socket };
        let port = KmipService::new(keys, Arc::clone(&state.authority));
        let tls = Arc::unwrap_or_clone(state.authority.server_config()?);
        let server = Server::new(listener, tls, settings.limits, port, AuditRecord::clone(&record));
        let addresses = Addresses {
            kmip: server.local_address().map_err(ProcessError::Thread)?,
            enrolment: enrolment.port.local_addr().map_err(ProcessError::Thread)?,
        };
        state.authority.observe(Arc::clone(&record) as _);
        ClosesRevoked::watch(&state.authority, server.handle());
        let collector = settings.collector.as_ref().map(|collector| collector.name.clone());
        let retention = Retention { collector, ..settings.retention };
        let ship = |collector| Shipper::start(&state.audit, collector, ShipOptions::default());
        let shipper = settings.collector.map(ship).transpose().map_err(ProcessError::Shipping)?;
        let shipper = shipper.map(Arc::new);
        Ok(Self { state, server, record, destructions, enrolment, addresses, shipper, retention, brokering })
    }

    /// The addresses it listens on.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `shutdown` is ready, then shuts down in order.
    ///
    /// # Errors
    /// [`ProcessError::Authority`] if TLS cannot be set up for enrolment.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ProcessError> {
        let Self { state, server, record, destructions, enrolment, shipper, retention, brokering, .. } = self;
        let end = watch::Sender::new(false);
        let told = |mut end: watch::Receiver<bool>| async move {
            // The sender outlives all its receivers here.
            let _ = end.wait_for(|ended| *ended).await;
        };
        let source = ServerSource::new(&state)?;
        let management = Management::new(
            &state,
            Box::new(source),
            shipper.clone(),
            retention.clone(),
            brokering,
            Arc::clone(&destructions),
        );
        let management = Arc::new(management);
        record.event("start", "the key server serves").await;
        let upkeep = upkeep::start(&state, retention, end.subscribe());
        let sweep = sweep::start(Arc::clone(&destructions), Arc::clone(&record), end.subscribe());
        let handle = server.handle();
        let kmip = tokio::spawn(server.run());
        let port = enrol::server::serve(
            enrolment,
            Arc::clone(&state.authority),
            Arc::clone(&record) as _,
            Some(management as _),
            told(end.subscribe()),
        );
        let until_told = async {
            shutdown.await;
            end.send_replace(true);
            handle.shut_down();
        };
        let (served, ()) = tokio::join!(port, until_told);
        // The panic hook has reported a panic of these tasks.
        let _ = kmip.await;
        let _ = upkeep.await;
        let _ = sweep.await;
        record.event("stop", "the key server ends in order").await;
        // Lines after the last head could have been written by anyone with the disk.
        if let Err(error) = state.audit.head().await {
            tracing::warn!(%error, "the end of the audit log could not be signed");
        }
        if let Some(shipper) = shipper.and_then(Arc::into_inner) {
            let durable = state.audit.durable();
            let finished = tokio::task::spawn_blocking(move || shipper.finish(durable, LAST_LINES_WAIT));
            if !finished.await.unwrap_or_default() {
                tracing::warn!(
                    "the collector has not confirmed the end of the audit log; it is sent at the next start"
                );
            }
        }
        served.map_err(Into::into)
    }
}

/// Converts a listening socket to the runtime's type.
fn unix_listener(socket: OwnedFd) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn listen(address: SocketAddr, what: &'static str) -> Result<TcpListener, ProcessError> {
    TcpListener::bind(address).await.map_err(|error| ProcessError::Listen { address, what, error })
}
