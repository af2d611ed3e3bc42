//! Making one layer of two: the blocks of the upper one are written into the lower one, under that
//! one's key. `datastore/file/merge` has the order of what is written, and why a merge that was
//! interrupted is done again from its beginning.
//!
//! [`merge_next`] does it for a volume that nobody serves. [`crate::merging`] does it beside the
//! clients of one that is served, with the same [`Copying`].

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_datastore::file::{
    DatastoreError, Deks, Descriptor, MergeKeys, MergeLayers, OpenMerge, OpenOptions, open_merge,
};
use strongroom_io::{Allocation, Channel, Disk, Done, EventLoop, Io, IoError, Limits, Sealed, Thread};
use strongroom_memory::Buffer;
use strongroom_ring::Ring;
use strongroom_types::{BLOCK_BYTES, Extent};
use thiserror::Error;

use crate::client::{Client, DEPTH, pieces_of};
use crate::layers::{Ciphers, MergeStages, StackError};
use crate::transfer::{Progress, TransferError};

/// How much of the upper layer is asked for its allocation at once, so that the answer stays short.
const WINDOW_BYTES: u64 = 1 << 30;

/// How much of what the upper layer hides is zeroed by one request.
const ZEROED_BYTES: u64 = 16 << 20;

/// How a volume that nobody serves is merged: at the speed of its disk.
pub(crate) const UNSERVED: Stride = Stride { depth: DEPTH, piece_bytes: 1 << 20, step_bytes: 16 << 20 };

/// The reasons why two layers cannot be merged.
#[derive(Debug, Error)]
pub enum MergeError {
    /// The volume cannot be opened or changed.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The stages cannot be assembled.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A layer cannot be read or written.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// The result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The volume's new descriptor.
    pub descriptor: Descriptor,
    /// Bytes that were written into the lower layer.
    pub moved_bytes: u64,
}

/// Merges the next two layers of the volume at `path`, or resumes a merge; `None` if there is
/// nothing to merge.
///
/// # Errors
/// If the volume is in use; if a layer cannot be read or written. Nothing is lost, and the next
/// call starts over.
pub fn merge_next(
    path: &Path,
    options: &OpenOptions<'_>,
    progress: &mut Progress<'_>,
) -> Result<Option<Merged>, MergeError> {
    let Some(opened) = open_merge(path, options)? else { return Ok(None) };
    let OpenMerge { size_bytes, layers, keys, finish } = opened;
    let stages = MergeStages::merging(layers, keys)?;
    let moved_bytes =
        copy_all(&stages, size_bytes, UNSERVED, &mut |copying| progress.at(copying.copied_bytes()))?;
    progress.at(size_bytes)?;
    drop(stages);
    let descriptor = finish.finish(options)?;
    Ok(Some(Merged { descriptor, moved_bytes }))
}

/// Moves all that the upper layer has, durably. `each` is called before each step, and can end it.
/// Returns how many bytes were written.
pub(crate) fn copy_all(
    stages: &MergeStages,
    size_bytes: u64,
    stride: Stride,
    each: &mut dyn FnMut(&Copying<'_>) -> Result<(), TransferError>,
) -> Result<u64, TransferError> {
    let event_loop = Rc::new(Ring::new(2 * stride.depth)?);
    let mut copying = Copying::open(stages, 0..size_bytes, event_loop, stride)?;
    loop {
        each(&copying)?;
        if copying.step()? == Step::Ended {
            break;
        }
    }
    let moved_bytes = copying.moved_bytes;
    copying.finish()?;
    Ok(moved_bytes)
}

impl MergeStages {
    /// The stages of a merge that [`open_merge`] has opened.
    ///
    /// # Errors
    /// If they cannot be assembled.
    pub fn merging(layers: MergeLayers, keys: MergeKeys) -> Result<Self, StackError> {
        Self::of(layers, ciphers(keys)?)
    }
}

/// The ciphers of all layers; writes are sealed by the lower layer's newest key.
fn ciphers(keys: MergeKeys) -> Result<Ciphers, StackError> {
    let MergeKeys { from, into, lower } = keys;
    let deks: Deks = lower.into_iter().chain(from).chain(into).collect();
    if deks.is_empty() { Ok(Ciphers::Unencrypted) } else { Ciphers::of(deks) }
}

/// How much is done at once.
#[derive(Clone, Copy, Debug)]
pub struct Stride {
    /// Transfers in flight.
    pub depth: usize,
    /// The most bytes of one transfer.
    pub piece_bytes: u64,
    /// About how many bytes are copied in one step.
    pub step_bytes: u64,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes were written into the lower layer.
    Wrote(u64),
    /// Nothing is left.
    Ended,
}

/// What is done with the blocks that the upper layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// They are written into the lower layer.
    Copy,
    /// They are erased from the lower layer, where nobody reads them.
    Erase,
}

/// A part of the layers.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The upper layer hides it, so the lower one is zeroed there.
    Hidden(Extent),
    /// The upper layer may have blocks there.
    Data(Extent),
}

impl Part {
    fn extent(self) -> Extent {
        match self {
            Self::Hidden(extent) | Self::Data(extent) => extent,
        }
    }
}

