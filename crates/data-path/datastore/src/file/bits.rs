//! A set of small numbers.

use std::ops::Range;

/// A set of numbers, one bit each up to the largest.
#[derive(Clone, Debug, Default)]
pub struct Bits {
    words: Vec<u64>,
    count: usize,
}

impl Bits {
    /// The count of numbers in the set.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the set contains a number.
    pub fn has(&self, number: u64) -> bool {
        self.words.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds a number.
    pub fn add(&mut self, number: u64) {
        let at = (number / 64) as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        self.count += usize::from(!self.has(number));
        self.words[at] |= 1 << (number % 64);
    }

    /// Removes a number. Returns whether it was in the set.
    pub fn remove(&mut self, number: u64) -> bool {
        let had = self.has(number);
        if had {
            self.words[(number / 64) as usize] &= !(1 << (number % 64));
            self.count -= 1;
        }
        had
    }

    /// The first number from `from` on.
    pub fn next(&self, from: u64) -> Option<u64> {
        let mut at = (from / 64) as usize;
        let mut word = self.words.get(at)? & (u64::MAX << (from % 64));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        Some(at as u64 * 64 + u64::from(word.trailing_zeros()))
    }

    /// The numbers in a range, ascending.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        std::iter::successors(self.next(range.start), |last| self.next(last + 1))
            .take_while(move |number| *number < range.end)
    }

    /// All numbers, ascending.
    pub fn all(&self) -> impl Iterator<Item = u64> + '_ {
        self.within(0..u64::MAX)
    }

    /// Makes this set the union of two sets, reusing its memory.
    pub fn copy_union(&mut self, a: &Self, b: &Self) {
        self.words.clear();
        let length = a.words.len().max(b.words.len());
        let word = |bits: &Self, at: usize| bits.words.get(at).copied().unwrap_or(0);
        self.words.extend((0..length).map(|at| word(a, at) | word(b, at)));
        self.count = self.words.iter().map(|word| word.count_ones() as usize).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_numbers() {
        let mut bits = Bits::default();
        for number in [3, 64, 65, 200, 3] {
            bits.add(number);
        }
        assert_eq!((bits.count(), bits.all().collect::<Vec<_>>()), (4, vec![3, 64, 65, 200]));
        assert_eq!(bits.within(4..200).collect::<Vec<_>>(), [64, 65]);
        assert!(bits.remove(64) && !bits.remove(64) && !bits.remove(9999));
        let mut other = Bits::default();
        other.add(500);
        let mut union = Bits::default();
        union.copy_union(&bits, &other);
        assert_eq!((union.count(), union.all().collect::<Vec<_>>()), (4, vec![3, 65, 200, 500]));
        assert_eq!(union.next(501), None);
    }
}
