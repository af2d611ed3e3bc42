//! AES-GCM for external data: keys of all three lengths, nonces of any length, truncated tags (NIST
//! SP 800-38D).
//!
//! It serves clients of the key server, which encrypt and decrypt their own data. Strongroom's own
//! data is sealed by [`aead`](crate::aead), which generates its nonces itself. aws-lc-rs accepts
//! only nonces of 96 bits and full tags, so this is a thin binding to aws-lc's EVP calls. aws-lc
//! keeps the round keys on its heap for one call, and overwrites them at its end.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::ptr::{self, NonNull};

use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroize;

use crate::error::{Algorithm, CryptoError, check_limit};
use crate::module::{check, lc, library_error};

/// Allowed lengths of a tag, in bytes. Shorter tags need a limit on the number of forgeries (NIST
/// SP 800-38D, appendix C).
pub const TAG_BYTES: RangeInclusive<usize> = 12..=16;

/// Allowed lengths of a nonce, in bytes. The standard allows longer ones, which are not used in
/// practice; a nonce of 12 bytes needs no hashing.
pub const NONCE_BYTES: RangeInclusive<usize> = 1..=128;

/// The longest text, in bytes: the limit of one EVP call, and far below GCM's own limit of 2^36.
pub const TEXT_MAX_BYTES: usize = 1 << 30;

const ALGORITHM: Algorithm = Algorithm::AesGcm;

/// Encrypts `text` in place, and returns the tag of 16 bytes. A shorter tag ([`TAG_BYTES`]) is a
/// prefix of it.
///
/// Using a nonce twice under one key reveals the authentication key; the caller must prevent it.
///
/// # Errors
/// [`CryptoError::Limit`] for a key, nonce or text of a length that is not allowed;
/// [`CryptoError::Library`].
pub fn seal(
    key: &SecretBytes,
    nonce: &[u8],
    associated_data: &[u8],
    text: &mut [u8],
) -> Result<[u8; 16], CryptoError> {
    Context::new(key, nonce, Direction::Encrypt)?.seal(associated_data, text)
}

