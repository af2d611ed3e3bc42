//! The identities of this machine's roles at its key server: one certificate per role, made when it
//! is first needed and renewed before it expires.
//!
//! ```text
//! <home>/control/identity/{ca,cert,key}.pem     role control: has keys made, signs grants
//! <home>/control/auditor/{ca,cert,key}.pem      role auditor: checks for backups of the key server
//! <home>/hostd/identity/{ca,cert,key}.pem       role host: fetches keys under grants
//! <home>/{control,hostd}/key-providers/embedded.json    the key server, as each of them reaches it
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

use strongroom_hostd::daemon::config::HostConfig;
use strongroom_keys::ProviderName;
use strongroom_keyserver::access::KnownClient;
use strongroom_keyserver::access::{ClientId, ClientName, Role};
use strongroom_keyserver::authority::enrol::Client;
use strongroom_keyserver::authority::enrol::token::EnrolmentToken;
use strongroom_keyserver::management::questions::{Clients, CreateToken};
use strongroom_providers::{
    DEFAULT_REQUEST_TIMEOUT_MS, EMBEDDED, KmipConfig, ProviderConfig, Registry, RegistryError, SourceConfig,
};
use time::OffsetDateTime;

use crate::error::CliError;
use crate::keyserver::{Administrator, ClientFiles, NewKey, RENEW_BEFORE, ServerSettings};

/// How long a token between the key server and this process is valid, in seconds.
const TOKEN_SECONDS: u32 = 300;

/// The directory of this machine's client certificate, in its home.
const LOCAL_DIRECTORY: &str = "key-providers/embedded";

/// One role of this machine.
#[derive(Clone, Debug)]
pub struct Identity {
    role: Role,
    name: ClientName,
    home: PathBuf,
    directory: &'static str,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (role {})", self.name, self.role)
    }
}

impl Identity {
    /// The identity of the control plane, whose home is `home`.
    pub fn control(home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Control, "control", home, "identity")
    }

    /// The identity of the control plane as an auditor, which only reads.
    pub fn auditor(home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Auditor, "control-auditor", home, "auditor")
    }

    /// The identity of this machine as a client, for volumes that do not belong to a VM.
    fn local(home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Client, "local", home, LOCAL_DIRECTORY)
    }

    /// Registers the key server as a key provider of this machine again if it was removed and the
    /// certificate of its keys' owner still exists.
    pub fn bring_back_local(home: &Path, server: &ServerSettings) -> Result<(), CliError> {
        let (local, name) = (Self::local(home)?, embedded()?);
        let found = Registry::of_home(home).get(&name);
        match found {
            Err(RegistryError::Unknown { .. }) if local.files().are_there() => {
                tracing::info!("key provider {name} is set up again: it was removed");
                local.register(server)
            }
            Err(RegistryError::Unknown { .. }) => {
                tracing::warn!(
                    "key provider {name} is missing, and so is its certificate in {LOCAL_DIRECTORY}"
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The identity of this machine as a host called `name`, whose home is `home`.
    pub fn host(name: &str, home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Host, name, home, "identity")
    }

    fn new(role: Role, name: &str, home: &Path, directory: &'static str) -> Result<Self, CliError> {
        let name = name.parse().map_err(|error| CliError::Usage(format!("{error}")))?;
        Ok(Self { role, name, home: home.to_owned(), directory })
    }

    /// The directory of its certificate and key.
    pub fn directory(&self) -> PathBuf {
        self.home.join(self.directory)
    }

    /// Its certificate and key.
    pub fn files(&self) -> ClientFiles {
        ClientFiles::in_directory(&self.directory())
    }

    /// Ensures that it has a certificate that is valid for some time, and that it knows the key
    /// server whose state is in `directory`. Returns whether the certificate changed.
    pub fn ensure(&self, server: &ServerSettings, directory: &Path) -> Result<bool, CliError> {
        let mut is_new = true;
        let (files, key_server) = (self.files(), server.administration(directory)?);
        if !files.are_there() {
            let administrator = ClientFiles::in_directory(&directory.join("admin"));
            let administrator = Administrator::new(key_server.clone(), &administrator)?;
            let question = CreateToken {
                client: self.known_as(administrator.ask(Clients {})?),
                name: self.name.clone(),
                role: self.role,
                valid_seconds: Some(TOKEN_SECONDS),
                public_key: None,
                certificate_days: None,
            };
            let answer = administrator.ask(question)?;
            let token = EnrolmentToken::read(answer.token.as_str());
            let token = token.map_err(|error| CliError::Usage(error.to_string()))?;
            let key = NewKey::generate()?;
            let enrolled = key_server.enrol(&token, &key.signing_request)?;
            files.write(&key, &enrolled.certificate, &enrolled.authorities)?;
        } else {
            is_new = self.renew_if_due(key_server)?;
        }
        if self.role != Role::Auditor {
            self.register(server)?;
        }
        Ok(is_new)
    }

    /// Renews its certificate, under another key, if it expires soon. Returns whether it did.
    pub fn renew_if_due(&self, key_server: Client) -> Result<bool, CliError> {
        let files = self.files();
        if files.not_after()? >= OffsetDateTime::now_utc() + RENEW_BEFORE {
            return Ok(false);
        }
        let key = NewKey::generate()?;
        let renewed = Administrator::new(key_server, &files)?.renew(&key.signing_request)?;
        files.write(&key, &renewed.certificate, &renewed.authorities)?;
        Ok(true)
    }

    /// The client that it was before its files were lost: it owns keys, or gets those of its VMs.
    /// `None` for a host that does not have the name by its own configuration, because others may
    /// have it.
    fn known_as(&self, clients: Vec<KnownClient>) -> Option<ClientId> {
        let has_name = |config: HostConfig| config.name == self.name.as_str();
        if self.role == Role::Host && !HostConfig::of_home(&self.home).is_ok_and(has_name) {
            return None;
        }
        let is_this =
            |client: &KnownClient| !client.is_revoked && client.name == self.name && client.role == self.role;
        let mut known = clients.into_iter().filter(is_this);
        known.next().filter(|_| known.next().is_none()).map(|client| client.id)
    }

    /// Registers the key server as its key provider.
    fn register(&self, server: &ServerSettings) -> Result<(), CliError> {
        self.register_at(&server.listen.to_string(), server.names.first().cloned())
    }

    /// Registers the key server at this address as its key provider; its certificate has this name.
    pub fn register_at(&self, kmip: &str, server_name: Option<String>) -> Result<(), CliError> {
        let registry = Registry::of_home(&self.home);
        let name = embedded()?;
        let files = self.files();
        let kmip = KmipConfig {
            servers: vec![kmip.to_owned()],
            ca: files.ca,
            certificate: files.certificate,
            key: files.key,
            server_name,
            request_timeout_ms: DEFAULT_REQUEST_TIMEOUT_MS,
            named_keys: true,
        };
        let mut config = ProviderConfig::new(SourceConfig::Embedded(kmip));
        match registry.get(&name) {
            Ok(found) if found.source == config.source => return Ok(()),
            // The server's address has changed, or how it is asked.
            Ok(found) => {
                config = ProviderConfig { source: config.source, ..found };
                registry.remove(&name)?;
            }
            Err(RegistryError::Unknown { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(registry.add(&name, &config)?)
    }
}

fn embedded() -> Result<ProviderName, CliError> {
    EMBEDDED.parse().map_err(|error| CliError::Usage(format!("{error}")))
}
