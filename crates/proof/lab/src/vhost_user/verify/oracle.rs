//! The possible contents of each sector.
//!
//! Changes of one sector never overlap in time, so they are ordered, and no order between requests
//! is needed. A change never begins during a read. So a read may find in a sector the content
//! acknowledged when the read began, the change in flight then, or zeroes if one of these was a
//! zeroing or a discard. After a discard a sector holds its previous content or zeroes, until the
//! next write.

use std::fmt;

use strongroom_types::{Extent, SECTOR_BYTES};

use super::stamp::{Found, SECTOR, Stamp, UNTOUCHED};

/// The change that a request makes to its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sectors hold its stamps.
    Write,
    /// The sectors hold zeroes.
    Zero,
    /// The sectors hold their previous content, or zeroes.
    Discard,
}

/// A sector with wrong content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its number.
    pub sector: u64,
    /// What is wrong.
    pub wrong: Wrong,
    /// Whether it was still wrong when reread after all requests had completed.
    pub stays: bool,
}

/// What is wrong with a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It holds an older write than the acknowledged one.
    Old {
        /// The write found in it.
        found: u64,
        /// The last acknowledged write or zeroing.
        acknowledged: u64,
    },
    /// It holds zeroes although a write was acknowledged.
    Zeroes {
        /// The last acknowledged write.
        acknowledged: u64,
    },
    /// It holds another sector's content.
    Misplaced(Stamp),
    /// It begins with one content, and continues with another.
    Torn {
        /// The stamp of its beginning.
        begins: Stamp,
        /// The first differing byte.
        from: usize,
        /// The eight bytes there.
        then: [u8; 8],
        /// The eight bytes after these, which identify the other content if it is torn within eight
        /// bytes.
        after: [u8; 8],
        /// The last acknowledged write or zeroing.
        acknowledged: u64,
        /// The last one sent.
        sent: u64,
    },
    /// It holds a write that was never sent.
    NeverSent(u64),
    /// The read was answered without touching its memory.
    Untouched,
    /// It holds content that no run with this seed has written.
    Foreign,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lost, stale) = ("a lost write", "a stale read");
        let which = if self.stays { lost } else { stale };
        write!(f, "sector {}: ", self.sector)?;
        match self.wrong {
            Wrong::Old { found, acknowledged } => {
                write!(f, "{which}: it holds write {found}, and {acknowledged} was acknowledged")
            }
            Wrong::Zeroes { acknowledged } => {
                write!(f, "{which}: it holds zeroes, and write {acknowledged} was acknowledged")
            }
            Wrong::Misplaced(stamp) => {
                write!(f, "misdirected: it holds write {} of sector {}", stamp.sequence, stamp.sector)
            }
            Wrong::Torn { begins, from, then, after, acknowledged, sent } => {
                let when = if self.stays { "and stays so" } else { "while it was read" };
                write!(f, "torn, {when}: write {} up to byte {from}, then ", begins.sequence)?;
                let is_of = |sequence| after == Stamp { sequence, ..begins }.word(from / 8 + 1);
                match after {
                    [0, ..] => write!(f, "zeroes")?,
                    [UNTOUCHED, ..] => write!(f, "what the guest's memory held before")?,
                    _ if is_of(acknowledged) => write!(f, "write {acknowledged}")?,
                    _ if is_of(sent) => write!(f, "write {sent}")?,
                    _ => write!(f, "{then:02x?} {after:02x?}, of neither")?,
                }
                write!(f, "; {acknowledged} was acknowledged, and {sent} was sent last")
            }
            Wrong::NeverSent(sequence) => write!(f, "it holds write {sequence}, which was never sent to it"),
            Wrong::Untouched => write!(f, "the read did not touch the guest's memory"),
            Wrong::Foreign => write!(f, "it holds what this run has not written"),
        }
    }
}

/// One sector.
#[derive(Clone, Copy, Debug, Default)]
struct Sector {
    /// The last write or zeroing that was acknowledged.
    committed: u64,
    /// The last one sent.
    sent: u64,
    /// The last zeroing or discard sent.
    zeroed: u64,
    /// A change is in flight.
    changing: bool,
    /// Reads in flight.
    readers: u16,
}

/// All sectors.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    sectors: Vec<Sector>,
    sequence: u64,
}

impl Oracle {
    /// An oracle of this many sectors of zeroes.
    pub fn new(seed: u64, sectors: u64) -> Self {
        Self { seed, sectors: vec![Sector::default(); sectors as usize], sequence: 0 }
    }

    /// Grows to this many sectors, if it has fewer. The new ones hold zeroes.
    pub fn extend(&mut self, sectors: u64) {
        self.sectors.resize(self.sectors.len().max(sectors as usize), Sector::default());
    }

