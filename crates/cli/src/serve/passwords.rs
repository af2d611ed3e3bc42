//! Users' passwords: Argon2id with the cost that this machine's passphrases have.

use std::sync::OnceLock;

use strongroom_control::passwords::{PasswordError, PasswordHash, Verdict};
use strongroom_crypto::kdf::{Argon2idParams, argon2id};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::hex;

/// The name of the form of a hash: `argon2id$MEMORY_KIB$PASSES$LANES$SALT$HASH`, the last two in
/// hexadecimal.
const FORM: &str = "argon2id";
/// The length of a salt, in bytes (RFC 9106, 3.1).
const SALT_BYTES: usize = 16;
/// The length of a hash, in bytes.
const HASH_BYTES: usize = 32;

/// Hashes passwords. The cost of new ones is measured at the first.
#[derive(Debug, Default)]
pub struct Passwords {
    cost: OnceLock<Argon2idParams>,
}

impl Passwords {
    fn cost(&self) -> Result<Argon2idParams, PasswordError> {
        if let Some(cost) = self.cost.get() {
            return Ok(*cost);
        }
        let cost = Argon2idParams::calibrated().map_err(failed)?;
        Ok(*self.cost.get_or_init(|| cost))
    }
}

impl PasswordHash for Passwords {
    fn hash(&self, password: &str) -> Result<String, PasswordError> {
        let cost = self.cost()?;
        let salt = SecretBytes::random(SALT_BYTES).map_err(failed)?;
        let hash = derive(password, salt.expose(), cost)?;
        let Argon2idParams { memory_kib, passes, lanes } = cost;
        Ok(format!(
            "{FORM}${memory_kib}${passes}${lanes}${}${}",
            hex::encode(salt.expose()),
            hex::encode(hash.expose())
        ))
    }

    fn verify(&self, password: &str, hash: &str) -> Result<Verdict, PasswordError> {
        let damaged = || PasswordError("the stored hash is damaged".to_owned());
        let parts: Vec<&str> = hash.split('$').collect();
        let [FORM, memory_kib, passes, lanes, salt, stored] = parts.as_slice() else { return Err(damaged()) };
        let number = |text: &str| text.parse::<u32>().map_err(|_| damaged());
        let (memory_kib, passes, lanes) = (number(memory_kib)?, number(passes)?, number(lanes)?);
        let cost = Argon2idParams { memory_kib, passes, lanes };
        let salt = hex::decode(salt).ok_or_else(damaged)?;
        let mut stored =
            hex::decode(stored).filter(|stored| stored.len() == HASH_BYTES).ok_or_else(damaged)?;
        let stored = SecretBytes::from_slice_and_wipe(&mut stored).map_err(failed)?;
        // `SecretBytes` compares in constant time.
        Ok(if derive(password, &salt, cost)? == stored { Verdict::Right } else { Verdict::Wrong })
    }
}

fn derive(password: &str, salt: &[u8], cost: Argon2idParams) -> Result<SecretBytes, PasswordError> {
    let secret = SecretBytes::from_slice_and_wipe(&mut password.as_bytes().to_vec()).map_err(failed)?;
    argon2id(&secret, salt, cost, HASH_BYTES).map_err(failed)
}

fn failed(error: impl ToString) -> PasswordError {
    PasswordError(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cheap() -> Passwords {
        let cost = OnceLock::from(Argon2idParams { memory_kib: 64, passes: 1, lanes: 1 });
        Passwords { cost }
    }

    #[test]
    #[cfg(not(feature = "fips"))]
    fn only_the_same_password_is_right() {
        let passwords = cheap();
        let hash = passwords.hash("correct horse battery").unwrap();
        assert_eq!(passwords.verify("correct horse battery", &hash), Ok(Verdict::Right));
        assert_eq!(passwords.verify("correct horse batterz", &hash), Ok(Verdict::Wrong));
        assert_ne!(passwords.hash("correct horse battery").unwrap(), hash, "salts differ");
    }

    #[test]
    fn a_damaged_hash_is_an_error_and_not_a_wrong_password() {
        let passwords = cheap();
        let salt = "00".repeat(16);
        for damaged in [
            String::new(),
            "argon2id$64$1$1".to_owned(),
            format!("argon2id$64$1$1${salt}$"),
            format!("argon2id$4294967295$1$1${salt}${}", "00".repeat(32)),
            format!("argon2i$64$1$1${salt}${}", "00".repeat(32)),
        ] {
            assert!(passwords.verify("x", &damaged).is_err(), "{damaged}");
        }
    }
}
