//! Stamps: each sector's content identifies the sector, the write and the run.

use strongroom_types::SECTOR_BYTES;

/// Bytes of a sector.
pub const SECTOR: usize = SECTOR_BYTES as usize;

/// The first word of each stamp, which distinguishes it from other content.
const MARK: u64 = u64::from_le_bytes(*b"sectorLB");

/// The fill of memory before a read; no stamp has such words.
pub const UNTOUCHED: u8 = 0xA5;

/// The content of one sector after one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The run's seed; stamps of other runs are foreign.
    pub seed: u64,
    /// The sector's number.
    pub sector: u64,
    /// The write's number.
    pub sequence: u64,
}

impl Stamp {
    /// Fills a sector.
    pub fn write(self, into: &mut [u8; SECTOR]) {
        for (index, word) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = self.word(index);
        }
    }

    /// One of the 64 words of the sector.
    pub fn word(self, index: usize) -> [u8; 8] {
        let Self { seed, sector, sequence } = self;
        let value = match index {
            0 => MARK ^ seed,
            1 => sector,
            2 => sequence,
            // Any two stamps differ in each of the other words.
            _ => mix(mix(mix(seed) ^ sector) ^ sequence).wrapping_add((index as u64).wrapping_mul(PHI)),
        };
        value.to_le_bytes()
    }

    fn matches(self, bytes: &[u8; SECTOR]) -> Option<usize> {
        let words = bytes.as_chunks::<8>().0;
        (0..words.len()).find(|index| words[*index] != self.word(*index))
    }
}

/// The content found in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes.
    Zeroes,
    /// A whole stamp of this run.
    Stamp(Stamp),
    /// The beginning of a stamp, with different content from this byte on.
    Torn(Stamp, usize),
    /// The memory's fill from before the read.
    Untouched,
    /// Something else.
    Foreign,
}

impl Found {
    /// Recognises a sector's content.
    pub fn recognise(bytes: &[u8; SECTOR], seed: u64) -> Self {
        let word = |index: usize| {
            let word = bytes.as_chunks::<8>().0[index];
            u64::from_le_bytes(word)
        };
        if word(0) == MARK ^ seed {
            let stamp = Stamp { seed, sector: word(1), sequence: word(2) };
            return match stamp.matches(bytes) {
                None => Found::Stamp(stamp),
                Some(index) => Found::Torn(stamp, 8 * index),
            };
        }
        match bytes[0] {
            0 if bytes.iter().all(|byte| *byte == 0) => Found::Zeroes,
            UNTOUCHED if bytes.iter().all(|byte| *byte == UNTOUCHED) => Found::Untouched,
            _ => Found::Foreign,
        }
    }
}

const PHI: u64 = 0x9E37_79B9_7F4A_7C15;

/// Steele, Lea and Flood's finaliser of SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(PHI);
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(sector: u64, sequence: u64) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        Stamp { seed: 5, sector, sequence }.write(&mut bytes);
        bytes
    }

    #[test]
    fn sectors_are_recognised_as_what_they_are() {
        let stamp = Stamp { seed: 5, sector: 7, sequence: 9 };
        assert_eq!(Found::recognise(&sector(7, 9), 5), Found::Stamp(stamp));
        assert_eq!(Found::recognise(&sector(7, 9), 6), Found::Foreign);
        assert_eq!(Found::recognise(&[0; SECTOR], 5), Found::Zeroes);
        assert_eq!(Found::recognise(&[UNTOUCHED; SECTOR], 5), Found::Untouched);
        for (other, from) in [(sector(7, 10), 24), (sector(8, 9), 256), ([0; SECTOR], 504)] {
            let mut torn = sector(7, 9);
            torn[from..].copy_from_slice(&other[from..]);
            assert_eq!(Found::recognise(&torn, 5), Found::Torn(stamp, from));
        }
        let mut zero_tail = [0; SECTOR];
        zero_tail[511] = 1;
        assert_eq!(Found::recognise(&zero_tail, 5), Found::Foreign);
    }
}
