//! The possible contents of a disk: the slow, obvious oracle.
//!
//! For each run of bytes it records the candidate writes that their content may come from. A write
//! becomes a candidate when it is submitted; when it has succeeded, every write that had ended
//! before it was submitted is removed. A failed write, and a discard, may have happened or not:
//! they become candidates and no other is removed. A read may return, byte by byte, the content of
//! any write that was a candidate when the read was submitted, or has become one since. No other
//! order is required: requests in flight together are done in any order.
//!
//! The content of a write is a function of its number and the offset, so only numbers need to be
//! stored.

use std::collections::BTreeMap;

use strongroom_types::Extent;

use super::Violation;

/// A write, zeroing or discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteId(usize);

/// A read that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(u64);

/// The content that a write leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Its own pattern.
    Pattern,
    /// Zeroes.
    Zeroes,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    Happened,
    /// It failed, or has no guaranteed effect: any part of it may have happened or not.
    MayHaveHappened,
}

/// The oracle of one disk.
pub struct Model {
    seed: u64,
    /// Counts submissions and ends.
    now: u64,
    writes: Vec<Write>,
    /// The candidate writes from each offset up to the next.
    candidates: BTreeMap<u64, Vec<WriteId>>,
    reads: Vec<Read>,
}

struct Write {
    extent: Extent,
    content: Content,
    submitted: u64,
    ended: Option<u64>,
}

struct Read {
    id: ReadId,
    extent: Extent,
    /// The candidates when it was submitted.
    candidates: Vec<(Extent, Vec<WriteId>)>,
    /// The candidates added since.
    later: Vec<WriteId>,
}

impl Model {
    /// The model of an empty disk: one write of zeroes has happened.
    pub fn new(seed: u64) -> Self {
        let hole = Write {
            extent: Extent::between(0, u64::MAX),
            content: Content::Zeroes,
            submitted: 0,
            ended: Some(0),
        };
        let candidates = BTreeMap::from([(0, vec![WriteId(0)])]);
        Self { seed, now: 0, writes: vec![hole], candidates, reads: Vec::new() }
    }

    /// Begins a write, which is about to be submitted.
    pub fn write_begins(&mut self, extent: Extent, content: Content) -> WriteId {
        self.now += 1;
        let id = WriteId(self.writes.len());
        self.writes.push(Write { extent, content, submitted: self.now, ended: None });
        self.split(extent.offset());
        self.split(extent.end());
        for (_, candidates) in self.candidates.range_mut(extent.offset()..extent.end()) {
            candidates.push(id);
        }
        for read in self.reads.iter_mut().filter(|read| read.extent.overlaps(extent)) {
            read.later.push(id);
        }
        id
    }

    /// Ends a write.
    pub fn write_ends(&mut self, id: WriteId, outcome: Outcome) {
        self.now += 1;
        self.writes[id.0].ended = Some(self.now);
        if outcome == Outcome::MayHaveHappened {
            return;
        }
        let Write { extent, submitted, .. } = self.writes[id.0];
        for (_, candidates) in self.candidates.range_mut(extent.offset()..extent.end()) {
            candidates.retain(|other| {
                *other == id || self.writes[other.0].ended.is_none_or(|ended| ended > submitted)
            });
        }
        self.join(extent);
    }

    /// Begins a read, which is about to be submitted.
    pub fn read_begins(&mut self, extent: Extent) -> ReadId {
        self.now += 1;
        let id = ReadId(self.now);
        self.split(extent.offset());
        self.split(extent.end());
        let starts: Vec<u64> =
            self.candidates.range(extent.offset()..extent.end()).map(|(at, _)| *at).collect();
        let ends = starts.iter().skip(1).copied().chain([extent.end()]);
        let candidates = starts.iter().zip(ends);
        let candidates = candidates
            .map(|(start, end)| (Extent::between(*start, end), self.candidates[start].clone()))
            .collect();
        self.reads.push(Read { id, extent, candidates, later: Vec::new() });
        id
    }

    /// Ends a read, with its content if it succeeded, and checks the content.
    pub fn read_ends(&mut self, id: ReadId, content: Option<&[u8]>) -> Result<(), Violation> {
        let Some(index) = self.reads.iter().position(|read| read.id == id) else { return Ok(()) };
        let read = self.reads.swap_remove(index);
        let Some(content) = content else { return Ok(()) };
        for (run, candidates) in &read.candidates {
            let start = (run.offset() - read.extent.offset()) as usize;
            let found = &content[start..start + run.length() as usize];
            self.check(&read, *run, candidates, found)?;
        }
        Ok(())
    }

    fn check(&self, read: &Read, run: Extent, candidates: &[WriteId], found: &[u8]) -> Result<(), Violation> {
        let mut allowed = vec![0; found.len()];
        let mut right = vec![false; found.len()];
        for id in candidates.iter().chain(&read.later) {
            let covered = self.writes[id.0].extent.intersection(run);
            self.content(*id, covered, &mut allowed[..covered.length() as usize]);
            let start = covered.offset().saturating_sub(run.offset()) as usize;
            let bytes = start..(start + covered.length() as usize).max(start);
            if covered.length() == run.length() && *found == *allowed {
                return Ok(());
            }
            let compared = found.get(bytes.clone()).unwrap_or_default().iter().zip(&allowed);
            let right = right.get_mut(bytes).unwrap_or_default();
            right.iter_mut().zip(compared).for_each(|(right, (found, allowed))| *right |= found == allowed);
        }
        match right.iter().position(|right| !right) {
            None => Ok(()),
            Some(wrong) => Err(Violation::Content {
                extent: read.extent,
                offset: run.offset() + wrong as u64,
                found: found[wrong],
                allowed: candidates.len() + read.later.len(),
            }),
        }
    }

