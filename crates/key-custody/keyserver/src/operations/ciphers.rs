//! AES with a client's data, for Encrypt and Decrypt: ECB and CBC, with or without padding, and
//! GCM.

use aws_lc_rs::cipher::{
    self, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use strongroom_crypto::{CryptoError, gcm};
use strongroom_memory::secret::{SecretBytes, SecretError};
use zeroize::Zeroizing;

/// AES's block, and CBC's initialisation vector.
pub const BLOCK_BYTES: usize = 16;
/// Length of a GCM nonce made by the server, for which no hashing is needed (NIST SP 800-38D, 8.2).
pub const GCM_NONCE_BYTES: usize = 12;

/// How data is cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each block by itself.
    Ecb,
    /// Each block chained to the one before it.
    Cbc([u8; BLOCK_BYTES]),
}

/// The padding of the last block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// None: the data are whole blocks.
    None,
    /// PKCS#5, for blocks of 16 bytes PKCS#7 (RFC 5652, 6.3).
    Pkcs5,
}

/// Why data cannot be encrypted or decrypted.
#[derive(Debug, thiserror::Error)]
pub enum CipherError {
    /// Not an AES key.
    #[error("a key of {length_bytes} bytes is none of AES")]
    KeyLength {
        /// Its length.
        length_bytes: usize,
    },
    /// Without padding, the data must be whole blocks.
    #[error("without padding, the data must be a multiple of {BLOCK_BYTES} bytes")]
    NotWholeBlocks,
    /// An invalid tag length.
    #[error("a tag has {} to {} bytes", gcm::TAG_BYTES.start(), gcm::TAG_BYTES.end())]
    TagLength,
    /// An invalid nonce length.
    #[error("a nonce has {} to {} bytes, not {length_bytes}", gcm::NONCE_BYTES.start(), gcm::NONCE_BYTES.end())]
    NonceLength {
        /// Its length.
        length_bytes: usize,
    },
    /// The key, initialisation vector or data is wrong.
    #[error("the data do not decrypt")]
    DoesNotDecrypt,
    /// No protected memory, or no random bytes.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The cryptographic library refused.
    #[error(transparent)]
    Crypto(CryptoError),
}

impl From<CryptoError> for CipherError {
    fn from(error: CryptoError) -> Self {
        match error {
            CryptoError::Authentication { .. } => Self::DoesNotDecrypt,
            error => Self::Crypto(error),
        }
    }
}

/// Encrypts.
///
/// # Errors
///
/// [`CipherError::KeyLength`], [`CipherError::NotWholeBlocks`].
pub fn encrypt(
    key: &SecretBytes,
    mode: Mode,
    padding: Padding,
    data: &[u8],
) -> Result<Zeroizing<Vec<u8>>, CipherError> {
    let cipher_key = unbound(key)?;
    // Allocated with room for the padding: a growing buffer would leave a copy of the data behind.
    let mut text = Zeroizing::new(Vec::with_capacity(data.len() + BLOCK_BYTES));
    text.extend_from_slice(data);
    let context = match mode {
        Mode::Ecb => EncryptionContext::None,
        Mode::Cbc(iv) => EncryptionContext::Iv128(FixedLength::from(iv)),
    };
    let done = match (padding, mode) {
        (Padding::None, _) if !data.len().is_multiple_of(BLOCK_BYTES) => {
            return Err(CipherError::NotWholeBlocks);
        }
        (Padding::None, Mode::Ecb) => {
            EncryptingKey::ecb(cipher_key).and_then(|key| key.less_safe_encrypt(&mut text, context))
        }
        (Padding::None, Mode::Cbc(_)) => {
            EncryptingKey::cbc(cipher_key).and_then(|key| key.less_safe_encrypt(&mut text, context))
        }
        (Padding::Pkcs5, Mode::Ecb) => PaddedBlockEncryptingKey::ecb_pkcs7(cipher_key)
            .and_then(|key| key.less_safe_encrypt(&mut *text, context)),
        (Padding::Pkcs5, Mode::Cbc(_)) => PaddedBlockEncryptingKey::cbc_pkcs7(cipher_key)
            .and_then(|key| key.less_safe_encrypt(&mut *text, context)),
    };
    done.map_err(|_| CipherError::DoesNotDecrypt)?;
    Ok(text)
}

