//! hostd and the control plane, each in its own process.

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use strongroom_api::{Name, ObjectKind, ObjectRef};
use strongroom_control::engine::Control;
use strongroom_control::host::{Host, Hostd};
use strongroom_control::{ControlConfig, ControlProcess};
use strongroom_courier::Couriers;
use strongroom_files::FileError;
use strongroom_guest_relay::Relay;
use strongroom_host::client::Client;
use strongroom_host::run_directory::HostRunDirectory;
use strongroom_hostd::checks::crypto_safe::CryptoSafeRule;
use strongroom_hostd::daemon::config::HostConfig;
use strongroom_hostd::daemon::{self, DatastoreNotes, Options, PortOptions, RelayProgram, SupervisorProgram};
use strongroom_hypervisor::Launcher;
use strongroom_jobs::datastores::KnownDatastores;
use strongroom_keyserver::access::Role;
use strongroom_keyserver::authority::claimed_identity;
use strongroom_keyserver::authority::peer::ExpectedPeer;
use strongroom_oidc::Providers;
use strongroom_processes::{news_of, recorded};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

use super::Places;
use super::backups::{BackupSettings, SealedBackups};
use super::guest_relay::{BrowsersRelay, GUEST_RELAY_COMMAND};
use super::identity::Identity;
use super::join::Joined;
use super::passwords::Passwords;
use super::peers::{JoiningHere, SitePeer};
use super::relay::RELAY_COMMAND;
use super::revocations::RevocationWatch;
use super::upkeep::{Upkeep, UpkeepOf};
use super::vm_keys::KeyServerKeys;
use crate::api::write_address;
use crate::error::CliError;
use crate::keyserver::ServerSettings;
use crate::output::Output;
use crate::vm_supervisor::{LAUNCHER_COMMAND, SUPERVISOR_COMMAND};
use crate::worker::STORAGE_COMMAND;
use strongroom_rbd::process::StorageProgram;
use strongroom_types::{CephMount, DatastoreId};

/// The interval of checks whether hostd responds.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Serialize)]
struct HostServing {
    host: String,
    socket: PathBuf,
    pid: u32,
}

impl std::fmt::Display for HostServing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {} takes orders at {}", self.host, self.socket.display())
    }
}

/// Records the datastores in the machine's home, for commands that search for the users of a key.
#[derive(Debug)]
struct NotedInHome(KnownDatastores);

impl DatastoreNotes for NotedInHome {
    fn note(&self, path: &Path) -> io::Result<()> {
        self.0.note(path).map_err(|error| io::Error::other(error.to_string()))
    }

    fn note_on_cluster(&self, datastore: DatastoreId, mount: &CephMount) -> io::Result<()> {
        self.0.note_on_cluster(datastore, mount).map_err(|error| io::Error::other(error.to_string()))
    }
}

/// What hostd is to be.
pub struct Hosting<'a> {
    /// The host's name.
    pub name: &'a Name,
    /// The rule for encrypted VMs, if it is to be another one.
    pub crypto_safe: Option<CryptoSafeRule>,
    /// The site that the machine has joined.
    pub joined: Option<&'a Joined>,
    /// The port for clients on other machines, on a machine that has joined none.
    pub listen_guests: Option<SocketAddr>,
}

