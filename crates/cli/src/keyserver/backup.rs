//! `strongroom keyserver backup`.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::Serialize;
use strongroom_files::FileError;
use strongroom_keyserver::backup::{Arrival, Custodian, CustodianName, Custody, LastBackup};
use strongroom_keyserver::management::protocol::{BackupAnswer, BackupPart, CustodianText, NamedCustody};
use strongroom_keyserver::management::questions::{KeepBackup, MakeBackup, ProposeCustodians, ReadBackup};

use super::administration::{AdministrationArguments, Administrator};
use crate::error::CliError;
use crate::output::{Output, utc};

/// The longest file of a custodian's key: a certificate with a long chain.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// The arguments of `backup`.
#[derive(Debug, Args)]
#[command(after_help = "The server creates the backup while it runs, and sends it encrypted. M of the \
custodians are needed to open it; the server cannot. Custodians are people: each has a private key, and \
provides the public key or certificate as PEM: RSA with at least 3072 bits, P-256 or P-384. Store the \
backup on another machine than the key server.

Example:
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ada.key   # each custodian, on their own machine
  openssl pkey -in ada.key -pubout -out ada.pem
  strongroom keyserver backup /mnt/safe/kms.backup --custodian ada=ada.pem --custodian grace=grace.pem --custodian emmy=emmy.pem \
--threshold 2")]
pub struct BackupArguments {
    /// File to write; must not exist
    #[arg(value_name = "OUT")]
    out: PathBuf,

    /// Custodian, with their public key or certificate; repeatable
    #[arg(long = "custodian", value_name = "NAME=FILE", required = true)]
    custodians: Vec<CustodianArgument>,

    /// Number of custodians needed to open the backup, 2 or more
    #[arg(long, value_name = "M")]
    threshold: u8,

    /// Make no backup, but propose these custodians and this threshold for later ones; another
    /// administrator must confirm it
    #[arg(long)]
    change_custodians: bool,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// `NAME=FILE`: a custodian, and the file of their public key or certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustodianArgument {
    name: CustodianName,
    file: PathBuf,
}

/// A backup that was made.
#[derive(Serialize)]
struct Made {
    file: PathBuf,
    length_bytes: u64,
    #[serde(flatten)]
    backup: LastBackup,
}

/// The custodians that were proposed.
#[derive(Serialize)]
#[serde(transparent)]
struct Proposed(NamedCustody);

impl BackupArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let file = std::path::absolute(&self.out).map_err(failed("find", &self.out))?;
        if file.symlink_metadata().is_ok() {
            return Err(CliError::DestinationExists { path: file });
        }
        let custodians =
            self.custodians.iter().map(CustodianArgument::read).collect::<Result<Vec<_>, _>>()?;
        let (threshold, texts) = (self.threshold, custodians.iter().map(as_text).collect());
        // The server would check this too, but only after its work.
        Custody::new(usize::from(threshold), custodians)?;
        let administrator = self.server.administrator()?;
        if self.change_custodians {
            let question = ProposeCustodians { threshold, custodians: texts };
            let proposed = administrator.ask(question)?;
            return output.answer(&Proposed(proposed));
        }
        let question = MakeBackup { threshold, custodians: texts };
        let answer = administrator.ask(question)?;
        fetch(&administrator, &answer, &file)?;
        // Only now is the backup complete.
        administrator.ask(KeepBackup { id: answer.backup.id })?;
        output.answer(&Made { file, length_bytes: answer.length_bytes, backup: answer.backup })
    }
}

/// Downloads the backup from the server to `path`.
fn fetch(administrator: &Administrator, answer: &BackupAnswer, path: &Path) -> Result<(), CliError> {
    let mut arrival = Arrival::at(path)?;
    let mut offset = 0;
    while offset < answer.length_bytes {
        let question = ReadBackup { id: answer.backup.id, offset };
        let BackupPart { bytes } = administrator.ask(question)?;
        // A short download is detected by its length.
        if bytes.is_empty() {
            break;
        }
        arrival.write(&bytes)?;
        offset += bytes.len() as u64;
    }
    Ok(arrival.finish(answer.length_bytes, &answer.sha256)?)
}

impl CustodianArgument {
    /// Reads the key.
    pub fn read(&self) -> Result<Custodian, CliError> {
        let length_bytes = fs::metadata(&self.file).map_err(failed("read", &self.file))?.len();
        if length_bytes > KEY_FILE_BYTES_MAX {
            return Err(CliError::Usage(format!("{} is longer than a public key is", self.file.display())));
        }
        let pem = fs::read(&self.file).map_err(failed("read", &self.file))?;
        Ok(Custodian::new(self.name.clone(), &pem)?)
    }
}

impl fmt::Display for CustodianArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.file.display())
    }
}

impl FromStr for CustodianArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, file) = text.split_once('=').ok_or("write NAME=FILE, with the file of a public key")?;
        let name = CustodianName::new(name).map_err(|error| error.to_string())?;
        Ok(Self { name, file: file.into() })
    }
}

fn as_text(custodian: &Custodian) -> CustodianText {
    CustodianText { name: custodian.name().to_string(), public_key: custodian.public_key_pem() }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> CliError {
    let path = path.to_owned();
    move |error| CliError::File(FileError { action, path: path.clone(), error })
}

impl fmt::Display for Proposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "no backup was made: another administrator has to agree to these custodians first, with"
        )?;
        write!(f, "  strongroom keyserver custody confirm {}", self.0.id)
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LastBackup { id, created_unix_seconds, threshold, custodians, counts, .. } = &self.backup;
        let names: Vec<_> = custodians.iter().map(|custodian| custodian.name.to_string()).collect();
        writeln!(f, "{} is a backup of the key server", self.file.display())?;
        writeln!(f, "  backup      {id}, {}", utc(*created_unix_seconds))?;
        writeln!(f, "  has         {} keys, {} of destroyed ones", counts.objects, counts.tombstones)?;
        write!(f, "  opened by   {threshold} of {}", names.join(", "))
    }
}
