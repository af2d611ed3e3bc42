//! `strongroom serve`: runs this machine's key server, hostd and control plane, each in its own
//! process.
//!
//! ```text
//! serve -> keyserver run       keys, under certificates and grants alone
//!       -> serve --role host      hostd: VMs, their volumes' processes, QEMU
//!       -> serve --role control   inventory, tasks, API
//! ```
//!
//! This process makes the certificates with which they authenticate each other, starts them in this
//! order, and restarts those that end. It is not the parent of VMs, which keep running while any of
//! these processes is down.

mod backups;
mod config;
mod guest_relay;
mod identity;
mod join;
mod passwords;
mod peers;
mod relay;
mod revocations;
mod roles;
mod upkeep;
mod vm_keys;

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use strongroom_api::datastore::{AddDatastore, Datastore};
use strongroom_api::{Name, Page};
use strongroom_files::FileError;
use strongroom_host::run_directory::HostRunDirectory;
use strongroom_hostd::checks::crypto_safe::CryptoSafeRule;
use strongroom_hostd::daemon::capacity::may_be_used;
use strongroom_hostd::daemon::config::HostConfig;
use strongroom_keyserver::access::CertificateSha256;
use strongroom_keyserver::state::make_directories;
use strongroom_processes::{Address, Alone, Place, Role, RunningRole, Signals, keep};

use self::backups::BackupSettings;
pub use self::backups::FILES as BACKED_UP_FILES;
pub use self::config::ServeConfig;
pub use self::guest_relay::{GUEST_RELAY_COMMAND, GuestRelayArguments};
use self::identity::Identity;
use self::join::{Join, Joined};
pub use self::relay::{RELAY_COMMAND, RelayArguments};
use crate::api::{ApiArguments, CONTROL_DIRECTORY, address, follow};
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::keyserver::{ServerSettings, parse_address, warn_of_root};
use crate::output::Output;
use crate::readiness;

/// hostd's directory in the home.
const HOSTD_DIRECTORY: &str = "hostd";

/// The names of the key server and the control plane in the log.
const KEYSERVER: &str = "keyserver";
const CONTROL: &str = "control";

/// The environment variable with the run directory.
const RUN_VARIABLE: &str = "STRONGROOM_RUN";

/// The default address of the API: only this machine.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5690);

/// The arguments of `serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Runs in the foreground. When everything is ready, the first line on stdout is the \
address of the API, and of the page for browsers. SIGTERM, SIGINT (Control-C) and SIGHUP end it; VMs keep running, and the next \
'serve' takes them over.

Options can also be in a file: that of --config, or /etc/strongroom/strongroom.conf unless a home is \
given. The command line takes precedence.

The first start creates everything that is needed: the key server with a root key that the TPM seals, or \
that is unprotected if no TPM is usable (run 'keyserver init' first to choose the protection), \
certificates, and a first access token for the other commands, in a file that only its owner can read.

Examples:
  mkdir -p /srv/vms
  strongroom serve --datastore vms=/srv/vms
  strongroom serve --listen 10.0.0.5:5690 --name host1
  strongroom serve --listen-kmip 10.0.0.5:5696 --listen-enrolment 10.0.0.5:5697

On another machine, with a token of 'strongroom host token' on the first one:
  strongroom serve --role host --join 10.0.0.5:5697 --token-file token")]
pub struct ServeArguments {
    /// Run only one of the processes, on a machine that a complete 'serve' has set up
    #[arg(long, value_enum)]
    role: Option<RoleArgument>,

