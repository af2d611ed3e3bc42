//! A file volume as a stage of the data path.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Sealed, TRANSFER_BYTES_MAX, Thread};
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, VolumeSize};

use super::channel::FileChannel;
use super::descriptor::Provisioning;
use super::discards::DiscardsFacts;
use super::error::DatastoreError;
use super::lock::{self, Sharing};
use super::log::destage::Destager;
use super::log::{End, Log, LogError};
use super::storage::{Adopt, StoredFile};
use super::syncs::{Syncs, Unsynced};
use super::tags::TagsFacts;
use super::turns::SyncOrder;

/// A layer as the process that does its I/O gets it: no path, no key, nothing that could open
/// another layer.
#[derive(Debug)]
pub struct OpenLayer {
    /// The open file. The volume's lock belongs to it, whichever process holds it.
    pub file: Arc<dyn StoredFile>,
    /// The open file of its first-write log, if it has one.
    pub log: Option<Arc<dyn StoredFile>>,
    /// The index of that log, if a predecessor made one.
    pub log_index: Option<OwnedFd>,
    /// The open file of its tags, if it has any.
    pub tags: Option<Arc<dyn StoredFile>>,
    /// The open record of its discards, if there are layers below.
    pub discards: Option<Arc<dyn StoredFile>>,
    /// Its description.
    pub facts: LayerFacts,
    /// The layers below the top, nearest first; they have none of their own here.
    pub lower: Vec<OpenLayer>,
}

impl OpenLayer {
    /// Its own open files: blocks, log, tags, discards.
    fn stored(&self) -> impl Iterator<Item = &dyn StoredFile> {
        let others = self.log.iter().chain(&self.tags).chain(&self.discards);
        std::iter::once(&self.file).chain(others).map(|file| &**file)
    }

    /// The open files of all its layers.
    fn all_stored(&self) -> impl Iterator<Item = &dyn StoredFile> {
        self.stored().chain(self.lower.iter().flat_map(Self::stored))
    }

    /// Descriptors of all of its open files for another process, in the order in which
    /// [`from_files`](Self::from_files) takes them: blocks, log, its index, tags, discards; then
    /// the same of each layer below.
    ///
    /// # Errors
    /// If a file cannot be given to another process.
    pub fn files(&self) -> Result<Vec<OwnedFd>, Errno> {
        let shared = |file: &Option<Arc<dyn StoredFile>>| file.as_ref().map(|file| file.share()).transpose();
        let mut files = vec![self.file.share()?];
        files.extend(shared(&self.log)?);
        files.extend(self.log_index.as_ref().map(duplicate).transpose()?);
        files.extend(shared(&self.tags)?);
        files.extend(shared(&self.discards)?);
        for layer in &self.lower {
            files.extend(layer.files()?);
        }
        Ok(files)
    }

    /// Builds a layer, and those below it, from facts and files that another process sent; `None`
    /// if files are missing. `adopt` makes a file of a descriptor. Those left in `files` do not
    /// belong to it.
    pub fn from_files(
        facts: LayerFacts,
        lower: &[LayerFacts],
        files: &mut impl Iterator<Item = OwnedFd>,
        adopt: Adopt,
    ) -> Option<Self> {
        let mut top = Self::alone(facts, files, adopt)?;
        for facts in lower {
            top.lower.push(Self::alone(*facts, files, adopt)?);
        }
        Some(top)
    }

    fn alone(facts: LayerFacts, files: &mut impl Iterator<Item = OwnedFd>, adopt: Adopt) -> Option<Self> {
        let file = adopt(files.next()?);
        let mut wanted = |is_wanted: bool| if is_wanted { files.next().map(Some) } else { Some(None) };
        let log = wanted(facts.log.is_some())?.map(adopt);
        let log_index = wanted(facts.log.is_some_and(|log| log.indexed))?;
        let tags = wanted(facts.tags.is_some())?.map(adopt);
        let discards = wanted(facts.discards.is_some())?.map(adopt);
        Some(Self { file, log, log_index, tags, discards, facts, lower: Vec::new() })
    }

    /// Another handle of it with all of its open files. The locks belong to both.
    pub fn try_clone(&self) -> Result<Self, Errno> {
        let lower = self.lower.iter().map(Self::try_clone).collect::<Result<_, _>>()?;
        Ok(Self { lower, ..self.try_clone_top()? })
    }

    /// The same without the layers below it.
    pub fn try_clone_top(&self) -> Result<Self, Errno> {
        Ok(Self {
            file: Arc::clone(&self.file),
            log: self.log.clone(),
            log_index: self.log_index.as_ref().map(duplicate).transpose()?,
            tags: self.tags.clone(),
            discards: self.discards.clone(),
            facts: self.facts,
            lower: Vec::new(),
        })
    }

