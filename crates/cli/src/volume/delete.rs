//! `strongroom volume delete`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{DatastoreError, delete, describe};
use strongroom_files::FileError;
use strongroom_types::display_bytes;

use super::open::LockArguments;
use crate::error::CliError;
use crate::output::Output;
use crate::terminal::{Terminal, TerminalError};

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "Deletes the keys first, so that the blocks are unreadable wherever they remain; copies \
and backups of the volume's descriptor keep theirs. Also removes the remains of an interrupted creation \
or deletion.

Examples:
  strongroom volume delete ./ds/vm1
  strongroom volume delete ./ds/vm1 --yes"
)]
pub struct DeleteArguments {
    /// Path of the volume
    path: PathBuf,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    lock: LockArguments,
}

#[derive(Serialize)]
struct Deleted {
    path: PathBuf,
    deleted: bool,
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deleted {}", self.path.display())
    }
}

impl DeleteArguments {
    /// Runs the command: deletes the volume after a person has confirmed it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let described = match describe(&self.path) {
            // A missing or foreign directory needs no question.
            Err(error @ DatastoreError::System { .. }) => return Err(error.into()),
            described => described.ok(),
        };
        if !self.yes {
            let size =
                described.map(|volume| format!(" ({})", display_bytes(volume.descriptor.size_bytes.bytes())));
            let name = self.path.display().to_string();
            confirm(output, &name, &format!("{name}{} and all its data", size.unwrap_or_default()))?;
        }
        delete(&self.path, self.lock.lock_wait)?;
        output.answer(&Deleted { path: self.path.clone(), deleted: true })
    }
}

/// Asks a person at the terminal whether `name` is to be deleted, which the question describes.
pub fn confirm(output: &Output, name: &str, what: &str) -> Result<(), CliError> {
    let unasked = || {
        CliError::Usage(format!(
            "nobody is at a terminal to be asked whether {name} is to be deleted; give --yes if it is"
        ))
    };
    // A program that requests JSON does not answer questions.
    let mut terminal = Terminal::open().filter(|_| !output.is_json()).ok_or_else(unasked)?;
    match terminal.confirm(&format!("Delete {what} for good?")) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CliError::Declined),
        Err(TerminalError::Io(error)) => {
            Err(CliError::File(FileError { action: "ask at", path: "/dev/tty".into(), error }))
        }
        Err(TerminalError::Secret(error)) => Err(error.into()),
        Err(TerminalError::Interrupted) => Err(CliError::Declined),
    }
}
