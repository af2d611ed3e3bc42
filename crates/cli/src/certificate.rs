//! `strongroom certificate`: a certificate of the API from an authority of the site. The commands
//! work on files of the control plane's home, for root or the user that `serve` runs as.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_control::certificate::{self, CHAIN_BYTES_MAX, CertificateError, Description};
use strongroom_files::FileError;

use crate::api::{CERTIFICATE_FILE, CONTROL_DIRECTORY, show};
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::{Output, utc};

/// The commands for the certificate of the API.
#[derive(Debug, Subcommand)]
pub enum CertificateCommand {
    /// Print a request for a certificate with these names, for an authority
    Request(RequestArguments),
    /// Install the certificate that was issued for the request; it is served at once
    Install(InstallArguments),
    /// Show the API's certificates
    #[command(after_help = "Example:\n  strongroom certificate show")]
    Show(HomeOnly),
    /// Remove the installed certificate, and go on with the API's own
    #[command(after_help = "Example:\n  strongroom certificate remove")]
    Remove(HomeOnly),
}

/// The arguments of `request`.
#[derive(Debug, Args)]
#[command(
    after_help = "The key stays on this machine, and a request before this one cannot be answered any more. Clients that go to an \
address or to localhost see the API's own certificate as before, so what they have pinned stays.

Example:
  strongroom certificate request strongroom.example.com > api.csr"
)]
pub struct RequestArguments {
    /// Name in DNS by which clients reach the API; repeatable
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    home: HomeArguments,
}

/// The arguments of `install`.
#[derive(Debug, Args)]
#[command(
    after_help = "The file has the certificate first, then those of its authorities. It is refused if it is not for the key of the \
request, if its time is over, or if the chain does not verify for each of its names.

Example:
  strongroom certificate install api-chain.pem"
)]
pub struct InstallArguments {
    /// File with the chain, PEM
    file: PathBuf,

    #[command(flatten)]
    home: HomeArguments,
}

/// The arguments of commands without others.
#[derive(Debug, Args)]
pub struct HomeOnly {
    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Shown {
    names: Vec<String>,
    issuer: String,
    expires_unix_seconds: u64,
    sha256: String,
}

impl From<Description> for Shown {
    fn from(description: Description) -> Self {
        let Description { names, issuer, expires_unix_seconds, sha256 } = description;
        Self { names, issuer, expires_unix_seconds, sha256 }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { names, issuer, expires_unix_seconds, sha256 } = self;
        let (names, ends) = (names.join(", "), utc(*expires_unix_seconds));
        write!(f, "  names    {names}\n  issuer   {issuer}\n  ends     {ends}\n  SHA-256  {sha256}")
    }
}

#[derive(Serialize)]
struct Both {
    own: Shown,
    installed: Option<Shown>,
}

impl fmt::Display for Both {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its own, for addresses and localhost\n{}", self.own)?;
        match &self.installed {
            Some(installed) => write!(f, "\ninstalled\n{installed}"),
            None => write!(f, "\nnone is installed; `strongroom certificate request` makes a request"),
        }
    }
}

#[derive(Serialize)]
struct Request {
    request: String,
}

fn refused(error: CertificateError) -> CliError {
    match error {
        CertificateError::File { path, error } => CliError::File(FileError { action: "use", path, error }),
        error => CliError::Usage(error.to_string()),
    }
}

impl CertificateCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let control = |home: &HomeArguments| Ok::<_, CliError>(home.path()?.join(CONTROL_DIRECTORY));
        match self {
            Self::Request(RequestArguments { names, home }) => {
                let control = control(home)?;
                if !control.is_dir() {
                    return Err(CliError::Usage(format!(
                        "no control plane was started here ({} is not there): start one with `strongroom serve`",
                        control.display()
                    )));
                }
                let request = certificate::request(&control, names).map_err(refused)?;
                let text = request.trim_end().to_owned();
                show(output, Request { request }, text)
            }
            Self::Install(InstallArguments { file, home }) => {
                let chain = strongroom_files::read(file, CHAIN_BYTES_MAX).map_err(|error| {
                    CliError::File(FileError { action: "read", path: file.clone(), error })
                })?;
                let installed = certificate::install(&control(home)?, &chain).map_err(refused)?;
                let names = installed.names.join(", ");
                let text = format!(
                    "the certificate for {names} is installed until {}; other names and addresses have the API's own",
                    utc(installed.expires_unix_seconds)
                );
                show(output, Shown::from(installed), text)
            }
            Self::Show(HomeOnly { home }) => {
                let control = control(home)?;
                let path = control.join(CERTIFICATE_FILE);
                let own = strongroom_files::read(&path, CHAIN_BYTES_MAX)
                    .map_err(|error| CliError::File(FileError { action: "read", path, error }))?;
                let own = certificate::describe(&own).map_err(refused)?.into();
                let installed = certificate::installed(&control).map_err(refused)?;
                let installed = installed.map(|installed| installed.description.into());
                output.answer(&Both { own, installed })
            }
            Self::Remove(HomeOnly { home }) => {
                let was_there = certificate::remove(&control(home)?).map_err(refused)?;
                let text = match was_there {
                    true => "the installed certificate is removed",
                    false => "no certificate is installed",
                };
                show(output, strongroom_api::access::Done {}, text)
            }
        }
    }
}
