//! `strongroom keyserver init`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_keys::ProviderName;
use strongroom_keyserver::access::{ClientName, Role};
use strongroom_keyserver::authority::Authority;
use strongroom_keyserver::process::open_state;
use strongroom_keyserver::root::tpm::TpmError;
use strongroom_keyserver::root::{self, Description, RootError};
use strongroom_keyserver::state::make_directories;
use strongroom_providers::{
    DEFAULT_REQUEST_TIMEOUT_MS, EMBEDDED, KmipConfig, ProviderConfig, Registry, SourceConfig,
};
use time::OffsetDateTime;

use super::certificates::{ClientFiles, NewKey};
use super::directory::{DirectoryArguments, ServerSettings, SettingsArguments};
use super::root::RootArguments;
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `init`.
#[derive(Debug, Args)]
#[command(after_help = "The state directory contains everything that the server needs, sealed under a root \
key. The protection of the root key decides what a copy of the disk reveals: give --tpm, --token, \
--credential or --passphrase. Without any of them the root key is unprotected, which is only for trying \
the server.

Examples:
  strongroom keyserver init --tpm
  strongroom keyserver init --passphrase --name kms1.example.org --listen 10.0.0.5:5696 --listen-enrolment 10.0.0.5:5697")]
pub struct InitArguments {
    #[command(flatten)]
    directory: DirectoryArguments,

    #[command(flatten)]
    root: RootArguments,

    #[command(flatten)]
    settings: SettingsArguments,
}

/// The new key server.
#[derive(Serialize)]
pub struct Made {
    directory: PathBuf,
    root: Description,
    /// SHA-256 of the authority's certificate.
    authority: String,
    /// The first administrator's certificate.
    administrator: PathBuf,
    /// The key provider with which this machine uses the server, unless there was one of that name.
    provider: Option<String>,
}

impl InitArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let made = make(&self.directory, &self.root, &self.settings)?;
        warn(output, &made.root);
        output.answer(&made)
    }
}

/// Prints the weaknesses of a root key's protection.
pub fn warn(output: &Output, root: &Description) {
    for warning in &root.warnings {
        output.remark(&format!("Warning: {warning}"));
    }
}

/// As [`warn`], for the server whose state is in `directory`.
pub fn warn_of_root(output: &Output, directory: &Path) -> Result<(), CliError> {
    warn(
        output,
        &root::describe(directory, root::Access::of_this_service().credentials_directory.as_deref())?,
    );
    Ok(())
}

/// Makes the state of a key server without an explicit protection of the root key: the TPM if one
/// can be used, otherwise none. If a person named a TPM, it is used, or this fails.
pub fn make_unasked(
    arguments: &DirectoryArguments,
    tpm_device: Option<&Path>,
    settings: &SettingsArguments,
) -> Result<Made, CliError> {
    match make(arguments, &RootArguments::sealed_by_tpm(tpm_device.map(Path::to_owned)), settings) {
        Err(CliError::Root(RootError::Tpm(error))) if tpm_device.is_none() => {
            match &error {
                TpmError::Unreachable { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                    tracing::info!("this machine has no TPM to seal the root key by");
                }
                error => tracing::warn!("the root key is not sealed by this machine's TPM: {error}"),
            }
            make(arguments, &RootArguments::default(), settings)
        }
        made => made,
    }
}

/// Makes the state of a key server, and makes this machine its administrator and client. After a
/// crash, a second call continues.
pub fn make(
    arguments: &DirectoryArguments,
    root: &RootArguments,
    settings: &SettingsArguments,
) -> Result<Made, CliError> {
    let directory = arguments.path()?;
    settings.check(&arguments.home)?;
    make_directories(&directory)?;
    let settings = settings.over(ServerSettings::default())?;
    settings.write(&directory)?;
    let key = root.create(&directory)?;
    let state = open_state(&directory, &key, settings.authority(), settings.audit.options())?;
    let administrator = ClientFiles::in_directory(&directory.join("admin"));
    issue(&state.authority, Role::Admin, "admin", &administrator)?;
    let home = arguments.home.path()?;
    let provider = register(&state.authority, &home, &settings)?;
    Ok(Made {
        root: root::describe(&directory, root::Access::of_this_service().credentials_directory.as_deref())?,
        authority: state.authority.fingerprint().to_string(),
        administrator: administrator.certificate,
        provider,
        directory,
    })
}