    /// Takes the index of its log for a successor; without one, the successor reads the log.
    pub fn set_log_index(&mut self, index: Option<OwnedFd>) {
        if let Some(log) = &mut self.facts.log {
            log.indexed = index.is_some();
            self.log_index = index;
        }
    }

    /// Drops the indexes of all its logs: one is valid until the next record, and a program of
    /// another release does not know them.
    pub fn drop_log_indexes(&mut self) {
        self.set_log_index(None);
        self.lower.iter_mut().for_each(|layer| layer.set_log_index(None));
    }

    /// Puts another layer on top of it.
    #[must_use]
    pub fn below(mut self, top: Self) -> Self {
        let mut lower = std::mem::take(&mut self.lower);
        lower.insert(0, self);
        Self { lower, ..top }
    }

    /// Makes the locks of its files shared ones, so that its owner can open it once more. That of a
    /// layer that was the top until now is exclusive.
    pub fn share_locks(&self) -> Result<(), Errno> {
        self.all_stored().try_for_each(|file| file.try_lock(FlockOperation::NonBlockingLockShared))
    }

    /// Checks that nobody else has any of its files locked, to read or to link to them. Its own
    /// locks are shared ones afterwards, whatever it returns.
    ///
    /// # Errors
    /// `WOULDBLOCK` if somebody has.
    pub fn claim(&self) -> Result<(), Errno> {
        // A lock that cannot become exclusive is lost.
        let alone =
            self.all_stored().try_for_each(|file| file.try_lock(FlockOperation::NonBlockingLockExclusive));
        self.share_locks()?;
        alone
    }

    /// Its blocks, and those of each layer below.
    pub fn into_blocks(mut self) -> Result<(LayerBlocks, Vec<LayerBlocks>), LogError> {
        let lower = std::mem::take(&mut self.lower);
        let lower: Result<_, LogError> = lower.into_iter().map(Self::own_blocks).collect();
        Ok((self.own_blocks()?, lower?))
    }

    /// The facts of the layers below.
    pub fn lower_facts(&self) -> Vec<LayerFacts> {
        self.lower.iter().map(|layer| layer.facts).collect()
    }

    /// Declares that its tags match its blocks, whatever marks its sidecar has. A block that does
    /// not match is then an error, and is never accepted unverified.
    pub(super) fn vouch_for_tags(&mut self) {
        if let Some(tags) = &mut self.facts.tags {
            tags.handed_over = true;
        }
    }

    /// Makes the exclusive locks of its files shared ones.
    pub(super) fn share_locks_within(&self, wait: Duration, path: &Path) -> Result<(), DatastoreError> {
        self.stored().try_for_each(|file| lock::acquire(file, Sharing::Shared, wait, path))
    }

    /// Declares that nothing was written to it, and that all of its files are durable as they are.
    pub(super) fn set_new(&mut self) {
        self.vouch_for_tags();
        if let (Some(file), Some(log)) = (&self.log, &mut self.facts.log) {
            log.handed_over = true;
            self.log_index = Log::index_of_new(&**file);
            log.indexed = self.log_index.is_some();
        }
        if let Some(discards) = &mut self.facts.discards {
            discards.is_durable = true;
        }
    }

    fn own_blocks(self) -> Result<LayerBlocks, LogError> {
        let Self { file, log, log_index, tags, discards, facts, lower: _ } = self;
        Ok(LayerBlocks {
            disk: Arc::new(FileDisk::over(file, log, log_index, facts)?),
            tags: tags.zip(facts.tags),
            discards: discards.zip(facts.discards),
            is_merged_into: facts.is_merged_into,
        })
    }
}

/// What a process must know of a layer to do I/O on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerFacts {
    /// The size that the guest sees; for a layer below the top, the size that the guest last saw.
    pub size_bytes: VolumeSize,
    /// How space is allocated.
    pub provisioning: Provisioning,
    /// Whether it takes no writes. A layer below the top takes no writes of clients; if this is
    /// `false` there, its last writes are still being completed ([`LayerRecord::closing`]), or the
    /// layer above it is merged into it.
    ///
    /// [`LayerRecord::closing`]: super::LayerRecord::closing
    pub read_only: bool,
    /// Whether the layer above it is merged into it: blocks that both have must not be read from
    /// this one ([`Merging`](super::Merging)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_merged_into: bool,
    /// The epoch that seals writes; for a layer below the top, the newest epoch that sealed its
    /// blocks.
    pub write_epoch: KeyEpoch,
    /// Whether no two syncs of one of its files may be under way at once
    /// ([`FileSystem::syncs_in_turn`]).
    ///
    /// [`FileSystem::syncs_in_turn`]: super::FileSystem::syncs_in_turn
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub syncs_in_turn: bool,
    /// Its first-write log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogFacts>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<TagsFacts>,
    /// The record of its discards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discards: Option<DiscardsFacts>,
}

