//! The stage, and the state that its channels share.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_crypto::block_tag::BlockTagAlgorithm;
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, RangeLocks, Sealed, Thread, Waker};
use strongroom_memory::{Buffer, BufferPool};
use strongroom_types::{Extent, KeyEpoch, LayerId, VolumeId};

use super::channel::TagsChannel;
use super::counts::{Counts, TagCounts, TagsWatch};
use super::keys::{Sectors, TagKeys};
use super::layout::{
    Layout, PAGE_DATA_BYTES, REGION_BYTES, REGIONS_PER_MARKS_PAGE, marks_offset, pages, presence_offset,
    presence_pages,
};
use super::pages::{PageSlot, Pages, ZeroTag};
use super::passes::Passes;
use super::presence::{Presence, PresencePage, pages_of_sector};
use super::regions::Regions;
use crate::file::bits::Bits;
use crate::file::descriptor::Integrity;
use crate::file::host::HostFile;
use crate::file::sidecar_pages::{self, Found};
use crate::file::storage::StoredFile;
use crate::file::tagging::{Binding, NUMBERS_PER_SECTOR, PAGE_BYTES, SECTORS_PER_PAGE, bits_mut};
use crate::file::turns::SyncOrder;

/// The most pages of tags in memory: 16 MiB, which cover 4 GiB of data. Reads and writes beyond
/// that must read their tags too.
const PAGES_MAX: usize = 4096;

/// How long a region must be idle before its mark is removed. The first write after that waits for
/// a mark again.
const QUIET: Duration = Duration::from_secs(5);

fn by_hmac() -> Integrity {
    Integrity::HmacSha256Absence
}

fn is_by_hmac(integrity: &Integrity) -> bool {
    integrity.algorithm() == BlockTagAlgorithm::HmacSha256
}

/// What a process must know of a sidecar to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagsFacts {
    /// The volume that its tags are bound to.
    pub volume: VolumeId,
    /// The layer that its tags are bound to.
    pub layer: LayerId,
    /// How its blocks are tagged. Former programs, which leave it out, know HMAC only.
    #[serde(default = "by_hmac", skip_serializing_if = "is_by_hmac")]
    pub integrity: Integrity,
    /// The epoch whose key authenticates absent blocks; `None` in the former format, in which they
    /// are not authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<KeyEpoch>,
    /// Whether its last user has written all tags and left nothing unsettled: then a mark only
    /// means that a flush must cover the region.
    pub handed_over: bool,
    /// Whether no two syncs of its file may be under way at once, as of the layer's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub syncs_in_turn: bool,
}

/// How many pages the stage keeps in memory, and how long a mark stays.
#[derive(Clone, Copy, Debug)]
pub struct TagsTuning {
    /// Pages of tags in memory, at least 8.
    pub pages_max: usize,
    /// How long a region must be idle before its mark is removed.
    pub quiet: Duration,
}

impl Default for TagsTuning {
    fn default() -> Self {
        Self { pages_max: PAGES_MAX, quiet: QUIET }
    }
}

/// A disk whose reads return what was last written, or fail.
#[derive(Clone)]
pub struct TagsDisk {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub inner: Arc<dyn Disk<Sealed>>,
    pub file: Arc<dyn StoredFile>,
    pub keys: TagKeys,
    pub binding: Binding,
    /// The epoch whose key authenticates absent blocks, if they are authenticated.
    pub absence: Option<KeyEpoch>,
    pub layout: Layout,
    pub read_only: bool,
    /// Locks on ranges of blocks, shared by reads and exclusive for changes, so that block and tag
    /// agree whenever they are compared.
    pub locks: Arc<RangeLocks>,
    pub counts: Arc<Counts>,
    /// The source of queues to the file.
    pub sync_order: SyncOrder,
    quiet: Duration,
    state: Mutex<State>,
}

/// The mutable state, under one mutex that is held only briefly and never across a wait.
pub(super) struct State {
    pub pages: Pages,
    /// Which pages of tags exist; `None` in the former format, in which all do.
    pub presence: Option<Presence>,
    pub regions: Regions,
    pub passes: Passes,
    /// Whether something was written to the sidecar since its last fsync.
    pub unsynced: bool,
    /// The regions' count of changes when the last successful pass began.
    pub covered: Option<u64>,
    /// Whether a channel is going through the unsettled regions.
    pub settling: bool,
    era_began: Instant,
    waiting: Vec<Arc<Waker>>,
    closed: bool,
}

