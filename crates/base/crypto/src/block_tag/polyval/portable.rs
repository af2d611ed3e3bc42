//! The kernel that runs everywhere: products of integers whose bits are far enough apart that
//! carries do not reach the next one.
//!
//! Integer multiplication takes the same time for all values on the processors that this project
//! supports.

use zeroize::Zeroize;

use super::{BLOCK_BYTES, POWERS, PolyvalKernel, Powers};

/// POLYVAL by integer multiplication.
#[derive(Debug)]
pub(super) struct Portable;

impl PolyvalKernel for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn is_supported(&self) -> bool {
        true
    }

    unsafe fn absorb(&self, powers: &Powers, sum: &mut [u8; BLOCK_BYTES], blocks: &[u8]) {
        let mut key = halves(&powers.0[POWERS - 1]);
        let mut product = halves(sum);
        for block in blocks.as_chunks::<BLOCK_BYTES>().0 {
            let [low, high] = halves(block);
            product = dot([product[0] ^ low, product[1] ^ high], key);
        }
        sum[..8].copy_from_slice(&product[0].to_le_bytes());
        sum[8..].copy_from_slice(&product[1].to_le_bytes());
        key.zeroize();
        product.zeroize();
    }
}

/// The low and the high half of a block.
fn halves(block: &[u8; BLOCK_BYTES]) -> [u64; 2] {
    let block = u128::from_le_bytes(*block);
    [block as u64, (block >> 64) as u64]
}

/// The product of two elements, divided by x^128 (RFC 8452, 3).
fn dot(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    // Karatsuba's method: three products for four.
    let low = product(one[0], other[0]);
    let high = product(one[1], other[1]);
    let middle = product(one[0] ^ one[1], other[0] ^ other[1]) ^ low ^ high;
    let low = low ^ middle << 64;
    let high = high ^ middle >> 64;
    // Each step adds a multiple of the polynomial that clears the lower half of `low`, and divides
    // by x^64.
    let folded = fold(fold(low)) ^ high;
    [folded as u64, (folded >> 64) as u64]
}

/// A step of Montgomery's reduction: the terms x^127, x^126 and x^121 of the polynomial, and its
/// constant term.
fn fold(value: u128) -> u128 {
    let low = value as u64;
    let multiple = u128::from(low) << 63 ^ u128::from(low) << 62 ^ u128::from(low) << 57;
    value.rotate_right(64) ^ multiple
}

/// The product of two polynomials over GF(2). Its upper half is the lower one of the reversed
/// polynomials, reversed.
fn product(one: u64, other: u64) -> u128 {
    let low = lower_half(one, other);
    let high = lower_half(one.reverse_bits(), other.reverse_bits()).reverse_bits() >> 1;
    u128::from(high) << 64 | u128::from(low)
}

/// The lower half of a product. Every fourth bit is multiplied with every fourth bit: at most 16
/// terms add up at a place, and only at the last one is there a carry, which is lost.
fn lower_half(one: u64, other: u64) -> u64 {
    let every_fourth = |value: u64, from: u32| value & (0x1111_1111_1111_1111 << from);
    let mut half = 0;
    for place in 0..4 {
        let terms = (0..4).fold(0, |terms, of_one| {
            let of_other = (place + 4 - of_one) % 4;
            terms ^ every_fourth(one, of_one).wrapping_mul(every_fourth(other, of_other))
        });
        half |= every_fourth(terms, place);
    }
    half
}
