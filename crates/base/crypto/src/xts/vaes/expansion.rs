//! The key expansion of AES-256 (FIPS 197, 5.2 and 5.3.5), with the processor's own S-box and only
//! in registers: no round key passes through compiled code.

use std::arch::asm;

use super::state::RoundKeys;

/// Stores the round key in register `$from`, repeated to fill the widest register, as that of round
/// `$round`.
macro_rules! keep {
    ($from:literal, $round:literal) => {
        concat!(
            "vinserti128 ymm3, ymm", $from, ", xmm", $from, ", 1\n",
            "vmovdqa [{into} + 64 * ", $round, "], ymm3\n",
            "vmovdqa [{into} + 64 * ", $round, " + 32], ymm3\n",
        )
    };
}

/// Computes the round key after next in register `$of`: each of its words, and a word computed from
/// the round key between, in register `$between`, are added to all words after it. The instruction
/// leaves that word, after the S-box, rotated in word 3 and unrotated in word 2; `$word` selects
/// one.
macro_rules! next {
    ($of:literal, $between:literal, $constant:literal, $word:literal, $round:literal) => {
        concat!(
            "vaeskeygenassist xmm2, xmm", $between, ", ", $constant, "\n",
            "vpshufd xmm2, xmm2, ", $word, "\n",
            "vpslldq xmm3, xmm", $of, ", 4\n",
            "vpxor xmm", $of, ", xmm", $of, ", xmm3\n",
            "vpslldq xmm3, xmm", $of, ", 8\n",
            "vpxor xmm", $of, ", xmm", $of, ", xmm3\n",
            "vpxor xmm", $of, ", xmm", $of, ", xmm2\n",
            keep!($of, $round),
        )
    };
}

macro_rules! even {
    ($constant:literal, $round:literal) => {
        next!(0, 1, $constant, 0xff, $round)
    };
}

macro_rules! odd {
    ($round:literal) => {
        next!(1, 0, 0, 0xaa, $round)
    };
}

/// Computes the round keys for encryption.
///
/// # Safety
/// The processor must have AES and AVX2.
pub(super) unsafe fn expand(key: &[u8; 32], encryption: &mut RoundKeys) {
    // SAFETY: reads the key, writes the 15 round keys, which are aligned, and leaves none in a
    // register.
    unsafe {
        asm!(
            "vmovdqu xmm0, [{key}]",
            "vmovdqu xmm1, [{key} + 16]",
            keep!(0, 0), keep!(1, 1),
            even!(0x01, 2), odd!(3),
            even!(0x02, 4), odd!(5),
            even!(0x04, 6), odd!(7),
            even!(0x08, 8), odd!(9),
            even!(0x10, 10), odd!(11),
            even!(0x20, 12), odd!(13),
            even!(0x40, 14),
            "vzeroall",
            key = in(reg) key,
            into = in(reg) encryption,
            clobber_abi("sysv64"),
            options(nostack, preserves_flags),
        );
    }
}

/// Computes the round keys for decryption: those for encryption in reverse order, all but the outer
/// two after InvMixColumns.
///
/// # Safety
/// The processor must have AES and AVX2.
pub(super) unsafe fn invert(encryption: &RoundKeys, decryption: &mut RoundKeys) {
    macro_rules! outer {
        ($of:literal, $round:literal) => {
            concat!("vmovdqa xmm0, [{from} + 64 * ", $of, "]\n", keep!(0, $round))
        };
    }
    macro_rules! inner {
        ($of:literal, $round:literal) => {
            concat!("vaesimc xmm0, [{from} + 64 * ", $of, "]\n", keep!(0, $round))
        };
    }
    // SAFETY: reads 15 round keys and writes 15 others, all aligned, and leaves none in a register.
    unsafe {
        asm!(
            outer!(14, 0),
            inner!(13, 1), inner!(12, 2), inner!(11, 3), inner!(10, 4), inner!(9, 5), inner!(8, 6), inner!(7, 7),
            inner!(6, 8), inner!(5, 9), inner!(4, 10), inner!(3, 11), inner!(2, 12), inner!(1, 13),
            outer!(0, 14),
            "vzeroall",
            from = in(reg) encryption,
            into = in(reg) decryption,
            clobber_abi("sysv64"),
            options(nostack, preserves_flags),
        );
    }
}