    /// Configuration file, with one option per line, as in: listen = 10.0.0.5:5690
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address of the API [default: 127.0.0.1:5690]; with --join, that of hostd [default: that of
    /// the token]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    listen: Option<SocketAddr>,

    /// Name of this machine as a host [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,

    /// Use the existing directory DIR as datastore NAME; repeatable
    #[arg(long = "datastore", value_name = "NAME=DIR", value_parser = parse_datastore)]
    datastores: Vec<NamedDatastore>,

    /// Directory for run-time files [default: STRONGROOM_RUN, or /run/strongroom (root) or a
    /// directory in XDG_RUNTIME_DIR]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,

    /// Address of a new key server's KMIP port [default: 127.0.0.1:5696]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    listen_kmip: Option<SocketAddr>,

    /// Address of a new key server's enrolment port [default: 127.0.0.1:5697]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    listen_enrolment: Option<SocketAddr>,

    /// Address of this host's port for consoles, screens, images and dumps of its VMs on other
    /// machines, as clients reach it, such as 10.0.0.5:5691 [default: none]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_guests)]
    listen_guests: Option<SocketAddr>,

    #[command(flatten)]
    backups: BackupSettings,

    /// Whether to refuse VMs with encrypted disks while this machine can write memory to a disk
    /// unencrypted (swap, kdump, hibernation): required or advised; saved [initially: required]
    #[arg(long, value_name = "RULE", value_parser = parse_crypto_safe)]
    crypto_safe: Option<CryptoSafeRule>,

    /// With --role host: join the site of another machine as a host; ADDRESS:PORT is that of
    /// enrolment there
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address, requires = "token_file")]
    join: Option<SocketAddr>,

    /// File with the token of `strongroom host token`, for --join
    #[arg(long, value_name = "FILE", requires = "join")]
    token_file: Option<PathBuf>,

    /// For --join: refuse a token of another authority than that with this SHA-256
    #[arg(long, value_name = "SHA256", requires = "join")]
    fingerprint: Option<CertificateSha256>,

    /// For the control plane: each line on stdin reports the end of another process, and becomes an
    /// event
    #[arg(long, hide = true)]
    news_on_stdin: bool,

    #[command(flatten)]
    home: HomeArguments,
}

/// One of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleArgument {
    /// hostd
    Host,
    /// Control plane
    Control,
}

/// A datastore to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDatastore {
    name: Name,
    path: PathBuf,
}

/// The address is told to clients, so it is one.
fn parse_guests(text: &str) -> Result<SocketAddr, String> {
    let address = parse_address(text)?;
    if address.ip().is_unspecified() {
        return Err(format!(
            "'{text}' names this machine to no clients on other machines; say one of its addresses"
        ));
    }
    Ok(address)
}

fn parse_crypto_safe(text: &str) -> Result<CryptoSafeRule, String> {
    match text {
        "required" => Ok(CryptoSafeRule::Required),
        "advised" => Ok(CryptoSafeRule::Advised),
        _ => Err(format!("'{text}' is neither of required or advised")),
    }
}

fn parse_datastore(text: &str) -> Result<NamedDatastore, String> {
    let (name, path) = text.split_once('=').ok_or("write NAME=DIR, as in vms=/srv/vms")?;
    let name = Name::new(name).map_err(|error| error.to_string())?;
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    Ok(NamedDatastore { name, path })
}

#[derive(Serialize)]
struct Serving {
    api: String,
    token_file: PathBuf,
    home: PathBuf,
    run: PathBuf,
    pid: u32,
    keyserver_pid: Option<u32>,
    hostd_pid: Option<u32>,
    control_pid: Option<u32>,
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n\nStrongroom serves until Control-C or SIGTERM. VMs run on. The page is at {}/, for a browser. \
             The first token is in {}. Next, in another terminal:\n  \
             mkdir -p vms && strongroom datastore add vms ./vms\n  strongroom vm create web1 --memory 2G --disk 20G --image debian.qcow2\n  \
             strongroom vm start web1 && strongroom vm console web1",
            self.api,
            self.api,
            self.token_file.display()
        )
    }
}

/// The directories of this machine.
#[derive(Clone, Debug)]
pub struct Places {
    /// The home.
    pub home: PathBuf,
    /// The control plane's home.
    pub control: PathBuf,
    /// hostd's home.
    pub hostd: PathBuf,
    /// The run directory, for files that are needed only while processes run.
    pub run: PathBuf,
}

