//! The root under a passphrase: Argon2id, then AES-256-GCM.

use std::fmt;

use serde::{Deserialize, Serialize};
use strongroom_crypto::kdf::{Argon2idParams, NEW_PASSPHRASE_MIN_BYTES, argon2id};
use strongroom_memory::secret::SecretBytes;

use super::error::RootError;
use super::secret_source::{SecretSource, check_length};
use super::wrapped::{WrappedRoot, unwrap, wrap};
use super::{Access, ROOT_BYTES, RootId, RootKey, hex};

const WAY: &str = "passphrase";
const SALT_BYTES: usize = 32;

/// How to seal under a passphrase.
#[derive(Clone, Debug)]
pub struct PassphraseWay {
    /// The source of the passphrase, now and at each start.
    pub source: SecretSource,
    /// The cost of each guess.
    pub cost: Argon2idParams,
}

/// The record of this seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PassphraseSeal {
    pub source: SecretSource,
    #[serde(with = "hex::array")]
    salt: [u8; SALT_BYTES],
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    root: WrappedRoot,
}

impl fmt::Display for PassphraseSeal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "passphrase {}", self.source)
    }
}

pub(super) fn seal(
    root: &RootKey,
    way: &PassphraseWay,
    access: &Access<'_>,
) -> Result<PassphraseSeal, RootError> {
    let passphrase = way.source.read(WAY, access)?;
    if passphrase.len() < NEW_PASSPHRASE_MIN_BYTES {
        return Err(RootError::PassphraseTooShort { actual_bytes: passphrase.len() });
    }
    let mut salt = [0; SALT_BYTES];
    salt.copy_from_slice(SecretBytes::random(SALT_BYTES)?.expose());
    let key = key(&passphrase, &salt, way.cost)?;
    Ok(PassphraseSeal {
        source: way.source.clone(),
        salt,
        memory_kib: way.cost.memory_kib,
        passes: way.cost.passes,
        lanes: way.cost.lanes,
        root: wrap(root, &key, WAY)?,
    })
}

pub(super) fn unseal(
    seal: &PassphraseSeal,
    id: RootId,
    access: &Access<'_>,
) -> Result<SecretBytes, RootError> {
    let passphrase = seal.source.read(WAY, access)?;
    let cost = Argon2idParams { memory_kib: seal.memory_kib, passes: seal.passes, lanes: seal.lanes };
    let key = key(&passphrase, &seal.salt, cost)?;
    let source = match access.given {
        Some(_) => SecretSource::Given {},
        None => seal.source.clone(),
    };
    unwrap(&seal.root, id, &key, WAY)?.ok_or(RootError::WrongPassphrase { source_name: source.to_string() })
}

fn key(passphrase: &SecretBytes, salt: &[u8], cost: Argon2idParams) -> Result<SecretBytes, RootError> {
    check_length(passphrase, 1)?;
    Ok(argon2id(passphrase, salt, cost, ROOT_BYTES)?)
}