    /// The bytes that a write puts into an extent.
    pub fn content(&self, id: WriteId, extent: Extent, into: &mut [u8]) {
        match self.writes[id.0].content {
            Content::Zeroes => into.fill(0),
            Content::Pattern => pattern(self.seed ^ (id.0 as u64) << 40, extent.offset(), into),
        }
    }

    /// Makes `at` the start of a run.
    fn split(&mut self, at: u64) {
        let before = self.candidates.range(..=at).next_back();
        if let Some((start, candidates)) = before
            && *start < at
        {
            let candidates = candidates.clone();
            self.candidates.insert(at, candidates);
        }
    }

    /// Joins neighbouring runs that have become equal.
    fn join(&mut self, extent: Extent) {
        let mut before = self.candidates.range(..extent.offset()).next_back().map(|(start, _)| *start);
        let starts: Vec<u64> =
            self.candidates.range(extent.offset()..=extent.end()).map(|(at, _)| *at).collect();
        for start in starts {
            match before {
                Some(before) if self.candidates[&before] == self.candidates[&start] => {
                    self.candidates.remove(&start);
                }
                _ => before = Some(start),
            }
        }
    }
}

/// Pseudo-random bytes that depend only on the seed and each byte's offset.
fn pattern(seed: u64, offset: u64, into: &mut [u8]) {
    let mut at = offset;
    let mut rest = into;
    while !rest.is_empty() {
        let skip = (at % 8) as usize;
        let taken = rest.len().min(8 - skip);
        let mut word = (seed ^ (at / 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        word ^= word >> 32;
        let (now, later) = rest.split_at_mut(taken);
        now.copy_from_slice(&word.to_le_bytes()[skip..skip + taken]);
        rest = later;
        at += taken as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(model: &Model, id: WriteId, extent: Extent) -> Vec<u8> {
        let mut content = vec![0; extent.length() as usize];
        model.content(id, extent, &mut content);
        content
    }

    fn read(model: &mut Model, extent: Extent, content: &[u8]) -> bool {
        let id = model.read_begins(extent);
        model.read_ends(id, Some(content)).is_ok()
    }

    #[test]
    fn what_has_happened_is_the_only_content() {
        let mut model = Model::new(1);
        let extent = Extent::between(3, 103);
        assert!(read(&mut model, extent, &[0; 100]));
        let id = model.write_begins(extent, Content::Pattern);
        model.write_ends(id, Outcome::Happened);
        let new = content(&model, id, extent);
        assert!(read(&mut model, extent, &new));
        assert!(!read(&mut model, extent, &[0; 100]));
        let mut wrong = new.clone();
        wrong[99] ^= 1;
        assert!(!read(&mut model, extent, &wrong));
        assert!(read(&mut model, Extent::between(50, 103), &new[47..]));
    }

    #[test]
    fn what_overlaps_in_time_may_be_either_until_overwritten() {
        let mut model = Model::new(1);
        let extent = Extent::between(0, 64);
        let early = model.read_begins(extent);
        let first = model.write_begins(extent, Content::Pattern);
        let second = model.write_begins(Extent::between(16, 64), Content::Pattern);
        model.write_ends(second, Outcome::Happened);
        model.write_ends(first, Outcome::Happened);
        let (a, b) = (content(&model, first, extent), content(&model, second, extent));
        let mixed: Vec<u8> = [&a[..16], &b[16..40], &a[40..]].concat();
        assert!(read(&mut model, extent, &a) && read(&mut model, extent, &mixed));
        assert!(!read(&mut model, extent, &b), "the second never wrote the first bytes");
        assert!(!read(&mut model, extent, &[0; 64]), "both were done");
        assert!(model.read_ends(early, Some(&[0; 64])).is_ok(), "it was submitted before either");

        let third = model.write_begins(extent, Content::Pattern);
        model.write_ends(third, Outcome::Happened);
        assert!(!read(&mut model, extent, &a) && !read(&mut model, extent, &mixed));
        let c = content(&model, third, extent);
        assert!(read(&mut model, extent, &c));
        assert_eq!(model.candidates.len(), 2, "{:?}", model.candidates);
    }

    #[test]
    fn a_failed_write_may_have_happened() {
        let mut model = Model::new(1);
        let extent = Extent::between(0, 64);
        let failed = model.write_begins(extent, Content::Pattern);
        model.write_ends(failed, Outcome::MayHaveHappened);
        let new = content(&model, failed, extent);
        assert!(read(&mut model, extent, &new) && read(&mut model, extent, &[0; 64]));
        let zeroed = model.write_begins(extent, Content::Zeroes);
        model.write_ends(zeroed, Outcome::Happened);
        assert!(!read(&mut model, extent, &new));
    }
}