impl Places {
    /// The directories of a home, with the given run directory or the default one.
    pub fn of(home: &HomeArguments, run: Option<&Path>) -> Result<Self, CliError> {
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .map_err(|error| CliError::File(FileError { action: "find", path: path.to_owned(), error }))
        };
        let home = absolute(&home.path()?)?;
        let named = || std::env::var_os(RUN_VARIABLE).map(PathBuf::from);
        let own = || {
            let runtime =
                std::env::var_os("XDG_RUNTIME_DIR").map(|runtime| Path::new(&runtime).join("strongroom"));
            runtime.unwrap_or_else(|| home.join("run"))
        };
        let usual = || if rustix::process::geteuid().is_root() { "/run/strongroom".into() } else { own() };
        let run = absolute(&run.map(Path::to_owned).or_else(named).unwrap_or_else(usual))?;
        Ok(Self { control: home.join(CONTROL_DIRECTORY), hostd: home.join(HOSTD_DIRECTORY), home, run })
    }

    /// The identities of this machine at its key server; as a host it is called `name`.
    pub fn identities(&self, name: &Name) -> Result<[Identity; 3], CliError> {
        Ok([
            Identity::control(&self.control)?,
            Identity::auditor(&self.control)?,
            Identity::host(name.as_str(), &self.hostd)?,
        ])
    }
}