/// Copies what the upper layer has, and what it hides, into the lower layer, in steps.
///
/// After an error it must be dropped: what was begun may still be under way until then.
pub struct Copying<'a> {
    stages: &'a MergeStages,
    purpose: Purpose,
    stride: Stride,
    seals: SealLog,
    reader: Client,
    writer: Client,
    /// The next parts, ascending: all that is hidden in a window before the data in it.
    parts: VecDeque<Part>,
    /// The window that these are of, and what is left after it.
    window: Extent,
    end: u64,
    moved_bytes: u64,
}

impl<'a> Copying<'a> {
    /// Begins with the blocks in this range of bytes; those before it are copied.
    pub fn open(
        stages: &'a MergeStages,
        range: std::ops::Range<u64>,
        event_loop: Rc<dyn EventLoop>,
        stride: Stride,
    ) -> Result<Self, TransferError> {
        let seals = SealLog::default();
        let watched = stages.upper_over(|sealed| Arc::new(SealWatch { inner: sealed, seals: seals.clone() }));
        Ok(Self {
            stages,
            purpose: Purpose::Copy,
            stride,
            seals,
            // The two are never in flight at once, so that neither keeps the other awake.
            reader: Client::on(Rc::clone(&event_loop), &*watched, stride.depth)?,
            writer: Client::on(event_loop, &*stages.into, stride.depth)?,
            parts: VecDeque::new(),
            window: Extent::between(range.start, range.start),
            end: range.end,
            moved_bytes: 0,
        })
    }

    /// Begins to erase what was copied into this range of bytes, to give its space back. The upper
    /// layer answers for all of it.
    pub fn erase(
        stages: &'a MergeStages,
        range: std::ops::Range<u64>,
        event_loop: Rc<dyn EventLoop>,
        stride: Stride,
    ) -> Result<Self, TransferError> {
        Ok(Self { purpose: Purpose::Erase, ..Self::open(stages, range, event_loop, stride)? })
    }

    /// Where the next step begins: everything before is in the lower layer.
    pub fn copied_bytes(&self) -> u64 {
        match self.parts.front() {
            Some(Part::Hidden(_)) => self.window.offset(),
            Some(Part::Data(extent)) => extent.offset(),
            None => self.window.end(),
        }
    }

    /// Bytes that were written into the lower layer so far.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Does the next step, and waits for its end.
    pub fn step(&mut self) -> Result<Step, TransferError> {
        if self.parts.is_empty() {
            if self.window.end() >= self.end {
                return Ok(Step::Ended);
            }
            self.look_ahead()?;
        }
        let before = self.moved_bytes;
        match self.parts.front() {
            Some(Part::Hidden(_)) => self.zero_hidden()?,
            Some(Part::Data(_)) => self.copy_data()?,
            None => {}
        }
        Ok(Step::Wrote(self.moved_bytes - before))
    }

    /// Takes up what the stages below do by themselves between two steps: until then the thread
    /// does not sleep.
    pub fn poll(&mut self) {
        self.reader.poll();
        self.writer.poll();
    }

    /// Makes all that was copied durable. The lower layer takes no writes afterwards.
    pub fn finish(mut self) -> Result<(), TransferError> {
        self.writer.flush()?;
        let Self { stages, reader, writer, .. } = self;
        drop((reader, writer));
        match &stages.into_tags {
            Some(tags) if !tags.close() => Err(TransferError::Volume(IoError::FlushFailed)),
            _ => Ok(()),
        }
    }

    /// Finds the parts of the next window.
    fn look_ahead(&mut self) -> Result<(), TransferError> {
        let start = self.window.end();
        let window = Extent::between(start, self.end.min((start / WINDOW_BYTES + 1) * WINDOW_BYTES));
        self.window = window;
        // What the upper layer hides first: what it has of the same blocks comes after it.
        if let Some(hidden) = self.stages.hidden.as_ref().filter(|_| self.purpose == Purpose::Copy) {
            // What a damaged part of the record hid would come back from the layers below.
            hidden.refuse_damage(window).map_err(TransferError::Volume)?;
            hidden.runs(window, |run, is_hidden| {
                if is_hidden {
                    self.parts.extend(pieces_of(run, ZEROED_BYTES).map(Part::Hidden));
                }
                true
            });
        }
        let found = self.stages.from.allocation(window, &mut |run, allocation| {
            if allocation == Allocation::Data {
                let run = run.widened_to(BLOCK_BYTES).intersection(window);
                self.parts.extend(pieces_of(run, self.stride.piece_bytes).map(Part::Data));
            }
            true
        });
        found.map_err(TransferError::Volume)
    }

    /// The next parts of the kind that comes first, as many as one step takes.
    fn take_parts(&mut self, is_wanted: impl Fn(Part) -> bool) -> Vec<Extent> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while bytes < self.stride.step_bytes
            && let Some(part) = self.parts.pop_front_if(|part| is_wanted(*part))
        {
            bytes += part.extent().length();
            taken.push(part.extent());
        }
        taken
    }

    fn zero_hidden(&mut self) -> Result<(), TransferError> {
        for run in self.take_parts(|part| matches!(part, Part::Hidden(_))) {
            self.writer.write_zeroes(run)?;
        }
        self.writer.settle_writes()
    }

    fn copy_data(&mut self) -> Result<(), TransferError> {
        let mut content = Vec::new();
        let mut take = |extent: Extent, read: Buffer| {
            content.push((extent, read));
            Ok(())
        };
        let pieces: Vec<_> = self.take_parts(|part| matches!(part, Part::Data(_)));
        for piece in pieces {
            self.reader.read(piece, &mut take)?;
        }
        self.reader.settle(0, &mut take)?;
        for (extent, read) in content {
            for run in self.seals.take(extent) {
                match self.purpose {
                    Purpose::Copy => {
                        let start = (run.offset() - extent.offset()) as usize;
                        self.writer.write(run, &read.bytes()[start..start + run.length() as usize])?;
                    }
                    Purpose::Erase => self.writer.write_zeroes(run)?,
                }
                self.moved_bytes += run.length();
            }
        }
        self.writer.settle_writes()
    }
}