    /// Count of sectors.
    pub fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Whether a change of these may begin, because nothing is in flight there.
    pub fn may_change(&self, extent: Extent) -> bool {
        self.of(extent).iter().all(|sector| !sector.changing && sector.readers == 0)
    }

    /// Begins a change; returns its number.
    pub fn begin_change(&mut self, extents: &[Extent], change: Change) -> u64 {
        self.sequence += 1;
        let sequence = self.sequence;
        for extent in extents {
            for sector in self.of_mut(*extent) {
                sector.changing = true;
                if change != Change::Discard {
                    sector.sent = sequence;
                }
                if change != Change::Write {
                    sector.zeroed = sequence;
                }
            }
        }
        sequence
    }

    /// Records the acknowledgement of a change.
    pub fn end_change(&mut self, extents: &[Extent], change: Change, sequence: u64) {
        for extent in extents {
            for sector in self.of_mut(*extent) {
                sector.changing = false;
                if change != Change::Discard {
                    sector.committed = sequence;
                }
            }
        }
    }

    /// Produces the content of a write.
    pub fn fill(&self, extent: Extent, sequence: u64, content: &mut Vec<u8>) {
        content.resize(extent.length() as usize, 0);
        let first = extent.offset() / SECTOR_BYTES;
        for (sector, bytes) in (first..).zip(content.as_chunks_mut::<SECTOR>().0) {
            Stamp { seed: self.seed, sector, sequence }.write(bytes);
        }
    }

    /// Begins a read; records the changes acknowledged so far, for [`Self::end_read`].
    pub fn begin_read(&mut self, extent: Extent, acknowledged: &mut Vec<u64>) {
        acknowledged.clear();
        acknowledged.extend(self.of_mut(extent).iter_mut().map(|sector| {
            sector.readers += 1;
            sector.committed
        }));
    }

    /// Checks the content of a completed read, and adds errors to `findings`. Returns the number of
    /// sectors that were a mixture of their possible contents, which is allowed while a change is
    /// in flight.
    pub fn end_read(
        &mut self,
        extent: Extent,
        acknowledged: &[u64],
        content: &[u8],
        findings: &mut Vec<Finding>,
    ) -> u64 {
        let seed = self.seed;
        let first = extent.offset() / SECTOR_BYTES;
        let mut mixed = 0;
        let sectors = self.of_mut(extent).iter_mut().zip(acknowledged).zip(content.as_chunks::<SECTOR>().0);
        for (number, ((sector, acknowledged), bytes)) in (first..).zip(sectors) {
            sector.readers -= 1;
            let stamp = |sequence| Stamp { seed, sector: number, sequence };
            match sector.judge(seed, number, *acknowledged, bytes) {
                None => {}
                Some(_) if sector.is_mixture(*acknowledged, stamp, bytes) => mixed += 1,
                Some(wrong) => findings.push(Finding { sector: number, wrong, stays: false }),
            }
        }
        mixed
    }

    fn of(&self, extent: Extent) -> &[Sector] {
        &self.sectors[range(extent)]
    }

    fn of_mut(&mut self, extent: Extent) -> &mut [Sector] {
        &mut self.sectors[range(extent)]
    }
}

impl Sector {
    fn may_be_zero(&self, acknowledged: u64) -> bool {
        self.zeroed >= acknowledged
    }

    fn judge(&self, seed: u64, number: u64, acknowledged: u64, bytes: &[u8; SECTOR]) -> Option<Wrong> {
        match Found::recognise(bytes, seed) {
            Found::Zeroes if self.may_be_zero(acknowledged) => None,
            Found::Zeroes => Some(Wrong::Zeroes { acknowledged }),
            Found::Stamp(stamp) if stamp.sector != number => Some(Wrong::Misplaced(stamp)),
            Found::Stamp(Stamp { sequence, .. }) => {
                if sequence == acknowledged || sequence == self.sent {
                    None
                } else if sequence < acknowledged {
                    Some(Wrong::Old { found: sequence, acknowledged })
                } else {
                    Some(Wrong::NeverSent(sequence))
                }
            }
            Found::Torn(begins, from) => {
                let words = bytes.as_chunks::<8>().0;
                let (then, after) = (words[from / 8], words[(from / 8 + 1).min(words.len() - 1)]);
                Some(Wrong::Torn { begins, from, then, after, acknowledged, sent: self.sent })
            }
            Found::Untouched => Some(Wrong::Untouched),
            Found::Foreign => Some(Wrong::Foreign),
        }
    }

