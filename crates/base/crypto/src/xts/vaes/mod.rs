//! Our own AES-256-XTS, for x86-64 processors with VAES: several blocks per register, many units
//! per call.
//!
//! Two kernels share one source text: [`VAES_512`] has four blocks per register and needs AVX-512,
//! [`VAES_256`] has two and needs AVX2. The processor's AES units do the rounds and the S-box of
//! the key expansion. `docs/decisions/0015-vaes-kernel.md` has the reasons and the measurements.
//!
//! | file | its story |
//! |---|---|
//! | `state` | what a key is expanded to, in secret memory |
//! | `expansion` | how |
//! | `batch` | units that are whole strides: the data path |
//! | `text` | the lines of its assembly |
//! | `blocks` | units of other lengths, block by block, with ciphertext stealing |
//!
//! Promises, in any build, because all of it is assembly: round keys, and the tweaks and data of
//! units that are whole strides, are only in the pages of a `SecretBytes`, in source and
//! destination, and in registers, which are cleared before a call returns. It cannot prevent that
//! during a call an interrupt saves the registers in the kernel's memory, and a signal on the
//! thread's stack; this is true of any cipher.

// One line of the text is one line of assembly; the formatter would break them.
#[macro_use]
#[rustfmt::skip]
mod text;

mod batch;
mod blocks;
#[rustfmt::skip]
mod expansion;
mod state;

use std::arch::is_x86_feature_detected;

use strongroom_memory::secret::SecretBytes;

use super::check_xts_key;
use super::kernel::{DataUnits, KeyedXts, XtsKernel};
use crate::error::CryptoError;
use batch::{Batch, Bits256, Bits512, Width};
use state::{BATCH_MAX, SecretState, State};

/// Four blocks per register: Intel since Ice Lake, AMD since Zen 4.
pub(super) static VAES_512: Vaes = Vaes {
    name: "vaes-512",
    is_supported: || {
        has_vaes() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    },
    process: process::<Bits512>,
};

/// Two blocks per register: AMD since Zen 3, Intel since Alder Lake.
pub(super) static VAES_256: Vaes =
    Vaes { name: "vaes-256", is_supported: has_vaes, process: process::<Bits256> };

/// Whether the processor has the features that both need. Detection includes that the operating
/// system saves the registers.
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

/// Encrypts, or with `true` decrypts. It has the requirements of [`KeyedXts::encrypt`], and needs a
/// processor that supports the kernel.
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

/// A key with the code of one kernel. It exists only if the processor supports the code.
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
        // SAFETY: guaranteed by the caller; the processor supports the code, because there is a
        // `Keyed`.
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
/// As [`Process`].
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
    // SAFETY: guaranteed by the caller, and there are units.
    unsafe {
        if units.unit_bytes().is_multiple_of(W::STRIDE_BYTES) {
            process_batches::<W>(state, decrypting, units, source, destination);
        } else {
            blocks::process(state, decrypting, units, source, destination);
        }
        W::clear_registers();
    }
}

/// Processes units that are whole strides, at least one.
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
        // SAFETY: the batch's units are among the caller's, so source and destination have space
        // for them; `batch_units` ensures the other bounds.
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

/// How many of `left` units, the first of which has the number `first`, make a batch: as many as
/// fit into four registers, and none after a carry into the upper half of the number.
fn batch_units<W: Width>(first: u128, left: usize) -> usize {
    let before_carry = usize::try_from(u64::MAX - first as u64).unwrap_or(usize::MAX).saturating_add(1);
    left.min(BATCH_MAX.min(4 * W::BLOCKS)).min(before_carry)
}

#[cfg(test)]
mod tests {
    use std::arch::asm;

    use super::*;

    /// The content of sixteen registers after a call.
    #[repr(C, align(64))]
    struct Registers([[u8; 64]; 16]);

    macro_rules! registers {
        ($prefix:literal, $move:literal, [$($number:literal)*], [$($place:literal)*]) => {{
            let mut registers = Registers([[0; 64]; 16]);
            // SAFETY: writes sixteen registers, for which there is space.
            unsafe {
                asm!(
                    $(concat!($move, " [{into} + 64 * ", $place, "], ", $prefix, $number),)*
                    into = in(reg) &raw mut registers,
                    options(nostack, preserves_flags),
                );
            }
            registers
        }};
    }

    /// Compiled code uses the lower halves of registers 0 to 15 between the call and the check, so
    /// only the parts that it does not touch can be checked: all of registers 16 to 31, and the
    /// upper halves of the others.
    #[test]
    fn no_call_leaves_anything_in_registers() {
        let key = SecretBytes::random(64).unwrap();
        let (source, mut destination) = ([0x5a; 20 * 512], [0; 20 * 512]);
        for kernel in [&VAES_512, &VAES_256].into_iter().filter(|kernel| kernel.is_supported()) {
            let mut keyed = kernel.set_key(&key).unwrap();
            for unit_bytes in [512, 500] {
                let units = DataUnits::new(3, 20, unit_bytes).unwrap();
                // SAFETY: both arrays have space for the units, and do not overlap.
                let encrypted = unsafe { keyed.encrypt(units, source.as_ptr(), destination.as_mut_ptr()) };
                let lower = registers!("ymm", "vmovdqu", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15],
                    [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]);
                assert!(lower.0.iter().all(|register| register[16..] == [0; 48]), "{}", kernel.name);
                encrypted.unwrap();
            }
            if kernel.name == VAES_512.name {
                let units = DataUnits::new(3, 20, 512).unwrap();
                // SAFETY: as above.
                let decrypted = unsafe { keyed.decrypt(units, source.as_ptr(), destination.as_mut_ptr()) };
                let further = registers!("zmm", "vmovdqu64", [16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31],
                    [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]);
                assert!(further.0.iter().all(|register| *register == [0; 64]));
                decrypted.unwrap();
            }
        }
    }

    #[test]
    fn a_batch_fits_four_registers_and_ends_where_the_lower_half_of_a_number_does() {
        assert_eq!(batch_units::<Bits512>(0, 100), 16);
        assert_eq!(batch_units::<Bits256>(0, 100), 8);
        assert_eq!(batch_units::<Bits512>(u128::MAX, 1), 1);
        for upper in [0, 7 << 64, u128::from(u64::MAX) << 64] {
            let last = upper + u128::from(u64::MAX);
            assert_eq!(batch_units::<Bits512>(last, 100), 1);
            assert_eq!(batch_units::<Bits512>(last - 4, 100), 5);
            assert_eq!(batch_units::<Bits512>(last - 4, 3), 3);
        }
    }
}
