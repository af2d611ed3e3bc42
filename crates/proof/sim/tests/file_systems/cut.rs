//! The device after a power cut: everything flushed, and any part of the later requests.

use rand::Rng;
use rand::rngs::StdRng;
use strongroom_types::{BLOCK_BYTES, SECTOR_BYTES};

use super::image::Image;
use super::write_log::{Change, Entry};

const SECTOR: usize = SECTOR_BYTES as usize;

/// The fate of the requests since the last flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All persist: the complete prefix.
    All,
    /// None persists.
    None,
    /// Each persists or not, whole.
    Some,
    /// All but one persist.
    OneIsLost,
    /// Each sector of 512 bytes persists or not, by itself.
    Torn,
    /// The last one is torn, the others persist.
    LastIsTorn,
}

impl Fate {
    pub fn draw(random: &mut StdRng) -> Self {
        match random.random_range(0..10) {
            0..2 => Self::All,
            2 => Self::None,
            3..5 => Self::Some,
            5 => Self::OneIsLost,
            6..9 => Self::Torn,
            _ => Self::LastIsTorn,
        }
    }
}

/// A recorded device, cut repeatedly at moments in ascending order.
pub struct Replay<'a> {
    entries: &'a [Entry],
    /// Everything before the last flush before the moment.
    durable: Image,
    durable_entries: usize,
    moment: usize,
    /// Whether a block with its content persists whole or not at all.
    stays_whole: fn(u64, &[u8]) -> bool,
    /// For a broken device that must be caught: the number of last flushes that it forgets.
    pub forgets_flushes: usize,
}

impl<'a> Replay<'a> {
    pub fn new(first: &Image, entries: &'a [Entry], stays_whole: fn(u64, &[u8]) -> bool) -> Self {
        Self {
            entries,
            durable: first.clone(),
            durable_entries: 0,
            moment: 0,
            stays_whole,
            forgets_flushes: 0,
        }
    }

    /// The device after a cut at `moment`, with some of the non-durable entries.
    pub fn cut(&mut self, moment: usize, fate: Fate, random: &mut StdRng) -> Image {
        assert!(self.moment <= moment && moment <= self.entries.len(), "cuts are made in order");
        self.moment = moment;
        let flushes =
            (self.durable_entries..moment).filter(|at| self.entries[*at].flushes).collect::<Vec<_>>();
        if let Some(last) = flushes.iter().rev().nth(self.forgets_flushes) {
            for entry in &self.entries[self.durable_entries..*last] {
                self.durable.apply(&entry.change);
            }
            self.durable_entries = *last;
        }
        let mut image = self.durable.clone();
        let open = &self.entries[self.durable_entries..moment];
        let changes = open.iter().filter(|entry| entry.change != Change::Nothing).count();
        let lost = random.random_range(0..changes.max(1));
        let likelihood = random.random_range(0.05..0.95);
        for (number, entry) in open.iter().filter(|entry| entry.change != Change::Nothing).enumerate() {
            let is_torn = fate == Fate::Torn || fate == Fate::LastIsTorn && number + 1 == changes;
            let persists = entry.durable
                || match fate {
                    Fate::All | Fate::Torn | Fate::LastIsTorn => true,
                    Fate::None => false,
                    Fate::Some => random.random_bool(likelihood),
                    Fate::OneIsLost => number != lost,
                };
            match &entry.change {
                change if persists && (entry.durable || !is_torn) => image.apply(change),
                Change::Write { offset, bytes } if persists => {
                    let mut at = *offset;
                    while at < offset + bytes.len() as u64 {
                        let rest = &bytes[(at - offset) as usize..];
                        let block = &rest[..rest.len().min((BLOCK_BYTES - at % BLOCK_BYTES) as usize)];
                        let unit = if (self.stays_whole)(at, block) { block.len() } else { SECTOR };
                        for (number, content) in block.chunks(unit).enumerate() {
                            if random.random_bool(likelihood) {
                                image.write(at + (number * unit) as u64, content);
                            }
                        }
                        at += block.len() as u64;
                    }
                }
                Change::Discard { offset, length } if persists => {
                    for sector in 0..length / SECTOR_BYTES {
                        if random.random_bool(likelihood) {
                            image.zero(offset + sector * SECTOR_BYTES, SECTOR_BYTES);
                        }
                    }
                }
                _ => {}
            }
        }
        image
    }
}
