//! AES-256 key wrap: KW (RFC 3394) for keys of whole 8-byte blocks and KWP (RFC 5649) for any
//! length, both as in NIST SP 800-38F.
//!
//! Key wrap is deterministic: the same key under the same KEK gives the same bytes. It
//! authenticates only the key; a caller that must bind more data to it uses [`aead`](crate::aead).

use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrap, KeyWrapPadded};
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes};

use crate::error::{Algorithm, CryptoError, check_key, check_limit};

/// Length of a key-encryption key.
pub const KEK_BYTES: usize = 32;

/// Both algorithms work on semiblocks of this many bytes.
const SEMIBLOCK_BYTES: usize = 8;
/// KW wraps at least two semiblocks (SP 800-38F, 5.3.1).
const KW_MIN_KEY_BYTES: usize = 2 * SEMIBLOCK_BYTES;

/// Wraps `key` under `kek` with KW. The result is 8 bytes longer than the key.
///
/// # Errors
/// [`CryptoError::KeyLength`] unless `kek` has [`KEK_BYTES`]; [`CryptoError::Limit`] for a key
/// under 16 bytes; [`CryptoError::NotSemiblocks`] unless its length is a multiple of 8.
pub fn wrap(kek: &SecretBytes, key: &SecretBytes) -> Result<Vec<u8>, CryptoError> {
    let algorithm = Algorithm::Aes256Kw;
    let kek = expand(algorithm, kek)?;
    check_limit(algorithm, "key length in bytes", key.len(), KW_MIN_KEY_BYTES..=SECRET_MAX_BYTES)?;
    check_semiblocks(algorithm, key.len())?;
    let mut wrapped = vec![0; key.len() + SEMIBLOCK_BYTES];
    kek.wrap(key.expose(), &mut wrapped).map_err(|_| CryptoError::Library {
        algorithm,
        call: "AES_wrap_key",
        code: 0,
    })?;
    Ok(wrapped)
}

/// Unwraps the result of [`wrap`].
///
/// # Errors
/// [`CryptoError::Authentication`] for another KEK or changed bytes; [`CryptoError::Limit`] and
/// [`CryptoError::NotSemiblocks`] for a length that [`wrap`] cannot have made;
/// [`CryptoError::KeyLength`].
pub fn unwrap(kek: &SecretBytes, wrapped: &[u8]) -> Result<SecretBytes, CryptoError> {
    let algorithm = Algorithm::Aes256Kw;
    let kek = expand(algorithm, kek)?;
    let allowed = KW_MIN_KEY_BYTES + SEMIBLOCK_BYTES..=SECRET_MAX_BYTES + SEMIBLOCK_BYTES;
    check_limit(algorithm, "wrapped length in bytes", wrapped.len(), allowed)?;
    check_semiblocks(algorithm, wrapped.len())?;
    let mut key = SecretBytes::zeroed(wrapped.len() - SEMIBLOCK_BYTES)?;
    kek.unwrap(wrapped, key.expose_mut()).map_err(|_| CryptoError::Authentication { algorithm })?;
    Ok(key)
}

/// Wraps `key`, of any length from one byte, under `kek` with KWP. The result is the length rounded
/// up to a multiple of 8, plus 8.
///
/// # Errors
/// [`CryptoError::KeyLength`] unless `kek` has [`KEK_BYTES`]; [`CryptoError::Limit`] for an empty
/// key.
pub fn wrap_padded(kek: &SecretBytes, key: &SecretBytes) -> Result<Vec<u8>, CryptoError> {
    let algorithm = Algorithm::Aes256Kwp;
    let kek = expand(algorithm, kek)?;
    check_limit(algorithm, "key length in bytes", key.len(), 1..=SECRET_MAX_BYTES)?;
    let mut wrapped = vec![0; key.len().next_multiple_of(SEMIBLOCK_BYTES) + SEMIBLOCK_BYTES];
    kek.wrap_with_padding(key.expose(), &mut wrapped).map_err(|_| CryptoError::Library {
        algorithm,
        call: "AES_wrap_key_padded",
        code: 0,
    })?;
    Ok(wrapped)
}