/// What a process must know of a layer's first-write log to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogFacts {
    /// Bytes for records.
    pub bytes: u64,
    /// The least bytes of a first write that goes in place. `None` if the file system might tear
    /// its blocks: then none does.
    pub fill_bytes_min: Option<u64>,
    /// Whether its last user closed it in order and without a failed sync: records found in it need
    /// not be rewritten to be durable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub handed_over: bool,
    /// Whether its index comes with it. Known to processes of the same program alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub indexed: bool,
}

/// The blocks of a layer, and its other files, which the stages above use.
pub struct LayerBlocks {
    /// The blocks, without those of the layers below.
    pub disk: Arc<FileDisk>,
    /// The tags file and its facts, if the blocks have tags ([`TagsDisk`](super::tags::TagsDisk)).
    pub tags: Option<(Arc<dyn StoredFile>, TagsFacts)>,
    /// The record of its discards and its facts, if there are layers below.
    pub discards: Option<(Arc<dyn StoredFile>, DiscardsFacts)>,
    /// Whether the layer above it is merged into it.
    pub is_merged_into: bool,
}

fn duplicate(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(file, 0)
}

/// The blocks of an open volume. Clones share it.
#[derive(Clone)]
pub struct FileDisk {
    pub(super) shared: Arc<Shared>,
}

/// The state that all channels of a volume share.
pub(super) struct Shared {
    pub(super) layer: Arc<dyn StoredFile>,
    /// Whether the layer has changes that are not known to be durable.
    pub(super) layer_unsynced: Unsynced,
    pub(super) log: Option<Arc<Log>>,
    /// The size in bytes, whole blocks; it may grow while channels are open.
    size_bytes: AtomicU64,
    pub(super) provisioning: Provisioning,
    read_only: bool,
    /// The epoch that seals writes.
    pub(super) epoch: KeyEpoch,
    pub(super) syncs: Syncs,
    /// The source of queues to the files.
    pub(super) sync_order: SyncOrder,
}

impl FileDisk {
    /// Opens only the blocks of a layer that another process may have opened. The layers below and
    /// its other files are for the stages above ([`OpenLayer::into_blocks`]).
    pub fn new(layer: OpenLayer) -> Result<Self, LogError> {
        let OpenLayer { file, log, log_index, facts, .. } = layer;
        Self::over(file, log, log_index, facts)
    }

