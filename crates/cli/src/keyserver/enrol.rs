//! `strongroom keyserver enrol`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_files::FileError;
use strongroom_keyserver::authority::enrol::token::EnrolmentToken;
use strongroom_keyserver::authority::enrol::{CertificateResponse, Client};
use strongroom_keyserver::authority::limits::SIGNING_REQUEST_MAX_BYTES;
use strongroom_keyserver::root::read_descriptor;

use super::administration::Administrator;
use super::certificates::{ClientFiles, NewKey};
use crate::error::CliError;
use crate::output::{Output, utc};

/// The arguments of `enrol`.
#[derive(Debug, Args)]
#[command(
    after_help = "The private key is created here and stays here. Before the token is sent, the server \
proves that it is the one that created the token.

Examples:
  strongroom keyserver enrol --server kms1:5697 --token-fd 3 --into /etc/strongroom/kms 3<token
  strongroom keyserver enrol --server kms1:5697 --token-fd 3 --csr vcenter.csr --into vcenter 3<token
  strongroom keyserver enrol --server kms1:5697 --renew --into /etc/strongroom/kms"
)]
pub struct EnrolArguments {
    /// Enrolment port of the server
    #[arg(long, value_name = "HOST:PORT")]
    server: String,

    /// Read the token from file descriptor N
    #[arg(long, value_name = "N", required_unless_present = "renew")]
    token_fd: Option<u32>,

    /// Renew the present certificate
    #[arg(long, conflicts_with = "token_fd")]
    renew: bool,

    /// Signing request (PKCS #10, PEM or DER) of a client that keeps its own key; no key is created
    /// or written
    #[arg(long, value_name = "FILE", conflicts_with = "renew")]
    csr: Option<PathBuf>,

    /// Directory for ca.pem, cert.pem and key.pem
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
}

#[derive(Serialize)]
struct Enrolled {
    client: String,
    name: String,
    role: String,
    certificate: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
    authorities: PathBuf,
    not_after_unix_seconds: i64,
}

impl EnrolArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let files = ClientFiles::in_directory(&self.into);
        let (response, key) = match (&self.csr, self.token_fd) {
            (Some(request), number) => {
                let request = read_request(request)?;
                let response = self.by_token(number.unwrap_or_default(), &files, &request)?;
                files.write_without_key(&response.certificate, &response.authorities)?;
                (response, None)
            }
            (None, number) => {
                let key = NewKey::generate()?;
                let response = match number {
                    Some(number) => self.by_token(number, &files, &key.signing_request)?,
                    None => {
                        Administrator::new(Client::new(&self.server)?, &files)?.renew(&key.signing_request)?
                    }
                };
                files.write(&key, &response.certificate, &response.authorities)?;
                (response, Some(files.key))
            }
        };
        output.answer(&Enrolled {
            client: response.client.to_string(),
            name: response.name.to_string(),
            role: response.role.to_string(),
            certificate: files.certificate,
            key,
            authorities: files.ca,
            not_after_unix_seconds: response.not_after.unix_timestamp(),
        })
    }

    fn by_token(
        &self,
        number: u32,
        files: &ClientFiles,
        signing_request: &str,
    ) -> Result<CertificateResponse, CliError> {
        if files.are_there() || (self.csr.is_some() && files.certificate.exists()) {
            return Err(CliError::Usage(format!(
                "{} has a certificate already; renew it with --renew, or choose another directory",
                self.into.display()
            )));
        }
        let text = read_descriptor(number)?;
        let malformed = |_| CliError::Usage("the token is no text; copy it again, whole".to_owned());
        let text = std::str::from_utf8(text.expose()).map_err(malformed)?;
        let token = EnrolmentToken::read(text).map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(Client::new(&self.server)?.enrol(&token, signing_request)?)
    }
}

/// A signing request in the server's form, PEM.
fn read_request(path: &Path) -> Result<String, CliError> {
    let unreadable = |error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    let bytes = strongroom_files::read(path, SIGNING_REQUEST_MAX_BYTES as u64).map_err(unreadable)?;
    match String::from_utf8(bytes) {
        Ok(text) if text.contains("-----BEGIN") => Ok(text),
        Ok(text) => Ok(pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", text.into_bytes()))),
        Err(der) => Ok(pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", der.into_bytes()))),
    }
}

impl fmt::Display for Enrolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = u64::try_from(self.not_after_unix_seconds).unwrap_or_default();
        writeln!(f, "{} is enrolled as {} ({}) until {}", self.name, self.role, self.client, utc(until))?;
        writeln!(f, "  certificate  {}", self.certificate.display())?;
        if let Some(key) = &self.key {
            writeln!(f, "  key          {}", key.display())?;
        }
        write!(f, "  authorities  {}", self.authorities.display())
    }
}
