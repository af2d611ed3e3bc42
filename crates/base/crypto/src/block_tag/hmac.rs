//! HMAC-SHA256 for many messages under one key: aws-lc precomputes a part of it.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use strongroom_memory::secret::SecretBytes;

use super::BLOCK_TAG_BYTES;
use crate::error::{Algorithm, CryptoError, check_key};
use crate::module::lc;

/// Length of a key: that of the digest; longer keys are no stronger (RFC 2104, section 3).
pub(super) const KEY_BYTES: usize = 32;

/// Both halves of the state that aws-lc precomputes from a key for SHA-256
/// (`HMAC_SHA256_PRECOMPUTED_KEY_SIZE`).
const SCHEDULE_BYTES: usize = lc::HMAC_SHA256_PRECOMPUTED_KEY_SIZE as usize;

/// A key, shared by threads.
#[derive(Debug)]
pub(super) struct HmacKey {
    schedule: SecretBytes,
}

impl HmacKey {
    /// Takes a key of [`KEY_BYTES`].
    ///
    /// # Errors
    /// [`CryptoError::KeyLength`], [`CryptoError::Secret`], [`CryptoError::Library`].
    pub(super) fn new(key: &SecretBytes) -> Result<Self, CryptoError> {
        check_key(Algorithm::HmacSha256, key, KEY_BYTES)?;
        let mut schedule = SecretBytes::zeroed(SCHEDULE_BYTES)?;
        let mut context = Context::new();
        context.set_key(key.expose())?;
        context.export(schedule.expose_mut())?;
        Ok(Self { schedule })
    }

    /// The tag of `header` followed by `message`.
    ///
    /// # Errors
    /// [`CryptoError::Library`].
    pub(super) fn tag(&self, header: &[u8], message: &[u8]) -> Result<[u8; BLOCK_TAG_BYTES], CryptoError> {
        let mut context = Context::new();
        context.set_schedule(self.schedule.expose())?;
        context.update(header)?;
        context.update(message)?;
        context.finish()
    }
}

/// An `HMAC_CTX`, which for SHA-256 contains all of its state. It is wiped on drop.
struct Context(MaybeUninit<lc::HMAC_CTX>);

impl Context {
    fn new() -> Self {
        let mut context = MaybeUninit::uninit();
        // SAFETY: the call initialises the context, which is large enough.
        unsafe { lc::HMAC_CTX_init(context.as_mut_ptr()) };
        Self(context)
    }

    fn set_key(&mut self, key: &[u8]) -> Result<(), CryptoError> {
        // SAFETY: the context was initialised; the key is readable for its length; a null engine
        // means none.
        let result = unsafe {
            lc::HMAC_Init_ex(
                self.0.as_mut_ptr(),
                key.as_ptr().cast(),
                key.len(),
                lc::EVP_sha256(),
                std::ptr::null_mut(),
            )
        };
        expect_one(result, "HMAC_Init_ex")
    }

    fn export(&mut self, schedule: &mut [u8]) -> Result<(), CryptoError> {
        let mut length = schedule.len();
        // SAFETY: the context was initialised and has a key; `schedule` is writable for `length`.
        let results = unsafe {
            (
                lc::HMAC_set_precomputed_key_export(self.0.as_mut_ptr()),
                lc::HMAC_get_precomputed_key(self.0.as_mut_ptr(), schedule.as_mut_ptr(), &raw mut length),
            )
        };
        expect_one(results.0, "HMAC_set_precomputed_key_export")?;
        expect_one(results.1, "HMAC_get_precomputed_key")?;
        expect_one(c_int::from(length == schedule.len()), "HMAC_get_precomputed_key")
    }

    fn set_schedule(&mut self, schedule: &[u8]) -> Result<(), CryptoError> {
        // SAFETY: the context was initialised; the schedule is readable for its length.
        let result = unsafe {
            lc::HMAC_Init_from_precomputed_key(
                self.0.as_mut_ptr(),
                schedule.as_ptr(),
                schedule.len(),
                lc::EVP_sha256(),
            )
        };
        expect_one(result, "HMAC_Init_from_precomputed_key")
    }

    fn update(&mut self, bytes: &[u8]) -> Result<(), CryptoError> {
        // SAFETY: the context was initialised; the bytes are readable for their length.
        let result = unsafe { lc::HMAC_Update(self.0.as_mut_ptr(), bytes.as_ptr(), bytes.len()) };
        expect_one(result, "HMAC_Update")
    }

    fn finish(mut self) -> Result<[u8; BLOCK_TAG_BYTES], CryptoError> {
        let mut digest = [0; lc::EVP_MAX_MD_SIZE as usize];
        let mut length = 0;
        // SAFETY: the context was initialised; the buffer fits the longest digest.
        let result = unsafe { lc::HMAC_Final(self.0.as_mut_ptr(), digest.as_mut_ptr(), &raw mut length) };
        expect_one(result, "HMAC_Final")?;
        let mut tag = [0; BLOCK_TAG_BYTES];
        tag.copy_from_slice(&digest[..BLOCK_TAG_BYTES]);
        Ok(tag)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was initialised, and is not used again.
        unsafe { lc::HMAC_CTX_cleanup(self.0.as_mut_ptr()) };
    }
}

/// Checks that a call of aws-lc returned one. Its reasons for failures are not useful to callers.
fn expect_one(result: c_int, call: &'static str) -> Result<(), CryptoError> {
    match result {
        1 => Ok(()),
        _ => Err(CryptoError::Library { algorithm: Algorithm::HmacSha256, call, code: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mac::hmac_sha256;

    #[test]
    fn a_tag_is_half_of_hmac_sha256() {
        for length in [0, 1, 55, 64, 4096, 4097] {
            let key = SecretBytes::random(KEY_BYTES).unwrap();
            let message: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
            let whole = hmac_sha256(&key, &[&b"header"[..], &message].concat()).unwrap();
            let tags = HmacKey::new(&key).unwrap();
            // Twice, because a key can be reused.
            for _ in 0..2 {
                assert_eq!(tags.tag(b"header", &message).unwrap(), whole[..BLOCK_TAG_BYTES]);
            }
        }
    }
}
