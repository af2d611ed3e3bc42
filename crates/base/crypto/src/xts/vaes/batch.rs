//! Encrypts and decrypts a batch of units that are whole strides, in one piece of assembly: the
//! data path.
//!
//! A *stride* is the count of blocks that the processor's AES units process together. The numbers
//! of a batch's units are encrypted in parallel. While the rounds of a stride run, the processor's
//! other vector units prepare the tweaks of the next stride, and the source is prefetched 2 KiB
//! ahead.
//!
//! It is assembly, and not the compiler's intrinsics, for three reasons:
//! - The compiler may spill registers to the stack. Here round keys, tweaks and data are only in
//!   registers and in their intended memory, in any build.
//! - A guest can change a source while it is read. Assembly reads each byte once, which Rust
//!   guarantees for none of its own accesses to memory that others write.
//! - The compiler reorders instructions: it undid the interleaving, and lost a quarter of the speed
//!   of 512-byte units.
//!
//! Time does not depend on secrets: no branch and no address depends on a key, a tweak or data.

use std::arch::asm;
use std::mem::offset_of;

use super::state::{BATCH_MAX, Numbers, RoundKeys};

/// How far ahead of a stride memory is prefetched. A longer distance is better for long calls on
/// cold data, but worse for single pages, where most of the prefetched memory would be beyond the
/// page.
const AHEAD_BYTES: usize = 2048;

/// Blocks of the longest stride.
const STRIDE_BLOCKS_MAX: usize = 32;

/// Units that are processed with one encryption of their numbers.
pub(super) struct Batch<'a> {
    /// The round keys for the data, in the direction of the call.
    pub keys: &'a RoundKeys,
    pub tweak_keys: &'a RoundKeys,
    /// Space for the units' encrypted numbers.
    pub numbers: &'a mut Numbers,
    /// Number of the first unit. Its lower half does not overflow within the batch.
    pub first: u128,
    /// Not zero, and at most four registers' blocks.
    pub units: usize,
    /// Strides of a unit, not zero.
    pub strides: usize,
    /// Readable for `units` units; others may write it.
    pub source: *const u8,
    /// Writable for `units` units, and not overlapping the source.
    pub destination: *mut u8,
}

/// Code for registers of one width.
pub(super) trait Width {
    /// Blocks of a register.
    const BLOCKS: usize;
    /// Bytes of a stride.
    const STRIDE_BYTES: usize;