/// Records which blocks of each read were there, until the reader takes the record.
#[derive(Clone, Default)]
struct SealLog(Arc<Mutex<HashMap<u64, Vec<bool>>>>);

impl SealLog {
    fn note(&self, extent: Extent, buffer: &Buffer) {
        let there = buffer.seals().iter().map(Option::is_some).collect();
        self.0.lock().insert(extent.offset(), there);
    }

    /// The runs of blocks that were there in the read of this extent.
    fn take(&self, extent: Extent) -> Vec<Extent> {
        let there = self.0.lock().remove(&extent.offset()).unwrap_or_default();
        let mut runs: Vec<Extent> = Vec::new();
        for (block, _) in (0_u64..).zip(there).filter(|(_, is_there)| *is_there) {
            let start = extent.offset() + block * BLOCK_BYTES;
            let end = (start + BLOCK_BYTES).min(extent.end());
            match runs.last_mut() {
                Some(run) if run.end() == start => *run = Extent::between(run.offset(), end),
                _ => runs.push(Extent::between(start, end)),
            }
        }
        runs
    }
}

/// A stage that records which of the blocks read through it were there.
struct SealWatch {
    inner: Arc<dyn Disk<Sealed>>,
    seals: SealLog,
}

struct SealWatchChannel {
    inner: Box<dyn Channel<Sealed>>,
    seals: SealLog,
    /// The extents of the reads in flight, by tag.
    reads: HashMap<u64, Extent>,
}

