//! AES-256-GCM (NIST SP 800-38D) with 96-bit random nonces and 128-bit tags, for envelopes.
//!
//! Random nonces allow at most 2^32 seals under one key (SP 800-38D, 8.3). A key-encryption key
//! seals data-encryption keys, one per layer and re-key, which is far fewer.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
#[cfg(not(feature = "fips"))]
use strongroom_memory::secret::SecretError;
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes};
#[cfg(feature = "fips")]
use zeroize::Zeroize;

use crate::error::{Algorithm, CryptoError, check_key, check_limit};

/// Length of a key.
pub const KEY_BYTES: usize = 32;
/// Length of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Length of the authentication tag.
pub const TAG_BYTES: usize = 16;

const ALGORITHM: Algorithm = Algorithm::Aes256Gcm;

/// A sealed secret; it needs no protection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The nonce it was sealed with.
    pub nonce: [u8; NONCE_BYTES],
    /// The ciphertext, as long as the plaintext, with the tag of [`TAG_BYTES`] after it.
    pub ciphertext_and_tag: Vec<u8>,
}

/// Seals `plaintext` under `kek` with a fresh random nonce. `associated_data` is authenticated with
/// it but not stored: [`open`] needs the same bytes.
///
/// # Errors
/// [`CryptoError::KeyLength`] unless `kek` has [`KEY_BYTES`]; [`CryptoError::Secret`] if the kernel
/// provides no randomness; [`CryptoError::Library`].
pub fn seal(
    kek: &SecretBytes,
    associated_data: &[u8],
    plaintext: &SecretBytes,
) -> Result<Sealed, CryptoError> {
    #[cfg(feature = "fips")]
    return seal_with_the_modules_nonce(kek, associated_data, plaintext);
    #[cfg(not(feature = "fips"))]
    {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| SecretError::Random(std::io::Error::other(error)))?;
        seal_with_nonce(kek, nonce, associated_data, plaintext)
    }
}

/// FIPS 140-3 requires the nonce to be generated inside the module (IG C.H), which then seals only
/// in place.
#[cfg(feature = "fips")]
fn seal_with_the_modules_nonce(
    kek: &SecretBytes,
    associated_data: &[u8],
    plaintext: &SecretBytes,
) -> Result<Sealed, CryptoError> {
    use aws_lc_rs::aead::RandomizedNonceKey;
    let failed = |call| move |_| CryptoError::Library { algorithm: ALGORITHM, call, code: 0 };
    check_key(ALGORITHM, kek, KEY_BYTES)?;
    let key = RandomizedNonceKey::new(&AES_256_GCM, kek.expose()).map_err(failed("EVP_AEAD_CTX_init"))?;
    // Reserve space for the tag from the start: growing the vector would leave a copy of the
    // plaintext.
    let mut ciphertext_and_tag = Vec::with_capacity(plaintext.len() + TAG_BYTES);
    ciphertext_and_tag.extend_from_slice(plaintext.expose());
    let nonce = key
        .seal_in_place_append_tag(Aad::from(associated_data), &mut ciphertext_and_tag)
        .map_err(failed("EVP_AEAD_CTX_seal"))
        .inspect_err(|_| ciphertext_and_tag.zeroize())?;
    Ok(Sealed { nonce: *nonce.as_ref(), ciphertext_and_tag })
}

/// Opens the result of [`seal`] with the same `kek` and `associated_data`.
///
/// # Errors
/// [`CryptoError::Authentication`] if any input differs from that of [`seal`], including a missing
/// tag; [`CryptoError::KeyLength`]; [`CryptoError::Limit`] if it is longer than a secret can be;
/// [`CryptoError::Secret`].
pub fn open(kek: &SecretBytes, associated_data: &[u8], sealed: &Sealed) -> Result<SecretBytes, CryptoError> {
    let key = expand(kek)?;
    let longest_bytes = SECRET_MAX_BYTES + TAG_BYTES;
    check_limit(ALGORITHM, "sealed length in bytes", sealed.ciphertext_and_tag.len(), 0..=longest_bytes)?;
    let (ciphertext, tag) = sealed
        .ciphertext_and_tag
        .split_last_chunk::<TAG_BYTES>()
        .ok_or(CryptoError::Authentication { algorithm: ALGORITHM })?;
    let mut plaintext = SecretBytes::zeroed(ciphertext.len())?;
    key.open_separate_gather(
        Nonce::assume_unique_for_key(sealed.nonce),
        Aad::from(associated_data),
        ciphertext,
        tag,
        plaintext.expose_mut(),
    )
    .map_err(|_| CryptoError::Authentication { algorithm: ALGORITHM })?;
    Ok(plaintext)
}

