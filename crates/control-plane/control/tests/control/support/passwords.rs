//! Passwords by the real Argon2id, at its least cost.

use strongroom_control::passwords::{PasswordError, PasswordHash, Verdict};
use strongroom_crypto::kdf::{Argon2idParams, argon2id};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::hex;

/// The cost in tests: what is tried is who may do what, not the cost.
const COST: Argon2idParams = Argon2idParams { memory_kib: 64, passes: 1, lanes: 1 };
/// One salt is enough for tests.
const SALT: [u8; 16] = [7; 16];

pub struct Argon2id;

impl PasswordHash for Argon2id {
    fn hash(&self, password: &str) -> Result<String, PasswordError> {
        let failed = |error: String| PasswordError(error);
        let secret = SecretBytes::from_slice_and_wipe(&mut password.as_bytes().to_vec())
            .map_err(|error| failed(error.to_string()))?;
        let derived = argon2id(&secret, &SALT, COST, 32).map_err(|error| failed(error.to_string()))?;
        Ok(hex::encode(derived.expose()))
    }

    fn verify(&self, password: &str, hash: &str) -> Result<Verdict, PasswordError> {
        let right = self.hash(password)? == hash;
        Ok(if right { Verdict::Right } else { Verdict::Wrong })
    }
}
