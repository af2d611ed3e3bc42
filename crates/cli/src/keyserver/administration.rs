//! Asking a server that runs, under an administrator's certificate.

use std::path::PathBuf;

use clap::Args;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::de::DeserializeOwned;
use strongroom_keyserver::authority::enrol;
use strongroom_keyserver::management::protocol::Question;
use strongroom_memory::secret::SecretBytes;
use zeroize::{Zeroize, Zeroizing};

use super::certificates::ClientFiles;
use super::directory::{DirectoryArguments, ServerSettings};
use crate::error::CliError;

/// Which server, and as whom.
#[derive(Debug, Args)]
pub struct AdministrationArguments {
    #[command(flatten)]
    directory: DirectoryArguments,

    /// The server's enrolment port; by default that of the key server in the home
    #[arg(long, value_name = "HOST:PORT", requires = "identity")]
    server: Option<String>,

    /// Where the administrator's ca.pem, cert.pem and key.pem are; by default `admin` in the key server's state
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
    /// Reads what it takes to ask. Nothing is asked yet.
    pub fn administrator(&self) -> Result<Administrator, CliError> {
        let files = match &self.identity {
            Some(identity) => ClientFiles::in_directory(identity),
            None => ClientFiles::in_directory(&self.directory.path()?.join("admin")),
        };
        let server = match &self.server {
            Some(server) => server.clone(),
            None => ServerSettings::read(&self.directory.path()?)?.listen_enrolment.to_string(),
        };
        Administrator::new(&server, &files)
    }
}

impl Administrator {
    /// Whoever has these files, at this server.
    pub fn new(server: &str, files: &ClientFiles) -> Result<Self, CliError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| CliError::File { action: "read", path: path.clone(), error })
        };
        let certificates = |path: &PathBuf| -> Result<Vec<CertificateDer<'static>>, CliError> {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
            all.map_err(|error| CliError::Usage(format!("{} holds no certificates: {error}", path.display())))
        };
        let none = || CliError::Usage(format!("{} holds no certificate", files.certificate.display()));
        Ok(Self {
            client: enrol::Client::new(server)?,
            authorities: certificates(&files.ca)?,
            certificate: certificates(&files.certificate)?.into_iter().next().ok_or_else(none)?,
            key: read_key(&files.key, Zeroizing::new(read(&files.key)?))?,
        })
    }

    /// Asks.
    pub fn ask<Answer: DeserializeOwned + Send>(&self, question: &Question) -> Result<Answer, CliError> {
        Ok(self.client.manage(&self.authorities, (self.certificate.clone(), &self.key), question)?)
    }

    /// Asks for another certificate, for the key of this request.
    pub fn renew(&self, signing_request: &str) -> Result<enrol::CertificateResponse, CliError> {
        Ok(self.client.renew(&self.authorities, (self.certificate.clone(), &self.key), signing_request)?)
    }
}

/// The PKCS#8 of a key file that this program wrote.
fn read_key(path: &std::path::Path, content: Zeroizing<Vec<u8>>) -> Result<SecretBytes, CliError> {
    let none = || CliError::Usage(format!("{} holds no private key in PKCS#8", path.display()));
    let text = std::str::from_utf8(&content).map_err(|_| none())?;
    let document = pem::parse(text).map_err(|_| none())?;
    if document.tag() != "PRIVATE KEY" {
        return Err(none());
    }
    let mut bytes = document.into_contents();
    let key = SecretBytes::from_slice_and_wipe(&mut bytes);
    bytes.zeroize();
    Ok(key?)
}
