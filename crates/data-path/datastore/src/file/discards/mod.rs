//! What a layer says of its "nothing here": that it hides the layers below.
//!
//! A block of zeroes in a layer means "nothing here, look below". Where a guest has discarded or
//! zeroed a block that a lower layer has something of, it must read as zeroes instead; that is
//! recorded in a file of its own, `discards-<layer id>`, a bit a block. The bit only says what a
//! block of zeroes means: over a block that is there it says nothing. So it is set before the block
//! becomes "nothing here", durably, and need never be taken back: what is written later is there,
//! and hides the layers below anyway.
//!
//! That makes everything else simple. Bits are only ever added, so a torn write of a page leaves
//! sectors old or new, both of which are right; a flush has nothing to do, because no bit that
//! anything rests upon is not durable; and the file never needs compaction: it is a 32,768th of the
//! layer, all of it allocated when the layer is made, so that a discard never fails for want of
//! room.
//!
//! ```text
//! offset 512 S: sector S, which bears a tag ([`tagging`](super::tagging)); the numbers are those of blocks
//! ```
//!
//! Channels ask for bits ([`Discards::ask`]). One of them writes what all have asked for, as a
//! [`round`](round::Recorder): a few pages, and one sync. What is asked for meanwhile is the next
//! round's.

pub mod round;
mod set;

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use strongroom_crypto::CryptoError;
use strongroom_io::{IoError, Waker};
use strongroom_types::{BLOCK_BYTES, Extent, LayerId, VolumeId};

use self::set::{BlockSet, Words, fill, sectors, words_of};
use super::bits::Bits;
use super::host::HostFile;
use super::open::Deks;
use super::sidecar_pages::{self, Found};
use super::storage::StoredFile;
use super::tagging::{
    Binding, EmptySector, NUMBERS_PER_PAGE, NUMBERS_PER_SECTOR, PAGE_BYTES, SECTORS_PER_PAGE, Tagger, bits,
    bits_mut,
};

/// HKDF's info: another purpose never gets this key.
const INFO: &[u8] = b"strongroom discards key v1";

/// What the header of a sector begins with.
const PURPOSE: &[u8; 16] = b"strongroom clear";

/// The sidecar's length for a layer of so many bytes.
pub fn file_bytes(layer_bytes: u64) -> u64 {
    layer_bytes.div_ceil(BLOCK_BYTES).div_ceil(NUMBERS_PER_PAGE) * PAGE_BYTES as u64
}

/// What has to be known of a sidecar to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscardsFacts {
    /// The volume that it is bound to.
    pub volume: VolumeId,
    /// The layer that it is bound to.
    pub layer: LayerId,
    /// Nobody has written to it since it was durable, or whoever had it before has left it in
    /// order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_durable: bool,
}

/// The keys that vouch for what is recorded. Clones share them.
#[derive(Clone, Debug)]
pub struct DiscardKeys {
    tagger: Arc<Tagger>,
}

impl DiscardKeys {
    /// Derives them. A clear volume has none, and nothing but accidents are noticed.
    ///
    /// # Errors
    /// What the ciphers say, for want of memory.
    pub fn derive(deks: &Deks) -> Result<Self, CryptoError> {
        let tagger = match Tagger::derive(deks, INFO)? {
            Some(tagger) => tagger,
            None => Tagger::without_a_key()?,
        };
        Ok(Self { tagger: Arc::new(tagger) })
    }
}

/// What one layer has recorded. All channels share it.
#[derive(Debug)]
pub struct Discards {
    file: Arc<dyn StoredFile>,
    keys: DiscardKeys,
    binding: Binding,
    state: Mutex<State>,
}

/// What changes under one mutex, which is held for moments.
#[derive(Debug, Default)]
struct State {
    /// In the file, and durable.
    recorded: BlockSet,
    /// Asked for and not durable yet.
    wanted: BlockSet,
    /// The pages with something wanted that no round has taken.
    pages: BTreeSet<u64>,
    /// A round is under way.
    in_round: bool,
    /// Sectors that do not say what was recorded.
    damaged: Bits,
    /// Counts rounds that failed, with everything that was wanted.
    failures: u64,
    last_failure: Option<IoError>,
    /// After a sync that failed nothing is recorded until the volume is opened anew.
    failed: bool,
    waiting: Vec<Arc<Waker>>,
}

/// Since when something is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(u64);

/// What has become of blocks that are to be recorded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// They are recorded.
    Recorded,
    /// Not yet; the thread is woken when there is news.
    Waits(Asked),
}

impl Discards {
    /// Reads what a layer of so many bytes has recorded, from a file that another process may have
    /// opened.
    ///
    /// # Errors
    /// If it cannot be read. Sectors that do not vouch for themselves are logged, and what depends
    /// on them fails when it is asked for.
    pub fn open(
        file: OwnedFd,
        facts: DiscardsFacts,
        keys: DiscardKeys,
        layer_bytes: u64,
    ) -> Result<Self, IoError> {
        Self::over(Arc::new(HostFile(file.into())), facts, keys, layer_bytes)
    }