impl Disk<Sealed> for SealWatch {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        let inner = self.inner.open(thread, depth)?;
        Ok(Box::new(SealWatchChannel { inner, seals: self.seals.clone(), reads: HashMap::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.inner.allocation(extent, report)
    }
}

impl Channel<Sealed> for SealWatchChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        self.reads.insert(io.tag, io.request.extent());
        self.inner.submit(io);
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        let first = done.len();
        self.inner.poll(done);
        for done in &done[first..] {
            if let (Some(extent), Some(buffer)) = (self.reads.remove(&done.tag), &done.memory) {
                self.seals.note(extent, buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;
    use std::rc::Rc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use proptest::prelude::*;
    use rustix::fs::{Advice, fadvise};
    use strongroom_crypto::xts::{UnitSize, Xts};
    use strongroom_datastore::file::*;
    use strongroom_keys::{Kek, KekSource};
    use strongroom_memory::secret::SecretBytes;
    use strongroom_types::{ChunkSize, SnapshotId, VolumeSize};

    use strongroom_io::Waker;
    use strongroom_statistics::Recorders;

    use super::*;
    use crate::client::pieces;
    use crate::condition::MergeState;
    use crate::destaging;
    use crate::merging::{MergeOrder, Merging};
    use crate::reencrypt::reencrypt;
    use crate::stack::{Stack, assemble_destaged};

    /// Several pages of tags.
    const BLOCKS: u64 = 600;
    const LOCK_WAIT: Duration = Duration::from_secs(60);

    /// Each block of a volume.
    type Content = Vec<Block>;

    /// A block as a plain copy has it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Block {
        /// The fill byte; 0 if it reads as zeroes.
        fill: u8,
        /// Which of all changes was its last.
        change: u64,
    }

    struct Life {
        path: PathBuf,
        kek: Option<Kek>,
        /// What its KEK is made of.
        kek_fill: u8,
        /// The present content.
        now: Content,
        snapshots: BTreeMap<SnapshotId, Content>,
        names: u32,
        /// The changes to all volumes so far.
        changes: Rc<Cell<u64>>,
        /// The last change before its last snapshot, or revert.
        last_kept: u64,
        /// Its linked clones.
        clones: Vec<Life>,
        datastore: Rc<tempfile::TempDir>,
    }

    #[derive(Clone, Debug)]
    enum Act {
        Write {
            block: u64,
            blocks: u64,
            fill: u8,
        },
        Zero {
            block: u64,
            blocks: u64,
        },
        Snapshot,
        Revert {
            which: usize,
            keeps: bool,
        },
        Delete {
            which: usize,
        },
        Grow,
        /// Merges as long as there is something to merge, but stops the first merge after
        /// `stops_after` reports.
        Merge {
            stops_after: Option<u8>,
        },
        /// Merges two layers while a client reads and writes, as in [`Beside`].
        MergeInUse(Beside),
        /// Rewrites all layers, but stops the first attempt after `stops_after` reports.
        Reencrypt {
            to: NewProtection,
            stops_after: Option<u8>,
        },
        /// Makes a linked clone of a snapshot.
        Clone {
            which: usize,
        },
        /// Does it to a linked clone.
        InClone {
            which: usize,
            act: Box<Act>,
        },
        /// Deletes a linked clone.
        DeleteClone {
            which: usize,
        },
    }

    /// What a volume is re-encrypted to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum NewProtection {
        SameKek,
        OtherKek,
        /// Encrypted if it was clear, and clear if it was encrypted.
        Other,
    }

    /// What happens beside a merge of a volume in use.
    #[derive(Clone, Debug)]
    struct Beside {
        /// What the client does, again and again.
        writes: Vec<(u64, u64, u8)>,
        /// Whether the worker hands over after so many of these, and another one goes on.
        hands_over_after: Option<usize>,
        /// Whether the merge is left unfinished after so many of these.
        ends_after: Option<usize>,
    }

    fn acts() -> impl Strategy<Value = Act> {
        let which = any::<usize>;
        prop_oneof![
            8 => own_acts(),
            1 => which().prop_map(|which| Act::DeleteClone { which }),
            3 => (which(), own_acts()).prop_map(|(which, act)| Act::InClone { which, act: Box::new(act) }),
        ]
    }

    fn own_acts() -> impl Strategy<Value = Act> {
        let place = (0..BLOCKS, 1..12_u64);
        prop_oneof![
            2 => any::<usize>().prop_map(|which| Act::Clone { which }),
            4 => (place.clone(), 1..255_u8).prop_map(|((block, blocks), fill)| Act::Write { block, blocks, fill }),
            2 => place.prop_map(|(block, blocks)| Act::Zero { block, blocks }),
            3 => Just(Act::Snapshot),
            1 => (any::<usize>(), any::<bool>()).prop_map(|(which, keeps)| Act::Revert { which, keeps }),
            2 => any::<usize>().prop_map(|which| Act::Delete { which }),
            1 => Just(Act::Grow),
            1 => proptest::option::of(0..4_u8).prop_map(|stops_after| Act::Merge { stops_after }),
            3 => beside().prop_map(Act::MergeInUse),
            2 => (new_protections(), proptest::option::of(0..6_u8))
                .prop_map(|(to, stops_after)| Act::Reencrypt { to, stops_after }),
        ]
    }

    fn new_protections() -> impl Strategy<Value = NewProtection> {
        prop_oneof![
            2 => Just(NewProtection::SameKek),
            2 => Just(NewProtection::OtherKek),
            1 => Just(NewProtection::Other),
        ]
    }

    fn beside() -> impl Strategy<Value = Beside> {
        let writes = proptest::collection::vec((0..BLOCKS, 1..6_u64, 0..255_u8), 1..12);
        let after = || proptest::option::of(0..40_usize);
        (writes, after(), after()).prop_map(|(writes, hands_over_after, ends_after)| Beside {
            writes,
            hands_over_after,
            ends_after,
        })
    }

    fn key(fill: u8) -> Kek {
        KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
    }

    impl Life {
        fn new(encrypted: bool, provisioning: Provisioning) -> Self {
            let datastore = Rc::new(tempfile::tempdir().unwrap());
            let kek_fill = 7;
            let kek = encrypted.then(|| key(kek_fill));
            let path = datastore.path().join("vm1");
            let life = Self {
                path,
                kek,
                kek_fill,
                now: vec![Block::default(); BLOCKS as usize],
                snapshots: BTreeMap::new(),
                names: 0,
                changes: Rc::default(),
                last_kept: 0,
                clones: Vec::new(),
                datastore,
            };
            let options = CreateOptions {
                size: VolumeSize::new(BLOCKS * BLOCK_BYTES).unwrap(),
                provisioning,
                protection: life.protection(),
                log_bytes: Some(LOG_BYTES_MIN),
                integrity: encrypted.then_some(Integrity::NEW),
            };
            create(&life.path, &options).unwrap();
            life
        }

        fn protection(&self) -> Protection<'_> {
            self.kek.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted)
        }

        fn options(&self, access: Access) -> OpenOptions<'_> {
            OpenOptions { protection: self.protection(), access, lock_wait: LOCK_WAIT, least_generation: 0 }
        }

