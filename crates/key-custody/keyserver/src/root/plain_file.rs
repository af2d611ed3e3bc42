//! The root under a key file beside it: anyone who can read the disk can read the keys. For
//! experiments; the server's status shows `unprotected`.
//!
//! It is sealed like any other way, so that changing to a real one later is the same step. Each
//! seal's key file has its own name, so that the record in place always names an existing one.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;

use super::error::RootError;
use super::secret_source::{Reader, read_file};
use super::wrapped::{WrappedRoot, unwrap, wrap};
use super::{ROOT_BYTES, RootId, RootKey};

const WAY: &str = "plain file";
/// Prefix and suffix of key files' names; between them is the seal's generation.
pub(super) const KEY_FILE_PREFIX: &str = "root-";
pub(super) const KEY_FILE_SUFFIX: &str = ".key";

/// The record of this seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlainFileSeal {
    generation: u64,
    root: WrappedRoot,
}

/// A key file, which is written before the record that names it.
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
