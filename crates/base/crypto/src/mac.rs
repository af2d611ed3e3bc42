//! HMAC-SHA256 (RFC 2104, FIPS 198-1) and SHA-256 (FIPS 180-4).

use aws_lc_rs::{digest, hmac};
use strongroom_memory::secret::SecretBytes;

use crate::error::{Algorithm, CryptoError, check_limit};

/// Length of a SHA-256 digest and of an HMAC-SHA256 tag.
pub const DIGEST_BYTES: usize = 32;

/// The least length of a MAC key: a key shorter than half the digest is the easiest target of
/// guessing (NIST SP 800-107, 5.3.2 requires at least 112 bits).
pub const MIN_MAC_KEY_BYTES: usize = 16;

/// The SHA-256 digest of `message`. For public data: the intermediate state is not wiped.
pub fn sha256(message: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut output = [0; DIGEST_BYTES];
    output.copy_from_slice(digest::digest(&digest::SHA256, message).as_ref());
    output
}

/// Length of a SHA-512 digest.
pub const SHA512_BYTES: usize = 64;

macro_rules! digest_of_pieces {
    ($(#[$doc:meta])* $name:ident, $algorithm:expr, $bytes:expr) => {
        $(#[$doc])*
        pub struct $name(digest::Context);

        impl Default for $name {
            fn default() -> Self {
                Self(digest::Context::new($algorithm))
            }
        }

        impl $name {
            /// Adds the next piece of the message.
            pub fn update(&mut self, piece: &[u8]) {
                self.0.update(piece);
            }

            /// The digest of all pieces.
            pub fn finish(self) -> [u8; $bytes] {
                let mut output = [0; $bytes];
                output.copy_from_slice(self.0.finish().as_ref());
                output
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

digest_of_pieces! {
    /// The SHA-256 digest of a message that comes in pieces. The intermediate state is not wiped.
    Sha256, &digest::SHA256, DIGEST_BYTES
}
digest_of_pieces! {
    /// The SHA-512 digest of a message that comes in pieces. The intermediate state is not wiped.
    Sha512, &digest::SHA512, SHA512_BYTES
}

/// The HMAC-SHA256 tag of `message` under `key`.
///
/// # Errors
/// [`CryptoError::Limit`] for a key under [`MIN_MAC_KEY_BYTES`].
pub fn hmac_sha256(key: &SecretBytes, message: &[u8]) -> Result<[u8; DIGEST_BYTES], CryptoError> {
    let mut tag = [0; DIGEST_BYTES];
    tag.copy_from_slice(hmac::sign(&mac_key(key)?, message).as_ref());
    Ok(tag)
}

/// Checks the full-length tag of `message` in constant time.
///
/// # Errors
/// [`CryptoError::Authentication`] if `tag`, of any length, is not the result of [`hmac_sha256`]
/// for `message`; [`CryptoError::Limit`] for a key under [`MIN_MAC_KEY_BYTES`].
pub fn verify_hmac_sha256(key: &SecretBytes, message: &[u8], tag: &[u8]) -> Result<(), CryptoError> {
    hmac::verify(&mac_key(key)?, message, tag)
        .map_err(|_| CryptoError::Authentication { algorithm: Algorithm::HmacSha256 })
}

fn mac_key(key: &SecretBytes) -> Result<hmac::Key, CryptoError> {
    check_limit(
        Algorithm::HmacSha256,
        "key length in bytes",
        key.len(),
        MIN_MAC_KEY_BYTES..=strongroom_memory::secret::SECRET_MAX_BYTES,
    )?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, key.expose()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_of_pieces_is_that_of_the_whole() {
        let mut pieces = Sha256::default();
        b"abc".chunks(2).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), sha256(b"abc"));
        // FIPS 180-4, from NIST's examples.
        let mut pieces = Sha512::default();
        b"abc".chunks(2).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish()[..4], [0xdd, 0xaf, 0x35, 0xa1]);
    }

    #[test]
    fn only_the_whole_tag_of_the_same_message_and_key_verifies() {
        let (key, other_key) = (SecretBytes::random(32).unwrap(), SecretBytes::random(32).unwrap());
        let tag = hmac_sha256(&key, b"descriptor").unwrap();
        verify_hmac_sha256(&key, b"descriptor", &tag).unwrap();
        for (key, message, tag) in [
            (&other_key, &b"descriptor"[..], &tag[..]),
            (&key, b"descriptor ", &tag),
            (&key, b"descriptor", &tag[..16]),
            (&key, b"descriptor", &[]),
        ] {
            let outcome = verify_hmac_sha256(key, message, tag);
            assert!(matches!(outcome, Err(CryptoError::Authentication { .. })), "{outcome:?}");
        }
    }
}
