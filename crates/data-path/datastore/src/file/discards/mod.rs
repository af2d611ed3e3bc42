//! A layer's record of the empty blocks that hide the layers below.
//!
//! A block of zeroes in a layer means "nothing here, look below". Where a guest has discarded or
//! zeroed a block that a lower layer has, it must read as zeroes instead. That is recorded in a
//! separate file, `discards-<layer id>`, one bit per block. The bit only gives the meaning of a
//! block of zeroes; for any other block it has no effect. So it is set durably before the block
//! becomes "nothing here", and never needs to be cleared: a block written later hides the layers
//! below anyway.
//!
//! That makes everything else simple. Bits are only ever added, so a torn write of a page leaves
//! sectors old or new, both of which are right. A flush has nothing to do, because every bit that a
//! block relies on is already durable. The file never needs compaction: it is a 32,768th of the
//! layer, allocated when the layer is made, so that a discard never fails for lack of room.
//!
//! ```text
//! offset 512 S: sector S, which bears a tag ([`tagging`](super::tagging)); the numbers are those of blocks
//! ```
//!
//! Channels ask for bits ([`Discards::ask`]). One of them writes the bits that all have asked for,
//! as a [`round`](round::Recorder): a few pages, and one sync. Requests that arrive meanwhile
//! belong to the next round.

pub mod round;
mod set;

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_crypto::CryptoError;
use strongroom_crypto::block_tag::BlockTagAlgorithm;
use strongroom_io::{IoError, Waker};
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, LayerId, VolumeId};

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
use super::turns::SyncOrder;

/// HKDF's info, which makes the key unique to this purpose.
const INFO: &[u8] = b"strongroom discards key v1";

/// The beginning of a sector's header.
const PURPOSE: &[u8; 16] = b"strongroom clear";

/// The sidecar's length in bytes, for a layer of `layer_bytes` bytes.
pub fn file_bytes(layer_bytes: u64) -> u64 {
    layer_bytes.div_ceil(BLOCK_BYTES).div_ceil(NUMBERS_PER_PAGE) * PAGE_BYTES as u64
}

/// What a process must know of a sidecar to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscardsFacts {
    /// The volume that it is bound to.
    pub volume: VolumeId,
    /// The layer that it is bound to.
    pub layer: LayerId,
    /// Whether all of it is durable: it is new, or its last user closed it in order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_durable: bool,
}

/// The keys that authenticate the record. Clones share them.
#[derive(Clone, Debug)]
pub struct DiscardKeys {
    tagger: Arc<Tagger>,
    /// The epoch whose key tags the record; the newest if there is none.
    newest: Option<KeyEpoch>,
}

impl DiscardKeys {
    /// Derives the keys. A clear volume has none, and only accidental damage is noticed.
    ///
    /// # Errors
    /// If the cipher library has no memory.
    pub fn derive(deks: &Deks) -> Result<Self, CryptoError> {
        let tagger = match Tagger::derive(deks, BlockTagAlgorithm::HmacSha256, INFO)? {
            Some(tagger) => tagger,
            None => Tagger::without_a_key()?,
        };
        Ok(Self { tagger: Arc::new(tagger), newest: None })
    }

    /// The keys of a layer whose newest epoch this is, of the keys of several.
    #[must_use]
    pub fn of_layer(&self, newest: KeyEpoch) -> Self {
        Self { tagger: Arc::clone(&self.tagger), newest: Some(newest) }
    }
}

/// The record of one layer. All channels share it.
#[derive(Debug)]
pub struct Discards {
    file: Arc<dyn StoredFile>,
    /// At most one round is under way, so its syncs never meet.
    sync_order: SyncOrder,
    keys: DiscardKeys,
    binding: Binding,
    state: Mutex<State>,
}

/// The mutable state, under one mutex that is held only briefly.
#[derive(Debug, Default)]
struct State {
    /// Blocks whose bits are in the file and durable.
    recorded: BlockSet,
    /// Blocks that were asked for and are not durable yet.
    wanted: BlockSet,
    /// The pages with wanted bits that no round has taken.
    pages: BTreeSet<u64>,
    /// A round is under way.
    in_round: bool,
    /// Sectors that failed verification.
    damaged: Bits,
    /// Counts failed rounds; each drops everything that was wanted.
    failures: u64,
    last_failure: Option<IoError>,
    /// Whether a sync has failed: then nothing is recorded until the volume is reopened.
    failed: bool,
    waiting: Vec<Arc<Waker>>,
}

/// The count of failed rounds when a request began to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(u64);

/// The state of blocks that a caller wants recorded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// They are durably recorded.
    Recorded,
    /// They are not yet recorded. The waker is called when that may have changed.
    Waits(Asked),
}

