//! A compact set of blocks: one bit for 3968 blocks that are all in it, 496 bytes where only some
//! of them are.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::file::bits::Bits;
use crate::file::tagging::NUMBERS_PER_SECTOR;

const WORDS: usize = (NUMBERS_PER_SECTOR / 64) as usize;

const _: () = assert!(NUMBERS_PER_SECTOR.is_multiple_of(64));

/// The bits of one sector's blocks.
pub type Words = [u64; WORDS];

/// A set of blocks, by sectors of the sidecar.
#[derive(Debug, Default)]
pub struct BlockSet {
    whole: Bits,
    partial: BTreeMap<u64, Box<Words>>,
}

impl BlockSet {
    /// Whether the set contains a block.
    pub fn has(&self, block: u64) -> bool {
        let sector = block / NUMBERS_PER_SECTOR;
        let at = block % NUMBERS_PER_SECTOR;
        self.whole.has(sector)
            || self.partial.get(&sector).is_some_and(|words| words[(at / 64) as usize] >> (at % 64) & 1 == 1)
    }

    /// The end, at most `end`, of the run of blocks from `block` on that are all in the set, or all
    /// not in it.
    pub fn run_end(&self, block: u64, end: u64) -> u64 {
        let is_in = self.has(block);
        let mut at = block;
        while at < end {
            let sector = at / NUMBERS_PER_SECTOR;
            let first = sector * NUMBERS_PER_SECTOR;
            if let Some(words) = self.partial.get(&sector) {
                let within = at - first;
                let word = words[(within / 64) as usize];
                let others = if is_in { !word } else { word } >> (within % 64);
                if others != 0 {
                    return end.min(at + u64::from(others.trailing_zeros()));
                }
                at = first + (within / 64 + 1) * 64;
            } else if self.whole.has(sector) {
                if !is_in {
                    return at;
                }
                at = first + NUMBERS_PER_SECTOR;
            } else {
                if is_in {
                    return at;
                }
                let partial = self.partial.range(sector..).next().map(|(next, _)| *next);
                let next = partial.into_iter().chain(self.whole.next(sector)).min();
                at = next.map_or(end, |next| next * NUMBERS_PER_SECTOR);
            }
        }
        end
    }

    /// The bits of a sector.
    pub fn sector(&self, sector: u64) -> Words {
        match self.partial.get(&sector) {
            _ if self.whole.has(sector) => [u64::MAX; WORDS],
            Some(words) => **words,
            None => [0; WORDS],
        }
    }

    /// Adds some of a sector's blocks.
    pub fn add(&mut self, sector: u64, blocks: &Words) {
        let mut words = self.sector(sector);
        words.iter_mut().zip(blocks).for_each(|(word, more)| *word |= more);
        self.set(sector, words);
    }

    /// Removes some of a sector's blocks.
    pub fn remove(&mut self, sector: u64, blocks: &Words) {
        let mut words = self.sector(sector);
        words.iter_mut().zip(blocks).for_each(|(word, less)| *word &= !less);
        self.set(sector, words);
    }

    fn set(&mut self, sector: u64, words: Words) {
        self.whole.remove(sector);
        self.partial.remove(&sector);
        if words.iter().all(|word| *word == u64::MAX) {
            self.whole.add(sector);
        } else if words.iter().any(|word| *word != 0) {
            self.partial.insert(sector, Box::new(words));
        }
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The sectors that a run of blocks touches, and which blocks of each.
pub fn sectors(blocks: Range<u64>) -> impl Iterator<Item = (u64, Words)> {
    let sectors = blocks.start / NUMBERS_PER_SECTOR..blocks.end.div_ceil(NUMBERS_PER_SECTOR);
    sectors.map(move |sector| {
        let first = sector * NUMBERS_PER_SECTOR;
        let within = |block: u64| block.clamp(first, first + NUMBERS_PER_SECTOR) - first;
        (sector, words(within(blocks.start)..within(blocks.end)))
    })
}

fn words(bits: Range<u64>) -> Words {
    std::array::from_fn(|at| {
        let first = at as u64 * 64;
        let (from, to) =
            (bits.start.clamp(first, first + 64) - first, bits.end.clamp(first, first + 64) - first);
        // A shift by 64 would overflow.
        let below = |bit: u64| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
        below(to) & !below(from)
    })
}

/// Decodes the bits of a sector from their form in the file.
pub fn words_of(bits: &[u8]) -> Words {
    let (words, _) = bits.as_chunks::<8>();
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)))
}

/// Encodes the bits of a sector into their form in the file.
pub fn fill(bits: &mut [u8], words: &Words) {
    let (places, _) = bits.as_chunks_mut::<8>();
    places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(run: Range<u64>) -> BlockSet {
        let mut set = BlockSet::default();
        sectors(run).for_each(|(sector, words)| set.add(sector, &words));
        set
    }

    #[test]
    fn runs_over_the_edges_of_words_and_sectors() {
        let end = 4 * NUMBERS_PER_SECTOR;
        let edges = [0, 1, 63, 64, 65, 3904, 3967, 3968, 3969, 4032, 7936, 12_000, end];
        for (at, from) in edges.into_iter().enumerate() {
            for to in edges.into_iter().skip(at) {
                let set = set(from..to);
                assert!((0..end).all(|block| set.has(block) == (from..to).contains(&block)), "{from}..{to}");
                let mut runs: Vec<u64> = std::iter::successors(Some(0), |at| Some(set.run_end(*at, end + 7)))
                    .take_while(|at| *at < end + 7)
                    .collect();
                runs.push(end + 7);
                let mut expected = vec![0, from, to, end + 7];
                if from == to {
                    expected = vec![0, end + 7];
                }
                expected.dedup();
                assert_eq!(runs, expected, "{from}..{to}");
            }
        }
    }

    #[test]
    fn a_whole_sector_costs_a_bit_and_comes_apart_again() {
        let mut blocks = set(0..2000);
        assert_eq!((blocks.partial.len(), blocks.whole.count()), (1, 0));
        sectors(2000..3 * NUMBERS_PER_SECTOR).for_each(|(sector, words)| blocks.add(sector, &words));
        assert_eq!((blocks.partial.len(), blocks.whole.count()), (0, 3));
        for (sector, words) in sectors(100..NUMBERS_PER_SECTOR) {
            blocks.remove(sector, &words);
        }
        assert_eq!((blocks.partial.len(), blocks.whole.count()), (1, 2));
        assert!(blocks.has(99) && !blocks.has(100) && blocks.has(NUMBERS_PER_SECTOR));
    }

    #[test]
    fn bytes_and_words_say_the_same() {
        let (_, bits) = sectors(3..700).next().unwrap();
        let mut bytes = [0; 496];
        fill(&mut bytes, &bits);
        assert_eq!(bytes[..2], [0b1111_1000, 0xff]);
        assert_eq!(words_of(&bytes), bits);
    }
}