/// Decrypts.
///
/// # Errors
///
/// [`CipherError::KeyLength`], [`CipherError::NotWholeBlocks`]; [`CipherError::DoesNotDecrypt`] if
/// the padding is wrong.
pub fn decrypt(
    key: &SecretBytes,
    mode: Mode,
    padding: Padding,
    data: &[u8],
) -> Result<Zeroizing<Vec<u8>>, CipherError> {
    if !data.len().is_multiple_of(BLOCK_BYTES) {
        return Err(CipherError::NotWholeBlocks);
    }
    let cipher_key = unbound(key)?;
    let mut text = Zeroizing::new(data.to_vec());
    let context = match mode {
        Mode::Ecb => DecryptionContext::None,
        Mode::Cbc(iv) => DecryptionContext::Iv128(FixedLength::from(iv)),
    };
    let plain = match (padding, mode) {
        (Padding::None, Mode::Ecb) => DecryptingKey::ecb(cipher_key)
            .and_then(|key| key.decrypt(&mut text, context).map(|plain| plain.len())),
        (Padding::None, Mode::Cbc(_)) => DecryptingKey::cbc(cipher_key)
            .and_then(|key| key.decrypt(&mut text, context).map(|plain| plain.len())),
        (Padding::Pkcs5, Mode::Ecb) => PaddedBlockDecryptingKey::ecb_pkcs7(cipher_key)
            .and_then(|key| key.decrypt(&mut text, context).map(|plain| plain.len())),
        (Padding::Pkcs5, Mode::Cbc(_)) => PaddedBlockDecryptingKey::cbc_pkcs7(cipher_key)
            .and_then(|key| key.decrypt(&mut text, context).map(|plain| plain.len())),
    };
    let length_bytes = plain.map_err(|_| CipherError::DoesNotDecrypt)?;
    text.truncate(length_bytes);
    Ok(text)
}

/// Encrypts and authenticates; returns ciphertext and tag.
///
/// # Errors
///
/// [`CipherError::KeyLength`], [`CipherError::TagLength`], [`CipherError::NonceLength`].
pub fn seal_gcm(
    key: &SecretBytes,
    nonce: &[u8],
    associated_data: &[u8],
    data: &[u8],
    tag_bytes: usize,
) -> Result<(Zeroizing<Vec<u8>>, Vec<u8>), CipherError> {
    check_gcm(key, nonce, tag_bytes)?;
    let mut text = Zeroizing::new(data.to_vec());
    let tag = gcm::seal(key, nonce, associated_data, &mut text)?;
    Ok((text, tag[..tag_bytes].to_vec()))
}

/// Decrypts the output of [`seal_gcm`].
///
/// # Errors
///
/// [`CipherError::KeyLength`], [`CipherError::TagLength`], [`CipherError::NonceLength`],
/// [`CipherError::DoesNotDecrypt`].
pub fn open_gcm(
    key: &SecretBytes,
    nonce: &[u8],
    associated_data: &[u8],
    data: &[u8],
    tag: &[u8],
) -> Result<Zeroizing<Vec<u8>>, CipherError> {
    check_gcm(key, nonce, tag.len())?;
    let mut text = Zeroizing::new(data.to_vec());
    gcm::open(key, nonce, associated_data, &mut text, tag)?;
    Ok(text)
}

fn check_gcm(key: &SecretBytes, nonce: &[u8], tag_bytes: usize) -> Result<(), CipherError> {
    if !gcm::TAG_BYTES.contains(&tag_bytes) {
        return Err(CipherError::TagLength);
    }
    if !gcm::NONCE_BYTES.contains(&nonce.len()) {
        return Err(CipherError::NonceLength { length_bytes: nonce.len() });
    }
    unbound(key).map(drop)
}