impl State {
    /// Registers this thread to be woken at the next change that a channel may wait for.
    pub fn wake_me(&mut self, waker: &Arc<Waker>) {
        if !self.waiting.iter().any(|other| Arc::ptr_eq(other, waker)) {
            self.waiting.push(Arc::clone(waker));
        }
    }

    /// Wakes the waiting threads after a change, except the one that made it.
    pub fn wake_others(&mut self, own: &Arc<Waker>) {
        for waker in self.waiting.drain(..) {
            if !Arc::ptr_eq(&waker, own) {
                waker.wake();
            }
        }
    }

    /// Wakes all waiting threads.
    pub fn wake_all(&mut self) {
        self.waiting.drain(..).for_each(|waker| waker.wake());
    }

    /// Whether a page of tags exists. In one that does not, all blocks are "nothing here".
    pub fn has_page(&self, page: u64) -> bool {
        self.presence.as_ref().is_none_or(|presence| presence.has(page))
    }

    /// Ends the write of a page of tags, which has succeeded or not.
    pub fn end_storing(&mut self, slot: PageSlot, stored: bool) {
        if let (Some(page), Some(presence)) = (self.pages.end_writing(slot, stored), &mut self.presence) {
            presence.stored(page);
        }
    }

    /// Begins a new era with a pass, if one is due. Returns whether it did; then the pass removes
    /// marks when it succeeds.
    pub fn begin_era(&mut self, quiet: Duration) -> bool {
        let due = self.era_began.elapsed() >= quiet;
        if due {
            self.era_began = Instant::now();
            self.regions.begin_era();
        }
        due
    }
}

impl TagsDisk {
    /// Puts the stage over `inner`, whose tags are in a file that another process may have opened.
    ///
    /// # Errors
    /// If the marks cannot be read.
    pub fn new(
        inner: Arc<dyn Disk<Sealed>>,
        file: OwnedFd,
        facts: TagsFacts,
        keys: TagKeys,
    ) -> Result<Self, IoError> {
        Self::over(inner, Arc::new(HostFile(file.into())), facts, keys, TagsTuning::default())
    }

