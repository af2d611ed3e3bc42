//! The state directory of a key server, opened.
//!
//! ```text
//! root.json    how the root key is sealed            (root)
//! store.redb   objects, authority, ledger of grants  (store)
//! audit/       the audit log                         (audit)
//! audit.pub    the key that verifies its heads: SubjectPublicKeyInfo, DER
//! backup.json  the last backup                       (backup)
//! ```
//!
//! Everything except the root is sealed under keys derived from the root, each for a single
//! purpose.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_audit::storage::OsDirectory;
use strongroom_audit::{AuditError, AuditLog, HeadKey, HeadSigner, Options, SignError};
use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Engine, Is, Outcome, Store, StoreError, Transaction};
use time::OffsetDateTime;

use crate::authority::private_key;
use crate::authority::{self, Authority, AuthorityError, PrivateKey};
use crate::objects::sealing::SealingError;
use crate::root::{RootError, RootKey};

/// The name of the store's file.
pub const STORE_FILE: &str = "store.redb";
/// The name of the audit log's directory.
pub const AUDIT_DIRECTORY: &str = "audit";
/// The name of the file with the key that verifies the log's heads.
pub const AUDIT_KEY_FILE: &str = "audit.pub";

/// The label of the key, derived from the root, that seals the authority's keys.
pub(crate) const AUTHORITY_LABEL: &str = "authority v1";
/// The label of the key, derived from the root, from which the objects' keys are derived.
pub(crate) const OBJECTS_LABEL: &str = "objects v1";

/// The place in the store of the sealed key that signs the log's heads.
const HEAD_KEY: &str = "audit/sealed/head";
/// The place in the store of the record of a restore
/// ([`recovery::restored`](crate::recovery::restored)), which every restored server has.
pub(crate) const RESTORED: &[u8] = b"restored";

/// Why the state cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The root key.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The key that signs the log's heads.
    #[error("the key that signs the heads of the audit log: {0}")]
    HeadKey(#[from] SignError),
    /// No keys can be derived for the objects.
    #[error(transparent)]
    Sealing(#[from] SealingError),
    /// Two servers at the same time.
    #[error("another process changes the state of this key server; there may be one at a time")]
    Contended,
    /// The system.
    #[error("cannot {doing} {path}: {error}")]
    System {
        /// The attempted action.
        doing: &'static str,
        /// Its file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A key server's open state. Dropping it signs a last head, and closes the log before the store.
pub struct State {
    /// The state directory.
    pub directory: PathBuf,
    /// The certificate authority.
    pub authority: Arc<Authority>,
    /// The audit log.
    pub audit: Arc<AuditLog>,
    /// The key that signs the log's heads, and evidence.
    pub signer: Arc<HeadKey>,
    /// The store.
    pub store: Arc<dyn Store>,
    /// The key from which the objects' keys are derived.
    pub objects_key: SecretBytes,
}

impl State {
    /// Opens the state in a directory that has a root, and creates missing parts. Only
    /// [`open_state`](crate::process::open_state) calls this: it also finishes a restore.
    ///
    /// # Errors
    /// [`StateError`].
    pub(crate) fn open(
        directory: &Path,
        root: &RootKey,
        settings: authority::Settings,
        audit: Options,
    ) -> Result<Self, StateError> {
        let store = open_store(&directory.join(STORE_FILE))?;
        let authority_key = root.derive(AUTHORITY_LABEL)?;
        let authority =
            Authority::open(Arc::clone(&store), &authority_key, settings, OffsetDateTime::now_utc())?;
        let signer = Arc::new(open_head_key(store.as_ref(), &root.derive("audit v1")?)?);
        publish_head_key(directory, &signer)?;
        let audit_directory = directory.join(AUDIT_DIRECTORY);
        make_directory(&audit_directory)?;
        let audit_directory = Arc::new(OsDirectory::lock(&audit_directory)?);
        let audit = AuditLog::open(audit_directory, Box::new(Arc::clone(&signer)), audit)?;
        Ok(Self {
            directory: directory.to_owned(),
            authority,
            audit: Arc::new(audit),
            signer,
            store,
            objects_key: root.derive(OBJECTS_LABEL)?,
        })
    }
}

/// Durably creates a directory that only its owner can enter, if it does not exist.
///
/// # Errors
/// [`StateError::System`].
pub fn make_directory(path: &Path) -> Result<(), StateError> {
    let failed = |error| StateError::System { doing: "make", path: path.to_owned(), error };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => strongroom_files::sync_directory(strongroom_files::directory_of(path)).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Makes the directory and those above it that are missing, each for its owner alone.
///
/// # Errors
/// [`StateError::System`].
pub fn make_directories(path: &Path) -> Result<(), StateError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_directories(parent)?;
    }
    make_directory(path)
}

pub(crate) fn open_store(path: &Path) -> Result<Arc<dyn Store>, StateError> {
    let is_there = path.try_exists().map_err(|error| StateError::System {
        doing: "look for",
        path: path.to_owned(),
        error,
    })?;
    let engine = if is_there { Engine::open(path)? } else { Engine::create(path)? };
    Ok(Arc::new(engine))
}

/// Loads the key that signs heads; makes and stores one if there is none.
fn open_head_key(store: &dyn Store, sealing_key: &SecretBytes) -> Result<HeadKey, StateError> {
    let pkcs8 = match store.get(HEAD_KEY.as_bytes())? {
        Some(entry) => private_key::open(sealing_key, HEAD_KEY, &entry.value)?,
        None => {
            let (_, pkcs8) = PrivateKey::generate()?;
            let sealed = private_key::seal(sealing_key, HEAD_KEY, &pkcs8).map_err(AuthorityError::Sealed)?;
            let transaction = Transaction::new().when(HEAD_KEY, Is::Absent).put(HEAD_KEY, sealed);
            match store.commit(transaction)? {
                Outcome::Committed(_) => pkcs8,
                Outcome::Conflict(_) => return Err(StateError::Contended),
            }
        }
    };
    Ok(HeadKey::from_pkcs8(pkcs8.expose())?)
}

/// Writes the public half to where `audit verify` finds it. It is only as trustworthy as the
/// directory; an auditor who does not trust that keeps a copy elsewhere.
fn publish_head_key(directory: &Path, key: &HeadKey) -> Result<(), StateError> {
    let path = directory.join(AUDIT_KEY_FILE);
    let public = key.public_key();
    if fs::read(&path).is_ok_and(|found| found == public.as_der()) {
        return Ok(());
    }
    fs::write(&path, public.as_der()).map_err(|error| StateError::System { doing: "write", path, error })
}
