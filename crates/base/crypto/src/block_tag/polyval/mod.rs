//! POLYVAL (RFC 8452, 3): a polynomial over GF(2^128), whose coefficients are the message and whose
//! point is the key.
//!
//! A kernel absorbs many blocks at a time: with powers of the key, their products do not depend on
//! each other, and one reduction serves them all.

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
mod clmul;
mod portable;

use std::fmt::Debug;

/// The unit of the hash.
pub(super) const BLOCK_BYTES: usize = 16;

/// Blocks of the longest stride.
const POWERS: usize = 32;

/// Powers of a key, the highest first; the last is the key itself.
#[repr(C, align(64))]
pub(crate) struct Powers([[u8; BLOCK_BYTES]; POWERS]);

/// All kernels, the fastest first. The last one runs on every machine.
static KERNELS: &[&dyn PolyvalKernel] = &[
    #[cfg(target_arch = "x86_64")]
    &clmul::CLMUL_512,
    #[cfg(target_arch = "x86_64")]
    &clmul::CLMUL_128,
    &portable::Portable,
];

/// The kernels that this machine can run, the fastest first.
pub(crate) fn available() -> impl Iterator<Item = &'static dyn PolyvalKernel> {
    KERNELS.iter().copied().filter(|kernel| kernel.is_supported())
}

/// The kernel for this machine.
pub(super) fn fastest() -> &'static dyn PolyvalKernel {
    available().next().unwrap_or(&portable::Portable)
}

/// An implementation of POLYVAL. No branch and no address depends on a key or a message.
pub(crate) trait PolyvalKernel: Debug + Send + Sync {
    /// A short name for logs and benchmarks.
    fn name(&self) -> &'static str;

    /// Whether this machine's processor supports the kernel.
    fn is_supported(&self) -> bool;

    /// Absorbs whole blocks into `sum`: for each, adds it and multiplies by the key.
    ///
    /// # Safety
    /// The processor must support the kernel. A tag takes three calls, so none of them asks.
    unsafe fn absorb(&self, powers: &Powers, sum: &mut [u8; BLOCK_BYTES], blocks: &[u8]);

    /// Computes the powers of a key of one block. Panics if the processor does not support the
    /// kernel.
    fn set_key(&self, powers: &mut Powers, key: &[u8]) {
        assert!(self.is_supported(), "{} on a processor that lacks what it needs", self.name());
        powers.0[POWERS - 1].copy_from_slice(key);
        for at in (0..POWERS - 1).rev() {
            // One more factor: the sum of the former power and nothing, times the key.
            let mut power = zeroize::Zeroizing::new(powers.0[at + 1]);
            // SAFETY: the processor supports the kernel, as was just asserted.
            unsafe { self.absorb(powers, &mut power, &[0; BLOCK_BYTES]) };
            powers.0[at] = *power;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8452, A.
    const KEY: &str = "25629347589242761d31f826ba4b757b";
    const BLOCKS: &str = "4f4f95668c83dfb6401762bb2d01a262d1a24ddd2721d006bbe45f20d3c9f362";
    const HASH: &str = "f7a3b47b846119fae5b7866cf5e5b77e";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn powers_of(kernel: &dyn PolyvalKernel, key: &[u8]) -> Box<Powers> {
        let mut powers = Box::new(Powers([[0; BLOCK_BYTES]; POWERS]));
        kernel.set_key(&mut powers, key);
        powers
    }

    fn absorb(kernel: &dyn PolyvalKernel, powers: &Powers, sum: &mut [u8; BLOCK_BYTES], blocks: &[u8]) {
        // SAFETY: a key was set with the kernel, which needs a processor that supports it.
        unsafe { kernel.absorb(powers, sum, blocks) };
    }

    /// The field as RFC 8452, 3, defines it, bit by bit: x^128 + x^127 + x^126 + x^121 + 1.
    fn dot(one: u128, other: u128) -> u128 {
        let times_x = |value: u128| {
            (value << 1) ^ if value >> 127 == 1 { 1 | 1 << 121 | 1 << 126 | 1 << 127 } else { 0 }
        };
        // Division by x: the polynomial has a constant term.
        let by_x = |value: u128| {
            if value & 1 == 1 {
                (value >> 1) ^ (1 << 127 | 1 << 126 | 1 << 125 | 1 << 120)
            } else {
                value >> 1
            }
        };
        let (mut product, mut factor) = (0, one);
        for bit in 0..128 {
            if other >> bit & 1 == 1 {
                product ^= factor;
            }
            factor = times_x(factor);
        }
        (0..128).fold(product, |product, _| by_x(product))
    }

    fn slowly(key: &[u8], blocks: &[u8]) -> [u8; 16] {
        let number = |bytes: &[u8]| u128::from_le_bytes(bytes.try_into().unwrap());
        let sum = blocks.chunks(16).fold(0, |sum, block| dot(sum ^ number(block), number(key)));
        sum.to_le_bytes()
    }

    #[test]
    fn every_kernel_has_the_hash_of_the_rfc() {
        let (key, blocks, hash) = (bytes(KEY), bytes(BLOCKS), bytes(HASH));
        assert_eq!(slowly(&key, &blocks), *hash);
        for kernel in available() {
            let mut sum = [0; BLOCK_BYTES];
            absorb(kernel, &powers_of(kernel, &key), &mut sum, &blocks);
            assert_eq!(sum, *hash, "{}", kernel.name());
        }
    }

    /// All numbers of blocks around strides, all bits set, and noise.
    #[test]
    fn every_kernel_agrees_with_the_definition() {
        let noise = |seed: u64, length: usize| -> Vec<u8> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            };
            (0..length).map(|_| next()).collect()
        };
        for kernel in available() {
            for (seed, count) in (0..70).chain([255, 256, 257, 300]).enumerate() {
                let key = if count == 33 { vec![0xff; 16] } else { noise(seed as u64, 16) };
                let blocks =
                    if count == 65 { vec![0xff; 16 * count] } else { noise(!seed as u64, 16 * count) };
                let powers = powers_of(kernel, &key);
                let mut sum = [0; BLOCK_BYTES];
                absorb(kernel, &powers, &mut sum, &blocks);
                assert_eq!(sum, slowly(&key, &blocks), "{}: {count} blocks", kernel.name());
                // The same in two parts.
                let (one, other) = blocks.split_at(16 * (count / 3));
                let mut sum = [0; BLOCK_BYTES];
                absorb(kernel, &powers, &mut sum, one);
                absorb(kernel, &powers, &mut sum, other);
                assert_eq!(sum, slowly(&key, &blocks), "{}: {count} blocks in two parts", kernel.name());
            }
        }
    }
}
