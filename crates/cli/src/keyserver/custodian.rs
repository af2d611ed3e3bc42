//! `strongroom keyserver custodian`: for the people who together open a backup. It runs on their
//! own machines, without a server.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_files::FileError;
use strongroom_keyserver::backup::{CustodianKey, Header, read_header};
use strongroom_types::hex;
use zeroize::Zeroizing;

use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// The commands for custodians.
#[derive(Debug, Subcommand)]
pub enum CustodianCommand {
    /// List the custodians of a backup, and how many are needed to open it
    List(ListArguments),
    /// Open your share of a backup, for a restore
    OpenShare(OpenShareArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver custodian list kms.backup")]
pub struct ListArguments {
    /// File of the backup
    backup: PathBuf,
}

/// The arguments of `open-share`.
#[derive(Debug, Args)]
#[command(
    after_help = "The share is one line of text. It is as secret as the private key, and valid only for \
this backup: take it to the restore, and keep no copy. If the private key is on a smart card or has a \
passphrase, open the share with OpenSSL (docs/KEYS.md).

Example:
  strongroom keyserver custodian open-share kms.backup --key ada.key > ada.share"
)]
pub struct OpenShareArguments {
    /// File of the backup
    backup: PathBuf,

    /// Private key of the custodian, PEM without a passphrase
    #[arg(long, value_name = "PRIVATE")]
    key: PathBuf,
}

/// The public description of a backup.
#[derive(Serialize)]
struct Listed {
    id: String,
    created_unix_seconds: u64,
    threshold: u8,
    custodians: Vec<Holder>,
}

#[derive(Serialize)]
struct Holder {
    index: u8,
    name: String,
    /// SHA-256 of the public key's SubjectPublicKeyInfo.
    key_sha256: String,
}

/// An opened share.
#[derive(Serialize)]
struct Opened {
    custodian: String,
    share: Zeroizing<String>,
}

impl CustodianCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(ListArguments { backup }) => output.answer(&Listed::of(&read_header(backup)?)),
            Self::OpenShare(arguments) => output.answer(&arguments.open()?),
        }
    }
}

impl OpenShareArguments {
    fn open(&self) -> Result<Opened, CliError> {
        let failed = |error| CliError::File(FileError { action: "read", path: self.key.clone(), error });
        let pem = Zeroizing::new(std::fs::read(&self.key).map_err(failed)?);
        let key = CustodianKey::from_pem(&pem)?;
        let header = read_header(&self.backup)?;
        let (holder, share) = key.open_share(&header)?;
        let share = std::str::from_utf8(share.expose()).map(str::to_owned).map(Zeroizing::new);
        let no_text =
            |_| CliError::Unsound("what the key opens is no share: the backup's header was changed".into());
        Ok(Opened { custodian: holder.name.to_string(), share: share.map_err(no_text)? })
    }
}

impl Listed {
    fn of(header: &Header) -> Self {
        let holders = header.custodians.iter().map(|holder| Holder {
            index: holder.index,
            name: holder.name.to_string(),
            key_sha256: hex::encode(&holder.key_sha256),
        });
        Self {
            id: header.id.to_string(),
            created_unix_seconds: header.created_unix_seconds,
            threshold: header.threshold,
            custodians: holders.collect(),
        }
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "backup {} of {}", self.id, utc(self.created_unix_seconds))?;
        writeln!(f, "{} of these open it:\n", self.threshold)?;
        let row =
            |holder: &Holder| [holder.index.to_string(), holder.name.clone(), holder.key_sha256.clone()];
        Table { head: ["NUMBER", "NAME", "KEY"], rows: self.custodians.iter().map(row).collect() }.fmt(f)
    }
}

impl fmt::Display for Opened {
    /// The share alone, so that it can be redirected to a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.share)
    }
}