/// Runs hostd until a signal arrives.
pub fn host(
    output: &Output,
    log: &[OsString],
    places: &Places,
    hosting: &Hosting<'_>,
) -> Result<(), CliError> {
    let Hosting { name, crypto_safe, joined, listen_guests } = *hosting;
    let used = |error| {
        CliError::File(FileError { action: "use the configuration in", path: places.hostd.clone(), error })
    };
    let mut config = HostConfig::of_home(&places.hostd).map_err(used)?;
    let rule = crypto_safe.unwrap_or(config.crypto_safe);
    if config.name != name.as_str() || config.crypto_safe != rule {
        (config.name, config.crypto_safe) = (name.as_str().to_owned(), rule);
        config.write(&places.hostd).map_err(used)?;
    }
    let run = HostRunDirectory::at(&places.run)
        .map_err(|error| CliError::File(FileError { action: "use", path: places.run.clone(), error }))?;
    let path = this_executable()?;
    let command = |name: &str| log.iter().cloned().chain([name.into()]).collect::<Vec<OsString>>();
    let options = Options {
        home: places.hostd.clone(),
        run: places.run.clone(),
        supervisor: SupervisorProgram { path: path.clone(), arguments: command(SUPERVISOR_COMMAND) },
        storage: StorageProgram { path: path.clone(), arguments: command(STORAGE_COMMAND) },
        relay: RelayProgram { path, arguments: relay_command(places, joined, command(RELAY_COMMAND))? },
        launcher: Launcher::this_program(command(LAUNCHER_COMMAND)),
        notes: Arc::new(NotedInHome(KnownDatastores::of_home(&places.home))),
        port: match (joined, listen_guests) {
            (Some(joined), _) => Some(joined.port(&places.hostd)?),
            (None, Some(listen)) => Some(own_port(places, name, listen)?),
            (None, None) => None,
        },
    };
    if let Some(joined) = joined {
        joined.keep_renewed(&places.hostd)?;
    }
    let socket = run.control_socket();
    let serving = HostServing { host: config.name, socket: socket.clone(), pid: std::process::id() };
    block_on(|told| async move {
        let output = *output;
        tokio::spawn(async move {
            let client = Client::new(socket);
            while client.host().await.is_err() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            // If stdout is closed, no reader waits for it.
            let _ = output.answer(&serving);
        });
        daemon::run(options, told).await.map_err(CliError::Hostd)
    })
}

fn this_executable() -> Result<PathBuf, CliError> {
    std::env::current_exe()
        .map_err(|error| CliError::File(FileError { action: "find", path: "/proc/self/exe".into(), error }))
}

/// The names for a new certificate of the API, beside those of this machine: clients on other ones
/// know it by its address.
fn names_of(listen: SocketAddr) -> Vec<String> {
    let ip = Some(listen.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified());
    ip.iter().map(ToString::to_string).collect()
}

/// The command of a relay. The one of a host that has joined a site knows its control plane.
fn relay_command(
    places: &Places,
    joined: Option<&Joined>,
    mut command: Vec<OsString>,
) -> Result<Vec<OsString>, CliError> {
    let files = Identity::control(&places.control)?.files();
    if joined.is_none() && files.are_there() {
        let control = claimed_identity(&files.read_certificate()?);
        command.extend(control.map(|control| format!("--control={}", control.client).into()));
    }
    Ok(command)
}

/// The port of the host that is the control plane's own machine, and so serves clients with tickets
/// alone; the control plane uses the socket.
fn own_port(places: &Places, name: &Name, listen: SocketAddr) -> Result<PortOptions, CliError> {
    let control = Identity::control(&places.control)?.files().read_certificate()?;
    let control = claimed_identity(&control)
        .ok_or_else(|| CliError::Usage("the control plane's certificate names no client".to_owned()))?;
    let expected = ExpectedPeer { role: Role::Control, client: control.client };
    let files = Identity::host(name.as_str(), &places.hostd)?.files();
    Ok(PortOptions { listen, tls: Arc::new(SitePeer::new(files, expected, Arc::default())) })
}

#[derive(Serialize)]
struct ControlServing {
    api: String,
    certificate_sha256: String,
    pid: u32,
}

impl std::fmt::Display for ControlServing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\ncertificate {}", self.api, self.certificate_sha256)
    }
}

/// What the control plane is to be.
pub struct Directing<'a> {
    /// The name of its machine as a host.
    pub name: &'a Name,
    /// The address of the API.
    pub listen: SocketAddr,
    /// Whether each line on stdin reports the end of another process.
    pub news_on_stdin: bool,
    /// What is said about backups of the inventory.
    pub backups: &'a BackupSettings,
}