        fn to_add(&self) -> AddLayerOptions<'_> {
            AddLayerOptions {
                protection: self.protection(),
                log_bytes: Some(LOG_BYTES_MIN),
                lock_wait: LOCK_WAIT,
                least_generation: 0,
            }
        }

        fn new_snapshot(&mut self) -> NewSnapshot {
            self.names += 1;
            NewSnapshot { id: SnapshotId::random(), name: format!("s{}", self.names).parse().unwrap() }
        }

        fn chosen(&self, which: usize) -> Option<SnapshotId> {
            let count = self.snapshots.len();
            (count > 0).then(|| *self.snapshots.keys().nth(which % count).unwrap())
        }

        fn with_client(&mut self, act: impl FnOnce(&mut Self, &mut Client)) {
            let disk =
                assemble_destaged(open(&self.path, &self.options(Access::ReadWrite)).unwrap()).unwrap();
            let mut client = Client::open(&*disk).unwrap();
            act(self, &mut client);
            self.covers_what_is_in_flight();
            client.flush().unwrap();
        }

        fn act(&mut self, act: &Act) {
            match *act {
                Act::Write { block, blocks, fill } => {
                    self.with_client(|life, client| life.write(client, block..block + blocks, fill));
                }
                Act::Zero { block, blocks } => {
                    self.with_client(|life, client| life.write(client, block..block + blocks, 0));
                }
                Act::Snapshot => {
                    let snapshot = self.new_snapshot();
                    self.last_kept = self.changes.get();
                    match create_snapshot(&self.path, &snapshot, &self.to_add()) {
                        Ok(_) => drop(self.snapshots.insert(snapshot.id, self.now.clone())),
                        Err(error) => panic!("{error}"),
                    }
                }
                Act::Revert { which, keeps } => {
                    let Some(to) = self.chosen(which) else { return };
                    let keep = keeps.then(|| self.new_snapshot());
                    self.last_kept = self.changes.get();
                    revert(&self.path, to, keep.as_ref(), &self.to_add()).unwrap();
                    let left = std::mem::replace(&mut self.now, self.snapshots[&to].clone());
                    if let Some(keep) = keep {
                        self.snapshots.insert(keep.id, left);
                    }
                }
                Act::Delete { which } => {
                    let Some(id) = self.chosen(which) else { return };
                    delete_snapshot(&self.path, id, &self.options(Access::ReadWrite)).unwrap();
                    self.snapshots.remove(&id);
                }
                Act::Grow => {
                    self.now.push(Block::default());
                    let size = VolumeSize::new(self.now.len() as u64 * BLOCK_BYTES).unwrap();
                    let mut head = VolumeHead::open(&self.path, &self.options(Access::ReadWrite)).unwrap();
                    head.grow(size, self.protection()).unwrap();
                }
                Act::Merge { stops_after } => {
                    if let Some(reports) = stops_after {
                        let (stop, mut left) = (AtomicBool::new(false), reports);
                        let mut report = |_| match left.checked_sub(1) {
                            Some(fewer) => left = fewer,
                            None => stop.store(true, std::sync::atomic::Ordering::Relaxed),
                        };
                        let mut progress = Progress { stop: &stop, report: &mut report };
                        let _ = merge_next(&self.path, &self.options(Access::ReadWrite), &mut progress);
                        self.check();
                    }
                    self.merge_all();
                }
                Act::MergeInUse(ref beside) => self.merge_in_use(beside),
                Act::Reencrypt { to, stops_after } => self.reencrypt(to, stops_after),
                Act::Clone { which } => self.link(which),
                Act::InClone { which, ref act } => {
                    let count = self.clones.len();
                    if count > 0 {
                        self.clones[which % count].act(act);
                    }
                }
                Act::DeleteClone { which } => {
                    let count = self.clones.len();
                    if count > 0 {
                        let clone = self.clones.remove(which % count);
                        delete(&clone.path, LOCK_WAIT).unwrap();
                        self.clones.extend(clone.clones);
                    }
                }
            }
        }

        /// Rewrites all layers. Afterwards nothing of the volume opens under a DEK that it had.
        fn reencrypt(&mut self, to: NewProtection, stops_after: Option<u8>) {
            let old_deks = self.deks();
            let new = match to {
                NewProtection::SameKek => self.kek.as_ref().map(|_| key(self.kek_fill)),
                NewProtection::OtherKek if self.kek.is_none() => None,
                NewProtection::Other if self.kek.is_some() => None,
                NewProtection::OtherKek | NewProtection::Other => {
                    self.kek_fill = self.kek_fill % 90 + 1;
                    Some(key(self.kek_fill))
                }
            };
            if self.kek.is_none() && new.is_none() {
                return;
            }
            let old = self.kek.take();
            let options = ReencryptOptions {
                from: old.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted),
                to: new.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted),
                tags: if self.names.is_multiple_of(2) { NewTags::By(Integrity::NEW) } else { NewTags::Kept },
                lock_wait: LOCK_WAIT,
                least_generation: 0,
            };
            if let Some(reports) = stops_after {
                let (stop, mut left) = (AtomicBool::new(false), reports);
                let mut report = |_| match left.checked_sub(1) {
                    Some(fewer) => left = fewer,
                    None => stop.store(true, std::sync::atomic::Ordering::Relaxed),
                };
                let _ = reencrypt(&self.path, &options, &stop, &mut report);
                if to == NewProtection::SameKek {
                    // It can be used meanwhile.
                    self.kek = Some(key(self.kek_fill));
                    self.check();
                    self.with_client(|life, client| life.write(client, 3..5, 77));
                    self.kek = None;
                }
            }
            let descriptor = describe(&self.path).unwrap().descriptor;
            let is_undone = descriptor.reencrypting.is_some();
            if is_undone || stops_after.is_none() {
                let stop = AtomicBool::new(false);
                let done = reencrypt(&self.path, &options, &stop, &mut |_| {}).unwrap();
                assert_eq!(done.descriptor.reencrypting, None);
            }
            self.kek = new;
            self.renumber();
            self.opens_under_none_of(&old_deks);
        }

        /// The DEKs of all layers.
        fn deks(&self) -> Deks {
            let mut all = open(&self.path, &self.options(Access::ReadOnly)).unwrap().deks;
            for id in self.snapshots.keys() {
                let opened = open_snapshot(&self.path, *id, &self.options(Access::ReadOnly));
                let Ok(opened) = opened else { continue };
                all.extend(opened.deks);
            }
            all
        }

        /// No block of any file of the volume is one that was written, under one of these keys.
        fn opens_under_none_of(&self, deks: &Deks) {
            let session = |dek| Xts::new(dek, UnitSize::Bytes4096).unwrap().session().unwrap();
            let mut ciphers: Vec<_> = deks.iter().map(|(_, dek)| session(dek)).collect();
            for entry in std::fs::read_dir(&self.path).unwrap() {
                let path = entry.unwrap().path();
                let Ok(mut file) = std::fs::File::open(&path) else { continue };
                let mut content = Vec::new();
                file.read_to_end(&mut content).unwrap();
                // Cached pages count as data where space is allocated ahead.
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                for (number, block) in (0_u64..).zip(content.chunks_exact(BLOCK_BYTES as usize)) {
                    if block.iter().all(|byte| *byte == 0) {
                        continue;
                    }
                    for cipher in &mut ciphers {
                        let mut plain = vec![0; block.len()];
                        cipher.decrypt(number, block, &mut plain).unwrap();
                        let is_content = plain.iter().all(|byte| *byte == plain[0]);
                        assert!(!is_content, "{} has block {number} under an old key", path.display());
                    }
                }
            }
        }

        /// Its blocks lie elsewhere from now on than those of its clones and its origin.
        fn renumber(&mut self) {
            let base = self.changes.get();
            let contents = std::iter::once(&mut self.now).chain(self.snapshots.values_mut());
            for block in contents.flatten().filter(|block| block.change > 0) {
                block.change += base;
            }
            self.last_kept += base;
            self.changes.set(2 * base);
        }

        /// Makes a linked clone of a snapshot, under a key of its own.
        fn link(&mut self, which: usize) {
            let Some(snapshot) = self.chosen(which) else { return };
            self.names += 1;
            let name = format!("{}-{}", self.path.file_name().unwrap().to_str().unwrap(), self.names);
            let path = self.path.with_file_name(name);
            let kek_fill = 100 + self.clones.len() as u8;
            let kek = self.kek.as_ref().map(|_| key(kek_fill));
            let options = self.options(Access::ReadOnly);
            let origin = CloneOrigin { path: &self.path, volume: None, snapshot, options };
            let protection = kek.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted);
            match link_snapshot(&origin, &path, protection) {
                Ok(_) => {}
                // What a clone would hang on is being merged.
                Err(DatastoreError::Merging { .. }) => return,
                Err(error) => panic!("{error}"),
            }
            self.clones.push(Self {
                path,
                kek,
                kek_fill,
                now: self.snapshots[&snapshot].clone(),
                snapshots: BTreeMap::new(),
                names: 0,
                changes: Rc::clone(&self.changes),
                last_kept: self.changes.get(),
                clones: Vec::new(),
                datastore: Rc::clone(&self.datastore),
            });
        }

        /// What the supervisor and the worker of an exposed volume do, in one process.
        fn merge_in_use(&mut self, beside: &Beside) {
            let kek = self.kek.take();
            self.merge_in_use_under(kek.as_ref(), beside);
            self.kek = kek;
        }

        fn merge_in_use_under(&mut self, kek: Option<&Kek>, beside: &Beside) {
            let protection = kek.map_or(Protection::Unencrypted, Protection::Encrypted);
            let options = OpenOptions {
                protection,
                access: Access::ReadWrite,
                lock_wait: LOCK_WAIT,
                least_generation: 0,
            };
            let (mut head, _, _) = open_apart(&self.path, &options).unwrap();
            let Some(merging) = head.mark_merge(options.protection).unwrap() else { return };
            if merging.from == head.descriptor().top {
                // The supervisor puts a new top on it first.
                return;
            }
            let lanes = destaging::lanes().unwrap();
            let (mut done, mut copied_bytes, mut hands_over_after) = (0, 0, beside.hands_over_after);
            let state = loop {
                let (mut layer, deks) = head.reopen(options.protection, LOCK_WAIT).unwrap();
                let (place, into) = head.open_merged_into(options.protection).unwrap();
                layer.lower[place] = into;
                let ciphers = if deks.is_empty() { Ciphers::Unencrypted } else { Ciphers::of(deks).unwrap() };
                let mut stack = Stack::new(layer, ciphers).unwrap();
                let destaging = stack.destage(&lanes).unwrap();
                let order = MergeOrder { copied_bytes, ..MergeOrder::default() };
                let told = Arc::new(Waker::new().unwrap());
                let merging =
                    Merging::begin(stack.merge_stages().unwrap(), order, Recorders::none(), &lanes, told);
                let merging = merging.unwrap();
                let ends = [hands_over_after.take(), beside.ends_after].into_iter().flatten().min();
                let disk = stack.disk();
                let mut client = Client::open(&*disk).unwrap();
                let mut acts = beside.writes.iter().cycle().skip(done);
                while merging.watch().report().state == MergeState::UnderWay
                    && ends.is_none_or(|end| done < end)
                {
                    let (block, blocks, fill) = *acts.next().unwrap();
                    self.write(&mut client, block..block + blocks, fill);
                    self.verify(&mut client);
                    done += 1;
                }
                let state = merging.watch().report().state;
                copied_bytes = merging.end();
                self.verify(&mut client);
                client.flush().unwrap();
                drop((client, disk));
                destaging.end(End::Empty).unwrap();
                stack.close(true);
                if state != MergeState::UnderWay || beside.ends_after.is_some_and(|end| done >= end) {
                    break state;
                }
            };
            match state {
                MergeState::Complete => {
                    head.finish_merge(options.protection).unwrap();
                    assert!(head.descriptor().layer(merging.from).is_none());
                }
                MergeState::UnderWay => {}
                MergeState::Failed { reason } => panic!("{reason}"),
            }
        }

        /// Writes; a fill of 0 makes the blocks zeroes.
        fn write(&mut self, client: &mut Client, blocks: std::ops::Range<u64>, fill: u8) {
            let blocks = blocks.start..blocks.end.min(self.now.len() as u64);
            let extent = Extent::between(blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES);
            match fill {
                0 => client.write_zeroes(extent).unwrap(),
                fill => client.write(extent, &vec![fill; extent.length() as usize]).unwrap(),
            }
            client.settle_writes().unwrap();
            self.changes.set(self.changes.get() + 1);
            let block = Block { fill, change: self.changes.get() };
            self.now[blocks.start as usize..blocks.end as usize].fill(block);
        }

        /// Everything is as it was written.
        fn verify(&self, client: &mut Client) {
            let mut found = vec![0; self.now.len()];
            let mut take = |extent: Extent, read: Buffer| {
                for (block, bytes) in
                    (extent.offset() / BLOCK_BYTES..).zip(read.bytes().chunks(BLOCK_BYTES as usize))
                {
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is mixed");
                    found[block as usize] = bytes[0];
                }
                Ok(())
            };
            for piece in pieces(Extent::between(0, self.now.len() as u64 * BLOCK_BYTES)) {
                client.read(piece, &mut take).unwrap();
            }
            client.settle(0, &mut take).unwrap();
            assert_eq!(found, self.now.iter().map(|block| block.fill).collect::<Vec<_>>());
        }

        fn merge_all(&self) {
            let stop = AtomicBool::new(false);
            let mut progress = Progress { stop: &stop, report: &mut |_| {} };
            while merge_next(&self.path, &self.options(Access::ReadWrite), &mut progress).unwrap().is_some() {
            }
        }

        /// A map of single blocks, all of it.
        fn map(&self, view: View, kind: MapKind, form: MapForm) -> BTreeSet<usize> {
            let mut blocks = BTreeSet::new();
            let mut start_bytes = 0;
            loop {
                let request = MapRequest {
                    volume: None,
                    view,
                    kind,
                    chunk: ChunkSize::LEAST,
                    start_bytes,
                    length_bytes: None,
                    form,
                    seeks_next: true,
                };
                let map = read_map(&self.path, &request).unwrap();
                for (at, byte) in map.bitmap().into_iter().enumerate() {
                    let set = (0..8).filter(|bit| byte >> bit & 1 == 1).map(|bit| at * 8 + bit);
                    blocks.extend(set.map(|block| block + (start_bytes / BLOCK_BYTES) as usize));
                }
                if map.covers.end() == map.size.bytes() {
                    assert_eq!(map.next_bytes, None);
                    return blocks;
                }
                start_bytes = map.next_bytes.unwrap_or(map.covers.end());
            }
        }

        fn views(&self) -> impl Iterator<Item = (View, &Content)> {
            let snapshots = self.snapshots.iter().map(|(id, content)| (View::Snapshot(*id), content));
            std::iter::once((View::Present, &self.now)).chain(snapshots)
        }

        /// Beside its worker, the map of its present content has all that was written.
        fn covers_what_is_in_flight(&self) {
            let found = self.map(View::Present, MapKind::Allocated, MapForm::Bitmap);
            let written = (0..self.now.len()).filter(|at| self.now[*at].fill != 0);
            assert!(written.into_iter().all(|at| found.contains(&at)));
            for (id, content) in &self.snapshots {
                let found = self.map(View::Present, MapKind::ChangedSince(*id), MapForm::Extents);
                let differs =
                    |at: &usize| content.get(*at).map_or(0, |block| block.fill) != self.now[*at].fill;
                assert!((0..self.now.len()).filter(differs).all(|at| found.contains(&at)));
            }
        }

        /// Its maps agree with a plain copy, and its space with what its files take. `family` are
        /// all contents of all volumes.
        fn check_maps(&self, family: &[(&PathBuf, View, &Content)]) {
            self.clones.iter().for_each(|clone| clone.check_maps(family));
            let space = space(&self.path, None).unwrap();
            let directory = [self.path.clone()].into_iter();
            let files = std::fs::read_dir(&self.path).unwrap().map(|entry| entry.unwrap().path());
            let du: u64 = directory.chain(files).map(|path| path.metadata().unwrap().blocks() * 512).sum();
            assert_eq!(space.committed_bytes, du);
            let unshared: u64 = space.views.iter().map(|view| view.unshared_bytes).sum();
            assert_eq!(space.shared_bytes + unshared + space.common_bytes + space.other_bytes, du);
            for (view, content) in self.views() {
                let written: BTreeSet<_> = (0..content.len()).filter(|at| content[*at].fill != 0).collect();
                assert_eq!(self.map(view, MapKind::Allocated, MapForm::Extents), written, "{view:?}");
                assert_eq!(self.map(view, MapKind::Allocated, MapForm::Bitmap), written, "{view:?}");
                let unshared = self.map(view, MapKind::Unshared, MapForm::Extents);
                assert!(unshared.is_subset(&written));
                let others = family.iter().filter(|(path, other, _)| (*path, *other) != (&self.path, view));
                let others: Vec<_> = others.map(|(_, _, content)| content).collect();
                let is_shared = |at: &usize| {
                    others.iter().any(|other| other.get(*at).is_some_and(|block| *block == content[*at]))
                };
                assert!(!unshared.iter().any(is_shared), "{view:?}");
                let is_new = |at: &usize| content[*at].change > self.last_kept;
                assert!(written.iter().filter(|at| is_new(at)).all(|at| unshared.contains(at)), "{view:?}");
                for (id, other) in &self.snapshots {
                    let changed = self.map(view, MapKind::ChangedSince(*id), MapForm::Extents);
                    for (at, now) in content.iter().enumerate() {
                        let before = other.get(at).copied().unwrap_or_default();
                        let is_in = changed.contains(&at);
                        assert!(is_in || before.fill == now.fill, "{view:?} since {id}: {at}");
                        assert!(!is_in || before.change != now.change, "{view:?} since {id}: {at}");
                    }
                }
            }
        }

        fn family<'a>(&'a self, into: &mut Vec<(&'a PathBuf, View, &'a Content)>) {
            into.extend(self.views().map(|(view, content)| (&self.path, view, content)));
            self.clones.iter().for_each(|clone| clone.family(into));
        }

        fn check(&self) {
            self.clones.iter().for_each(Self::check);
            let disk = assemble_destaged(open(&self.path, &self.options(Access::ReadOnly)).unwrap()).unwrap();
            let mut client = Client::open(&*disk).unwrap();
            self.verify(&mut client);
            drop(client);
            let errors: Vec<_> = strongroom_datastore::file::check(&self.path, self.kek.as_ref())
                .unwrap()
                .into_iter()
                .filter(|finding| finding.severity == Severity::Error)
                .collect();
            assert!(errors.is_empty(), "{errors:?}");
        }

        /// Checks that every snapshot is unchanged, and that one layer is left once all are
        /// deleted, unless others have it too. Then its clones go on without it.
        fn end(&mut self) {
            while let Some(id) = self.chosen(0) {
                revert(&self.path, id, None, &self.to_add()).unwrap();
                self.now = self.snapshots.remove(&id).unwrap();
                self.check();
                delete_snapshot(&self.path, id, &self.options(Access::ReadWrite)).unwrap();
            }
            self.merge_all();
            self.check();
            let described = describe(&self.path).unwrap();
            let descriptor = described.descriptor;
            let alone = described.shared_layers.is_empty();
            assert_eq!((!alone || descriptor.layers.len() == 1, descriptor.snapshots.len()), (true, 0));
            // A shared layer may be empty.
            assert!(!alone || described.space.shared_bytes == 0);
            let leftovers: Vec<_> = strongroom_datastore::file::check(&self.path, self.kek.as_ref()).unwrap();
            assert!(leftovers.is_empty(), "{leftovers:?}");
            delete(&self.path, LOCK_WAIT).unwrap();
            self.clones.iter_mut().for_each(Self::end);
        }
    }

    #[test]
    fn a_layer_whose_record_is_damaged_is_neither_merged_nor_rewritten() {
        let mut life = Life::new(true, Provisioning::Thin);
        life.act(&Act::Write { block: 0, blocks: 20, fill: 1 });
        life.act(&Act::Snapshot);
        life.act(&Act::Zero { block: 3, blocks: 4 });
        life.act(&Act::Snapshot);
        let descriptor = describe(&life.path).unwrap().descriptor;
        let record = life.path.join(format!("discards-{}", descriptor.snapshots[1].layer));
        let mut content = std::fs::read(&record).unwrap();
        content[20] ^= 1;
        std::fs::write(&record, content).unwrap();

        let stop = AtomicBool::new(false);
        let options = ReencryptOptions {
            from: life.protection(),
            to: life.protection(),
            tags: NewTags::Kept,
            lock_wait: LOCK_WAIT,
            least_generation: 0,
        };
        let refused = reencrypt(&life.path, &options, &stop, &mut |_| {}).unwrap_err();
        assert!(
            matches!(refused, MergeError::Transfer(TransferError::Volume(IoError::Integrity { .. }))),
            "{refused}"
        );
        let to_write = life.options(Access::ReadWrite);
        delete_snapshot(&life.path, descriptor.snapshots[0].id, &to_write).unwrap();
        let mut progress = Progress { stop: &stop, report: &mut |_| {} };
        let refused = merge_next(&life.path, &to_write, &mut progress).unwrap_err();
        assert!(
            matches!(refused, MergeError::Transfer(TransferError::Volume(IoError::Integrity { .. }))),
            "{refused}"
        );
    }

    /// What the random trees below do not meet in every run.
    #[test]
    fn maps_have_discards_and_tell_shared_layers_from_own_ones() {
        for encrypted in [true, false] {
            let mut life = Life::new(encrypted, Provisioning::Thin);
            life.act(&Act::Write { block: 0, blocks: 20, fill: 1 });
            life.act(&Act::Snapshot);
            life.act(&Act::Zero { block: 3, blocks: 4 });
            life.act(&Act::Clone { which: 0 });
            life.act(&Act::Write { block: 10, blocks: 2, fill: 2 });
            life.act(&Act::Snapshot);
            life.act(&Act::Zero { block: 10, blocks: 1 });
            let mut family = Vec::new();
            life.family(&mut family);
            assert_eq!(family.len(), 4, "three contents, and that of the clone");
            life.check_maps(&family);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 200, ..ProptestConfig::default() })]
        #[test]
        fn a_tree_of_layers_is_what_a_plain_copy_says(
            encrypted: bool,
            thick: bool,
            acts in proptest::collection::vec(acts(), 1..24),
        ) {
            let provisioning = if thick { Provisioning::Thick } else { Provisioning::Thin };
            let mut life = Life::new(encrypted, provisioning);
            for act in &acts {
                life.act(act);
                life.check();
                let mut family = Vec::new();
                life.family(&mut family);
                life.check_maps(&family);
            }
            life.end();
        }
    }
}