/// Decrypts `text` in place if the tag, full or truncated, is correct. Otherwise the text is wiped.
///
/// # Errors
/// [`CryptoError::Authentication`], and those of [`seal`], including for the length of a tag.
pub fn open(
    key: &SecretBytes,
    nonce: &[u8],
    associated_data: &[u8],
    text: &mut [u8],
    tag: &[u8],
) -> Result<(), CryptoError> {
    let opened = Context::new(key, nonce, Direction::Decrypt)
        .and_then(|context| context.open(associated_data, text, tag));
    if opened.is_err() {
        text.zeroize();
    }
    opened
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

/// An `EVP_CIPHER_CTX` with key and nonce.
struct Context(NonNull<lc::EVP_CIPHER_CTX>);

impl Context {
    fn new(key: &SecretBytes, nonce: &[u8], direction: Direction) -> Result<Self, CryptoError> {
        check_limit(ALGORITHM, "the length of a nonce in bytes", nonce.len(), NONCE_BYTES)?;
        // SAFETY: takes no argument, returns null or a context that is ours.
        let evp = NonNull::new(unsafe { lc::EVP_CIPHER_CTX_new() })
            .ok_or_else(|| library_error(ALGORITHM, "EVP_CIPHER_CTX_new"))?;
        let context = Self(evp);
        let encrypting = match direction {
            Direction::Encrypt => 1,
            Direction::Decrypt => 0,
        };
        let actual = key.len();
        // SAFETY: they take no argument and return aws-lc's own constants.
        let cipher = unsafe {
            match actual {
                16 => lc::EVP_aes_128_gcm(),
                24 => lc::EVP_aes_192_gcm(),
                32 => lc::EVP_aes_256_gcm(),
                _ => {
                    let what = "the length of a key in bytes, a multiple of 8,";
                    return Err(CryptoError::Limit {
                        algorithm: ALGORITHM,
                        what,
                        actual,
                        least: 16,
                        most: 32,
                    });
                }
            }
        };
        context.initialise(cipher, encrypting, ptr::null(), ptr::null())?;
        // The longest nonce fits into a `c_int`.
        context.set_nonce_length(nonce.len() as c_int)?;
        context.initialise(ptr::null(), encrypting, key.expose().as_ptr(), nonce.as_ptr())?;
        Ok(context)
    }

    fn seal(&self, associated_data: &[u8], text: &mut [u8]) -> Result<[u8; 16], CryptoError> {
        self.process(associated_data, text)?;
        self.finish()?;
        let mut tag = [0; 16];
        self.control(lc::EVP_CTRL_AEAD_GET_TAG, &mut tag)?;
        Ok(tag)
    }

    /// Decrypts. If the tag is wrong, the decrypted text is left in `text`.
    fn open(&self, associated_data: &[u8], text: &mut [u8], tag: &[u8]) -> Result<(), CryptoError> {
        check_limit(ALGORITHM, "the length of a tag in bytes", tag.len(), TAG_BYTES)?;
        self.control(lc::EVP_CTRL_AEAD_SET_TAG, &mut tag.to_vec())?;
        self.process(associated_data, text)?;
        // aws-lc compares tags in constant time, and fails if they differ.
        self.finish().map_err(|_| CryptoError::Authentication { algorithm: ALGORITHM })
    }

    fn initialise(
        &self,
        cipher: *const lc::EVP_CIPHER,
        encrypting: c_int,
        key: *const u8,
        nonce: *const u8,
    ) -> Result<(), CryptoError> {
        // SAFETY: the context is live; cipher, key and nonce are null for "none yet", or have
        // lengths that `new` checked.
        let result = unsafe {
            lc::EVP_CipherInit_ex(self.0.as_ptr(), cipher, ptr::null_mut(), key, nonce, encrypting)
        };
        check(ALGORITHM, "EVP_CipherInit_ex", result)
    }

    fn set_nonce_length(&self, length_bytes: c_int) -> Result<(), CryptoError> {
        // SAFETY: the context is live and has a cipher; this control takes no pointer.
        let result = unsafe {
            lc::EVP_CIPHER_CTX_ctrl(
                self.0.as_ptr(),
                lc::EVP_CTRL_AEAD_SET_IVLEN,
                length_bytes,
                ptr::null_mut(),
            )
        };
        check(ALGORITHM, "EVP_CIPHER_CTX_ctrl(nonce)", result)
    }

    /// Sets or gets the tag.
    fn control(&self, command: c_int, tag: &mut [u8]) -> Result<(), CryptoError> {
        // SAFETY: the context is live; aws-lc reads or writes the given count of the tag's bytes,
        // 16 at most.
        let result = unsafe {
            lc::EVP_CIPHER_CTX_ctrl(self.0.as_ptr(), command, tag.len() as c_int, tag.as_mut_ptr().cast())
        };
        check(ALGORITHM, "EVP_CIPHER_CTX_ctrl(tag)", result)
    }

    fn process(&self, associated_data: &[u8], text: &mut [u8]) -> Result<(), CryptoError> {
        for (what, length_bytes) in [
            ("the length of associated data in bytes", associated_data.len()),
            ("the length of a text in bytes", text.len()),
        ] {
            check_limit(ALGORITHM, what, length_bytes, 0..=TEXT_MAX_BYTES)?;
        }
        let source = text.as_ptr();
        self.update(ptr::null_mut(), associated_data.as_ptr(), associated_data.len())?;
        self.update(text.as_mut_ptr(), source, text.len())
    }

    fn update(&self, to: *mut u8, from: *const u8, length_bytes: usize) -> Result<(), CryptoError> {
        if length_bytes == 0 {
            return Ok(());
        }
        let mut written_bytes: c_int = 0;
        // SAFETY: the context is live. `from` has the given length, checked to fit; `to` is null
        // for associated data, or the same bytes, writable, and GCM writes exactly as many as it
        // reads.
        let result = unsafe {
            lc::EVP_CipherUpdate(self.0.as_ptr(), to, &mut written_bytes, from, length_bytes as c_int)
        };
        check(ALGORITHM, "EVP_CipherUpdate", result)
    }

    fn finish(&self) -> Result<(), CryptoError> {
        let (mut nothing, mut written_bytes) = ([0; 16], 0);
        // SAFETY: the context is live; GCM writes nothing here, and the buffer has room for a block
        // of 16 bytes.
        let result =
            unsafe { lc::EVP_CipherFinal_ex(self.0.as_ptr(), nothing.as_mut_ptr(), &mut written_bytes) };
        check(ALGORITHM, "EVP_CipherFinal_ex", result)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is live and freed once, here; aws-lc overwrites the key's state first.
        unsafe { lc::EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn secret(hex: &str) -> SecretBytes {
        SecretBytes::from_slice_and_wipe(&mut bytes(hex)).unwrap()
    }

    const PLAIN: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
                         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    const ASSOCIATED: &str = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    const LONG_NONCE: &str = "9313225df88406e555909c5aff5269aa6a7a9538534f7da1e4c303d2a318a728\
                              c3c0c95156809539fcf0e2429a6b525416aedbf5a0de6a57a637b39b";
    const KEY: &str = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";

    /// McGrew and Viega, The Galois/Counter Mode of Operation, appendix B: cases 4 to 6, 11, 12, 17
    /// and 18.
    #[test]
    fn keys_and_nonces_of_all_lengths_answer_as_published() {
        let cases = [
            (
                16,
                "cafebabefacedbaddecaf888",
                "42831ec2217774244b7221b784d0d49c",
                "5bc94fbc3221a5db94fae95ae7121a47",
            ),
            (16, "cafebabefacedbad", "61353b4c2806934a777ff51fa22a4755", "3612d2e79e3b0785561be14aaca2fccb"),
            (16, LONG_NONCE, "8ce24998625615b603a033aca13fb894", "619cc5aefffe0bfa462af43c1699d050"),
            (24, "cafebabefacedbad", "0f10f599ae14a154ed24b36e25324db8", "65dcc57fcf623a24094fcca40d3533f8"),
            (24, LONG_NONCE, "d27e88681ce3243c4830165a8fdcf9ff", "dcf566ff291c25bbb8568fc3d376a6d9"),
            (32, "cafebabefacedbad", "c3762df1ca787d32ae47c13bf19844cb", "3a337dbf46a792c45e454913fe2ea8f2"),
            (32, LONG_NONCE, "5a8def2f0c9e53f1f75d7853659e2a20", "a44a8266ee1c8eb0c8b5d4cf5ae9f19a"),
        ];
        for (key_bytes, nonce, cipher_begins, tag) in cases {
            let key = secret(&KEY[..2 * key_bytes]);
            let mut text = bytes(PLAIN);
            let made = seal(&key, &bytes(nonce), &bytes(ASSOCIATED), &mut text).unwrap();
            assert_eq!(
                (&text[..16], &made[..]),
                (&bytes(cipher_begins)[..], &bytes(tag)[..]),
                "{key_bytes} {nonce}"
            );
            for tag_bytes in TAG_BYTES {
                let mut opened = text.clone();
                open(&key, &bytes(nonce), &bytes(ASSOCIATED), &mut opened, &made[..tag_bytes]).unwrap();
                assert_eq!(opened, bytes(PLAIN));
            }
        }
    }

    #[test]
    fn what_was_changed_does_not_open_and_leaves_nothing() {
        let key = SecretBytes::random(32).unwrap();
        let mut text = b"some plain text".to_vec();
        let tag = seal(&key, &[1; 20], b"aad", &mut text).unwrap();
        let refused = |nonce: &[u8], associated: &[u8], text: &[u8], tag: &[u8]| {
            let mut text = text.to_vec();
            let error = open(&key, nonce, associated, &mut text, tag).unwrap_err();
            assert!(matches!(error, CryptoError::Authentication { .. }), "{error}");
            assert!(text.iter().all(|byte| *byte == 0));
        };
        refused(&[2; 20], b"aad", &text, &tag);
        refused(&[1; 19], b"aad", &text, &tag);
        refused(&[1; 20], b"aae", &text, &tag);
        for length in TAG_BYTES {
            for bit in 0..length * 8 {
                let mut changed = tag[..length].to_vec();
                changed[bit / 8] ^= 1 << (bit % 8);
                refused(&[1; 20], b"aad", &text, &changed);
            }
        }
        let mut changed = text.clone();
        changed[3] ^= 1;
        refused(&[1; 20], b"aad", &changed, &tag);
    }

    #[test]
    fn lengths_that_are_not_allowed_are_refused() {
        let limit = |outcome: Result<(), CryptoError>| matches!(outcome, Err(CryptoError::Limit { .. }));
        let key = SecretBytes::random(16).unwrap();
        for nonce_bytes in [0, 129] {
            assert!(limit(seal(&key, &vec![0; nonce_bytes], b"", &mut []).map(drop)));
        }
        for tag_bytes in [0, 11, 17] {
            assert!(limit(open(&key, &[0; 12], b"", &mut [], &vec![0; tag_bytes])));
        }
        for key_bytes in [0, 15, 17, 33] {
            let key = SecretBytes::random(key_bytes).unwrap();
            assert!(limit(seal(&key, &[0; 12], b"", &mut []).map(drop)));
        }
        // An empty text has a tag too.
        let tag = seal(&key, &[0; 12], b"", &mut []).unwrap();
        open(&key, &[0; 12], b"", &mut [], &tag).unwrap();
    }
}
