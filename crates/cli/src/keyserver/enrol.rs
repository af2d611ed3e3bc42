//! `strongroom keyserver enrol`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_keyserver::authority::enrol::token::EnrolmentToken;
use strongroom_keyserver::authority::enrol::{CertificateResponse, Client};
use strongroom_keyserver::root::read_descriptor;

use super::administration::Administrator;
use super::certificates::{ClientFiles, NewKey};
use crate::error::CliError;
use crate::output::{Output, utc};

/// At which server, by which token, and where to.
#[derive(Debug, Args)]
#[command(
    after_help = "The private key is made here and stays here. The server proves to be the one that the token was made by before the \
token is shown to it.

Examples:
  strongroom keyserver enrol --server kms1:5697 --token-fd 3 --into /etc/strongroom/kms 3<token
  strongroom keyserver enrol --server kms1:5697 --renew --into /etc/strongroom/kms"
)]
pub struct EnrolArguments {
    /// The server's enrolment port
    #[arg(long, value_name = "HOST:PORT")]
    server: String,

    /// Read the token from file descriptor N
    #[arg(long, value_name = "N", required_unless_present = "renew")]
    token_fd: Option<u32>,

    /// Get the next certificate under the present one
    #[arg(long, conflicts_with = "token_fd")]
    renew: bool,

    /// The directory for ca.pem, cert.pem and key.pem
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
}

#[derive(Serialize)]
struct Enrolled {
    client: String,
    name: String,
    role: String,
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
    not_after_unix_seconds: i64,
}

impl EnrolArguments {
    /// Enrols.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let files = ClientFiles::in_directory(&self.into);
        let key = NewKey::generate()?;
        let response = match self.token_fd {
            Some(number) => self.by_token(number, &files, &key)?,
            None => Administrator::new(&self.server, &files)?.renew(&key.signing_request)?,
        };
        files.write(&key, &response.certificate, &response.authorities)?;
        output.answer(&Enrolled {
            client: response.client.to_string(),
            name: response.name.to_string(),
            role: response.role.to_string(),
            certificate: files.certificate,
            key: files.key,
            authorities: files.ca,
            not_after_unix_seconds: response.not_after.unix_timestamp(),
        })
    }

    fn by_token(
        &self,
        number: u32,
        files: &ClientFiles,
        key: &NewKey,
    ) -> Result<CertificateResponse, CliError> {
        if files.are_there() {
            return Err(CliError::Usage(format!(
                "{} has a certificate already; renew it with --renew, or choose another directory",
                self.into.display()
            )));
        }
        let text = read_descriptor(number)?;
        let malformed = |_| CliError::Usage("the token is no text; copy it again, whole".to_owned());
        let text = std::str::from_utf8(text.expose()).map_err(malformed)?;
        let token = EnrolmentToken::read(text).map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(Client::new(&self.server)?.enrol(&token, &key.signing_request)?)
    }
}

impl fmt::Display for Enrolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = u64::try_from(self.not_after_unix_seconds).unwrap_or_default();
        writeln!(f, "{} is enrolled as {} ({}) until {}", self.name, self.role, self.client, utc(until))?;
        writeln!(f, "  certificate  {}", self.certificate.display())?;
        writeln!(f, "  key          {}", self.key.display())?;
        write!(f, "  authorities  {}", self.authorities.display())
    }
}
