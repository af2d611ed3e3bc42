//! Secrets that their holders show: bearer tokens (RFC 6750) and the cookies of browsers. How they
//! are made, and the form in which they are stored.

use aws_lc_rs::digest;
use strongroom_types::hex;

/// The prefix of secrets, so that secret scanners find a leaked one.
const PREFIX: &str = "strongroom-token-";
/// The random bytes of a secret, which make it impossible to guess.
const RANDOM_BYTES: usize = 32;
/// What the hash of a cookie's secret begins with. A bearer token is the text of a header, which
/// has no such byte: no token has the hash of a cookie, and a cookie counts as no token. Hashes of
/// [keys](crate::client_key) begin with another byte.
const OF_A_COOKIE: &[u8] = &[1];

/// What a secret is shown as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownAs {
    /// A bearer token, by a program.
    Bearer,
    /// A cookie, by a browser.
    Cookie,
}

impl ShownAs {
    /// The stored form of a secret: SHA-256 in lower-case hexadecimal. A secret has 256 random
    /// bits, so a slow hash is not needed.
    pub fn stored_form(self, secret: &str) -> String {
        match self {
            Self::Bearer => sha256(secret),
            Self::Cookie => hash(&[OF_A_COOKIE, secret.as_bytes()].concat()),
        }
    }
}

/// Makes a secret.
///
/// # Errors
/// The system has no random numbers.
pub fn fresh() -> Result<String, getrandom::Error> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", hex::encode(&bytes)))
}

/// The stored form of a bearer token.
pub fn sha256(token: &str) -> String {
    hash(token.as_bytes())
}

fn hash(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes).as_ref())
}