    fn over(
        file: Arc<dyn StoredFile>,
        log: Option<Arc<dyn StoredFile>>,
        log_index: Option<OwnedFd>,
        facts: LayerFacts,
    ) -> Result<Self, LogError> {
        let log = match (log, facts.log) {
            (Some(file), Some(log)) => {
                Some(Arc::new(Log::open(file, log_index, log, facts.size_bytes, facts.read_only)?))
            }
            _ => None,
        };
        let files = [Some(&file), log.as_ref().map(|log| &log.file)];
        let sync_order = SyncOrder::new(facts.syncs_in_turn, files.into_iter().flatten());
        let shared = Shared {
            layer: file,
            // A predecessor's last writes may not be durable.
            layer_unsynced: Unsynced::new(true),
            log,
            size_bytes: AtomicU64::new(facts.size_bytes.block_aligned_bytes()),
            provisioning: facts.provisioning,
            read_only: facts.read_only,
            epoch: facts.write_epoch,
            syncs: Syncs::default(),
            sync_order,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether a flush has failed: then none succeeds until the volume is reopened. Only this
    /// object knows.
    pub fn has_failed_flush(&self) -> bool {
        self.shared.syncs.have_failed()
    }

    /// The [`Destager`] that brings first writes from the log to the layer. The caller runs it
    /// beside the channels. `None` if there is no log, or the layer is read-only.
    pub fn destager(&self, thread: &Thread) -> Result<Option<Destager>, IoError> {
        match &self.shared.log {
            Some(_) if !self.shared.read_only => Destager::open(Arc::clone(&self.shared), thread).map(Some),
            _ => Ok(None),
        }
    }

    /// The epoch that seals writes.
    pub fn write_epoch(&self) -> KeyEpoch {
        self.shared.epoch
    }

    /// Announces a destager: writes that find no room in the log then wait for it. Without one they
    /// fail.
    pub fn expect_destager(&self, is_expected: bool) {
        if let Some(log) = &self.shared.log {
            log.expect_destager(is_expected);
        }
    }

    /// Asks the destager to end; see [`Destager::ended`]. Nothing can be appended to an emptied
    /// log, so the channels must be closed first.
    pub fn end_destaging(&self, end: End) {
        if let Some(log) = &self.shared.log {
            log.end_destaging(end);
        }
    }

    /// Brings nothing to the layer as long as the log has room: a change of the process that does
    /// the I/O is at hand, and would wait for the end of a cycle.
    pub fn hold_destaging(&self, is_held: bool) {
        if let Some(log) = &self.shared.log {
            log.hold_destaging(is_held);
        }
    }

    /// Bytes for records in the first-write log, and bytes that records use now.
    pub fn log_size_and_use(&self) -> Option<(u64, u64)> {
        self.shared.log.as_ref().map(|log| log.size_and_use())
    }

    /// Whether something is being read from the first-write log. Once that is empty no other read
    /// begins, and its file may go.
    pub fn is_log_being_read(&self) -> bool {
        self.shared.log.as_ref().is_some_and(|log| log.is_being_read())
    }

    /// The index of the first-write log, for a successor ([`OpenLayer::set_log_index`]). All
    /// channels must be closed.
    pub fn log_index(&self) -> Option<OwnedFd> {
        self.shared.log.as_ref().and_then(|log| log.index())
    }

    /// Makes the blocks usable that [`VolumeHead::grow`](super::VolumeHead::grow) added.
    pub fn set_size(&self, size: VolumeSize) {
        self.shared.size_bytes.fetch_max(size.block_aligned_bytes(), Ordering::AcqRel);
    }
}

impl Shared {
    pub(super) fn limits(&self) -> Limits {
        Limits {
            size_bytes: self.size_bytes.load(Ordering::Acquire),
            block_bytes: BLOCK_BYTES as u32,
            preferred_bytes: BLOCK_BYTES as u32,
            transfer_bytes_max: TRANSFER_BYTES_MAX + 2 * BLOCK_BYTES as u32,
            read_only: self.read_only,
            discards: self.provisioning == Provisioning::Thin,
        }
    }
}

impl Disk<Sealed> for FileDisk {
    fn limits(&self) -> Limits {
        self.shared.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        Ok(Box::new(FileChannel::open(Arc::clone(&self.shared), thread, depth)?))
    }

    /// Reports the file system's own map. "Data" may still be zeroes; a "hole" is always empty.
    /// ext4, XFS, btrfs and tmpfs report exactly the written blocks (tested), and unwritten extents
    /// as holes.
    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let extent = extent.intersection(Extent::between(0, self.shared.size_bytes.load(Ordering::Acquire)));
        // The runs that the log answers for, and the layer's map between them.
        let mut newer = Vec::new();
        if let Some(log) = &self.shared.log {
            let blocks = extent.widened_to(BLOCK_BYTES);
            log.for_each_run(blocks, |run, is_data| newer.push((run.intersection(extent), is_data)));
        }
        let mut at = extent.offset();
        for (run, is_data) in newer {
            if !self.layer_allocation(Extent::between(at, run.offset()), report)? {
                return Ok(());
            }
            if !report(run, if is_data { Allocation::Data } else { Allocation::Hole }) {
                return Ok(());
            }
            at = run.end();
        }
        self.layer_allocation(Extent::between(at, extent.end()), report).map(|_| ())
    }
}

impl FileDisk {
    /// Reports the file system's map of the layer. Returns whether to go on.
    fn layer_allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<bool, IoError> {
        let file = &self.shared.layer;
        let hole = match self.shared.provisioning {
            Provisioning::Thin => Allocation::Hole,
            Provisioning::Thick => Allocation::Zero,
        };
        let mut at = extent.offset();
        while at < extent.end() {
            let data = match file.next_data(at) {
                Ok(data) => data.clamp(at, extent.end()),
                // No data from here to the end of the file.
                Err(Errno::NXIO) => extent.end(),
                Err(errno) => return Err(errno.into()),
            };
            // A block with any data counts as data.
            let data = data / BLOCK_BYTES * BLOCK_BYTES;
            if data > at && !report(Extent::between(at, data), hole) {
                return Ok(false);
            }
            if data >= extent.end() {
                return Ok(true);
            }
            let end = file.next_hole(data)?.div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
            let end = end.clamp(data + 1, extent.end());
            if !report(Extent::between(data.max(at), end), Allocation::Data) {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }
}
