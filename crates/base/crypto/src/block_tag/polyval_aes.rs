//! AES-256 of POLYVAL: a hash that nobody can compute or predict without its key, made a tag by a
//! cipher under another key. It needs no nonce, so a block can be tagged any number of times.
//!
//! ```text
//! tag = AES-256(cipher key, POLYVAL(hash key, lengths | header | message))
//! ```
//!
//! `lengths` are those of header and message in bytes, 64 bits each, little-endian; header and
//! message are each filled up with zeroes to a multiple of 16 bytes.

use std::ptr::from_ref;

use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroizing;

use super::BLOCK_TAG_BYTES;
use super::polyval::{self, PolyvalKernel, Powers};
use crate::error::{Algorithm, CryptoError, check_key};
use crate::module::lc;

pub(super) const ALGORITHM: Algorithm = Algorithm::PolyvalAes;

const CIPHER_KEY_BYTES: usize = 32;

/// Length of a key: that of the hash, then that of the cipher.
pub(super) const KEY_BYTES: usize = polyval::BLOCK_BYTES + CIPHER_KEY_BYTES;

/// What a key is expanded to.
#[repr(C)]
struct State {
    powers: Powers,
    round_keys: lc::AES_KEY,
}

/// A key, shared by threads.
pub(super) struct PolyvalAesKey {
    /// A [`State`].
    state: SecretBytes,
    kernel: &'static dyn PolyvalKernel,
}

impl std::fmt::Debug for PolyvalAesKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PolyvalAesKey").field("kernel", &self.kernel.name()).finish_non_exhaustive()
    }
}

impl PolyvalAesKey {
    /// Expands a key of [`KEY_BYTES`]. Panics on a machine that does not support the kernel.
    ///
    /// # Errors
    /// [`CryptoError::KeyLength`], [`CryptoError::Secret`], [`CryptoError::Library`].
    pub(super) fn new(key: &SecretBytes, kernel: &'static dyn PolyvalKernel) -> Result<Self, CryptoError> {
        check_key(ALGORITHM, key, KEY_BYTES)?;
        let mut keyed = Self { state: SecretBytes::zeroed(size_of::<State>())?, kernel };
        let (hash_key, cipher_key) = key.expose().split_at(polyval::BLOCK_BYTES);
        let state = keyed.state_mut();
        kernel.set_key(&mut state.powers, hash_key);
        // SAFETY: the key is readable for its 256 bits, and the round keys are writable.
        let result = unsafe {
            lc::AES_set_encrypt_key(
                cipher_key.as_ptr(),
                8 * CIPHER_KEY_BYTES as std::ffi::c_uint,
                &raw mut state.round_keys,
            )
        };
        match result {
            0 => Ok(keyed),
            _ => Err(CryptoError::Library { algorithm: ALGORITHM, call: "AES_set_encrypt_key", code: 0 }),
        }
    }

    /// The tag of `header` and `message`.
    pub(super) fn tag(&self, header: &[u8], message: &[u8]) -> [u8; BLOCK_TAG_BYTES] {
        let state = self.state();
        let mut sum = Zeroizing::new([0; polyval::BLOCK_BYTES]);
        let mut lengths = [0; polyval::BLOCK_BYTES];
        lengths[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(message.len() as u64).to_le_bytes());
        // SAFETY: the kernel has set the key, for which it needs a processor that supports it.
        let mut absorb = |blocks: &[u8]| unsafe { self.kernel.absorb(&state.powers, &mut sum, blocks) };
        absorb(&lengths);
        for part in [header, message] {
            let (blocks, rest) = part.as_chunks::<{ polyval::BLOCK_BYTES }>();
            absorb(blocks.as_flattened());
            if !rest.is_empty() {
                let mut last = [0; polyval::BLOCK_BYTES];
                last[..rest.len()].copy_from_slice(rest);
                absorb(&last);
            }
        }
        let mut tag = [0; BLOCK_TAG_BYTES];
        // SAFETY: both arrays are one block long; the round keys were set.
        unsafe { lc::AES_encrypt(sum.as_ptr(), tag.as_mut_ptr(), from_ref(&state.round_keys)) };
        tag
    }

    fn state(&self) -> &State {
        let state: *const State = self.state.expose().as_ptr().cast();
        // SAFETY: the secret is as long as a `State`, starts on a page boundary and is initialised,
        // and any bits are a valid `State`.
        unsafe { &*state }
    }

    fn state_mut(&mut self) -> &mut State {
        let state: *mut State = self.state.expose_mut().as_mut_ptr().cast();
        // SAFETY: as in `state`, and the borrow of `self` makes this the only access.
        unsafe { &mut *state }
    }
}

#[cfg(all(test, not(feature = "fips")))]
mod tests {
    use super::*;

    /// Computed by scripts/read-layer.py, which shares no code with this.
    #[test]
    fn every_kernel_has_the_tags_of_another_implementation() {
        let known: [(usize, usize, u128); 2] = [
            (64, 4097, 0x7323_f79e_f8f0_ab7e_0f93_0c0c_6663_7d86),
            (0, 0, 0x5390_628a_3acf_964f_6e02_0539_76a8_035d),
        ];
        for kernel in polyval::available() {
            let mut key: Vec<u8> = (0..KEY_BYTES as u8).collect();
            let key = SecretBytes::from_slice_and_wipe(&mut key).unwrap();
            let keyed = PolyvalAesKey::new(&key, kernel).unwrap();
            for (header, message, tag) in known {
                let header: Vec<u8> = (0..header as u8).collect();
                let message: Vec<u8> = (0..message).map(|at| (at * 7) as u8).collect();
                assert_eq!(keyed.tag(&header, &message), tag.to_be_bytes(), "{}", kernel.name());
            }
        }
    }
}
