//! Tells from a block's bytes whether it is empty.

use strongroom_types::{BLOCK_BYTES, KeyEpoch};

/// Sets the seal of each block that was read: a block of zeroes means "nothing here", any other was
/// sealed by `epoch`.
///
/// A ciphertext of only zeroes has probability 2^-32768, so no data is lost. A hole that a copying
/// program filled with zeroes keeps its meaning, and so do the zero-filled neighbours of a torn
/// write.
pub fn seal_what_was_read(bytes: &[u8], seals: &mut [Option<KeyEpoch>], epoch: KeyEpoch) {
    for (block, seal) in bytes.chunks(BLOCK_BYTES as usize).zip(seals) {
        *seal = (!is_zero(block)).then_some(epoch);
    }
}

/// Whether every byte is zero. Ciphertext differs in its first bytes, so only real zeroes are read
/// to the end.
pub fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_makes_a_block_a_block() {
        let mut bytes = vec![0; 3 * 4096];
        let mut seals = [Some(KeyEpoch::FIRST); 3];
        seal_what_was_read(&bytes, &mut seals, KeyEpoch::FIRST);
        assert_eq!(seals, [None; 3]);
        for at in [4096, 4096 + 63, 4096 + 64, 8191] {
            bytes[at] = 1;
            seal_what_was_read(&bytes, &mut seals, KeyEpoch::FIRST);
            assert_eq!(seals, [None, Some(KeyEpoch::FIRST), None], "{at}");
            bytes[at] = 0;
        }
    }
}
