//! Processes units of any other length, block by block, with ciphertext stealing for a last,
//! partial block (IEEE 1619-2018, 5.3.2 and 5.4.2).
//!
//! The data path has no such units. They are supported so that a kernel covers the whole standard
//! and runs its published vectors. Tweaks and blocks pass through compiled code here, which may
//! leave them on the stack; round keys do not.

use std::arch::asm;
use std::ptr;

use super::super::kernel::DataUnits;
use super::state::{RoundKeys, State};

const BLOCK_BYTES: usize = 16;

/// Encrypts `units`, or decrypts them with `decrypting`.
///
/// # Safety
/// As [`KeyedXts::encrypt`](crate::xts::kernel::KeyedXts::encrypt); the processor must have AES and
/// AVX.
pub(super) unsafe fn process(
    state: &State,
    decrypting: bool,
    units: DataUnits,
    source: *const u8,
    destination: *mut u8,
) {
    for (number, offset) in units.tweaks() {
        // SAFETY: guaranteed by the caller; the unit at `offset` is within source and destination.
        unsafe {
            let tweak = encrypt_block(&state.tweak, number);
            let (source, destination) = (source.add(offset), destination.add(offset));
            process_unit(state, decrypting, tweak, units.unit_bytes(), source, destination);
        }
    }
}

/// Processes one unit of at least a block.
///
/// # Safety
/// `source` must be readable and `destination` writable for `unit_bytes`; the processor must have
/// AES and AVX.
unsafe fn process_unit(
    state: &State,
    decrypting: bool,
    mut tweak: u128,
    unit_bytes: usize,
    source: *const u8,
    destination: *mut u8,
) {
    // SAFETY: guaranteed by the caller.
    let cipher = |block: u128, tweak: u128| unsafe {
        tweak
            ^ if decrypting {
                decrypt_block(&state.decryption, block ^ tweak)
            } else {
                encrypt_block(&state.encryption, block ^ tweak)
            }
    };
    let partial_bytes = unit_bytes % BLOCK_BYTES;
    // The last whole block takes part in ciphertext stealing.
    let plain_blocks = unit_bytes / BLOCK_BYTES - usize::from(partial_bytes > 0);
    for block in 0..plain_blocks {
        let at = block * BLOCK_BYTES;
        // SAFETY: `plain_blocks` whole blocks are within the unit.
        unsafe { write(destination.add(at), BLOCK_BYTES, cipher(read(source.add(at), BLOCK_BYTES), tweak)) };
        tweak = times_x(tweak);
    }
    if partial_bytes > 0 {
        let at = plain_blocks * BLOCK_BYTES;
        // Encryption uses the last two tweaks in order, decryption in reverse order.
        let (first, second) = if decrypting { (times_x(tweak), tweak) } else { (tweak, times_x(tweak)) };
        // SAFETY: one whole block and `partial_bytes` more are in the unit from `at` on.
        unsafe {
            let whole = cipher(read(source.add(at), BLOCK_BYTES), first);
            let partial = read(source.add(at + BLOCK_BYTES), partial_bytes);
            // The partial block is filled up from the end of the whole one.
            let stolen = whole & (u128::MAX << (8 * partial_bytes));
            write(destination.add(at), BLOCK_BYTES, cipher(partial | stolen, second));
            write(destination.add(at + BLOCK_BYTES), partial_bytes, whole);
        }
    }
}

/// A tweak times x in GF(2^128), in constant time.
fn times_x(tweak: u128) -> u128 {
    (tweak << 1) ^ (0x87 & (tweak >> 127).wrapping_neg())
}

/// Reads `bytes` bytes, at most a block, and pads them with zeroes.
///
/// # Safety
/// They must be readable; others may write them.
unsafe fn read(from: *const u8, bytes: usize) -> u128 {
    let mut block = [0; BLOCK_BYTES];
    // SAFETY: guaranteed by the caller, and a block has space for them.
    unsafe { ptr::copy_nonoverlapping(from, block.as_mut_ptr(), bytes) };
    u128::from_le_bytes(block)
}

/// Writes the first `bytes` bytes of a block.
///
/// # Safety
/// There must be space for them.
unsafe fn write(to: *mut u8, bytes: usize, block: u128) {
    // SAFETY: guaranteed by the caller; `bytes` is at most a block.
    unsafe { ptr::copy_nonoverlapping(block.to_le_bytes().as_ptr(), to, bytes) };
}

/// AES of one block, without a tweak.
macro_rules! block_cipher {
    ($name:ident, $round:literal, [$($number:literal)*]) => {
        /// # Safety
        /// The processor must have AES and AVX.
        unsafe fn $name(keys: &RoundKeys, mut block: u128) -> u128 {
            // SAFETY: reads 15 round keys, which are aligned, reads and writes one block.
            unsafe {
                asm!(
                    "vmovdqu xmm0, [{block}]",
                    "vpxor xmm0, xmm0, [{keys}]",
                    $(concat!($round, " xmm0, xmm0, [{keys} + 64 * ", $number, "]"),)*
                    concat!($round, "last xmm0, xmm0, [{keys} + 64 * 14]"),
                    "vmovdqu [{block}], xmm0",
                    block = in(reg) &raw mut block,
                    keys = in(reg) keys,
                    out("xmm0") _,
                    options(nostack, preserves_flags),
                );
            }
            block
        }
    };
}
block_cipher!(encrypt_block, "vaesenc", [1 2 3 4 5 6 7 8 9 10 11 12 13]);
block_cipher!(decrypt_block, "vaesdec", [1 2 3 4 5 6 7 8 9 10 11 12 13]);
