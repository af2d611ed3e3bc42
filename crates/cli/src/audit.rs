//! `strongroom audit`: the key server's audit log.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_audit::storage::OsDirectory;
use strongroom_audit::{PublicKey, Report, SignedHead, VerifyError, verify};
use strongroom_files::FileError;
use strongroom_keyserver::management::protocol::AuditAnswer;
use strongroom_keyserver::management::questions::AuditHead;
use strongroom_keyserver::state::{AUDIT_DIRECTORY, AUDIT_KEY_FILE};

use crate::error::CliError;
use crate::keyserver::{AdministrationArguments, DirectoryArguments};
use crate::output::Output;

/// The exit status if the log is broken.
const BROKEN_STATUS: u8 = 1;

/// The commands for the audit log.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Verify the log's chain and signed heads, even while the server runs
    Verify(VerifyArguments),
    /// Get a signed head of the log, to detect later that the log was truncated or rewritten
    Head(HeadArguments),
}

/// The arguments of `verify`.
#[derive(Debug, Args)]
#[command(
    after_help = "The key beside the log is no more trustworthy than the log. If you do not trust the \
machine, keep a copy of the key elsewhere, and give it with --key. Records after the last signed head \
could have been written by anyone with access to the disk; 'audit head' signs a head now.

Exit status: 0 the log is intact; 1 it is not, or it could not be read.

Examples:
  strongroom audit head --json > head-of-today.json
  strongroom audit verify --head head-of-today.json --key kept/audit.pub"
)]
pub struct VerifyArguments {
    #[command(flatten)]
    directory: DirectoryArguments,

    /// Public key that verifies heads, SubjectPublicKeyInfo in DER; repeatable [default: the one
    /// beside the log]
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,

    /// Head that was saved from 'audit head'; repeatable
    #[arg(long = "head", value_name = "FILE")]
    heads: Vec<PathBuf>,
}

/// The arguments of `head`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom audit head --json > head-of-today.json")]
pub struct HeadArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Verified {
    directory: PathBuf,
    whole: bool,
    log: String,
    files: u64,
    first_sequence: u64,
    last_sequence: u64,
    records: u64,
    heads: u64,
    signed_through: u64,
    kept_heads_met: u64,
    kept_heads_before: u64,
}

#[derive(Serialize)]
struct Broken {
    directory: PathBuf,
    whole: bool,
    why: String,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Head(SignedHead);

impl AuditCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        match self {
            Self::Verify(arguments) => arguments.run(output),
            Self::Head(HeadArguments { server }) => {
                let AuditAnswer { head } = server.administrator()?.ask(AuditHead {})?;
                output.answer(&Head(head))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl VerifyArguments {
    fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let state = self.directory.path()?;
        let directory = state.join(AUDIT_DIRECTORY);
        let keys = match self.keys.is_empty() {
            true => vec![state.join(AUDIT_KEY_FILE)],
            false => self.keys.clone(),
        };
        let keys: Result<Vec<_>, _> = keys.iter().map(|path| read_key(path)).collect();
        let heads: Result<Vec<_>, _> = self.heads.iter().map(|path| read_head(path)).collect();
        let log = OsDirectory::to_read(&directory)?;
        match verify(&log, &keys?, &heads?) {
            Ok(report) => {
                output.answer(&Verified::new(directory, report))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(VerifyError::Read(error)) => Err(error.into()),
            Err(error) => {
                output.answer(&Broken { directory, whole: false, why: error.to_string() })?;
                Ok(ExitCode::from(BROKEN_STATUS))
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path)
        .map_err(|error| CliError::File(FileError { action: "read", path: path.to_owned(), error }))
}

fn read_key(path: &Path) -> Result<PublicKey, CliError> {
    PublicKey::from_der(&read(path)?).map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))
}

fn read_head(path: &Path) -> Result<SignedHead, CliError> {
    serde_json::from_slice(&read(path)?)
        .map_err(|error| CliError::Usage(format!("{} is no head of an audit log: {error}", path.display())))
}

impl Verified {
    fn new(directory: PathBuf, report: Report) -> Self {
        let Report { log, files, first_sequence, last_sequence, records, heads, signed_through, .. } = report;
        Self {
            directory,
            whole: true,
            log,
            files,
            first_sequence,
            last_sequence,
            records,
            heads,
            signed_through,
            kept_heads_met: report.heads_met,
            kept_heads_before: report.heads_before,
        }
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, log, first_sequence, last_sequence, records, heads, signed_through, .. } = self;
        writeln!(f, "{}: whole", directory.display())?;
        writeln!(f, "  log      {log}")?;
        writeln!(
            f,
            "  lines    {first_sequence} to {last_sequence}; {records} records, {heads} signed heads"
        )?;
        writeln!(f, "  signed   through line {signed_through}")?;
        write!(
            f,
            "  kept     {} heads agree, {} are of lines that were taken away",
            self.kept_heads_met, self.kept_heads_before
        )
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: NOT whole\n  {}", self.directory.display(), self.why)
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}
