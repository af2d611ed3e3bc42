//! `strongroom key-provider add`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use serde::Serialize;
use strongroom_files::FileError;
use strongroom_keys::{OnRevocation, ProviderName};
use strongroom_providers::{
    DEFAULT_REQUEST_TIMEOUT_MS, FailedProvider, KmipConfig, LeaseConfig, ProviderConfig, Registry,
    SourceConfig, VaultConfig, VaultLogin, open,
};

use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::Output;

/// Which provider.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("source").required(true).args(["kmip", "embedded", "vault"]),
    after_help = "Stores paths and names, never a key or token: the files are read whenever they are \
needed, and may be replaced. No server is contacted; `key-provider test` does that.

Examples:
  strongroom key-provider add corp --kmip kms1:5696 --kmip kms2:5696 --ca ca.pem --cert host.pem --key host.key
  strongroom key-provider add vault --vault https://vault:8200 --ca ca.pem --vault-key strongroom --token-file token
  strongroom volume create ./ds/vm1 --size 20G --key-provider corp"
)]
pub struct AddArguments {
    /// Name of the key provider: a-z, 0-9 and -
    name: ProviderName,

    /// Address of a KMIP server, HOST or HOST:PORT; repeatable for a cluster, the preferred server
    /// first
    #[arg(long, value_name = "SERVER")]
    kmip: Vec<String>,

    /// Address of an embedded key server, HOST or HOST:PORT
    #[arg(long, value_name = "SERVER")]
    embedded: Option<String>,

    /// URL of a HashiCorp Vault or OpenBao with a transit engine, https://HOST:PORT
    #[arg(long, value_name = "URL", requires = "vault_key")]
    vault: Option<String>,

    /// PEM file of the authorities that sign the servers' certificates
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,

    /// PEM file of this machine's certificate
    #[arg(long, value_name = "FILE", required_unless_present = "vault", conflicts_with = "vault")]
    cert: Option<PathBuf>,

    /// PEM file of this machine's private key
    #[arg(long, value_name = "FILE", required_unless_present = "vault", conflicts_with = "vault")]
    key: Option<PathBuf>,

    /// Name in the servers' certificates, if it is not the host's
    #[arg(long, value_name = "NAME", conflicts_with = "vault")]
    server_name: Option<String>,

    /// Create keys without names, for servers that do not support them; an interrupted creation
    /// then leaves a key behind
    #[arg(long, conflicts_with = "vault")]
    unnamed_keys: bool,

    #[command(flatten)]
    transit: TransitArguments,

    /// Timeout of one request to one server, in milliseconds
    #[arg(long, value_name = "N", default_value_t = DEFAULT_REQUEST_TIMEOUT_MS)]
    request_timeout_ms: u64,

    /// Lease of a key: how long it may be held after the provider last confirmed it, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LeaseConfig::default().lease_seconds)]
    lease: u64,

    /// Extension of the lease while the provider cannot be reached, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LeaseConfig::default().outage_allowance_seconds)]
    outage_allowance: u64,

    /// Interval at which the provider is asked to confirm a held key, in seconds; a revocation
    /// takes effect within this time and 10 seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LeaseConfig::default().renew_seconds)]
    renew: u64,

    /// Action on a volume in use when its key is revoked as compromised, or destroyed; the key is
    /// wiped in any case
    #[arg(long, value_enum, value_name = "ACTION", default_value_t)]
    on_revocation: WhenRevoked,

    /// Age at which a key is due for rotation, in days
    #[arg(long, value_name = "DAYS")]
    cryptoperiod: Option<u32>,

    #[command(flatten)]
    home: HomeArguments,
}

/// [`OnRevocation`] on the command line.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum WhenRevoked {
    /// Keep serving it; it cannot be opened again
    #[default]
    KeepServing,
    /// Close it in order
    Stop,
}

impl From<WhenRevoked> for OnRevocation {
    fn from(when: WhenRevoked) -> Self {
        match when {
            WhenRevoked::KeepServing => Self::KeepServing,
            WhenRevoked::Stop => Self::Stop,
        }
    }
}

#[derive(Debug, Args)]
struct TransitArguments {
    /// Transit key that wraps KEKs
    #[arg(long, value_name = "NAME", requires = "vault")]
    vault_key: Option<String>,