    /// Encrypts a batch.
    ///
    /// # Safety
    /// The batch's fields must be as documented, and the processor must support this width.
    unsafe fn encrypt(batch: Batch<'_>);

    /// Decrypts a batch.
    ///
    /// # Safety
    /// As [`encrypt`](Self::encrypt).
    unsafe fn decrypt(batch: Batch<'_>);

    /// Zeroes all registers of this width.
    ///
    /// # Safety
    /// The processor must support this width.
    unsafe fn clear_registers();
}

/// Four blocks per register and eight registers per stride, for AVX-512.
pub(super) struct Bits512;

/// Two blocks per register and four registers per stride, for AVX2, which has sixteen registers in
/// all.
pub(super) struct Bits256;

/// The constants of the assembly; pairs are the halves of a block.
#[repr(C, align(64))]
struct Constants {
    /// How far a unit's tweak is shifted for each block of its first stride.
    left: [[u64; 2]; STRIDE_BLOCKS_MAX],
    /// The shift for the bits carried out of each half: 64 less that.
    right: [[u64; 2]; STRIDE_BLOCKS_MAX],
    /// The polynomial by which a carry out of the tweak is multiplied: x^7 + x^2 + x + 1 (IEEE
    /// 1619-2018, 5.2).
    reduction: [[u64; 2]; 4],
    /// The offset of each unit's number from that of the batch's first unit.
    count: [[u64; 2]; BATCH_MAX],
}

static CONSTANTS: Constants = {
    let mut constants = Constants {
        left: [[0; 2]; STRIDE_BLOCKS_MAX],
        right: [[0; 2]; STRIDE_BLOCKS_MAX],
        reduction: [[0x87, 0]; 4],
        count: [[0; 2]; BATCH_MAX],
    };
    let mut at = 0;
    while at < STRIDE_BLOCKS_MAX {
        constants.left[at] = [at as u64; 2];
        constants.right[at] = [64 - at as u64; 2];
        at += 1;
    }
    let mut at = 0;
    while at < BATCH_MAX {
        constants.count[at] = [at as u64, 0];
        at += 1;
    }
    constants
};

/// Implements [`Width`] from a dialect, rows, and the schedule of which rounds run beside which
/// work: see `text.rs`.
macro_rules! width {
    (
        $width:ty, $blocks:literal blocks a register, $stride_bytes:literal bytes a stride,
        dialect $dialect:tt,
        rows $rows:tt,
        rounds beside tweaks $beside_tweaks:tt, rounds alone $alone:tt,
        cache lines $lines:tt,
        one row $one_row:tt, four rows $four_rows:tt,
        registers [$($register:literal)*], further registers [$($further:literal)*]
    ) => {
        /// Processes a batch with rounds of `$round`, which is `vaesenc` or `vaesdec`.
        macro_rules! run {
            ($round:literal, $batch:ident) => {
                asm!(
                    batch!($round, $stride_bytes, $dialect, $dialect, $rows, $rows, $beside_tweaks, $alone, $lines, $one_row,
                        $four_rows),
                    inout("rdi") $batch.destination => _,
                    inout("rsi") $batch.source => _,
                    inout("rdx") $batch.tweak_keys => _,
                    inout("rcx") $batch.numbers => _,
                    in("r8") &CONSTANTS,
                    inout("r9") $batch.units => _,
                    in("r10") $batch.strides,
                    inout("rax") $batch.first as u64 => _,
                    inout("r11") ($batch.first >> 64) as u64 => _,
                    keys = in(reg) $batch.keys,
                    blocks = const $blocks,
                    ahead = const AHEAD_BYTES,
                    left = const offset_of!(Constants, left),
                    right = const offset_of!(Constants, right),
                    reduction = const offset_of!(Constants, reduction),
                    count = const offset_of!(Constants, count),
                    clobber_abi("sysv64"),
                    options(nostack),
                )
            };
        }

        impl Width for $width {
            const BLOCKS: usize = $blocks;
            const STRIDE_BYTES: usize = $stride_bytes;

            unsafe fn encrypt(batch: Batch<'_>) {
                // SAFETY: reads `units` times `strides` strides of the source and writes as many of
                // the destination, which the batch guarantees. Writes up to four registers of
                // numbers, for which there is space, as the widest are 64 bytes, and reads as many
                // as there are units and one more. Reads round keys and constants, aligned for any
                // width. Prefetching is not an access.
                unsafe { run!("vaesenc", batch) }
            }

            unsafe fn decrypt(batch: Batch<'_>) {
                // SAFETY: as in `encrypt`.
                unsafe { run!("vaesdec", batch) }
            }

            #[inline]
            unsafe fn clear_registers() {
                // SAFETY: changes only vector registers. Each of these instructions also clears the
                // rest of its register; the last one tells the processor that the upper parts are
                // unused.
                unsafe {
                    asm!(
                        $(concat!("vpxor xmm", $register, ", xmm", $register, ", xmm", $register),)*
                        $(concat!("vpxorq zmm", $further, ", zmm", $further, ", zmm", $further),)*
                        "vzeroupper",
                        clobber_abi("sysv64"),
                        options(nomem, nostack, preserves_flags),
                    );
                }
            }
        }
    };
}

width! {
    Bits512, 4 blocks a register, 512 bytes a stride,
    dialect {"zmm" "vpxorq" xor3_by_ternary "vbroadcasti32x4" "vshufi64x2" 4 12},
    rows [(0 16 24 0) (1 17 25 64) (2 18 26 128) (3 19 27 192) (4 20 28 256) (5 21 29 320) (6 22 30 384) (7 23 31 448)],
    rounds beside tweaks [1 2 3 4 5 6 7 8], rounds alone [9 10 11 12 13],
    cache lines [0 64 128 192 256 320 384 448],
    one row [(0 16 24 0)], four rows [(0 16 24 0) (1 17 25 64) (2 18 26 128) (3 19 27 192)],
    registers [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15],
    further registers [16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
}

width! {
    Bits256, 2 blocks a register, 128 bytes a stride,
    dialect {"ymm" "vpxor" xor3_by_two "vbroadcasti128" "vperm2i128" 1 15},
    rows [(0 4 8 0) (1 5 9 32) (2 6 10 64) (3 7 11 96)],
    rounds beside tweaks [1 2 3 4], rounds alone [5 6 7 8 9 10 11 12 13],
    cache lines [0 64],
    one row [(0 4 8 0)], four rows [(0 4 8 0) (1 5 9 32) (2 6 10 64) (3 7 11 96)],
    registers [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15],
    further registers []
}