/// Seals with a given nonce. Two seals with one nonce under one key break GCM, so only [`seal`] and
/// known-answer tests may call this.
pub(crate) fn seal_with_nonce(
    kek: &SecretBytes,
    nonce: [u8; NONCE_BYTES],
    associated_data: &[u8],
    plaintext: &SecretBytes,
) -> Result<Sealed, CryptoError> {
    let key = expand(kek)?;
    let mut ciphertext_and_tag = vec![0; plaintext.len() + TAG_BYTES];
    let (ciphertext, tag) = ciphertext_and_tag.split_at_mut(plaintext.len());
    key.seal_out_of_place_scatter(
        Nonce::assume_unique_for_key(nonce),
        Aad::from(associated_data),
        plaintext.expose(),
        ciphertext,
        &[],
        tag,
    )
    .map_err(|_| CryptoError::Library {
        algorithm: ALGORITHM,
        call: "EVP_AEAD_CTX_seal_scatter",
        code: 0,
    })?;
    Ok(Sealed { nonce, ciphertext_and_tag })
}

/// aws-lc-rs keeps the expanded key on the heap and wipes it on drop, at the end of each call here.
fn expand(kek: &SecretBytes) -> Result<LessSafeKey, CryptoError> {
    check_key(ALGORITHM, kek, KEY_BYTES)?;
    UnboundKey::new(&AES_256_GCM, kek.expose()).map(LessSafeKey::new).map_err(|_| CryptoError::Library {
        algorithm: ALGORITHM,
        call: "EVP_AEAD_CTX_init",
        code: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed_and_kek() -> (SecretBytes, Sealed) {
        let kek = SecretBytes::random(KEY_BYTES).unwrap();
        let sealed = seal(&kek, b"volume 1", &SecretBytes::random(64).unwrap()).unwrap();
        (kek, sealed)
    }

    #[test]
    fn every_seal_has_another_nonce() {
        let (kek, secret) = (SecretBytes::random(KEY_BYTES).unwrap(), SecretBytes::zeroed(32).unwrap());
        let (one, other) = (seal(&kek, b"", &secret).unwrap(), seal(&kek, b"", &secret).unwrap());
        assert_ne!(one.nonce, other.nonce);
        assert_ne!(one.ciphertext_and_tag, other.ciphertext_and_tag);
        assert_eq!(open(&kek, b"", &one).unwrap(), secret);
    }

    #[test]
    fn any_changed_bit_is_refused() {
        let (kek, sealed) = sealed_and_kek();
        open(&kek, b"volume 1", &sealed).unwrap();
        for bit in 0..sealed.ciphertext_and_tag.len() * 8 {
            let mut changed = sealed.clone();
            changed.ciphertext_and_tag[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(open(&kek, b"volume 1", &changed), Err(CryptoError::Authentication { .. })));
        }
        let mut changed = sealed.clone();
        changed.nonce[0] ^= 1;
        assert!(open(&kek, b"volume 1", &changed).is_err());
        assert!(open(&kek, b"volume 2", &sealed).is_err());
        assert!(open(&SecretBytes::random(KEY_BYTES).unwrap(), b"volume 1", &sealed).is_err());
    }

    #[test]
    fn the_longest_secret_is_sealed_and_opened() {
        let kek = SecretBytes::random(KEY_BYTES).unwrap();
        let longest = SecretBytes::random(SECRET_MAX_BYTES).unwrap();
        assert_eq!(open(&kek, b"", &seal(&kek, b"", &longest).unwrap()).unwrap(), longest);
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let (kek, mut sealed) = sealed_and_kek();
        sealed.ciphertext_and_tag.truncate(TAG_BYTES - 1);
        assert!(matches!(open(&kek, b"", &sealed), Err(CryptoError::Authentication { .. })));
        sealed.ciphertext_and_tag = vec![0; SECRET_MAX_BYTES + TAG_BYTES + 1];
        assert!(matches!(open(&kek, b"", &sealed), Err(CryptoError::Limit { .. })));
        let short = SecretBytes::random(16).unwrap();
        assert!(matches!(seal(&short, b"", &kek), Err(CryptoError::KeyLength { expected_bytes: 32, .. })));
    }
}
