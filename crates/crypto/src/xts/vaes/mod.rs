//! AES-256-XTS of our own, for x86-64 processors with VAES: several blocks in a register, many units in a call.
//!
//! Two kernels from one text: [`VAES_512`] has four blocks in a register and needs AVX-512, [`VAES_256`] has two and needs AVX2.
//! The processor's AES units do the rounds and the S-box of the key expansion. `docs/decisions/0015-vaes-kernel.md` has the
//! reasons and the measurements.
//!
//! | file | its story |
//! |---|---|
//! | `state` | what a key is expanded to, in secret memory |
//! | `expansion` | how |
//! | `batch` | units that are whole strides: the data path |
//! | `text` | the lines of its assembly |
//! | `blocks` | units of other lengths, block by block, with ciphertext stealing |
//!
//! What it promises, however it is built, since all of it is assembly: round keys, and the tweaks and data of units that are whole
//! strides, are in the pages of a `SecretBytes`, in source and destination, and in registers, which are cleared before a call
//! returns. What it cannot promise: while a call runs, an interrupt saves its registers in the kernel's memory, and a signal on
//! the thread's stack, as with any cipher.

#[macro_use]
mod text;

mod batch;
mod blocks;
mod expansion;
mod state;

use std::arch::is_x86_feature_detected;

use strongroom_memory::secret::SecretBytes;

use super::check_xts_key;
use super::kernel::{DataUnits, KeyedXts, XtsKernel};
use crate::error::CryptoError;
use batch::{Batch, Bits256, Bits512, Width};
use state::{BATCH_MAX, SecretState, State};

/// Four blocks a register: Intel since Ice Lake, AMD since Zen 4.
pub(super) static VAES_512: Vaes = Vaes {
    name: "vaes-512",
    is_supported: || {
        has_vaes() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    },
    process: process::<Bits512>,
};

/// Two blocks a register: AMD since Zen 3, Intel since Alder Lake.
pub(super) static VAES_256: Vaes =
    Vaes { name: "vaes-256", is_supported: has_vaes, process: process::<Bits256> };

/// What both need. Detection includes that the operating system saves the registers.
fn has_vaes() -> bool {
    is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
}

/// A kernel: one of the two widths.
pub(super) struct Vaes {
    name: &'static str,
    is_supported: fn() -> bool,
    process: Process,
}

/// Encrypts, or with `true` decrypts. Asks of its caller what [`KeyedXts::encrypt`] asks, and a processor that has what the
/// kernel needs.
type Process = unsafe fn(&mut State, bool, DataUnits, *const u8, *mut u8);

impl XtsKernel for Vaes {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_supported(&self) -> bool {
        (self.is_supported)()
    }

    fn set_key(&self, key: &SecretBytes) -> Result<Box<dyn KeyedXts>, CryptoError> {
        assert!(self.is_supported(), "{} on a processor that lacks what it needs", self.name);
        let (data_key, tweak_key) = check_xts_key(key)?;
        // SAFETY: the processor has AES and AVX2, as was just asserted.
        let state = unsafe { SecretState::expand(data_key, tweak_key)? };
        Ok(Box::new(Keyed { state, process: self.process }))
    }
}

/// A key with the code of one kernel. There is one only where the processor has what the code needs.
struct Keyed {
    state: SecretState,
    process: Process,
}

impl KeyedXts for Keyed {
    unsafe fn encrypt(
        &mut self,
        units: DataUnits,
        source: *const u8,
        destination: *mut u8,
    ) -> Result<(), CryptoError> {
        // SAFETY: the caller's promise, and the processor is right, as there is a `Keyed`.
        unsafe { (self.process)(self.state.expose_mut(), false, units, source, destination) };
        Ok(())
    }

    unsafe fn decrypt(
        &mut self,
        units: DataUnits,
        source: *const u8,
        destination: *mut u8,
    ) -> Result<(), CryptoError> {
        // SAFETY: as in `encrypt`.
        unsafe { (self.process)(self.state.expose_mut(), true, units, source, destination) };
        Ok(())
    }
}

/// [`Process`] with registers of one width.
///
/// # Safety
/// As there.
unsafe fn process<W: Width>(
    state: &mut State,
    decrypting: bool,
    units: DataUnits,
    source: *const u8,
    destination: *mut u8,
) {
    if units.count() == 0 {
        return;
    }
    // SAFETY: the caller's promise, unchanged, and there are units.
    unsafe {
        if units.unit_bytes().is_multiple_of(W::STRIDE_BYTES) {
            process_batches::<W>(state, decrypting, units, source, destination);
        } else {
            blocks::process(state, decrypting, units, source, destination);
        }
        W::clear_registers();
    }
}

/// Units that are whole strides, at least one.
///
/// # Safety
/// As [`process`].
unsafe fn process_batches<W: Width>(
    state: &mut State,
    decrypting: bool,
    units: DataUnits,
    source: *const u8,
    destination: *mut u8,
) {
    let State { encryption, decryption, tweak, numbers } = state;
    let mut done = 0;
    while done < units.count() {
        let first = units.first() + done as u128;
        let count = batch_units::<W>(first, units.count() - done);
        let offset = done * units.unit_bytes();
        // SAFETY: the batch's units are among the caller's, so that source and destination have room for them; `batch_units`
        // keeps to the other bounds.
        unsafe {
            let batch = Batch {
                keys: if decrypting { decryption } else { encryption },
                tweak_keys: tweak,
                numbers,
                first,
                units: count,
                strides: units.unit_bytes() / W::STRIDE_BYTES,
                source: source.add(offset),
                destination: destination.add(offset),
            };
            if decrypting {
                W::decrypt(batch);
            } else {
                W::encrypt(batch);
            }
        }
        done += count;
    }
}

/// How many of `left` units, the first of them with the number `first`, make a batch: as many as four registers have room for,
/// and none behind a carry into the upper half of the number.
fn batch_units<W: Width>(first: u128, left: usize) -> usize {
    let before_carry = usize::try_from(u64::MAX - first as u64).unwrap_or(usize::MAX).saturating_add(1);
    left.min(BATCH_MAX.min(4 * W::BLOCKS)).min(before_carry)
}