impl Discards {
    /// Reads the record of a layer of `layer_bytes` bytes, from a file that another process may
    /// have opened.
    ///
    /// # Errors
    /// If it cannot be read. Sectors that fail verification are logged, and requests that depend on
    /// them fail.
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
        let sync_order = SyncOrder::new(false, [&file]);
        let discards = Self { file, sync_order, keys, binding, state: Mutex::default() };
        discards
            .load(file_bytes(layer_bytes), if facts.is_durable { Found::Durable } else { Found::NotYet })?;
        Ok(discards)
    }

    /// Reads the part of a record that an extent needs, without a key: nothing vouches for it, and
    /// nothing can be recorded. `layer_bytes` is the layer's size.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn unverified(
        file: &Arc<dyn StoredFile>,
        facts: DiscardsFacts,
        layer_bytes: u64,
        extent: Extent,
    ) -> Result<Self, IoError> {
        const PAGE: u64 = PAGE_BYTES as u64;
        let tagger = Arc::new(Tagger::without_a_key().map_err(no_cipher)?);
        let discards = Self {
            file: Arc::clone(file),
            sync_order: SyncOrder::new(false, []),
            keys: DiscardKeys { tagger, newest: None },
            binding: Binding { volume: facts.volume, layer: facts.layer },
            state: Mutex::default(),
        };
        let page_of = |bytes: u64| bytes.div_ceil(BLOCK_BYTES).div_ceil(NUMBERS_PER_PAGE) * PAGE;
        let start = extent.offset() / BLOCK_BYTES / NUMBERS_PER_PAGE * PAGE;
        let end = page_of(extent.end()).min(file_bytes(layer_bytes));
        // Most records are empty, and need no memory for reading.
        match file.next_data(start) {
            Ok(data) if data < end => {}
            Ok(_) | Err(Errno::NXIO) => return Ok(discards),
            Err(errno) => return Err(errno.into()),
        }
        let mut state = discards.state.lock();
        sidecar_pages::read(&**file, start..end, Found::Durable, |number, page| {
            for (first, bits) in bits(start / PAGE + number, page) {
                state.recorded.add(first / NUMBERS_PER_SECTOR, &words_of(bits));
            }
            Ok(())
        })?;
        drop(state);
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

    /// Locks the record, for queries about several blocks.
    pub(super) fn recorded(&self) -> Recorded<'_> {
        Recorded(self.state.lock())
    }

    /// Whether recording has failed for good: nothing can be recorded until the volume is reopened.
    pub fn have_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Requests that these blocks be recorded. `asked` comes from the last answer, if there was
    /// one.
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

    /// Refuses an extent of which a part of the record is damaged.
    ///
    /// # Errors
    /// [`IoError::Integrity`].
    pub fn refuse_damage(&self, extent: Extent) -> Result<(), IoError> {
        let state = self.state.lock();
        let (first, end) = (extent.offset() / BLOCK_BYTES, extent.end().div_ceil(BLOCK_BYTES));
        let mut sectors = first / NUMBERS_PER_SECTOR..end.div_ceil(NUMBERS_PER_SECTOR);
        match sectors.find(|sector| state.damaged.has(*sector)) {
            Some(sector) => Err(IoError::Integrity { block: sector * NUMBERS_PER_SECTOR }),
            None => Ok(()),
        }
    }

    /// Reports the runs of an extent that are recorded, and those that are not, ascending. Stops
    /// when `report` returns `false`.
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
            // A block that was recorded meanwhile may end a run where it begins.
            block = run_end.max(block + 1);
        }
    }
}

/// The record, locked against changes.
pub(super) struct Recorded<'a>(MutexGuard<'a, State>);

impl Recorded<'_> {
    /// Whether a block that is "nothing here" in the layer reads as zeroes.
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

    /// Fills a page with the recorded and the wanted bits.
    fn fill_page(&self, page_number: u64, page: &mut [u8]) {
        for (first, bits) in bits_mut(page_number, page) {
            let sector = first / NUMBERS_PER_SECTOR;
            let (recorded, wanted) = (self.recorded.sector(sector), self.wanted.sector(sector));
            fill(bits, &std::array::from_fn(|at| recorded[at] | wanted[at]));
        }
    }

    /// Marks the bits of a page as recorded, once the page is durable.
    fn page_is_recorded(&mut self, page_number: u64, page: &[u8]) {
        for (first, bits) in bits(page_number, page) {
            let (sector, words) = (first / NUMBERS_PER_SECTOR, words_of(bits));
            self.recorded.add(sector, &words);
            self.wanted.remove(sector, &words);
        }
    }

    /// Makes all waiting channels repeat their requests.
    fn ask_again(&mut self) {
        self.wanted.clear();
        self.pages.clear();
        self.wake();
    }

    /// Notes a failed round. Waiting channels receive the error and may ask again.
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