    /// Mount path of the transit engine
    #[arg(long, value_name = "PATH", default_value = "transit")]
    vault_mount: String,

    /// Vault namespace
    #[arg(long, value_name = "PATH", requires = "vault")]
    vault_namespace: Option<String>,

    /// File with a token, which another program keeps valid
    #[arg(long, value_name = "FILE", requires = "vault", conflicts_with = "role_id")]
    token_file: Option<PathBuf>,

    /// Role id for logging in with AppRole
    #[arg(long, value_name = "ID", requires_all = ["vault", "secret_id_file"])]
    role_id: Option<String>,

    /// File with the role's secret id
    #[arg(long, value_name = "FILE", requires = "role_id")]
    secret_id_file: Option<PathBuf>,

    /// Mount path of AppRole
    #[arg(long, value_name = "PATH", default_value = "approle")]
    approle_mount: String,
}

#[derive(Serialize)]
struct Added {
    name: ProviderName,
    kind: &'static str,
    servers: Vec<String>,
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "added {} ({}: {})", self.name, self.kind, self.servers.join(", "))
    }
}

impl AddArguments {
    /// Runs the command. It checks all that can be checked without a server.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let config = self.config()?;
        // Opens the TLS files, so that a mistake is reported now.
        open(&config)
            .map_err(|error| CliError::Provider(FailedProvider { name: self.name.clone(), error }))?;
        Registry::of_home(&self.home.path()?).add(&self.name, &config)?;
        output.answer(&Added {
            name: self.name.clone(),
            kind: config.source.kind(),
            servers: config.source.servers(),
        })?;
        output.remark(&format!("try it with: strongroom key-provider test {}", self.name));
        Ok(())
    }

    fn config(&self) -> Result<ProviderConfig, CliError> {
        let source = match (&self.vault, &self.embedded) {
            (Some(url), _) => SourceConfig::Vault(self.transit(url)?),
            (None, Some(server)) => SourceConfig::Embedded(self.cluster(vec![server.clone()])?),
            (None, None) => SourceConfig::Kmip(self.cluster(self.kmip.clone())?),
        };
        Ok(ProviderConfig {
            lease: LeaseConfig {
                lease_seconds: self.lease,
                outage_allowance_seconds: self.outage_allowance,
                renew_seconds: self.renew,
            },
            on_revocation: self.on_revocation.into(),
            cryptoperiod_days: self.cryptoperiod,
            ..ProviderConfig::new(source)
        })
    }

    fn cluster(&self, servers: Vec<String>) -> Result<KmipConfig, CliError> {
        let file = |file: &Option<PathBuf>| match file {
            Some(file) => absolute(file),
            None => Err(CliError::Usage("give --cert FILE and --key FILE".to_owned())),
        };
        Ok(KmipConfig {
            servers,
            ca: absolute(&self.ca)?,
            certificate: file(&self.cert)?,
            key: file(&self.key)?,
            server_name: self.server_name.clone(),
            request_timeout_ms: self.request_timeout_ms,
            named_keys: !self.unnamed_keys,
        })
    }

    fn transit(&self, url: &str) -> Result<VaultConfig, CliError> {
        let transit = &self.transit;
        let login = match (&transit.token_file, &transit.role_id, &transit.secret_id_file) {
            (Some(file), _, _) => VaultLogin::Token { file: absolute(file)? },
            (None, Some(role_id), Some(secret_id_file)) => VaultLogin::AppRole {
                mount: transit.approle_mount.clone(),
                role_id: role_id.clone(),
                secret_id_file: absolute(secret_id_file)?,
            },
            _ => {
                let next = "say how to log in: --token-file FILE, or --role-id ID and --secret-id-file FILE";
                return Err(CliError::Usage(next.to_owned()));
            }
        };
        Ok(VaultConfig {
            url: url.to_owned(),
            ca: absolute(&self.ca)?,
            mount: transit.vault_mount.clone(),
            key: transit.vault_key.clone().unwrap_or_default(),
            namespace: transit.vault_namespace.clone(),
            login,
            request_timeout_ms: self.request_timeout_ms,
        })
    }
}

/// The absolute path, because the configuration is read from other directories.
fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(path)
        .map_err(|error| CliError::File(FileError { action: "find", path: path.to_owned(), error }))
}