impl ServeArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output, log: &[OsString]) -> Result<(), CliError> {
        // A role gets all options from the main process.
        let all = if self.role.is_none() { &self.completed()? } else { self };
        let places = all.places()?;
        match self.role {
            Some(RoleArgument::Host) => {
                let joined = self.joined(output, &places)?;
                let name = match &joined {
                    Some(joined) => {
                        Name::new(&joined.name).map_err(|error| CliError::Usage(error.to_string()))?
                    }
                    None => self.host_name()?,
                };
                let hosting = roles::Hosting {
                    name: &name,
                    crypto_safe: self.crypto_safe,
                    joined: joined.as_ref(),
                    listen_guests: self.listen_guests,
                };
                roles::host(output, log, &places, &hosting)
            }
            None | Some(RoleArgument::Control) if self.join.is_some() => {
                Err(CliError::Usage("a machine joins as a host alone: add --role host".to_owned()))
            }
            None => all.run_all(output, log, &places, &all.host_name()?),
            Some(RoleArgument::Control) => {
                let directing = roles::Directing {
                    name: &self.host_name()?,
                    listen: self.listen(),
                    news_on_stdin: self.news_on_stdin,
                    backups: &self.backups,
                };
                roles::control(output, log, &places, &directing)
            }
        }
    }

    /// The site that this machine has joined, or joins now.
    fn joined(&self, output: &Output, places: &Places) -> Result<Option<Joined>, CliError> {
        match (self.join, &self.token_file) {
            (Some(server), Some(token)) => {
                let (token, fingerprint) = (token.clone(), self.fingerprint);
                let join = Join { server, token, fingerprint, listen: self.listen };
                join.run(output, places).map(Some)
            }
            _ => Joined::of_home(&places.hostd),
        }
    }

    fn listen(&self) -> SocketAddr {
        self.listen.unwrap_or(LISTEN_DEFAULT)
    }

    /// Adds the options of the configuration file.
    fn completed(&self) -> Result<Self, CliError> {
        let ours = self.clone();
        if self.config.is_none() && self.home.is_named() {
            return Ok(ours);
        }
        let ServeConfig {
            listen,
            name,
            mut datastores,
            run,
            listen_kmip,
            listen_enrolment,
            listen_guests,
            backups,
            crypto_safe,
            provides_keys: _,
        } = ServeConfig::read(self.config.as_deref())?;
        datastores.retain(|said| ours.datastores.iter().all(|one| one.name != said.name));
        datastores.extend(ours.datastores);
        Ok(Self {
            listen: ours.listen.or(listen),
            name: ours.name.or(name),
            datastores,
            run: ours.run.or(run),
            listen_kmip: ours.listen_kmip.or(listen_kmip),
            listen_enrolment: ours.listen_enrolment.or(listen_enrolment),
            listen_guests: ours.listen_guests.or(listen_guests),
            backups: ours.backups.clone().or(backups),
            crypto_safe: ours.crypto_safe.or(crypto_safe),
            ..ours
        })
    }

    fn run_all(
        &self,
        output: &Output,
        log: &[OsString],
        places: &Places,
        name: &Name,
    ) -> Result<(), CliError> {
        self.look_for_datastores(output, places)?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let _alone = self.be_alone(places, &signals, *output)?;
        let program = std::env::current_exe().map_err(|error| {
            CliError::File(FileError { action: "find", path: "/proc/self/exe".into(), error })
        })?;
        let role = |name, arguments: Vec<OsString>| {
            let ours = ["--ends-with".into(), std::process::id().to_string().into(), "--json".into()];
            let arguments = log.iter().cloned().chain(ours).chain(arguments).collect();
            Role {
                name,
                program: program.clone(),
                arguments,
                hears: name == CONTROL,
                asks: name == KEYSERVER,
            }
        };
        let keyserver = RunningRole::start(role(KEYSERVER, self.keyserver(&places.home)), &signals)?;
        warn_of_root(output, &places.home.join("keyserver"))?;
        self.enrol(places, name)?;
        let own = |role: &str| {
            let mut arguments = vec!["serve".into(), "--role".into(), role.into()];
            arguments.extend(["--name".into(), name.as_str().into()]);
            arguments.extend(["--home".into(), places.home.clone().into_os_string()]);
            arguments.extend(["--run".into(), places.run.clone().into_os_string()]);
            arguments
        };
        let mut arguments = own("host");
        if let Some(rule) = self.crypto_safe {
            arguments.extend(["--crypto-safe".into(), rule.as_str().into()]);
        }
        if let Some(listen) = self.listen_guests {
            arguments.extend(["--listen-guests".into(), listen.to_string().into()]);
        }
        let hostd = RunningRole::start(role("hostd", arguments), &signals)?;
        let mut arguments = own("control");
        arguments.push("--news-on-stdin".into());
        arguments.extend(["--listen".into(), self.listen().to_string().into()]);
        arguments.extend(self.backups.arguments());
        let control = RunningRole::start(role(CONTROL, arguments), &signals)?;
        self.add_datastores(output)?;
        output.answer(&Serving {
            api: address(&places.control)?,
            token_file: places.control.join("token"),
            home: places.home.clone(),
            run: places.run.clone(),
            pid: std::process::id(),
            keyserver_pid: keyserver.id(),
            hostd_pid: hostd.id(),
            control_pid: control.id(),
        })?;
        readiness::tell("READY=1");
        // They are dropped in this order, so that each ends before the ones that it depends on.
        let mut roles = [control, hostd, keyserver];
        let kept = keep(&mut roles, &signals);
        readiness::tell("STOPPING=1");
        Ok(kept?)
    }

    /// Creates and locks the directories, and checks that the addresses are free.
    fn be_alone(&self, places: &Places, signals: &Signals, output: Output) -> Result<Alone, CliError> {
        make_directories(&places.home)?;
        HostRunDirectory::at(&places.run)
            .map_err(|error| CliError::File(FileError { action: "use", path: places.run.clone(), error }))?;
        let own = [
            Place { what: "home", directory: &places.home, option: "--home" },
            Place { what: "run directory", directory: &places.run, option: "--run" },
        ];
        let addresses = self.addresses(&places.home);
        Ok(Alone::take(&own, &addresses, signals, &|text| output.remark(text))?)
    }

    /// The addresses of this machine; settings that the key server does not have yet are those that
    /// it will get.
    fn addresses(&self, home: &Path) -> Vec<Address> {
        let known = ServerSettings::read(&home.join("keyserver")).unwrap_or_default();
        let kmip = self.listen_kmip.unwrap_or(known.listen);
        let enrolment = self.listen_enrolment.unwrap_or(known.listen_enrolment);
        let guests = self.listen_guests;
        let guests = guests.map(|address| Address { address, of: "guests", option: "--listen-guests" });
        [
            Address { address: self.listen(), of: "the API", option: "--listen" },
            Address { address: kmip, of: "KMIP", option: "--listen-kmip" },
            Address { address: enrolment, of: "enrolment", option: "--listen-enrolment" },
        ]
        .into_iter()
        .chain(guests)
        .collect()
    }

    fn keyserver(&self, home: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["keyserver".into(), "run".into()];
        arguments.extend(["--home".into(), home.into()]);
        for (option, address) in
            [("--listen", self.listen_kmip), ("--listen-enrolment", self.listen_enrolment)]
        {
            arguments
                .extend(address.into_iter().flat_map(|address| [option.into(), address.to_string().into()]));
        }
        // Other machines reach it by its addresses, which its certificate has to name.
        let known = ServerSettings::read(&home.join("keyserver")).unwrap_or_default().names;
        let addresses = [self.listen_kmip, self.listen_enrolment].into_iter().flatten().map(|at| at.ip());
        let mut named: Vec<String> =
            addresses.filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string()).collect();
        named.dedup();
        named.retain(|name| !known.contains(name));
        if !named.is_empty() {
            for name in known.into_iter().chain(named) {
                arguments.extend(["--name".into(), name.into()]);
            }
        }
        arguments
    }

    /// Refuses a new datastore whose directory is missing, before any change. A known datastore
    /// that is missing must not block the VMs in others.
    fn look_for_datastores(&self, output: &Output, places: &Places) -> Result<(), CliError> {
        let used = |error| {
            CliError::File(FileError {
                action: "use the configuration in",
                path: places.hostd.clone(),
                error,
            })
        };
        let known = HostConfig::of_home(&places.hostd).map_err(used)?;
        for NamedDatastore { name, path } in &self.datastores {
            let known = known.datastore(path);
            let Err(problem) = may_be_used(path, known) else { continue };
            if known.is_none() {
                return Err(CliError::Usage(format!("datastore {name}: {problem}")));
            }
            output.remark(&format!("datastore {name}: {problem}"));
        }
        Ok(())
    }

    /// Adds the named directories that are not datastores yet.
    fn add_datastores(&self, output: &Output) -> Result<(), CliError> {
        if self.datastores.is_empty() {
            return Ok(());
        }
        let api = ApiArguments::of_home(&self.home).connect()?;
        let known: Page<Datastore> = api.get("/v1/datastores")?;
        for NamedDatastore { name, path } in &self.datastores {
            if known.items.iter().any(|one| one.name == *name && Path::new(&one.path) == path) {
                continue;
            }
            let text = path.to_str().ok_or_else(|| {
                CliError::Usage(format!("{} is not UTF-8, as a datastore's path has to be", path.display()))
            })?;
            let wish =
                AddDatastore { name: name.clone(), path: Some(text.to_owned()), ceph: None, host: None };
            let task = api.post("/v1/datastores", &wish)?;
            follow(&api, output, "adding a datastore", task)?;
        }
        Ok(())
    }

    /// Ensures that control plane and hostd have certificates of the key server.
    fn enrol(&self, places: &Places, name: &Name) -> Result<(), CliError> {
        let directory = places.home.join("keyserver");
        let mut server = ServerSettings::read(&directory)?;
        server.listen = self.listen_kmip.unwrap_or(server.listen);
        server.listen_enrolment = self.listen_enrolment.unwrap_or(server.listen_enrolment);
        for identity in places.identities(name)? {
            identity.ensure(&server, &directory)?;
        }
        Identity::bring_back_local(&places.home, &server)?;
        Ok(())
    }

    fn places(&self) -> Result<Places, CliError> {
        Places::of(&self.home, self.run.as_deref())
    }

    fn host_name(&self) -> Result<Name, CliError> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let system = rustix::system::uname();
        let name = system.nodename().to_string_lossy().into_owned();
        Name::new(name).map_err(|error| {
            CliError::Usage(format!(
                "this machine's host name cannot be a host's name here ({error}): give --name NAME"
            ))
        })
    }
}
