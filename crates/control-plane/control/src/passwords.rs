//! Passwords and second factors of users.
//!
//! Hashing is a trait here: the room has no types for secrets, and `cli` passes in Argon2id.

use aws_lc_rs::hmac;
use strongroom_api::limits::CODE_DIGITS;

/// Whether what was shown is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Right,
    /// It is not.
    Wrong,
}

/// Why a password cannot be hashed or compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("passwords cannot be checked: {0}")]
pub struct PasswordError(pub String);

/// Hashes passwords slowly. Each call takes about a second of a processor.
pub trait PasswordHash: Send + Sync {
    /// The hash of a new password, with its salt and cost.
    ///
    /// # Errors
    /// [`PasswordError`].
    fn hash(&self, password: &str) -> Result<String, PasswordError>;

    /// Compares a password with a hash, in constant time.
    ///
    /// # Errors
    /// [`PasswordError`], also for a hash that is damaged.
    fn verify(&self, password: &str, hash: &str) -> Result<Verdict, PasswordError>;
}

/// The bytes of the secret of a second factor (RFC 4226 recommends 160 bits).
pub const TOTP_SECRET_BYTES: usize = 20;
/// The length of a step, in seconds (RFC 6238, 5.2).
const STEP_SECONDS: u64 = 30;
/// How many steps a phone's clock may be off in each direction.
const STEPS_OFF: u64 = 1;
/// One more than the greatest code, of six digits.
const CODES: u32 = 1_000_000;
/// The letters of base32 (RFC 4648, 6).
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The code of a step (RFC 6238 with HMAC-SHA-1, which authenticators know).
fn code_of(secret: &[u8], step: u64) -> u32 {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret);
    let tag = hmac::sign(&key, &step.to_be_bytes());
    let tag = tag.as_ref();
    let at = tag.last().map_or(0, |last| usize::from(last & 15));
    let four = tag.get(at..at + 4).and_then(|four| four.try_into().ok()).unwrap_or_default();
    (u32::from_be_bytes(four) & 0x7fff_ffff) % CODES
}

/// The step whose code this is, if it is one of now and later than `last`: a code counts once.
pub fn step_of_code(secret: &[u8], code: &str, now_unix_seconds: u64, last: u64) -> Option<u64> {
    if code.len() != CODE_DIGITS || !code.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let code: u32 = code.parse().ok()?;
    let now = now_unix_seconds / STEP_SECONDS;
    let mut steps = now.saturating_sub(STEPS_OFF).max(last.saturating_add(1))..=now + STEPS_OFF;
    steps.find(|step| code_of(secret, *step) == code)
}

/// The code that an authenticator shows at a time.
pub fn code_at(secret: &[u8], unix_seconds: u64) -> String {
    format!("{:06}", code_of(secret, unix_seconds / STEP_SECONDS))
}

/// Base32 without padding, in which authenticators take secrets.
pub fn base32(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    for five in bytes.chunks(5) {
        let mut word = [0; 8];
        word[3..3 + five.len()].copy_from_slice(five);
        let word = u64::from_be_bytes(word);
        for letter in 0..(five.len() * 8).div_ceil(5) {
            let at = (word >> (35 - 5 * letter)) & 31;
            text.push(char::from(BASE32[at as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 6238, appendix B, for SHA-1; the last six digits.
    #[test]
    fn codes_are_those_of_the_standard() {
        let secret = b"12345678901234567890";
        for (at, code) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(code_at(secret, at), code);
            assert_eq!(step_of_code(secret, code, at, 0), Some(at / 30));
        }
    }

    #[test]
    fn a_code_counts_once_and_only_around_its_time() {
        let (secret, at) = (b"12345678901234567890", 1_111_111_109);
        let code = code_at(secret, at);
        assert_eq!(step_of_code(secret, &code, at + 30, 0), Some(at / 30));
        assert_eq!(step_of_code(secret, &code, at + 90, 0), None);
        assert_eq!(step_of_code(secret, &code, at, at / 30), None);
        assert_eq!(step_of_code(secret, "+81804", at, 0), None);
    }

    /// The test vectors of RFC 4648, 10.
    #[test]
    fn base32_is_that_of_the_standard() {
        for (bytes, text) in
            [("", ""), ("f", "MY"), ("fo", "MZXQ"), ("foob", "MZXW6YQ"), ("foobar", "MZXW6YTBOI")]
        {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
    }
}
