//! The root under a key that lies beside it: whoever reads the disk reads the keys. For trying
//! things out, and shown as `unprotected` wherever the server shows its status.
//!
//! It is sealed like any other way, so that changing to a real one later is the same step. Each
//! seal has a key file of its own name, so that the record in place always names a key that is
//! there.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;

use super::error::RootError;
use super::secret_source::{Reader, read_file};
use super::wrapped::{WrappedRoot, unwrap, wrap};
use super::{ROOT_BYTES, RootId, RootKey};

const WAY: &str = "plain file";
/// How the names of key files start and end; between them stands the seal's generation.
pub(super) const KEY_FILE_PREFIX: &str = "root-";
pub(super) const KEY_FILE_SUFFIX: &str = ".key";

/// What is on record of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlainFileSeal {
    generation: u64,
    root: WrappedRoot,
}

/// A key file to be written before the record that names it.
pub(super) struct KeyFile {
    pub name: String,
    pub key: SecretBytes,
}

impl PlainFileSeal {
    /// The key file's name in the state directory.
    pub fn file_name(&self) -> String {
        format!("{KEY_FILE_PREFIX}{}{KEY_FILE_SUFFIX}", self.generation)
    }
}

impl fmt::Display for PlainFileSeal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "key file {} beside the data", self.file_name())
    }
}

pub(super) fn seal(root: &RootKey, generation: u64) -> Result<(PlainFileSeal, KeyFile), RootError> {
    let key = SecretBytes::random(ROOT_BYTES)?;
    let seal = PlainFileSeal { generation, root: wrap(root, &key, WAY)? };
    let name = seal.file_name();
    Ok((seal, KeyFile { name, key }))
}

pub(super) fn unseal(seal: &PlainFileSeal, id: RootId, directory: &Path) -> Result<SecretBytes, RootError> {
    let path = directory.join(seal.file_name());
    let key = read_file(&path, Reader::Owner)?;
    if key.len() != ROOT_BYTES {
        return Err(RootError::WrongKeyFile { path });
    }
    unwrap(&seal.root, id, &key, WAY)?.ok_or(RootError::WrongKeyFile { path })
}
