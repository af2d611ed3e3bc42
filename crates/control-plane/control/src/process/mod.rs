//! The control plane as a process: its state directory, its threads, its server.

mod state;
mod threads;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use strongroom_api::Name;
use tokio::net::TcpListener;

use crate::engine::unix_ms_now;
use crate::engine::{Clock, Control};
use crate::host::Host;
use crate::inventory::Failure;
use crate::keys::VmKeys;
use crate::server::{self, TlsError};

pub use state::StateError;
pub(crate) use state::write_private;

/// Where the API is served unless somebody says otherwise. This machine alone.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:5690";

/// What a control plane needs.
pub struct ControlConfig {
    /// Its state: `<home>/control`. Made if it is not there.
    pub directory: PathBuf,
    /// Where the API is served.
    pub listen: SocketAddr,
    /// Names and addresses that the API's certificate is for, beside those of this machine's
    /// loopback.
    pub certificate_names: Vec<String>,
    /// The hosts.
    pub hosts: Vec<(Name, Arc<dyn Host>)>,
    /// Who has keys made and signs grants.
    pub keys: Arc<dyn VmKeys>,
}

/// Why a control plane does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Its state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The inventory.
    #[error("the inventory cannot be opened: {0}")]
    Inventory(#[from] Failure),
    /// The API's certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The port.
    #[error("cannot listen on {address}: {error}; is another control plane running there?")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why not.
        error: std::io::Error,
    },
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// A control plane that listens and does not serve yet.
pub struct ControlProcess {
    control: Arc<Control>,
    listener: TcpListener,
    address: SocketAddr,
    tls: server::ApiTls,
}

impl ControlProcess {
    /// Opens the state and listens. The first time it makes the state, with a token in `token` and
    /// a certificate in `api.crt`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn bind(config: ControlConfig) -> Result<Self, ControlError> {
        let ControlConfig { directory, listen, certificate_names, hosts, keys } = config;
        let clock: Clock = Arc::new(unix_ms_now);
        // The store reads its file whole, and providers are asked.
        let opened = tokio::task::spawn_blocking(move || {
            let store = state::open(&directory)?;
            let tls = server::ApiTls::open(&directory, &certificate_names)?;
            let control = Control::open(store, hosts, keys, clock)?;
            state::first_token(&directory, &control)?;
            Ok::<_, ControlError>((control, tls))
        });
        let opened = opened.await.map_err(|error| ControlError::Thread(std::io::Error::other(error)))?;
        let (control, tls) = opened?;
        control.watch_certificate(tls.certificate());
        let failed = |error| ControlError::Listen { address: listen, error };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { control: Arc::new(control), listener, address, tls })
    }

    /// Where the API is served: as it was told, or the kernel's choice where the port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// SHA-256 of the API's certificate, for clients to pin: lower-case hexadecimal.
    pub fn fingerprint(&self) -> String {
        self.tls.fingerprint()
    }

    /// What it does, for whoever runs it within another program.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Serves until `stop` is ready, then ends in order: requests under way are answered, and tasks
    /// go on at the next start.
    ///
    /// # Errors
    /// [`ControlError::Thread`].
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ControlError> {
        let Self { control, listener, tls, .. } = self;
        let threads = threads::Threads::start(&control).map_err(ControlError::Thread)?;
        tracing::info!(address = %self.address, fingerprint = %tls.fingerprint(), "the control plane serves");
        server::serve(listener, tls.config(), Arc::clone(&control), stop).await;
        control.schedule.end();
        // Threads wait for hosts and the store, whose calls end.
        let _ = tokio::task::spawn_blocking(move || threads.end()).await;
        Ok(())
    }
}

/// Runs a control plane until `stop` is ready.
///
/// # Errors
/// [`ControlError`].
pub async fn run(config: ControlConfig, stop: impl Future<Output = ()>) -> Result<(), ControlError> {
    ControlProcess::bind(config).await?.run(stop).await
}