fn unbound(key: &SecretBytes) -> Result<UnboundCipherKey, CipherError> {
    let wrong = || CipherError::KeyLength { length_bytes: key.len() };
    let algorithm = match key.len() {
        16 => &cipher::AES_128,
        24 => &cipher::AES_192,
        32 => &cipher::AES_256,
        _ => return Err(wrong()),
    };
    UnboundCipherKey::new(algorithm, key.expose()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn key(hex: &str) -> SecretBytes {
        SecretBytes::from_slice_and_wipe(&mut bytes(hex)).unwrap()
    }

    /// NIST SP 800-38A, F.1.1, F.1.3 and F.2.5: first blocks.
    #[test]
    fn blocks_are_those_of_the_standard() {
        let plain = bytes("6bc1bee22e409f96e93d7e117393172a");
        let iv: [u8; 16] = bytes("000102030405060708090a0b0c0d0e0f").try_into().unwrap();
        for (secret, mode, expected) in [
            ("2b7e151628aed2a6abf7158809cf4f3c", Mode::Ecb, "3ad77bb40d7a3660a89ecaf32466ef97"),
            (
                "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
                Mode::Ecb,
                "bd334f1d6e45f25ff712a214571fa5cc",
            ),
            (
                "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
                Mode::Cbc(iv),
                "f58c4c04d6e5f1ba779eabfb5f7bfbd6",
            ),
        ] {
            let cipher = encrypt(&key(secret), mode, Padding::None, &plain).unwrap();
            assert_eq!(*cipher, bytes(expected));
            assert_eq!(*decrypt(&key(secret), mode, Padding::None, &cipher).unwrap(), plain);
        }
    }

    #[test]
    fn padding_takes_any_length_and_is_checked() {
        let key = SecretBytes::random(16).unwrap();
        for length_bytes in 0..40 {
            let data = vec![7; length_bytes];
            for mode in [Mode::Ecb, Mode::Cbc([9; 16])] {
                let cipher = encrypt(&key, mode, Padding::Pkcs5, &data).unwrap();
                assert_eq!(cipher.len(), (length_bytes / 16 + 1) * 16);
                assert_eq!(*decrypt(&key, mode, Padding::Pkcs5, &cipher).unwrap(), data);
            }
        }
        assert!(matches!(
            encrypt(&key, Mode::Ecb, Padding::None, &[0; 15]),
            Err(CipherError::NotWholeBlocks)
        ));
        assert!(matches!(
            decrypt(&key, Mode::Ecb, Padding::Pkcs5, &[0; 15]),
            Err(CipherError::NotWholeBlocks)
        ));
        assert!(matches!(decrypt(&key, Mode::Ecb, Padding::Pkcs5, &[]), Err(CipherError::DoesNotDecrypt)));
        let short = SecretBytes::random(15).unwrap();
        assert!(matches!(
            encrypt(&short, Mode::Ecb, Padding::None, &[0; 16]),
            Err(CipherError::KeyLength { length_bytes: 15 })
        ));
    }

    #[test]
    fn a_tag_of_any_allowed_length_vouches_for_every_bit() {
        let key = SecretBytes::random(32).unwrap();
        for tag_bytes in 12..=16 {
            let (cipher, tag) = seal_gcm(&key, &[1; 12], b"aad", b"some plain text", tag_bytes).unwrap();
            assert_eq!(tag.len(), tag_bytes);
            assert_eq!(*open_gcm(&key, &[1; 12], b"aad", &cipher, &tag).unwrap(), b"some plain text");
            assert!(open_gcm(&key, &[2; 12], b"aad", &cipher, &tag).is_err());
            assert!(open_gcm(&key, &[1; 12], b"aae", &cipher, &tag).is_err());
            for bit in 0..tag.len() * 8 {
                let mut changed = tag.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(open_gcm(&key, &[1; 12], b"aad", &cipher, &changed).is_err());
            }
        }
        assert!(matches!(seal_gcm(&key, &[1; 12], b"", b"", 1), Err(CipherError::TagLength)));
        assert!(matches!(seal_gcm(&key, &[1; 12], b"", b"", 32), Err(CipherError::TagLength)));
    }
}
