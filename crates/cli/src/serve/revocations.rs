//! What the key server has revoked, as this machine hears of it: a host refuses the control plane's
//! certificates that are, and the control plane those of hosts.
//!
//! A handshake cannot ask, so a thread does, all the time. What it has heard is in a file, so that
//! a restart while the key server is away admits nobody who was refused before.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_files::FileError;
use strongroom_jobs::state_file;
use strongroom_keyserver::authority::enrol::Client;
use strongroom_keyserver::authority::enrol::protocol::RevocationsResponse;
use strongroom_keyserver::authority::peer::Revocations;

use crate::error::CliError;
use crate::keyserver::{ClientFiles, read_certificates};

/// The interval of questions. A revocation is in force on a host this much later, and on open
/// connections a minute after that.
const ASKED_EVERY: Duration = Duration::from_secs(30);
/// The format of the file.
const FORMAT: u32 = 1;

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Heard {
    format: u32,
    revoked: RevocationsResponse,
}

/// Asks the key server.
pub struct RevocationWatch {
    /// The certificate that this machine asks with.
    pub files: ClientFiles,
    /// The key server.
    pub key_server: Client,
    /// Where what was heard is kept.
    pub file: PathBuf,
}

impl RevocationWatch {
    /// Asks while the process runs.
    pub fn start(self) -> Result<Arc<Revocations>, CliError> {
        let known = match state_file::read::<Heard>(&self.file, FORMAT) {
            Ok(heard) => heard.revoked,
            Err(error) if error.kind() == io::ErrorKind::NotFound => RevocationsResponse::default(),
            Err(error) => {
                return Err(CliError::File(FileError { action: "read", path: self.file, error }));
            }
        };
        let revocations = Arc::new(Revocations::asked_for(known));
        let told = Arc::clone(&revocations);
        let ask = move || {
            loop {
                if let Err(error) = self.ask(&told) {
                    tracing::debug!("the key server does not say what is revoked: {error}");
                }
                std::thread::sleep(ASKED_EVERY);
            }
        };
        // It ends with the process.
        let started = std::thread::Builder::new().name("revocations".to_owned()).spawn(ask);
        started.map(|_| revocations).map_err(CliError::Runtime)
    }

    fn ask(&self, told: &Revocations) -> Result<(), CliError> {
        let authorities = read_certificates(&self.files.ca)?;
        let (certificate, key) = (self.files.read_certificate()?, self.files.read_key()?);
        let revoked = self.key_server.revocations(&authorities, certificate, &key)?;
        if told.hear(revoked.clone()) {
            tracing::info!("the key server has revoked certificates");
            state_file::replace(&self.file, &Heard { format: FORMAT, revoked })?;
        }
        Ok(())
    }
}
