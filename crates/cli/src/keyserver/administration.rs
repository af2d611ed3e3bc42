//! Requests to a running server, with an administrator's or a control plane's certificate.

use std::path::{Path, PathBuf};

use clap::Args;
use rustls::pki_types::CertificateDer;
use strongroom_jobs::inventory::Overseer;
use strongroom_keyserver::access::{CertificateSha256, Role};
use strongroom_keyserver::authority::{claimed_identity, enrol};
use strongroom_keyserver::grant::GrantSigner;
use strongroom_keyserver::management::questions::Ask;
use strongroom_memory::secret::SecretBytes;

use super::certificates::{ClientFiles, read_certificates};
use super::directory::{DirectoryArguments, ServerSettings};
use crate::api::{Api, ApiArguments};
use crate::error::CliError;

/// The server, and the identity of the requests.
#[derive(Debug, Args)]
pub struct AdministrationArguments {
    #[command(flatten)]
    directory: DirectoryArguments,

    /// Enrolment port of the server [default: the socket of the key server in the home]
    #[arg(long, value_name = "HOST:PORT", requires = "identity")]
    server: Option<String>,

    /// Directory with ca.pem, cert.pem and key.pem of the identity to use [default: the
    /// administrator's, `admin` in the key server's state]
    #[arg(long, value_name = "DIR")]
    identity: Option<PathBuf>,
}

/// An administrator at a server.
pub struct Administrator {
    client: enrol::Client,
    authorities: Vec<CertificateDer<'static>>,
    certificate: CertificateDer<'static>,
    key: SecretBytes,
}

impl AdministrationArguments {
    /// The home, which may not exist yet.
    pub fn home(&self) -> Result<PathBuf, CliError> {
        self.directory.home.path()
    }

    /// Whether a server or administrator other than those of the home was given.
    pub fn is_given(&self) -> bool {
        self.server.is_some() || self.identity.is_some()
    }

    /// The identity that may ask the home's own key server about every key; `None` if another
    /// server was given, or if the home has no such identity.
    pub fn overseer(&self) -> Option<Overseer> {
        let directory = self.directory.path().ok().filter(|_| self.server.is_none())?;
        overseer_of(&directory, self.files().ok()?)
    }

    /// Reads certificate and key. It sends no request.
    pub fn administrator(&self) -> Result<Administrator, CliError> {
        let files = self.files()?;
        let client = match &self.server {
            Some(server) => enrol::Client::new(server)?,
            None => {
                let directory = self.directory.path()?;
                ServerSettings::read(&directory)?.administration(&directory)?
            }
        };
        Administrator::new(client, &files)
    }

    /// The control plane of the home. It sends no request.
    pub fn control_plane(&self) -> Result<Api, CliError> {
        ApiArguments::of_home(&self.directory.home).connect()
    }

    /// The signer of grants: the key of a control client's certificate. It sends no request.
    pub fn grant_signer(&self) -> Result<GrantSigner, CliError> {
        let files = self.files()?;
        let certificate = files.read_certificate()?;
        let identity = claimed_identity(&certificate);
        match identity.map(|identity| identity.role) {
            Some(Role::Control) => {}
            role => {
                let role = role.map_or_else(String::new, |role| format!(" (this one's role is {role})"));
                return Err(CliError::Usage(format!(
                    "grants are signed by a client of role control{role}; enrol one (`strongroom keyserver token create NAME \
                     --role control`), and give --identity DIR, where its certificate and key are"
                )));
            }
        }
        GrantSigner::new(&files.read_key()?, CertificateSha256::of(&certificate))
            .map_err(|error| CliError::Usage(format!("{}: {error}", files.key.display())))
    }

    fn files(&self) -> Result<ClientFiles, CliError> {
        Ok(match &self.identity {
            Some(identity) => ClientFiles::in_directory(identity),
            None => ClientFiles::in_directory(&self.directory.path()?.join("admin")),
        })
    }
}

/// The administrator of this home's key server, who may ask about every key.
pub fn overseer_of_home(home: &Path) -> Option<Overseer> {
    let directory = home.join("keyserver");
    overseer_of(&directory, ClientFiles::in_directory(&directory.join("admin")))
}

/// The administrator of this home's key server, to ask it; `None` if the home has none.
pub fn administrator_of_home(home: &Path) -> Result<Option<Administrator>, CliError> {
    let directory = home.join("keyserver");
    let files = ClientFiles::in_directory(&directory.join("admin"));
    if !files.are_there() {
        return Ok(None);
    }
    let client = ServerSettings::read(&directory)?.administration(&directory)?;
    Administrator::new(client, &files).map(Some)
}

fn overseer_of(directory: &Path, files: ClientFiles) -> Option<Overseer> {
    let server = ServerSettings::read(directory).ok()?.listen.to_string();
    let is_there = files.are_there();
    let ClientFiles { ca, certificate, key } = files;
    is_there.then_some(Overseer { server, ca, certificate, key })
}

impl Administrator {
    /// The owner of these files, at this server.
    pub fn new(client: enrol::Client, files: &ClientFiles) -> Result<Self, CliError> {
        Ok(Self {
            client,
            authorities: read_certificates(&files.ca)?,
            certificate: files.read_certificate()?,
            key: files.read_key()?,
        })
    }

    /// Sends a request.
    pub fn ask<Q: Ask>(&self, question: Q) -> Result<Q::Answer, CliError> {
        Ok(self.client.manage(&self.authorities, self.certificate.clone(), &self.key, question)?)
    }

    /// Requests another certificate, for the key of this signing request.
    pub fn renew(&self, signing_request: &str) -> Result<enrol::CertificateResponse, CliError> {
        Ok(self.client.renew(&self.authorities, self.certificate.clone(), &self.key, signing_request)?)
    }
}
