//! Bearer tokens (RFC 6750): how they are made, and the form in which they are stored.

use aws_lc_rs::digest;
use strongroom_types::hex;

/// The prefix of tokens, so that secret scanners find a leaked one.
const PREFIX: &str = "strongroom-token-";
/// The random bytes of a token, which make it impossible to guess.
const RANDOM_BYTES: usize = 32;

/// Makes a token.
///
/// # Errors
/// The system has no random numbers.
pub fn fresh() -> Result<String, getrandom::Error> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", hex::encode(&bytes)))
}

/// The stored form of a token: SHA-256 in lower-case hexadecimal. A token has 256 random bits, so a
/// slow hash is not needed.
pub fn sha256(token: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, token.as_bytes()).as_ref())
}