    /// As [`TagsDisk::new`], on another file system or with other tuning.
    ///
    /// # Errors
    /// If the marks cannot be read.
    pub fn over(
        inner: Arc<dyn Disk<Sealed>>,
        file: Arc<dyn StoredFile>,
        facts: TagsFacts,
        keys: TagKeys,
        tuning: TagsTuning,
    ) -> Result<Self, IoError> {
        let Limits { read_only, size_bytes, .. } = inner.limits();
        let TagsFacts { volume, layer, integrity, absence, handed_over, syncs_in_turn } = facts;
        let keys = keys.by(integrity.algorithm());
        let binding = Binding { volume, layer };
        let mut regions = Regions::default();
        let found = if read_only || handed_over { Found::Durable } else { Found::NotYet };
        read_marks(&*file, &binding, &keys, size_bytes, found, |region| {
            regions.found_marked(region, !handed_over);
        })?;
        let presence = match absence {
            Some(_) => Some(read_presence(&*file, &binding, &keys, size_bytes, found)?),
            None => None,
        };
        if regions.unsettled_count() > 0 {
            tracing::warn!(
                %volume,
                regions = regions.unsettled_count(),
                "the volume was not closed in order: blocks that were in flight are taken as they are, and tagged anew"
            );
        }
        let state = State {
            pages: Pages::new(
                tuning.pages_max,
                if presence.is_some() { ZeroTag::Missing } else { ZeroTag::Nothing },
            ),
            presence,
            regions,
            passes: Passes::default(),
            // A predecessor's writes may still be in the device's cache.
            unsynced: true,
            covered: None,
            settling: false,
            era_began: Instant::now(),
            waiting: Vec::new(),
            closed: false,
        };
        let sync_order = SyncOrder::new(syncs_in_turn, [&file]);
        let shared = Shared {
            inner,
            file,
            keys,
            binding,
            absence,
            layout: Layout::of(absence),
            read_only,
            locks: RangeLocks::new(),
            counts: Arc::default(),
            sync_order,
            quiet: tuning.quiet,
            state: Mutex::new(state),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The results of comparing blocks with their tags, so far.
    pub fn counts(&self) -> TagCounts {
        let unsettled = self.shared.state().regions.unsettled_count();
        self.shared.counts.now(unsettled)
    }

    /// Calls `reader` whenever a block did not match its tag. The returned watch keeps no file
    /// open.
    pub fn watch(&self, reader: Arc<Waker>) -> TagsWatch {
        self.shared.counts.set_reader(reader);
        TagsWatch(Arc::clone(&self.shared.counts))
    }

    /// Whether a flush of the sidecar has failed: then none succeeds until the volume is reopened.
    pub fn has_failed_flush(&self) -> bool {
        self.shared.state().passes.have_failed()
    }

    /// Leaves the sidecar as the next holder must find it: all tags in the file, and no mark on
    /// what a flush has covered. It waits for the file. No channel may have anything in flight; one
    /// that is used afterwards fails its flushes.
    ///
    /// Returns whether the next user can treat everything as settled ([`TagsFacts::handed_over`]).
    pub fn close(&self) -> bool {
        self.shared.close()
    }
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn limits(&self) -> Limits {
        self.inner.limits()
    }

    pub fn quiet(&self) -> Duration {
        self.quiet
    }

    /// The parts of an extent that may have tags, ascending and rounded to whole pages of tags.
    fn tagged(&self, extent: Extent) -> Result<Vec<Extent>, IoError> {
        let mut tagged: Vec<std::ops::Range<u64>> = Vec::new();
        let wanted = pages(extent);
        if let Some(presence) = &self.state().presence {
            for page in presence.within(wanted) {
                match tagged.last_mut() {
                    Some(run) if run.end == page => run.end += 1,
                    _ => tagged.push(page..page + 1),
                }
            }
            return Ok(tagged.iter().map(extent_of).collect());
        }
        let mut at = self.layout.page_offset(wanted.start);
        let end = self.layout.page_offset(wanted.end);
        while at < end {
            let data = match self.file.next_data(at) {
                Ok(data) if data < end => data.max(at),
                Ok(_) | Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let hole = self.file.next_hole(data)?.clamp(data + 1, end);
            tagged.push(self.layout.page_at(data)..self.layout.page_at(hole - 1) + 1);
            at = hole;
        }
        let state = self.state();
        tagged.extend(
            state.pages.unwritten_pages().filter(|page| wanted.contains(page)).map(|page| page..page + 1),
        );
        drop(state);
        tagged.sort_by_key(|pages| pages.start);
        Ok(tagged.iter().map(extent_of).collect())
    }

    /// Fills a page of marks with the present marks.
    pub fn fill_marks(&self, regions: &Regions, marks_page: u64, page: &mut [u8]) -> Result<(), IoError> {
        for (first, bits) in bits_mut(marks_page, page) {
            regions.fill_sector(first, bits);
        }
        self.tag_sectors(Sectors::Marks, marks_page, page)
    }

    /// Fills and tags a page of presence.
    pub fn fill_presence(&self, said: &PresencePage, page: &mut [u8]) -> Result<(), IoError> {
        page.copy_from_slice(&said.content[..]);
        self.tag_sectors(Sectors::Presence, said.number, page)
    }

    fn tag_sectors(&self, sectors: Sectors, number: u64, page: &mut [u8]) -> Result<(), IoError> {
        self.keys.tag_sectors(&self.binding, sectors, number, page).map_err(|error| {
            tracing::error!(%error, "sectors of the tag sidecar cannot be tagged");
            IoError::Cipher
        })
    }

    fn close(&self) -> bool {
        let mut state = self.state();
        if state.closed || self.read_only {
            return false;
        }
        state.closed = true;
        let handed_over = self.close_file(&mut state);
        // A caller that goes on nevertheless is promised nothing.
        state.passes.fail();
        handed_over.unwrap_or_else(|error| {
            // The marks stay, so the next user finds the regions unsettled.
            tracing::warn!(volume = %self.binding.volume, %error, "the tags could not be closed in order");
            false
        })
    }

    fn close_file(&self, state: &mut State) -> Result<bool, Errno> {
        let mut page = page_of_memory().map_err(|_| Errno::NOMEM)?;
        let (changes, in_flight) = state.regions.changes();
        if in_flight || state.passes.have_failed() {
            tracing::warn!(
                volume = %self.binding.volume,
                "the tags are not closed in order, because a write or a flush has not ended well: what was in use is taken as it \
                 is when the volume is opened again"
            );
            return Ok(false);
        }
        while let Some(slot) = state.pages.next_dirty() {
            let (number, content) = state.pages.begin_writing(slot);
            page.bytes_mut().copy_from_slice(content);
            let written = self.file.write_at(self.layout.page_offset(number), page.bytes());
            state.end_storing(slot, written.is_ok());
            written?;
        }
        if let Some(presence) = state.presence.as_mut().filter(|presence| presence.is_stale()) {
            // The tags first, as in a pass.
            self.file.sync()?;
            for said in presence.take_unsaid() {
                if self.fill_presence(&said, page.bytes_mut()).is_err() {
                    return Ok(false);
                }
                self.file.write_at(presence_offset(said.number), page.bytes())?;
            }
            self.file.sync()?;
        }
        if state.covered == Some(changes) {
            // The blocks and the tags are durable, so the marks may be removed.
            state.regions.unmark_settled();
        }
        while let Some(marks_page) = state.regions.begin_unmarking() {
            if self.fill_marks(&state.regions, marks_page, page.bytes_mut()).is_err() {
                return Ok(false);
            }
            let written = self.file.write_at(marks_offset(marks_page), page.bytes());
            state.regions.end_unmarking(marks_page, written.is_ok());
            written?;
        }
        self.file.sync()?;
        let unsettled_regions = state.regions.unsettled_count();
        if unsettled_regions > 0 {
            tracing::warn!(
                volume = %self.binding.volume,
                unsettled_regions,
                "the tags of these regions (16 MiB each) are not settled, because blocks of them could not be read: they stay \
                 marked, and what does not match there is taken as it is when the volume is opened again"
            );
        }
        Ok(unsettled_regions == 0)
    }
}

impl Drop for Shared {
    /// Closes the sidecar when the disk and the last channel are gone.
    fn drop(&mut self) {
        self.close();
    }
}

impl Disk<Sealed> for TagsDisk {
    fn limits(&self) -> Limits {
        self.shared.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        Ok(Box::new(TagsChannel::open(Arc::clone(&self.shared), thread, depth)?))
    }

    /// Reports the allocation of the disk below. Where there are tags, a hole is not reported as
    /// one, so that it is read and compared.
    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let extent = extent.intersection(Extent::between(0, self.limits().size_bytes));
        let tagged = self.shared.tagged(extent)?;
        let mut goes_on = true;
        self.shared.inner.allocation(extent, &mut |run, found| {
            let mut at = run.offset();
            while goes_on && at < run.end() {
                let next = tagged.iter().find(|tagged| tagged.end() > at);
                let (end, found) = match next {
                    Some(next) if next.offset() <= at => (next.end(), Allocation::Data),
                    Some(next) => (next.offset(), found),
                    None => (run.end(), found),
                };
                let end = end.min(run.end());
                goes_on = report(Extent::between(at, end), found);
                at = end;
            }
            goes_on
        })
    }
}

/// Whether nothing is marked: the last user closed the sidecar in order, so that each block matches
/// its tag.
pub(in crate::file) fn marks_nothing(
    file: &dyn StoredFile,
    facts: TagsFacts,
    keys: &TagKeys,
    layer_bytes: u64,
) -> Result<bool, IoError> {
    let binding = Binding { volume: facts.volume, layer: facts.layer };
    let mut is_marked = false;
    let keys = keys.by(facts.integrity.algorithm());
    read_marks(file, &binding, &keys, layer_bytes, Found::Durable, |_| is_marked = true)?;
    Ok(!is_marked)
}

/// Memory for one page that is suitable for direct I/O, for use while there is no queue.
fn page_of_memory() -> Result<Buffer, IoError> {
    let pool = BufferPool::brief();
    pool.take(PAGE_BYTES).ok_or(IoError::from(Errno::NOMEM))
}

/// The extent that pages of tags cover.
fn extent_of(pages: &std::ops::Range<u64>) -> Extent {
    Extent::between(pages.start * PAGE_DATA_BYTES, pages.end * PAGE_DATA_BYTES)
}

/// Reads sectors of bits. Reports each sector's first number and bits, or that it failed
/// verification.
fn read_sectors(
    file: &dyn StoredFile,
    binding: &Binding,
    keys: &TagKeys,
    sectors: Sectors,
    bytes: std::ops::Range<u64>,
    found: Found,
    mut report: impl FnMut(u64, Option<&[u8]>),
) -> Result<(), IoError> {
    sidecar_pages::read(file, bytes, found, |number, page| {
        let verified = keys.verify_sectors(binding, sectors, number, page, |sector, bits| {
            report(sector * NUMBERS_PER_SECTOR, bits);
        });
        verified.map_err(|error| {
            tracing::error!(%error, "sectors of the tag sidecar cannot be verified");
            IoError::Cipher
        })
    })
}

fn set_bits(first: u64, bits: &[u8]) -> impl Iterator<Item = u64> + '_ {
    (0..NUMBERS_PER_SECTOR)
        .filter(|at| bits[(at / 8) as usize] >> (at % 8) & 1 == 1)
        .map(move |at| first + at)
}

/// Reports the marked regions. A sector whose tag does not match marks nothing: otherwise an
/// attacker who can write to the datastore could have any block adopted.
fn read_marks(
    file: &dyn StoredFile,
    binding: &Binding,
    keys: &TagKeys,
    size_bytes: u64,
    found: Found,
    report: impl FnMut(u64),
) -> Result<(), IoError> {
    let marks_pages = size_bytes.div_ceil(REGION_BYTES).div_ceil(REGIONS_PER_MARKS_PAGE);
    let bytes = marks_offset(0)..marks_offset(marks_pages);
    let (mut refused, mut report) = (0, report);
    read_sectors(file, binding, keys, Sectors::Marks, bytes, found, |first, bits| match bits {
        Some(bits) => set_bits(first, bits).for_each(&mut report),
        None => refused += 1,
    })?;
    if refused > 0 {
        tracing::error!(
            volume = %binding.volume,
            sectors = refused,
            "marks of the tag sidecar are damaged; what was in flight when the volume was last used may be unreadable"
        );
    }
    Ok(())
}

/// Reads which pages of tags exist. Where that record is damaged or missing, all pages count as
/// existing: then blocks without a tag are damaged, not "nothing here".
fn read_presence(
    file: &dyn StoredFile,
    binding: &Binding,
    keys: &TagKeys,
    size_bytes: u64,
    found: Found,
) -> Result<Presence, IoError> {
    let mut presence = Presence::default();
    let presence_pages = presence_pages(size_bytes);
    let bytes = presence_offset(0)..presence_offset(presence_pages);
    let mut verified = Bits::default();
    read_sectors(file, binding, keys, Sectors::Presence, bytes, found, |first, bits| {
        if let Some(bits) = bits {
            verified.add(first / NUMBERS_PER_SECTOR);
            set_bits(first, bits).for_each(|page| presence.found(page));
        }
    })?;
    let mut damaged = 0;
    for sector in (0..presence_pages * SECTORS_PER_PAGE).filter(|sector| !verified.has(*sector)) {
        let pages = pages_of_sector(sector * NUMBERS_PER_SECTOR, NUMBERS_PER_SECTOR, size_bytes);
        damaged += u64::from(!pages.is_empty());
        presence.found_damaged(pages);
    }
    if damaged > 0 {
        tracing::error!(
            volume = %binding.volume,
            sectors = damaged,
            "the tag sidecar was damaged or changed: which blocks were never written is not known there, and reads of them fail"
        );
    }
    Ok(presence)
}

/// Marks the part by which a layer has grown as "nothing here" in its sidecar. The layer's former
/// size is given in bytes.
pub(in crate::file) fn say_nothing_is_there(
    file: &dyn StoredFile,
    binding: &Binding,
    keys: &TagKeys,
    layer_bytes: std::ops::Range<u64>,
) -> Result<(), IoError> {
    for number in presence_pages(layer_bytes.start)..presence_pages(layer_bytes.end) {
        let mut page = [0; PAGE_BYTES];
        keys.tag_sectors(binding, Sectors::Presence, number, &mut page).map_err(|_| IoError::Cipher)?;
        file.write_at(presence_offset(number), &page)?;
    }
    Ok(())
}
