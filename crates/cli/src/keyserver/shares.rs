//! The shares that custodians have opened: from files, from file descriptors, or typed.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use strongroom_files::FileError;
use strongroom_keyserver::backup::{Content, RestoreSession};
use strongroom_keyserver::root;
use strongroom_memory::secret::SecretBytes;

use crate::error::CliError;
use crate::keys::ask_once;
use crate::terminal::Terminal;

/// The longest file with a share: the line of text, and an editor's additions.
const SHARE_FILE_BYTES_MAX: usize = 1024;

/// The shares that open a backup.
#[derive(Debug, Args)]
pub struct ShareArguments {
    /// File with a custodian's opened share; repeatable
    #[arg(long = "share", value_name = "FILE")]
    shares: Vec<PathBuf>,

    /// File descriptor with a custodian's opened share; repeatable
    #[arg(long = "share-fd", value_name = "N")]
    share_fds: Vec<u32>,
}

impl ShareArguments {
    /// Opens a backup with the given shares, and asks a person at the terminal for missing ones.
    pub fn open(&self, backup: &Path, content: Content) -> Result<RestoreSession, CliError> {
        let mut session = RestoreSession::open(backup, content)?;
        for path in &self.shares {
            let share = read_share(path)?;
            add(&mut session, &share, path.display().to_string())?;
        }
        for number in &self.share_fds {
            add(&mut session, &root::read_descriptor(*number)?, format!("file descriptor {number}"))?;
        }
        while session.missing() > 0 && Terminal::open().is_some() {
            let typed = ask_once(backup, &format!("Share of a custodian ({} missing)", session.missing()))?;
            add(&mut session, &typed, "what was typed".to_owned())?;
        }
        Ok(session)
    }
}

fn add(session: &mut RestoreSession, share: &SecretBytes, from: String) -> Result<(), CliError> {
    session.add_share(share).map(drop).map_err(|error| CliError::Share { from, error })
}

/// Reads a share from a file, directly into secret memory.
fn read_share(path: &Path) -> Result<SecretBytes, CliError> {
    let failed = |error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    let mut file = File::open(path).map_err(failed)?;
    // It may be a pipe of unknown length. One more byte reveals a longer one.
    let mut content = SecretBytes::zeroed(SHARE_FILE_BYTES_MAX + 1)?;
    let mut length_bytes = 0;
    while length_bytes < content.len() {
        match file.read(&mut content.expose_mut()[length_bytes..]) {
            Ok(0) => break,
            Ok(count) => length_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if length_bytes == content.len() {
        return Err(CliError::Usage(format!("{} is longer than a share is", path.display())));
    }
    let mut share = SecretBytes::zeroed(length_bytes)?;
    share.expose_mut().copy_from_slice(&content.expose()[..length_bytes]);
    Ok(share)
}
