//! Merges two layers of a volume that is not served: the blocks of the upper one are written into
//! the lower one, under the lower one's key. `datastore/file/merge` explains the order of writes,
//! and why an interrupted merge starts over.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_datastore::file::{
    DatastoreError, Deks, Descriptor, MergeKeys, MergeLayers, OpenMerge, OpenOptions, open_merge,
};
use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Sealed, Thread};
use strongroom_memory::Buffer;
use strongroom_types::{BLOCK_BYTES, Extent};
use thiserror::Error;

use crate::client::{Client, pieces};
use crate::layers::{Ciphers, MergePlan, StackError, merge_plan};
use crate::transfer::{Progress, TransferError};

/// How much of the upper layer is asked for its allocation at once, so that the answer stays short.
const WINDOW_BYTES: u64 = 1 << 30;

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
    let moved_bytes = move_blocks(size_bytes, layers, ciphers(keys)?, progress)?;
    let descriptor = finish.finish(options)?;
    Ok(Some(Merged { descriptor, moved_bytes }))
}

fn move_blocks(
    size_bytes: u64,
    layers: MergeLayers,
    ciphers: Ciphers,
    progress: &mut Progress<'_>,
) -> Result<u64, MergeError> {
    let all = Extent::between(0, size_bytes);
    let seals = SealLog::default();
    let MergePlan { from_sealed, from, into, hidden } =
        merge_plan(layers, ciphers, |sealed| Arc::new(SealWatch { inner: sealed, seals: seals.clone() }))?;
    let mut writer = Client::open(&*into)?;
    // First zero the blocks that the upper layer hides: blocks that it also has are written
    // afterwards.
    let mut clear = Vec::new();
    if let Some(hidden) = &hidden {
        hidden.runs(all, |run, is_hidden| {
            clear.extend(is_hidden.then_some(run));
            true
        });
    }
    for run in clear {
        progress.at(0)?;
        writer.write_zeroes(run)?;
    }
    writer.flush()?;
    let mut reader = Client::open(&*from)?;
    let mut moved_bytes = 0;
    let mut write = |extent: Extent, read: Buffer| {
        for run in seals.take(extent) {
            let start = (run.offset() - extent.offset()) as usize;
            writer.write(run, &read.bytes()[start..start + run.length() as usize])?;
            moved_bytes += run.length();
        }
        Ok(())
    };
    for window in 0..size_bytes.div_ceil(WINDOW_BYTES) {
        let window = Extent::between(window * WINDOW_BYTES, size_bytes.min((window + 1) * WINDOW_BYTES));
        let mut data = Vec::new();
        let found = from_sealed.allocation(window, &mut |run, allocation| {
            if allocation == Allocation::Data {
                data.push(run.widened_to(BLOCK_BYTES).intersection(window));
            }
            true
        });
        found.map_err(TransferError::Volume)?;
        for piece in data.into_iter().flat_map(pieces) {
            progress.at(piece.offset())?;
            reader.read(piece, &mut write)?;
        }
    }
    reader.settle(0, &mut write)?;
    writer.flush()?;
    progress.at(size_bytes)?;
    Ok(moved_bytes)
}