    /// As [`Discards::open`], on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn over(
        file: Arc<dyn StoredFile>,
        facts: DiscardsFacts,
        keys: DiscardKeys,
        layer_bytes: u64,
    ) -> Result<Self, IoError> {
        let binding = Binding { volume: facts.volume, layer: facts.layer };
        let discards = Self { file, keys, binding, state: Mutex::default() };
        discards
            .load(file_bytes(layer_bytes), if facts.is_durable { Found::Durable } else { Found::NotYet })?;
        Ok(discards)
    }

    fn load(&self, bytes: u64, found: Found) -> Result<(), IoError> {
        let mut state = self.state.lock();
        sidecar_pages::read(&*self.file, 0..bytes, found, |number, page| {
            self.take_page(&mut state, number, page)
        })?;
        if state.damaged.count() > 0 {
            tracing::error!(
                volume = %self.binding.volume,
                layer = %self.binding.layer,
                sectors = state.damaged.count(),
                "the record of discarded blocks is damaged: where it was, blocks that are not in this layer cannot be read"
            );
        }
        Ok(())
    }

    fn take_page(&self, state: &mut State, number: u64, page: &[u8]) -> Result<(), IoError> {
        let header = |sector| self.binding.of_sector(PURPOSE, sector);
        let verified = self.keys.tagger.verify_page(
            header,
            number,
            page,
            EmptySector::Zeroes,
            |sector, bits| match bits {
                Some(bits) => state.recorded.add(sector, &words_of(bits)),
                None => state.damaged.add(sector),
            },
        );
        verified.map_err(no_cipher)
    }

    /// What is recorded, to be asked of several blocks.
    pub(super) fn recorded(&self) -> Recorded<'_> {
        Recorded(self.state.lock())
    }

    /// Whether nothing can be recorded any more until the volume is opened anew.
    pub fn have_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Has these blocks recorded. `asked` is what the last answer was, if there was one.
    pub(super) fn ask(
        &self,
        blocks: Range<u64>,
        asked: Option<Asked>,
        waker: &Arc<Waker>,
    ) -> Result<Answer, IoError> {
        let mut state = self.state.lock();
        if let Some(Asked(failures)) = asked
            && failures != state.failures
        {
            return Err(state.last_failure.unwrap_or(IoError::FlushFailed));
        }
        let mut is_recorded = true;
        for (sector, words) in sectors(blocks) {
            if state.damaged.has(sector) {
                return Err(IoError::Integrity { block: sector * NUMBERS_PER_SECTOR });
            }
            let (recorded, wanted) = (state.recorded.sector(sector), state.wanted.sector(sector));
            let unrecorded: Words = std::array::from_fn(|at| words[at] & !recorded[at]);
            is_recorded &= unrecorded.iter().all(|word| *word == 0);
            if unrecorded.iter().zip(wanted).any(|(word, wanted)| word & !wanted != 0) {
                state.wanted.add(sector, &words);
                state.pages.insert(sector / SECTORS_PER_PAGE);
            }
        }
        if is_recorded {
            return Ok(Answer::Recorded);
        }
        if state.failed {
            return Err(IoError::FlushFailed);
        }
        if !state.waiting.iter().any(|other| Arc::ptr_eq(other, waker)) {
            state.waiting.push(Arc::clone(waker));
        }
        Ok(Answer::Waits(Asked(state.failures)))
    }

    /// Reports the runs of an extent that are recorded, and those that are not, ascending.
    pub fn runs(&self, extent: Extent, mut report: impl FnMut(Extent, bool) -> bool) {
        let (mut block, end) = (extent.offset() / BLOCK_BYTES, extent.end().div_ceil(BLOCK_BYTES));
        while block < end {
            let (run_end, is_recorded) = {
                let state = self.state.lock();
                (state.recorded.run_end(block, end), state.recorded.has(block))
            };
            let run = Extent::between(block * BLOCK_BYTES, run_end * BLOCK_BYTES).intersection(extent);
            if !report(run, is_recorded) {
                return;
            }
            // What was recorded meanwhile may end a run where it begins.
            block = run_end.max(block + 1);
        }
    }
}

/// What is recorded, held still.
pub(super) struct Recorded<'a>(MutexGuard<'a, State>);

impl Recorded<'_> {
    /// Whether a block of which there is nothing in the layer reads as zeroes.
    pub fn has(&self, block: u64) -> Result<bool, IoError> {
        if self.0.damaged.has(block / NUMBERS_PER_SECTOR) {
            return Err(IoError::Integrity { block });
        }
        Ok(self.0.recorded.has(block))
    }
}

impl State {
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(|waker| waker.wake());
    }

    /// Fills a page with what is to be in the file.
    fn fill_page(&self, page_number: u64, page: &mut [u8]) {
        for (first, bits) in bits_mut(page_number, page) {
            let sector = first / NUMBERS_PER_SECTOR;
            let (recorded, wanted) = (self.recorded.sector(sector), self.wanted.sector(sector));
            fill(bits, &std::array::from_fn(|at| recorded[at] | wanted[at]));
        }
    }

    /// A page that was filled so is durable.
    fn page_is_recorded(&mut self, page_number: u64, page: &[u8]) {
        for (first, bits) in bits(page_number, page) {
            let (sector, words) = (first / NUMBERS_PER_SECTOR, words_of(bits));
            self.recorded.add(sector, &words);
            self.wanted.remove(sector, &words);
        }
    }

    /// Has all who wait ask for what they want anew.
    fn ask_again(&mut self) {
        self.wanted.clear();
        self.pages.clear();
        self.wake();
    }

    /// A round has failed: whoever waits hears of it, and may ask again.
    fn round_failed(&mut self, error: IoError) {
        self.failures += 1;
        self.last_failure = Some(error);
        self.ask_again();
    }
}

fn no_cipher(error: CryptoError) -> IoError {
    tracing::error!(%error, "the record of discarded blocks cannot be verified");
    IoError::Cipher
}
