//! Who the roles of this machine are at its key server: a certificate each, made when it is first
//! needed and renewed before it ends.
//!
//! ```text
//! <home>/control/identity/{ca,cert,key}.pem     role control: has keys made, signs grants
//! <home>/control/auditor/{ca,cert,key}.pem      role auditor: learns whether the key server is backed up
//! <home>/hostd/identity/{ca,cert,key}.pem       role host: fetches keys under grants
//! <home>/{control,hostd}/key-providers/embedded.json    the key server, as each of them reaches it
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

use strongroom_keys::ProviderName;
use strongroom_keyserver::access::{ClientId, ClientName, Role};
use strongroom_keyserver::authority::enrol::token::EnrolmentToken;
use strongroom_keyserver::management::protocol::ClientAnswer;
use strongroom_keyserver::management::questions::{Clients, CreateToken};
use strongroom_providers::{EMBEDDED, KmipConfig, ProviderConfig, Registry, RegistryError, SourceConfig};
use time::OffsetDateTime;

use crate::error::CliError;
use crate::keyserver::{Administrator, ClientFiles, NewKey, RENEW_BEFORE, ServerSettings};

/// For how long a token lies between the key server and this process, in seconds.
const TOKEN_SECONDS: u32 = 300;

/// How long a key server may take to answer one request, in milliseconds: it is on this machine.
const REQUEST_TIMEOUT_MS: u64 = 2000;

/// Where the certificate of this machine as a client is, in its home.
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
    /// Of the control plane, whose home is `home`.
    pub fn control(home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Control, "control", home, "identity")
    }

    /// Of the control plane, as somebody who only reads.
    pub fn auditor(home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Auditor, "control-auditor", home, "auditor")
    }

    /// Of this machine as a client, whose volumes are no VM's.
    fn local(home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Client, "local", home, LOCAL_DIRECTORY)
    }

    /// Makes the key server a key provider of this machine again, if somebody removed that and the
    /// certificate of the owner of its keys is still there.
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

    /// Of this machine as a host called `name`, whose home is `home`.
    pub fn host(name: &str, home: &Path) -> Result<Self, CliError> {
        Self::new(Role::Host, name, home, "identity")
    }

    fn new(role: Role, name: &str, home: &Path, directory: &'static str) -> Result<Self, CliError> {
        let name = name.parse().map_err(|error| CliError::Usage(format!("{error}")))?;
        Ok(Self { role, name, home: home.to_owned(), directory })
    }

    /// Its certificate and key.
    pub fn files(&self) -> ClientFiles {
        ClientFiles::in_directory(&self.home.join(self.directory))
    }

    /// Sees to it that it has a certificate that is good for some time, and knows the key server
    /// whose state lies in `directory`. Whether its certificate is another one now.
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
        } else if files.not_after()? < OffsetDateTime::now_utc() + RENEW_BEFORE {
            let key = NewKey::generate()?;
            let renewed = Administrator::new(key_server, &files)?.renew(&key.signing_request)?;
            files.write(&key, &renewed.certificate, &renewed.authorities)?;
        } else {
            is_new = false;
        }
        if self.role != Role::Auditor {
            self.register(server)?;
        }
        Ok(is_new)
    }

    /// The client that it was before its files were lost: that one owns the keys. Of hosts, others
    /// may have the name.
    fn known_as(&self, clients: Vec<ClientAnswer>) -> Option<ClientId> {
        if self.role == Role::Host {
            return None;
        }
        let is_this = |client: &ClientAnswer| {
            !client.is_revoked && client.name == self.name && client.role == self.role
        };
        let mut known = clients.into_iter().filter(is_this);
        known.next().filter(|_| known.next().is_none()).map(|client| client.id)
    }

    /// The key server as its key provider.
    fn register(&self, server: &ServerSettings) -> Result<(), CliError> {
        let registry = Registry::of_home(&self.home);
        let name = embedded()?;
        let files = self.files();
        let kmip = KmipConfig {
            servers: vec![server.listen.to_string()],
            ca: files.ca,
            certificate: files.certificate,
            key: files.key,
            server_name: server.names.first().cloned(),
            request_timeout_ms: REQUEST_TIMEOUT_MS,
            named_keys: true,
        };
        let config = ProviderConfig::new(SourceConfig::Embedded(kmip));
        match registry.get(&name) {
            Ok(found) if found.source == config.source => return Ok(()),
            // The server listens elsewhere now.
            Ok(_) => registry.remove(&name)?,
            Err(RegistryError::Unknown { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(registry.add(&name, &config)?)
    }
}

fn embedded() -> Result<ProviderName, CliError> {
    EMBEDDED.parse().map_err(|error| CliError::Usage(format!("{error}")))
}
