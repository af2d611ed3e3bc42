//! The keys of an attempt, from the secret that the two hosts have agreed on.

use strongroom_crypto::CryptoError;
use strongroom_crypto::aead::KEY_BYTES;
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_memory::secret::SecretBytes;

/// Bytes of the agreed secret.
pub(crate) const SECRET_BYTES: usize = 32;
/// Bytes of the name by which a connection says that it is of this attempt. It is no secret.
pub(crate) const SESSION_ID_BYTES: usize = 16;

const RECORDS: &[u8] = b"strongroom migrate 1 records\0";
const SESSION_ID: &[u8] = b"strongroom migrate 1 session id\0";
const NEXT_KEY: &[u8] = b"strongroom migrate 1 next key\0";

/// A connection of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// That of the relays themselves.
    Line,
    /// A channel of QEMU's.
    Channel(u16),
}

/// Which way a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the source to the target.
    ToTarget,
    /// From the target to the source.
    ToSource,
}

/// The secret of one attempt. Only the two hosts have it, and it dies with them.
#[derive(Debug)]
pub(crate) struct SessionSecret(SecretBytes);

impl SessionSecret {
    /// The secret that was agreed on.
    pub(crate) fn agreed(secret: SecretBytes) -> Self {
        Self(secret)
    }

    /// The name of the session.
    pub(crate) fn id(&self) -> Result<[u8; SESSION_ID_BYTES], CryptoError> {
        let derived = hkdf_sha256(&self.0, &[], SESSION_ID, SESSION_ID_BYTES)?;
        let mut id = [0; SESSION_ID_BYTES];
        id.copy_from_slice(derived.expose());
        Ok(id)
    }

    /// The first key of a stream. No two streams have the same.
    pub(crate) fn key(&self, of: Connection, direction: Direction) -> Result<SecretBytes, CryptoError> {
        let (kind, number) = match of {
            Connection::Line => (0, 0),
            Connection::Channel(number) => (1, number),
        };
        let direction = match direction {
            Direction::ToTarget => 0,
            Direction::ToSource => 1,
        };
        let [high, low] = number.to_be_bytes();
        hkdf_sha256(&self.0, &[], &[RECORDS, &[kind, high, low, direction]].concat(), KEY_BYTES)
    }
}

/// The key of a stream after this one, which does not follow from it the other way round.
pub(crate) fn next_key(key: &SecretBytes) -> Result<SecretBytes, CryptoError> {
    hkdf_sha256(key, &[], NEXT_KEY, KEY_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_stream_of_every_attempt_has_a_key_of_its_own() {
        let mut keys = HashSet::new();
        let mut count = 0;
        for _ in 0..2 {
            let secret = SessionSecret::agreed(SecretBytes::random(SECRET_BYTES).unwrap());
            let channels = [0, 1, 0x100, u16::MAX].map(Connection::Channel);
            for connection in [Connection::Line].into_iter().chain(channels) {
                for direction in [Direction::ToTarget, Direction::ToSource] {
                    let key = secret.key(connection, direction).unwrap();
                    assert_eq!(key, secret.key(connection, direction).unwrap());
                    keys.insert(next_key(&key).unwrap().expose().to_vec());
                    keys.insert(key.expose().to_vec());
                    count += 2;
                }
            }
            let id = secret.id().unwrap();
            keys.insert(id.to_vec());
            count += 1;
        }
        assert_eq!(keys.len(), count);
    }
}