/// The ciphers of all layers; writes are sealed by the lower layer's newest key.
fn ciphers(keys: MergeKeys) -> Result<Ciphers, StackError> {
    let MergeKeys { from, into, lower } = keys;
    let deks: Deks = lower.into_iter().chain(from).chain(into).collect();
    if deks.is_empty() { Ok(Ciphers::Unencrypted) } else { Ciphers::of(deks) }
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
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use proptest::prelude::*;
    use strongroom_datastore::file::*;
    use strongroom_keys::{Kek, KekSource};
    use strongroom_memory::secret::SecretBytes;
    use strongroom_types::{SnapshotId, VolumeSize};

    use super::*;
    use crate::stack::assemble_destaged;

    const BLOCKS: u64 = 48;
    const LOCK_WAIT: Duration = Duration::from_secs(60);

    /// The fill byte of each block; 0 for one that reads as zeroes.
    type Content = Vec<u8>;

    struct Life {
        path: PathBuf,
        kek: Option<Kek>,
        /// The present content.
        now: Content,
        snapshots: BTreeMap<SnapshotId, Content>,
        names: u32,
        _datastore: tempfile::TempDir,
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
    }

    fn acts() -> impl Strategy<Value = Act> {
        let place = (0..BLOCKS, 1..12_u64);
        prop_oneof![
            4 => (place.clone(), 1..255_u8).prop_map(|((block, blocks), fill)| Act::Write { block, blocks, fill }),
            2 => place.prop_map(|(block, blocks)| Act::Zero { block, blocks }),
            3 => Just(Act::Snapshot),
            1 => (any::<usize>(), any::<bool>()).prop_map(|(which, keeps)| Act::Revert { which, keeps }),
            2 => any::<usize>().prop_map(|which| Act::Delete { which }),
            1 => Just(Act::Grow),
            2 => proptest::option::of(0..4_u8).prop_map(|stops_after| Act::Merge { stops_after }),
        ]
    }

    impl Life {
        fn new(encrypted: bool, provisioning: Provisioning) -> Self {
            let datastore = tempfile::tempdir().unwrap();
            let kek = encrypted.then(|| {
                KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap()
            });
            let path = datastore.path().join("vm1");
            let life = Self {
                path,
                kek,
                now: vec![0; BLOCKS as usize],
                snapshots: BTreeMap::new(),
                names: 0,
                _datastore: datastore,
            };
            let options = CreateOptions {
                size: VolumeSize::new(BLOCKS * BLOCK_BYTES).unwrap(),
                provisioning,
                protection: life.protection(),
                log_bytes: Some(LOG_BYTES_MIN),
                integrity: encrypted,
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

        fn with_client(&self, act: impl FnOnce(&mut Client)) {
            let disk =
                assemble_destaged(open(&self.path, &self.options(Access::ReadWrite)).unwrap()).unwrap();
            let mut client = Client::open(&*disk).unwrap();
            act(&mut client);
            client.flush().unwrap();
        }

        fn act(&mut self, act: &Act) {
            let end = self.now.len() as u64;
            match *act {
                Act::Write { block, blocks, fill } => {
                    let range = block..(block + blocks).min(end);
                    self.with_client(|client| {
                        let bytes = vec![fill; ((range.end - range.start) * BLOCK_BYTES) as usize];
                        let extent = Extent::between(range.start * BLOCK_BYTES, range.end * BLOCK_BYTES);
                        client.write(extent, &bytes).unwrap();
                    });
                    range.for_each(|block| self.now[block as usize] = fill);
                }
                Act::Zero { block, blocks } => {
                    let range = block..(block + blocks).min(end);
                    self.with_client(|client| {
                        let extent = Extent::between(range.start * BLOCK_BYTES, range.end * BLOCK_BYTES);
                        client.write_zeroes(extent).unwrap();
                    });
                    range.for_each(|block| self.now[block as usize] = 0);
                }
                Act::Snapshot => {
                    let snapshot = self.new_snapshot();
                    match create_snapshot(&self.path, &snapshot, &self.to_add()) {
                        Ok(_) => drop(self.snapshots.insert(snapshot.id, self.now.clone())),
                        Err(error) => panic!("{error}"),
                    }
                }
                Act::Revert { which, keeps } => {
                    let Some(to) = self.chosen(which) else { return };
                    let keep = keeps.then(|| self.new_snapshot());
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
                    self.now.push(0);
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
            }
        }

        fn merge_all(&self) {
            let stop = AtomicBool::new(false);
            let mut progress = Progress { stop: &stop, report: &mut |_| {} };
            while merge_next(&self.path, &self.options(Access::ReadWrite), &mut progress).unwrap().is_some() {
            }
        }

        fn check(&self) {
            let disk = assemble_destaged(open(&self.path, &self.options(Access::ReadOnly)).unwrap()).unwrap();
            let mut client = Client::open(&*disk).unwrap();
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
            assert_eq!(found, self.now);
            drop(client);
            let errors: Vec<_> = strongroom_datastore::file::check(&self.path, self.kek.as_ref())
                .unwrap()
                .into_iter()
                .filter(|finding| finding.severity == Severity::Error)
                .collect();
            assert!(errors.is_empty(), "{errors:?}");
        }

        /// Checks that every snapshot is unchanged, and that one layer is left once all are
        /// deleted.
        fn end(&mut self) {
            while let Some(id) = self.chosen(0) {
                revert(&self.path, id, None, &self.to_add()).unwrap();
                self.now = self.snapshots.remove(&id).unwrap();
                self.check();
                delete_snapshot(&self.path, id, &self.options(Access::ReadWrite)).unwrap();
            }
            self.merge_all();
            self.check();
            let descriptor = describe(&self.path).unwrap().descriptor;
            assert_eq!((descriptor.layers.len(), descriptor.snapshots.len()), (1, 0));
            let leftovers: Vec<_> = strongroom_datastore::file::check(&self.path, self.kek.as_ref()).unwrap();
            assert!(leftovers.is_empty(), "{leftovers:?}");
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
            }
            life.end();
        }
    }
}
