//! The state directory: the store, and the first token.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_store::{Engine, Store, StoreError};

use crate::bearer;
use crate::engine::Control;
use crate::inventory::{Draft, Failure};
use crate::records::TokenRecord;

/// The store's file.
pub(super) const STORE: &str = "store.redb";
/// The first token, readable only by its owner.
const TOKEN: &str = "token";
/// The name of the first token.
const TOKEN_NAME: &str = "admin";

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file failed.
    #[error("{path}: {error}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The inventory failed.
    #[error(transparent)]
    Inventory(#[from] Failure),
}

/// Opens the store of a state directory, and creates both if they do not exist.
pub(super) fn open(directory: &Path) -> Result<Arc<dyn Store>, StateError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at(directory))?;
    let path = directory.join(STORE);
    if path.try_exists().map_err(at(&path))? {
        return Ok(Arc::new(Engine::open(&path)?));
    }
    let engine = Engine::create(&path)?;
    strongroom_files::sync_directory(directory).map_err(at(directory))?;
    Ok(Arc::new(engine))
}

/// Makes a token if there is none. The file is durable before the inventory has the token. A crash
/// in between leaves a file that is replaced later, but never an inventory with a token that no one
/// has.
pub(super) fn first_token(directory: &Path, control: &Control) -> Result<(), StateError> {
    if !control.inventory.read().tokens.is_empty() {
        return Ok(());
    }
    let path = directory.join(TOKEN);
    let token = bearer::fresh().map_err(|error| at(&path)(io::Error::other(error.to_string())))?;
    strongroom_files::replace(&path, format!("{token}\n").as_bytes()).map_err(at(&path))?;
    let record = TokenRecord {
        sha256: bearer::sha256(&token),
        name: TOKEN_NAME.to_owned(),
        created_unix_seconds: control.now_unix_ms() / 1000,
    };
    control.inventory.commit(Draft::new(control.now_unix_ms()).create(&record))?;
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::File { path, error }
}