/// Runs the control plane until a signal arrives. hostd and the key server need not run yet.
pub fn control(
    output: &Output,
    log: &[OsString],
    places: &Places,
    directing: &Directing<'_>,
) -> Result<(), CliError> {
    let Directing { name, listen, news_on_stdin, backups } = *directing;
    let directory = places.home.join("keyserver");
    let key_server = ServerSettings::read(&directory)?.administration(&directory)?;
    let watch = RevocationWatch {
        files: Identity::control(&places.control)?.files(),
        key_server: key_server.clone(),
        file: places.control.join("revoked.json"),
    };
    let revocations = watch.start()?;
    let keys = KeyServerKeys::new(&places.home, &places.control, key_server)?;
    let hostd = Client::new(places.run.join("hostd/control.sock"));
    let program = this_executable()?;
    let relay = Relay::new(program, log.iter().cloned().chain([GUEST_RELAY_COMMAND.into()]).collect());
    block_on(|told| async move {
        let hostd: Arc<dyn Host> = Arc::new(Hostd::new(hostd, Handle::current()));
        let couriers = Couriers::open(&places.control).map_err(|error| {
            CliError::File(FileError { action: "use", path: places.control.clone(), error })
        })?;
        let files = Identity::control(&places.control)?.files();
        let joining = JoiningHere::new(&directory, files, revocations, Handle::current());
        let config = ControlConfig {
            directory: places.control.clone(),
            listen,
            certificate_names: names_of(listen),
            hosts: vec![(name.clone(), hostd)],
            joining: Some(Arc::new(joining)),
            courier: Some(Arc::new(couriers)),
            identity_providers: Some(Arc::new(Providers::of(&places.control))),
            backups: Some(Arc::new(SealedBackups::of(places, backups.clone()))),
            keys: Arc::new(keys),
            passwords: Arc::new(Passwords::default()),
            relay: Some(Arc::new(BrowsersRelay(relay))),
        };
        let process = ControlProcess::bind(config).await.map_err(CliError::ControlPlane)?;
        let api = format!("https://{}", process.address());
        write_address(&places.control, &api)?;
        let certificate_sha256 = process.fingerprint();
        output.answer(&ControlServing { api, certificate_sha256, pid: std::process::id() })?;
        if news_on_stdin {
            hear_of_ends(process.control()).map_err(CliError::Runtime)?;
        }
        let (home, identities) = (places.home.clone(), places.identities(name)?.into());
        let upkeep = Upkeep::start(UpkeepOf { control: process.control(), home, identities });
        let _upkeep = upkeep.map_err(CliError::Runtime)?;
        process.run(told).await.map_err(CliError::ControlPlane)
    })
}

/// Turns reports of `serve` about the other processes into events, in which a person finds the
/// reason of a pause.
fn hear_of_ends(control: Arc<Control>) -> io::Result<()> {
    let hear = move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let object = ObjectRef { kind: ObjectKind::Control, id: None, name: "serve".to_owned() };
            let (number, news) = news_of(&line);
            if let Err(failure) = control.tell("process.restarted", &object, news) {
                tracing::warn!(%failure, "an event cannot be written down");
                continue;
            }
            // `serve` tells it until it hears this: the process may be killed before it writes.
            if let Some(number) = number {
                let _ = writeln!(io::stdout(), "{}", recorded(number));
            }
        }
    };
    // It ends with the process or with `serve`.
    std::thread::Builder::new().name("news".to_owned()).spawn(hear).map(drop)
}

/// Runs `work` on its own runtime; the future that `work` gets is ready when a signal requests the
/// end.
fn block_on<Work: Future<Output = Result<(), CliError>>>(
    work: impl FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) -> Work,
) -> Result<(), CliError> {
    let runtime = tokio::runtime::Runtime::new().map_err(CliError::Runtime)?;
    runtime.block_on(async {
        let caught = |kind| signal(kind).map_err(CliError::Runtime);
        let (mut interrupt, mut terminate, mut hang_up) = (
            caught(SignalKind::interrupt())?,
            caught(SignalKind::terminate())?,
            caught(SignalKind::hangup())?,
        );
        work(Box::pin(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
        }))
        .await
    })
}