    /// Whether a change was in flight when the read began, and each byte is from before or after
    /// it. No standard guarantees whole sectors to a read that overlaps a write.
    fn is_mixture(&self, acknowledged: u64, stamp: impl Fn(u64) -> Stamp, bytes: &[u8; SECTOR]) -> bool {
        let was_changing = self.sent != acknowledged || self.zeroed > acknowledged;
        let zero = self.may_be_zero(acknowledged);
        let (before, after) = (stamp(acknowledged), stamp(self.sent));
        was_changing
            && bytes.as_chunks::<8>().0.iter().enumerate().all(|(index, word)| {
                let (before, after) = (before.word(index), after.word(index));
                (0..8).all(|at| {
                    let byte = word[at];
                    byte == before[at] || byte == after[at] || zero && byte == 0
                })
            })
    }
}

fn range(extent: Extent) -> std::ops::Range<usize> {
    (extent.offset() / SECTOR_BYTES) as usize..(extent.end() / SECTOR_BYTES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Extent = Extent::between(512, 1024);

    struct Model {
        oracle: Oracle,
        findings: Vec<Finding>,
    }

    impl Model {
        fn new() -> Self {
            Self { oracle: Oracle::new(1, 4), findings: Vec::new() }
        }

        fn change(&mut self, change: Change) -> u64 {
            let sequence = self.oracle.begin_change(&[ONE], change);
            self.oracle.end_change(&[ONE], change, sequence);
            sequence
        }

        fn content(&self, sequence: u64) -> Vec<u8> {
            let mut content = Vec::new();
            self.oracle.fill(ONE, sequence, &mut content);
            content
        }

        fn read(&mut self, content: &[u8]) -> Option<Wrong> {
            let mut acknowledged = Vec::new();
            self.oracle.begin_read(ONE, &mut acknowledged);
            self.findings.clear();
            self.oracle.end_read(ONE, &acknowledged, content, &mut self.findings);
            self.findings.first().map(|finding| finding.wrong)
        }
    }

    #[test]
    fn a_sector_holds_what_was_acknowledged() {
        let mut model = Model::new();
        assert_eq!(model.read(&[0; 512]), None);
        let (first, second) = (model.change(Change::Write), model.change(Change::Write));
        let content = model.content(second);
        assert_eq!(model.read(&content), None);
        let old = model.content(first);
        assert_eq!(model.read(&old), Some(Wrong::Old { found: first, acknowledged: second }));
        assert_eq!(model.read(&[0; 512]), Some(Wrong::Zeroes { acknowledged: second }));
        let never = model.content(99);
        assert_eq!(model.read(&never), Some(Wrong::NeverSent(99)));
        assert_eq!(model.read(&[7; 512]), Some(Wrong::Foreign));
    }

    #[test]
    fn what_is_in_flight_may_be_there_or_not_and_half() {
        let mut model = Model::new();
        let first = model.change(Change::Write);
        let second = model.oracle.begin_change(&[ONE], Change::Write);
        assert!(!model.oracle.may_change(ONE));
        let (before, after) = (model.content(first), model.content(second));
        let half = [&before[..259], &after[259..]].concat();
        assert_eq!((model.read(&before), model.read(&after), model.read(&half)), (None, None, None));
        model.oracle.end_change(&[ONE], Change::Write, second);
        assert!(model.oracle.may_change(ONE));
        assert!(matches!(model.read(&half), Some(Wrong::Torn { from: 256, .. })));
        assert!(matches!(model.read(&before), Some(Wrong::Old { .. })));
    }

    #[test]
    fn a_discard_leaves_what_was_there_or_zeroes_and_a_zeroing_does_not() {
        let mut model = Model::new();
        let first = model.change(Change::Write);
        let content = model.content(first);
        model.change(Change::Discard);
        assert_eq!((model.read(&content), model.read(&[0; 512])), (None, None));
        let zeroing = model.change(Change::Zero);
        assert_eq!(model.read(&[0; 512]), None);
        assert_eq!(model.read(&content), Some(Wrong::Old { found: first, acknowledged: zeroing }));
        let second = model.change(Change::Write);
        assert_eq!(model.read(&[0; 512]), Some(Wrong::Zeroes { acknowledged: second }));
    }

    #[test]
    fn no_change_begins_under_a_read() {
        let mut model = Model::new();
        let mut acknowledged = Vec::new();
        model.oracle.begin_read(ONE, &mut acknowledged);
        assert!(!model.oracle.may_change(ONE) && model.oracle.may_change(Extent::between(1024, 2048)));
        model.oracle.end_read(ONE, &acknowledged, &[0; 512], &mut model.findings);
        assert!(model.oracle.may_change(ONE) && model.findings.is_empty());
    }
}