/// Issues a certificate for a key that is made here.
pub(super) fn issue(
    authority: &Authority,
    role: Role,
    name: &str,
    files: &ClientFiles,
) -> Result<(), CliError> {
    if files.are_there() {
        return Ok(());
    }
    let name: ClientName = name.parse().map_err(|error| CliError::Usage(format!("{error}")))?;
    let key = NewKey::generate()?;
    let now = OffsetDateTime::now_utc();
    let issued = authority.issue(role, &name, key.signing_request.as_bytes(), None, now)?;
    files.write(&key, &issued.record.pem(), &issued.roots_pem())
}

/// Registers the server as a key provider of this machine.
fn register(
    authority: &Authority,
    home: &Path,
    settings: &ServerSettings,
) -> Result<Option<String>, CliError> {
    let registry = Registry::of_home(home);
    let name: ProviderName = EMBEDDED.parse().map_err(strongroom_keys_name)?;
    if registry.get(&name).is_ok() {
        return Ok(None);
    }
    let files = ClientFiles::in_directory(&registry.directory().join(EMBEDDED));
    issue(authority, Role::Client, "local", &files)?;
    let kmip = KmipConfig {
        servers: vec![settings.listen.to_string()],
        ca: files.ca,
        certificate: files.certificate,
        key: files.key,
        server_name: settings.names.first().cloned(),
        request_timeout_ms: DEFAULT_REQUEST_TIMEOUT_MS,
        named_keys: true,
    };
    registry.add(&name, &ProviderConfig::new(SourceConfig::Embedded(kmip)))?;
    Ok(Some(EMBEDDED.to_owned()))
}

/// Saves the server's addresses, and its audit log's settings, for the next `run` and for this
/// machine's clients. A port that the kernel chose is not saved.
pub fn remember(
    home: &Path,
    directory: &Path,
    before: &ServerSettings,
    now: &ServerSettings,
) -> Result<(), CliError> {
    let (listen, listen_enrolment) = (now.listen, now.listen_enrolment);
    let mut settings = before.clone();
    settings.audit = now.audit;
    if listen.port() != 0 && listen_enrolment.port() != 0 {
        (settings.listen, settings.listen_enrolment) = (listen, listen_enrolment);
    }
    if settings == *before {
        return Ok(());
    }
    settings.write(directory)?;
    if settings.listen == before.listen {
        return Ok(());
    }
    let registry = Registry::of_home(home);
    let name: ProviderName = EMBEDDED.parse().map_err(strongroom_keys_name)?;
    let Ok(mut config) = registry.get(&name) else { return Ok(()) };
    // A provider of another server is not changed.
    if let SourceConfig::Embedded(kmip) = &mut config.source
        && kmip.servers == [before.listen.to_string()]
    {
        kmip.servers = vec![listen.to_string()];
        registry.remove(&name)?;
        registry.add(&name, &config)?;
    }
    Ok(())
}

fn strongroom_keys_name(error: strongroom_keys::ProviderNameError) -> CliError {
    CliError::Usage(error.to_string())
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} is a key server's state", self.directory.display())?;
        writeln!(f, "  root key       {} ({})", self.root.protection, self.root.by)?;
        writeln!(f, "  authority      {}", self.authority)?;
        writeln!(f, "  administrator  {}", self.administrator.display())?;
        if let Some(provider) = &self.provider {
            writeln!(f, "  key provider   {provider}")?;
        }
        write!(
            f,
            "\nNext:\n  strongroom keyserver run\n  strongroom volume create ./ds/vm1 --size 20G --key-provider {EMBEDDED}"
        )
    }
}