/// Unwraps the result of [`wrap_padded`].
///
/// # Errors
/// [`CryptoError::Authentication`] for another KEK or changed bytes; [`CryptoError::Limit`] and
/// [`CryptoError::NotSemiblocks`] for a length that [`wrap_padded`] cannot have made;
/// [`CryptoError::KeyLength`].
pub fn unwrap_padded(kek: &SecretBytes, wrapped: &[u8]) -> Result<SecretBytes, CryptoError> {
    let algorithm = Algorithm::Aes256Kwp;
    let kek = expand(algorithm, kek)?;
    let allowed = 2 * SEMIBLOCK_BYTES..=SECRET_MAX_BYTES + SEMIBLOCK_BYTES;
    check_limit(algorithm, "wrapped length in bytes", wrapped.len(), allowed)?;
    check_semiblocks(algorithm, wrapped.len())?;
    let mut padded = SecretBytes::zeroed(wrapped.len() - SEMIBLOCK_BYTES)?;
    let length_bytes = kek
        .unwrap_with_padding(wrapped, padded.expose_mut())
        .map_err(|_| CryptoError::Authentication { algorithm })?
        .len();
    if length_bytes == padded.len() {
        return Ok(padded);
    }
    let mut key = SecretBytes::zeroed(length_bytes)?;
    key.expose_mut().copy_from_slice(&padded.expose()[..length_bytes]);
    Ok(key)
}

fn check_semiblocks(algorithm: Algorithm, length_bytes: usize) -> Result<(), CryptoError> {
    if length_bytes.is_multiple_of(SEMIBLOCK_BYTES) {
        Ok(())
    } else {
        Err(CryptoError::NotSemiblocks { algorithm, length_bytes })
    }
}

/// aws-lc-rs keeps a copy of the KEK on the heap and wipes it on drop, at the end of each call
/// here.
fn expand(algorithm: Algorithm, kek: &SecretBytes) -> Result<AesKek, CryptoError> {
    check_key(algorithm, kek, KEK_BYTES)?;
    AesKek::new(&AES_256, kek.expose()).map_err(|_| CryptoError::Library {
        algorithm,
        call: "AesKek::new",
        code: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(length_bytes: usize) -> SecretBytes {
        SecretBytes::random(length_bytes).unwrap()
    }

    #[test]
    fn kwp_takes_every_length_a_secret_can_have() {
        let kek = random(KEK_BYTES);
        for length_bytes in (1..=40).chain([SECRET_MAX_BYTES - 1, SECRET_MAX_BYTES]) {
            let key = random(length_bytes);
            assert_eq!(unwrap_padded(&kek, &wrap_padded(&kek, &key).unwrap()).unwrap(), key);
        }
    }

    #[test]
    fn kw_takes_every_whole_number_of_semiblocks_a_secret_can_have() {
        let kek = random(KEK_BYTES);
        for length_bytes in [16, 24, SECRET_MAX_BYTES - 8, SECRET_MAX_BYTES] {
            let key = random(length_bytes);
            assert_eq!(unwrap(&kek, &wrap(&kek, &key).unwrap()).unwrap(), key);
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let kek = random(KEK_BYTES);
        assert!(matches!(wrap(&random(16), &kek), Err(CryptoError::KeyLength { .. })));
        for length_bytes in [0, 8] {
            assert!(matches!(wrap(&kek, &random(length_bytes)), Err(CryptoError::Limit { .. })));
        }
        assert!(matches!(wrap(&kek, &random(33)), Err(CryptoError::NotSemiblocks { .. })));
        assert!(matches!(wrap_padded(&kek, &random(0)), Err(CryptoError::Limit { .. })));
        for wrapped in [&[][..], &[0; 16], &[0; SECRET_MAX_BYTES + 16]] {
            assert!(matches!(unwrap(&kek, wrapped), Err(CryptoError::Limit { .. })));
        }
        assert!(matches!(unwrap(&kek, &[0; 41]), Err(CryptoError::NotSemiblocks { .. })));
        for wrapped in [&[][..], &[0; 8], &[0; SECRET_MAX_BYTES + 16]] {
            assert!(matches!(unwrap_padded(&kek, wrapped), Err(CryptoError::Limit { .. })));
        }
        assert!(matches!(unwrap_padded(&kek, &[0; 16]), Err(CryptoError::Authentication { .. })));
    }

    #[test]
    fn the_two_forms_do_not_open_each_other() {
        let (kek, key) = (random(KEK_BYTES), random(32));
        assert!(unwrap_padded(&kek, &wrap(&kek, &key).unwrap()).is_err());
        assert!(unwrap(&kek, &wrap_padded(&kek, &key).unwrap()).is_err());
    }
}
