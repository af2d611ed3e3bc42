//! The directory of a key server's state, and its files for the commands.
//!
//! ```text
//! <home>/keyserver/              the state directory (strongroom_keyserver::state)
//!     server.json                its addresses and names
//!     admin/{ca,cert,key}.pem    the first administrator's certificate
//!     administration.sock        the socket of a running server for this machine's requests
//! <home>/key-providers/embedded.json, embedded/{ca,cert,key}.pem     this machine as its client
//! ```

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use strongroom_crypto::module;
use strongroom_files::FileError;
use strongroom_frontend::listen::{Address, ListenError, Listener};
use strongroom_jobs::state_file;
use strongroom_keys::ProviderName;
use strongroom_keyserver::authority::enrol::Client;
use strongroom_keyserver::authority::{KeyTypes, Settings};

use super::audit_settings::{AuditArguments, AuditSettings};
use super::syslog::{SyslogArguments, SyslogSettings};
use super::upstream::BrokeredProviders;
use crate::error::CliError;
use crate::home::HomeArguments;

/// The name of the settings' file.
const SETTINGS_FILE: &str = "server.json";
const SETTINGS_FORMAT: u32 = 1;

/// KMIP's own port (IANA: kmip).
const KMIP_PORT: u16 = 5696;
/// The port for enrolment and administration: the next one.
const ENROLMENT_PORT: u16 = 5697;
/// The name of the socket for administration by this machine, in the state directory.
const ADMINISTRATION_SOCKET: &str = "administration.sock";

/// The key server's state directory.
#[derive(Debug, Args)]
pub struct DirectoryArguments {
    /// Directory of the key server's state [default: `keyserver` in the home]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    #[command(flatten)]
    pub home: HomeArguments,
}

impl DirectoryArguments {
    /// The state directory, absolute.
    pub fn path(&self) -> Result<PathBuf, CliError> {
        match &self.directory {
            Some(directory) => std::path::absolute(directory).map_err(|error| {
                CliError::File(FileError { action: "find", path: directory.clone(), error })
            }),
            None => Ok(self.home.path()?.join("keyserver")),
        }
    }
}

/// The addresses and names of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    format: u32,
    /// The KMIP port.
    pub listen: SocketAddr,
    /// The port for enrolment and administration.
    pub listen_enrolment: SocketAddr,
    /// Names and addresses by which clients reach it, for its certificate.
    pub names: Vec<String>,
    /// The collector of its audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syslog: Option<SyslogSettings>,
    /// The external providers for which it is the broker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub brokered: Vec<ProviderName>,
    /// Rotation and retention of its audit log.
    #[serde(default, skip_serializing_if = "AuditSettings::is_default")]
    pub audit: AuditSettings,
}

/// Parses an address that a server will keep listening on. Its clients store it, so the port must
/// not be chosen by the system.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("'{text}' is no ADDRESS:PORT, as in 10.0.0.5:5690 or [fd00::5]:5690"))?;
    match address.port() {
        0 => Err(format!("port 0 of '{text}' is any port; name the one that clients are to use")),
        _ => Ok(address),
    }
}

/// The settings on the command line.
#[derive(Debug, Args)]
pub struct SettingsArguments {
    /// Address of the KMIP port; saved [initially: 127.0.0.1:5696]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    listen: Option<SocketAddr>,

    /// Address of the port for enrolment and administration; saved [initially: 127.0.0.1:5697]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    listen_enrolment: Option<SocketAddr>,

    /// Name or address of the server, for its certificate; repeatable [default: localhost]
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    syslog: SyslogArguments,

    #[command(flatten)]
    audit: AuditArguments,

    /// Be the broker for key provider NAME of this machine: hosts get its keys from this server,
    /// under grants; repeatable
    #[arg(long = "broker", value_name = "NAME")]
    brokered: Vec<ProviderName>,
}

impl ServerSettings {
    /// The settings of the server's authority.
    pub fn authority(&self) -> Settings {
        let key_types = if module::IS_FIPS_BUILD { KeyTypes::WithoutEd25519 } else { KeyTypes::All };
        Settings { key_types, ..Settings::new(self.names.clone()) }
    }
}

impl SettingsArguments {
    /// Refuses providers for which this server cannot be the broker; called before any change.
    pub fn check(&self, home: &HomeArguments) -> Result<(), CliError> {
        if self.brokered.is_empty() {
            return Ok(());
        }
        BrokeredProviders::new(&home.path()?, self.brokered.clone()).map(drop)
    }

    /// `settings`, overridden by the command line.
    pub fn over(&self, settings: ServerSettings) -> Result<ServerSettings, CliError> {
        let names = match self.names.is_empty() {
            true => settings.names,
            false => self.names.clone(),
        };
        let brokered = match self.brokered.is_empty() {
            true => settings.brokered,
            false => self.brokered.clone(),
        };
        Ok(ServerSettings {
            brokered,
            listen: self.listen.unwrap_or(settings.listen),
            listen_enrolment: self.listen_enrolment.unwrap_or(settings.listen_enrolment),
            names,
            syslog: self.syslog.settings()?.or(settings.syslog),
            audit: self.audit.over(settings.audit)?,
            ..settings
        })
    }
}

impl Default for ServerSettings {
    /// The settings for this machine only.
    fn default() -> Self {
        Self {
            format: SETTINGS_FORMAT,
            listen: SocketAddr::from(([127, 0, 0, 1], KMIP_PORT)),
            listen_enrolment: SocketAddr::from(([127, 0, 0, 1], ENROLMENT_PORT)),
            names: ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec(),
            syslog: None,
            brokered: Vec::new(),
            audit: AuditSettings::default(),
        }
    }
}

impl ServerSettings {
    /// Reads the settings of a state directory.
    pub fn read(directory: &Path) -> Result<Self, CliError> {
        let path = directory.join(SETTINGS_FILE);
        state_file::read(&path, SETTINGS_FORMAT).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CliError::NoKeyserver { directory: directory.to_owned() },
            _ => CliError::File(FileError { action: "read", path, error }),
        })
    }

    /// The client with which commands of this machine reach the server whose state is in
    /// `directory`: by its socket, or by its port if there is none.
    pub fn administration(&self, directory: &Path) -> Result<Client, CliError> {
        let client = Client::new(&self.listen_enrolment.to_string())?;
        Ok(match self.names.first() {
            Some(name) => client.by_socket(&directory.join(ADMINISTRATION_SOCKET), name)?,
            None => client,
        })
    }

    /// Writes the settings.
    pub fn write(&self, directory: &Path) -> Result<(), CliError> {
        Ok(state_file::replace(&directory.join(SETTINGS_FILE), self)?)
    }
}

/// Opens the socket for administration by this machine; `None` if its path is too long, which
/// leaves the port.
pub fn listen_for_administration(directory: &Path) -> Result<Option<Listener>, CliError> {
    match Listener::bind(&Address::Unix(directory.join(ADMINISTRATION_SOCKET))) {
        Ok(listener) => Ok(Some(listener)),
        Err(error @ ListenError::PathTooLong(_)) => {
            tracing::warn!("{error}; this machine is administered by way of the enrolment port");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
