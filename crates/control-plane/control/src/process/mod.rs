//! The control plane as a process: its state directory, its threads, its server.

mod restoration;
mod state;
mod threads;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use strongroom_api::Name;
use strongroom_types::unix_milliseconds_now;
use tokio::net::TcpListener;

use crate::backup::Backups;
use crate::courier::Courier;
use crate::engine::{Clock, Control};
use crate::guest_relay::GuestRelay;
use crate::host::Host;
use crate::identity::IdentityProviders;
use crate::inventory::Failure;
use crate::joining::Joining;
use crate::keys::VmKeys;
use crate::passwords::PasswordHash;
use crate::server;

pub use restoration::{Restoration, RestorationError};
pub use state::StateError;
use tls::{ApiTls, TlsError};

/// The default address of the API: reachable from this machine only.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:5690";

/// The interval between looks for another installed certificate.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);

/// The configuration of a control plane.
pub struct ControlConfig {
    /// Its state directory, `<home>/control`. Created if it does not exist.
    pub directory: PathBuf,
    /// The address of the API.
    pub listen: SocketAddr,
    /// Names and addresses for the API's certificate, beside this machine's loopback.
    pub certificate_names: Vec<String>,
    /// The hosts.
    pub hosts: Vec<(Name, Arc<dyn Host>)>,
    /// Lets other machines join as hosts.
    pub joining: Option<Arc<dyn Joining>>,
    /// Carries messages about alarms to recipients.
    pub courier: Option<Arc<dyn Courier>>,
    /// Asks identity providers.
    pub identity_providers: Option<Arc<dyn IdentityProviders>>,
    /// Seals backups of the inventory.
    pub backups: Option<Arc<dyn Backups>>,
    /// Requests keys and signs grants.
    pub keys: Arc<dyn VmKeys>,
    /// Hashes users' passwords.
    pub passwords: Arc<dyn PasswordHash>,
    /// Carries guest data for browsers.
    pub relay: Option<Arc<dyn GuestRelay>>,
}

/// Why a control plane cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The state directory failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The inventory failed.
    #[error("the inventory cannot be opened: {0}")]
    Inventory(#[from] Failure),
    /// The API's certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The port cannot be opened.
    #[error("cannot listen on {address}: {error}; is another control plane running there?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        error: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// A control plane that listens, but does not serve yet.
pub struct ControlProcess {
    control: Arc<Control>,
    listener: TcpListener,
    address: SocketAddr,
    tls: ApiTls,
    passwords: Arc<dyn PasswordHash>,
    relay: Option<Arc<dyn GuestRelay>>,
}

impl ControlProcess {
    /// Opens the state and listens. The first call creates the state, with a token in `token` and a
    /// certificate in `api.crt`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn bind(config: ControlConfig) -> Result<Self, ControlError> {
        let ControlConfig {
            directory,
            listen,
            certificate_names,
            hosts,
            joining,
            courier,
            identity_providers,
            backups,
            keys,
            passwords,
            relay,
        } = config;
        let clock: Clock = Arc::new(unix_milliseconds_now);
        // The store reads its whole file, and providers are queried.
        let opened = tokio::task::spawn_blocking(move || {
            let store = state::open(&directory)?;
            let tls = ApiTls::open(&directory, &certificate_names)?;
            let control = Control::open(store, hosts, keys, clock)?;
            if let Some(joining) = joining {
                control.let_join(joining);
            }
            if let Some(courier) = courier {
                control.send_with(courier);
            }
            if let Some(backups) = backups {
                control.back_up_with(backups);
            }
            if let Some(providers) = identity_providers {
                control.identify_with(providers);
            }
            state::first_token(&directory, &control)?;
            Ok::<_, ControlError>((control, tls))
        });
        let opened = opened.await.map_err(|error| ControlError::Thread(std::io::Error::other(error)))?;
        let (control, tls) = opened?;
        control.watch_certificates(tls.certificates());
        let failed = |error| ControlError::Listen { address: listen, error };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let control = Arc::new(control);
        let keys = Arc::clone(&control);
        tls.ask_for_keys_when(move || keys.knows_client_keys());
        Ok(Self { control, listener, address, tls, passwords, relay })
    }

    /// The address of the API; with port 0, the kernel has chosen the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// SHA-256 of the API's certificate in lower-case hexadecimal, for clients to pin.
    pub fn fingerprint(&self) -> String {
        self.tls.fingerprint()
    }

    /// The control plane's logic, for a program that embeds it.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Serves until `stop` completes, and then ends in order: requests in progress are answered,
    /// and tasks continue at the next start.
    ///
    /// # Errors
    /// [`ControlError::Thread`].
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ControlError> {
        let Self { control, listener, tls, passwords, relay, .. } = self;
        let threads = threads::Threads::start(&control).map_err(ControlError::Thread)?;
        tracing::info!(address = %self.address, fingerprint = %tls.fingerprint(), "the control plane serves");
        let (config, tls) = (tls.config(), Arc::new(tls));
        let followed = tokio::spawn(follow_certificate(tls, Arc::clone(&control)));
        server::serve(listener, config, Arc::clone(&control), passwords, relay, stop).await;
        followed.abort();
        control.schedule.end();
        // The threads wait for calls to hosts and the store, which have timeouts.
        let _ = tokio::task::spawn_blocking(move || threads.end()).await;
        Ok(())
    }
}

/// Serves the certificate that is installed while the control plane runs.
async fn follow_certificate(tls: Arc<ApiTls>, control: Arc<Control>) {
    loop {
        tokio::time::sleep(FOLLOW_PAUSE).await;
        let (tls, control) = (Arc::clone(&tls), Arc::clone(&control));
        let followed = tokio::task::spawn_blocking(move || {
            if tls.follow() {
                control.watch_certificates(tls.certificates());
            }
        });
        let _ = followed.await;
    }
}

/// Runs a control plane until `stop` completes.
///
/// # Errors
/// [`ControlError`].
pub async fn run(config: ControlConfig, stop: impl Future<Output = ()>) -> Result<(), ControlError> {
    ControlProcess::bind(config).await?.run(stop).await
}
