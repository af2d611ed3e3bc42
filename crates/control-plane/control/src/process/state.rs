//! The state directory: the store, and the first token.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_store::{Engine, Store, StoreError};
use strongroom_types::hex;

use crate::engine::Control;
use crate::inventory::{Draft, Failure};
use crate::records::TokenRecord;
use crate::server::token_sha256;

/// The store's file.
const STORE: &str = "store.redb";
/// The first token, for its owner alone.
const TOKEN: &str = "token";
/// What a token begins with, so that one that got lost is found by those who look for them.
const TOKEN_PREFIX: &str = "strongroom-token-";
/// Random bytes of a token: nobody guesses it.
const TOKEN_BYTES: usize = 32;
/// The name of the first token.
const TOKEN_NAME: &str = "admin";

/// Why a state directory is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file of it.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The inventory.
    #[error(transparent)]
    Inventory(#[from] Failure),
}

/// Opens the store of a state directory, and makes both if they are not there.
pub(super) fn open(directory: &Path) -> Result<Arc<dyn Store>, StateError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at(directory))?;
    let path = directory.join(STORE);
    if path.try_exists().map_err(at(&path))? {
        return Ok(Arc::new(Engine::open(&path)?));
    }
    let engine = Engine::create(&path)?;
    sync(directory).map_err(at(directory))?;
    Ok(Arc::new(engine))
}

/// Makes a token if there is none. The file is durable before the inventory knows the token, so a
/// crash in between leaves a file that is written anew, and never an inventory whose token nobody
/// has.
pub(super) fn first_token(directory: &Path, control: &Control) -> Result<(), StateError> {
    if !control.inventory.read().tokens.is_empty() {
        return Ok(());
    }
    let path = directory.join(TOKEN);
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| at(&path)(io::Error::other(error.to_string())))?;
    let token = format!("{TOKEN_PREFIX}{}", hex::encode(&bytes));
    write_private(&path, format!("{token}\n").as_bytes()).map_err(at(&path))?;
    let record = TokenRecord {
        sha256: token_sha256(&token),
        name: TOKEN_NAME.to_owned(),
        created_unix_seconds: control.now_unix_ms() / 1000,
    };
    control.inventory.commit(Draft::new(control.now_unix_ms()).create(&record))?;
    Ok(())
}

/// Writes a file for its owner alone, durably and in one step.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut staged = path.as_os_str().to_owned();
    staged.push(".new");
    let staged = PathBuf::from(staged);
    match fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staged)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&staged, path)?;
    sync(directory)
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::File { path, error }
}
