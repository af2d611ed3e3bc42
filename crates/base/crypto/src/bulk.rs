//! AES-256-GCM (NIST SP 800-38D) for data too long for secret memory, in place, with random nonces
//! of 96 bits and full tags.
//!
//! It is for records of guest data, of which one key seals far fewer than the 2^32 that random
//! nonces allow (SP 800-38D, 8.3). The nonce is generated inside the module, as FIPS 140-3 requires
//! (IG C.H).

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, RandomizedNonceKey, UnboundKey};
use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroize;

use crate::aead::{KEY_BYTES, NONCE_BYTES, TAG_BYTES};
use crate::error::{Algorithm, CryptoError, check_key};

const ALGORITHM: Algorithm = Algorithm::Aes256Gcm;

/// The data that is stored with a sealed text and needed to open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// The nonce it was sealed with.
    pub nonce: [u8; NONCE_BYTES],
    /// Its tag.
    pub tag: [u8; TAG_BYTES],
}

/// A key for many texts. aws-lc-rs keeps the expanded key on the heap and wipes it on drop.
pub struct BulkKey {
    sealing: RandomizedNonceKey,
    opening: LessSafeKey,
}

impl BulkKey {
    /// Expands a key.
    ///
    /// # Errors
    /// [`CryptoError::KeyLength`] unless it has [`KEY_BYTES`]; [`CryptoError::Library`].
    pub fn new(key: &SecretBytes) -> Result<Self, CryptoError> {
        check_key(ALGORITHM, key, KEY_BYTES)?;
        let sealing =
            RandomizedNonceKey::new(&AES_256_GCM, key.expose()).map_err(failed("EVP_AEAD_CTX_init"))?;
        let opening = UnboundKey::new(&AES_256_GCM, key.expose()).map_err(failed("EVP_AEAD_CTX_init"))?;
        Ok(Self { sealing, opening: LessSafeKey::new(opening) })
    }

    /// Encrypts `text` in place. `associated_data` is authenticated with it but not stored.
    ///
    /// # Errors
    /// [`CryptoError::Library`]; the text is then wiped.
    pub fn seal(&self, associated_data: &[u8], text: &mut [u8]) -> Result<Seal, CryptoError> {
        let (nonce, tag) =
            self.sealing.seal_in_place_separate_tag(Aad::from(associated_data), text).map_err(|_| {
                text.zeroize();
                CryptoError::Library { algorithm: ALGORITHM, call: "EVP_AEAD_CTX_seal_scatter", code: 0 }
            })?;
        let mut seal = Seal { nonce: *nonce.as_ref(), tag: [0; TAG_BYTES] };
        seal.tag.copy_from_slice(tag.as_ref());
        Ok(seal)
    }

    /// Decrypts `text` in place. If it does not authenticate, it is wiped.
    ///
    /// # Errors
    /// [`CryptoError::Authentication`].
    pub fn open(&self, associated_data: &[u8], text: &mut [u8], seal: &Seal) -> Result<(), CryptoError> {
        let nonce = Nonce::assume_unique_for_key(seal.nonce);
        let opened =
            self.opening.open_in_place_separate_tag(nonce, Aad::from(associated_data), &seal.tag, text);
        if opened.is_err() {
            text.zeroize();
            return Err(CryptoError::Authentication { algorithm: ALGORITHM });
        }
        Ok(())
    }
}

/// Omits the key.
impl std::fmt::Debug for BulkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BulkKey(redacted)")
    }
}

fn failed<E>(call: &'static str) -> impl Fn(E) -> CryptoError {
    move |_| CryptoError::Library { algorithm: ALGORITHM, call, code: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aead;

    #[test]
    fn it_is_the_same_cipher_as_that_of_envelopes() {
        let key = SecretBytes::random(KEY_BYTES).unwrap();
        let mut text = *b"what a guest has in its memory";
        let seal = BulkKey::new(&key).unwrap().seal(b"where", &mut text).unwrap();
        let sealed = aead::Sealed { nonce: seal.nonce, ciphertext_and_tag: [&text[..], &seal.tag].concat() };
        let opened = aead::open(&key, b"where", &sealed).unwrap();
        assert_eq!(opened.expose(), b"what a guest has in its memory");
    }

    #[test]
    fn what_was_changed_is_noticed_and_nothing_of_it_is_given_out() {
        let key = BulkKey::new(&SecretBytes::random(KEY_BYTES).unwrap()).unwrap();
        let mut text = vec![7; 1 << 20];
        let seal = key.seal(b"1", &mut text).unwrap();
        let sealed = text.clone();
        key.open(b"1", &mut text, &seal).unwrap();
        assert_eq!(text, vec![7; 1 << 20]);
        for (data, at, mut seal) in [(&b"2"[..], None, seal), (b"1", Some(999), seal), (b"1", None, seal)] {
            let mut text = sealed.clone();
            match at {
                Some(at) => text[at] ^= 1,
                None if data == b"1" => seal.tag[15] ^= 0x80,
                None => {}
            }
            let error = key.open(data, &mut text, &seal).unwrap_err();
            assert!(matches!(error, CryptoError::Authentication { .. }), "{error}");
            assert!(text.iter().all(|byte| *byte == 0));
        }
        assert!(BulkKey::new(&SecretBytes::random(16).unwrap()).is_err());
    }
}
