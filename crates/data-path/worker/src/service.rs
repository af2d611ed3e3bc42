//! A worker's frontend, to which clients connect, on threads that are started before the sandbox is
//! closed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;
use strongroom_filters::park::{ParkDisk, Patience};
use strongroom_filters::qos::{Limits, QosDisk};
use strongroom_frontend::listen::{ListenError, Listener};
use strongroom_frontend::nbd::{
    self, Export, Identity, IdentityError, LANE_DEPTH, NbdConfig, NbdServer, TlsConfig, TlsError,
};
use strongroom_frontend::vhost_user_blk::{
    self, ResumeError, Suspended, SuspendedState, VhostUserConfig, VhostUserServer,
};
use strongroom_io::{Disk, IoError, Plain};
use strongroom_ring::{Lanes, RingError};
use strongroom_statistics::Recorders;
use thiserror::Error;

use crate::birth::{BirthError, BirthSocket, Frontend, Tls};
use crate::condition::Teller;
use crate::destaging;
use strongroom_confine::{SandboxError, deny_system_calls};

/// The reasons why clients cannot be served.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The listening socket is not valid.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There are no threads, or no event loops for them.
    #[error(transparent)]
    Lanes(#[from] RingError),
    /// The filter of system calls cannot be installed.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// NBD does not start.
    #[error(transparent)]
    Nbd(#[from] nbd::StartError),
    /// vhost-user does not start.
    #[error(transparent)]
    VhostUser(#[from] vhost_user_blk::StartError),
    /// vhost-user cannot resume a predecessor's sessions.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The sessions of a predecessor are invalid.
    #[error("the sessions of the worker before cannot be read: {0}")]
    Sessions(#[source] serde_json::Error),
    /// TLS cannot be offered.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An identity to admit is invalid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The communication with the supervisor failed.
    #[error(transparent)]
    Birth(#[from] BirthError),
    /// There is no event for the threads to report trouble.
    #[error("cannot make an event: {0}")]
    Event(#[source] IoError),
    /// The service did not end in order.
    #[error("{0}")]
    Stop(String),
}

/// A frontend that is set up, but without threads.
pub struct Prepared {
    kind: Kind,
    listener: OwnedFd,
    recorders: Recorders,
    limits: Limits,
    teller: Teller,
}

#[derive(Clone)]
enum Kind {
    Nbd(NbdConfig),
    VhostUser(VhostUserConfig),
}

/// A frontend with its threads, before it has a disk to serve.
pub struct Service {
    kind: Kind,
    listener: OwnedFd,
    /// What clients ask for is counted here.
    pub recorders: Recorders,
    /// What clients ask for is kept within these.
    pub limits: Limits,
    lanes: Lanes,
    /// For the destaging of the layer, and for a merge of layers.
    pub destage_lanes: Lanes,
    /// Reports the volume's condition.
    pub teller: Teller,
}

/// A frontend that serves.
pub enum Serving {
    /// NBD.
    Nbd(NbdServer),
    /// vhost-user.
    VhostUser(VhostUserServer),
}

impl Service {
    /// Sets up the frontend that the supervisor ordered. The private key of TLS is received over
    /// the socket.
    pub fn prepare(
        frontend: Frontend,
        listener: OwnedFd,
        recorders: Recorders,
        limits: Limits,
        socket: &BirthSocket<io::Stdin>,
    ) -> Result<Prepared, ServiceError> {
        let teller = Teller::new().map_err(ServiceError::Event)?;
        let kind = match frontend {
            Frontend::Nbd { export, tls } => {
                let tls = tls.map(|tls| receive_tls(tls, socket)).transpose()?;
                let export = Export { name: export, description: String::new() };
                let recorders = recorders.clone();
                Kind::Nbd(NbdConfig { tls, recorders, ..NbdConfig::new(export) })
            }
            Frontend::VhostUser { serial, queues_max } => {
                let (book, recorders) = (Arc::clone(teller.book()), recorders.clone());
                Kind::VhostUser(VhostUserConfig {
                    queues_max,
                    book,
                    recorders,
                    limits: limits.clone(),
                    ..VhostUserConfig::new(&serial)
                })
            }
        };
        Ok(Prepared { kind, listener, recorders, limits, teller })
    }

    /// Serves `disk`, from the start or from where a predecessor was suspended. When it returns,
    /// clients are served.
    pub fn serve(
        &self,
        disk: Arc<dyn Disk<Plain>>,
        sessions: Option<Value>,
        files: Vec<OwnedFd>,
    ) -> Result<Serving, ServiceError> {
        let listener = Listener::adopt(self.listener.try_clone().map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            ListenError::Inherited(errno)
        })?)?;
        let lanes = self.lanes.clone();
        // The former worker no longer serves.
        self.recorders.begin();
        match (&self.kind, sessions) {
            (Kind::Nbd(config), _) => {
                // The protocol has an error for lack of room, so no request waits for room.
                let disk = Arc::new(ParkDisk::new(disk, Patience::None, Arc::clone(self.teller.book())));
                let disk = Arc::new(QosDisk::new(disk, self.limits.clone()));
                Ok(Serving::Nbd(NbdServer::start(config.clone(), listener, disk, lanes)?))
            }
            (Kind::VhostUser(config), None) => {
                Ok(Serving::VhostUser(VhostUserServer::start(config.clone(), listener, disk, lanes)?))
            }
            (Kind::VhostUser(config), Some(sessions)) => {
                let state: SuspendedState =
                    serde_json::from_value(sessions).map_err(ServiceError::Sessions)?;
                let suspended = Suspended { state, files };
                let server = VhostUserServer::resume(config.clone(), listener, disk, lanes, suspended)?;
                Ok(Serving::VhostUser(server))
            }
        }
    }
}

impl Prepared {
    /// Starts all threads, and then denies every system call that they do not need.
    pub fn start_threads(self) -> Result<Service, ServiceError> {
        let Self { kind, listener, recorders, limits, teller } = self;
        let lanes = match &kind {
            Kind::Nbd(config) => Lanes::start("nbd", config.lanes(), LANE_DEPTH)?,
            Kind::VhostUser(config) => Lanes::start("vhost-user", config.lanes(), LANE_DEPTH)?,
        };
        let destage_lanes = destaging::lanes()?;
        deny_system_calls()?;
        Ok(Service { kind, listener, recorders, limits, lanes, destage_lanes, teller })
    }
}

impl Serving {
    /// Announces a new size to guests, if the protocol can; NBD clients learn it when they connect.
    pub fn announce_size(&self) {
        match self {
            Self::Nbd(_) => {}
            Self::VhostUser(server) => server.announce_config(),
        }
    }

    /// Drains. Returns the state and files that a successor needs to resume the sessions. NBD
    /// sessions end after a flush; their clients reconnect and repeat unanswered requests.
    pub fn suspend(self) -> Result<(Option<Value>, Vec<OwnedFd>), String> {
        match self {
            Self::Nbd(server) => {
                server.hand_over().map_err(|error| error.to_string())?;
                Ok((None, Vec::new()))
            }
            Self::VhostUser(server) => {
                let Suspended { state, files } = server.suspend().map_err(|error| error.to_string())?;
                let state = serde_json::to_value(state).map_err(|error| error.to_string())?;
                Ok((Some(state), files))
            }
        }
    }

    /// Drains and flushes for the next worker: clients that reconnect only see a pause.
    pub fn close(self) -> Result<(), String> {
        match self {
            Self::Nbd(server) => server.hand_over().map_err(|error| error.to_string()),
            Self::VhostUser(server) => server.retire().map_err(|error| error.to_string()),
        }
    }

    /// Drains, refuses new requests, and flushes.
    pub fn stop(self) -> Result<(), String> {
        match self {
            Self::Nbd(server) => server.stop().map_err(|error| error.to_string()),
            Self::VhostUser(server) => server.retire().map_err(|error| error.to_string()),
        }
    }
}

fn receive_tls(tls: Tls, socket: &BirthSocket<io::Stdin>) -> Result<TlsConfig, ServiceError> {
    let Tls { certificates, authorities, admitted } = tls;
    let admitted: Result<Vec<Identity>, IdentityError> = admitted.iter().map(|text| text.parse()).collect();
    let key = socket.receive_secret()?;
    Ok(TlsConfig::from_pem(certificates.as_bytes(), key.expose(), authorities.as_bytes(), admitted?)?)
}
