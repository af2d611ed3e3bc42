//! The expanded key and the working space of a session, in one page of secret memory.

use strongroom_memory::secret::SecretBytes;

use super::expansion;
use crate::error::CryptoError;

/// AES-256 has 14 rounds (FIPS 197, 5).
const ROUNDS: usize = 14;

/// The most units of a batch: four of the widest registers.
pub(super) const BATCH_MAX: usize = 16;

/// The round keys of one AES key in the order of use, each repeated to fill the widest register, so
/// that one plain load fills a register.
#[repr(C, align(64))]
pub(super) struct RoundKeys([[u128; 4]; ROUNDS + 1]);

/// The encrypted numbers of a batch of units, and space for one more, which is read but not used.
#[repr(C, align(64))]
pub(super) struct Numbers([u128; BATCH_MAX + 1]);

/// The state of a session.
#[repr(C)]
pub(super) struct State {
    pub encryption: RoundKeys,
    /// The round keys of the equivalent inverse cipher (FIPS 197, 5.3.5).
    pub decryption: RoundKeys,
    pub tweak: RoundKeys,
    pub numbers: Numbers,
}

/// A [`State`] in secret memory.
pub(super) struct SecretState(SecretBytes);

impl SecretState {
    /// Expands a key.
    ///
    /// # Errors
    /// [`CryptoError::Secret`].
    ///
    /// # Safety
    /// The processor must have AES and AVX2.
    pub(super) unsafe fn expand(data_key: &[u8; 32], tweak_key: &[u8; 32]) -> Result<Self, CryptoError> {
        let mut secret = Self(SecretBytes::zeroed(size_of::<State>())?);
        let state = secret.expose_mut();
        // SAFETY: guaranteed by the caller.
        unsafe {
            expansion::expand(data_key, &mut state.encryption);
            expansion::invert(&state.encryption, &mut state.decryption);
            expansion::expand(tweak_key, &mut state.tweak);
        }
        Ok(secret)
    }

    pub(super) fn expose_mut(&mut self) -> &mut State {
        let state: *mut State = self.0.expose_mut().as_mut_ptr().cast();
        // SAFETY: the secret is as long as a `State`, starts on a page boundary and is initialised,
        // any bits are a valid `State`, and the borrow of `self` makes this the only access.
        unsafe { &mut *state }
    }
}
