//! Turns an open volume into the disk that a frontend serves.
//!
//! ```text
//! frontend -> blocksize (any byte, exact size, range locks) -> switch -> crypt or cleartext
//!     -> chain, of a volume of several layers -> for each: tags, if it has them -> the layer's blocks
//! ```
//!
//! The part from crypt on is assembled in [`layers`](crate::layers). The switch exchanges it for
//! one with a new top, over the same stages of the layers below, when a snapshot is made.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::chain::ChainDisk;
use strongroom_datastore::file::tags::TagsDisk;
use strongroom_datastore::file::{OpenLayer, OpenVolume};
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_filters::switch::SwitchDisk;
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, RangeLocks, Sealed, Thread, Waker,
};
use strongroom_ring::Lanes;
use strongroom_types::{Extent, KeyEpoch, VolumeSize};

use crate::closing::Closing;
use crate::destaging::{Destaging, DestagingError};
use crate::layers::{
    Ciphers, MergeStages, PlainBlocks, StackError, plain_blocks_over, plain_over, plain_over_alone,
};

/// The unit that clients address: NBD addresses bytes, and a guest's sectors are multiples of them.
const UNIT_BYTES: u32 = 1;

/// How long clients' threads may take to open a new top. They do it between two requests; one that
/// maps a large disk for an NBD client is slow.
const PREPARES_WITHIN: Duration = Duration::from_secs(5);

/// The stages of a served volume, kept separately so that it can grow, and get a new top, while it
/// is served.
pub struct Stack {
    plain: PlainBlocks,
    /// All layers with their open files, for a successor.
    open: OpenLayer,
    switch: Arc<SwitchDisk<Plain>>,
    blocks: Arc<BlocksizeDisk>,
}

/// A new, empty top, and the stages through which it will be served over the present ones.
pub struct NewTop {
    plain: PlainBlocks,
    /// All layers with their open files.
    open: OpenLayer,
    /// The files of the layer that is the top until then.
    former: OpenLayer,
}

impl NewTop {
    /// Begins to bring first writes from its log to it.
    pub fn destage(&self, lanes: &Lanes) -> Result<Destaging, DestagingError> {
        Destaging::on(self.plain.top(), lanes)
    }
}

impl Stack {
    /// Assembles the stages over a layer and those below it.
    pub fn new(layer: OpenLayer, ciphers: Ciphers) -> Result<Self, StackError> {
        let mut open = layer.try_clone().map_err(StackError::Files)?;
        open.drop_log_indexes();
        let (top, below) = layer.into_blocks()?;
        let plain = plain_over(Arc::clone(&top.disk) as _, top, below, ciphers)?;
        let size_bytes = open.facts.size_bytes.bytes();
        let switch = Arc::new(SwitchDisk::new(Arc::clone(&plain.disk)));
        let blocks = BlocksizeDisk::new(Arc::clone(&switch) as _, size_bytes, UNIT_BYTES, RangeLocks::new())?;
        Ok(Self { plain, open, switch, blocks: Arc::new(blocks) })
    }

    /// Prepares a new, empty top beside the present one, on the clients' threads too. `ciphers` are
    /// those of its own epochs.
    ///
    /// # Errors
    /// Clients are served as before.
    pub fn prepare_top(&self, top: OpenLayer, ciphers: Ciphers) -> Result<NewTop, StackError> {
        let mut open = top.try_clone_top().map_err(StackError::Files)?;
        open.drop_log_indexes();
        let former = self.open.try_clone_top().map_err(StackError::Files)?;
        let open = self.open.try_clone().map_err(StackError::Files)?.below(open);
        if open.facts.size_bytes != self.open.facts.size_bytes {
            return Err(StackError::OtherSize);
        }
        let (top, _) = top.into_blocks()?;
        let plain = self.plain.with_new_top(top, ciphers)?;
        self.switch.prepare(Arc::clone(&plain.disk), PREPARES_WITHIN)?;
        Ok(NewTop { plain, open, former })
    }

    /// Holds clients' requests, and waits until none is under way.
    ///
    /// # Errors
    /// Clients are served as before.
    pub fn freeze(&self, within: Duration) -> Result<(), StackError> {
        Ok(self.switch.freeze(within)?)
    }

    /// Serves the held requests, and all others, as before.
    pub fn abandon_top(&self) {
        self.switch.abandon();
    }

    /// Serves the held requests, and all others, over the new top. Returns the former top's open
    /// files, which take no more writes of clients.
    ///
    /// # Errors
    /// If clients are not frozen; they are served as before.
    pub fn change_top(&mut self, top: NewTop) -> Result<OpenLayer, StackError> {
        self.switch.commit()?;
        let NewTop { plain, open, former } = top;
        (self.plain, self.open) = (plain, open);
        Ok(former)
    }

    /// Begins to complete the layer below the top after a delay, if it is not complete. `told` is
    /// called when that is done.
    pub fn complete_lower(
        &mut self,
        after: Duration,
        lanes: &Lanes,
        told: Arc<Waker>,
    ) -> Result<Option<Closing>, IoError> {
        self.plain.closing.take().map(|layer| Closing::begin(layer, after, lanes, told)).transpose()
    }

    /// The stages for a merge, if the layers were opened for one.
    pub fn merge_stages(&self) -> Option<MergeStages> {
        self.plain.merge.clone()
    }

    /// Records the state of the layer below the top, for a successor.
    pub fn end_closing(&mut self, closing: &Closing) {
        let end = closing.end();
        let Some(lower) = self.open.lower.first_mut() else { return };
        if let Some(tags) = &mut lower.facts.tags {
            tags.handed_over = end.tags_in_order;
        }
        if let Some(discards) = &mut lower.facts.discards {
            // Nothing was recorded since the layer stopped being the top.
            discards.is_durable = end.is_complete;
        }
        if end.is_complete {
            lower.set_log_index(None);
            (lower.log, lower.facts.log, lower.facts.read_only) = (None, None, true);
        } else if let Some(log) = &mut lower.facts.log {
            log.handed_over = end.log_in_order;
            lower.set_log_index(end.log_index);
        }
    }

    /// Brings nothing from the log to the layer as long as the log has room.
    pub fn hold_destaging(&self, is_held: bool) {
        self.plain.top().hold_destaging(is_held);
    }

    /// The disk that a frontend serves.
    pub fn disk(&self) -> Arc<dyn Disk<Plain>> {
        Arc::clone(&self.blocks) as _
    }

    /// Makes the added space usable, even while channels are open.
    pub fn grow(&mut self, size: VolumeSize) -> Result<(), StackError> {
        self.plain.top().set_size(size);
        self.blocks.grow(size.bytes())?;
        self.open.facts.size_bytes = size;
        Ok(())
    }

    /// All layers with their open files, whose locks go with them. A successor of another program
    /// does not know the indexes of logs.
    pub fn layers(&mut self, with_indexes: bool) -> &OpenLayer {
        if !with_indexes {
            self.open.drop_log_indexes();
        }
        &self.open
    }

    /// Becomes readable when the process that does the volume's I/O has ended, if there is one.
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.open.file.lifeline()
    }

    /// The top layer's stage of tags, if it has any.
    pub fn tags(&self) -> Option<&TagsDisk> {
        self.plain.tags.as_ref()
    }

    /// Whether a flush has failed. A successor would not know that.
    pub fn has_failed_flush(&self) -> bool {
        self.plain.top().has_failed_flush()
            || self.plain.tags.as_ref().is_some_and(TagsDisk::has_failed_flush)
            || self.plain.chain.as_ref().is_some_and(ChainDisk::has_failed_record)
    }

    /// Leaves log and tags, if there are any, in order for a successor. Nothing may be in flight.
    /// `in_order` tells whether destaging has ended in order. The facts then describe the layer for
    /// the successor.
    pub fn close(&mut self, in_order: bool) {
        let facts = &mut self.open.facts;
        if let Some(log) = &mut facts.log {
            log.handed_over = in_order && !self.plain.top().has_failed_flush();
        }
        if let (Some(chain), Some(discards)) = (&self.plain.chain, &mut facts.discards) {
            discards.is_durable = !chain.has_failed_record();
        }
        if let (Some(tags), Some(facts)) = (&self.plain.tags, &mut facts.tags) {
            facts.handed_over = tags.close();
        }
        self.open.set_log_index(self.plain.top().log_index().filter(|_| in_order));
    }

    /// Begins to bring first writes from the layer's log to the layer.
    pub fn destage(&self, lanes: &Lanes) -> Result<Destaging, DestagingError> {
        Destaging::on(self.plain.top(), lanes)
    }
}

/// An empty disk in memory, with the same stages as a volume. Its blocks are lost when the last
/// reference is dropped.
pub fn memory_disk(size: VolumeSize, ciphers: Ciphers) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let epoch = match ciphers {
        Ciphers::Of(_) | Ciphers::Mixed(..) => KeyEpoch::FIRST,
        Ciphers::Decrypted | Ciphers::Unencrypted => KeyEpoch::CLEAR,
    };
    let plain = plain_over_alone(Arc::new(MemoryDisk::new(size, epoch)), ciphers);
    Ok(Arc::new(BlocksizeDisk::new(plain, size.bytes(), UNIT_BYTES, RangeLocks::new())?))
}

/// Assembles the stages of a volume. It takes the volume by value, because one volume has one set
/// of range locks. The layer stays open and locked as long as the disk or one of its channels
/// exists. The data keys are wiped when the ciphers are set up.
pub fn assemble(volume: OpenVolume) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let blocks = Arc::clone(&volume.disk);
    assemble_over(blocks, volume)
}

/// As [`assemble`], with a separate thread that empties the first-write log. The log is empty once
/// the disk and all its channels are dropped.
pub fn assemble_destaged(volume: OpenVolume) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let destaging = Destaging::on_own_thread(&volume.disk)?;
    Ok(Arc::new(Destaged { disk: assemble(volume)?, destaging: Arc::new(destaging) }))
}

/// A volume's stages, with the thread that empties its first-write log until the last channel is
/// dropped.
struct Destaged {
    disk: Arc<dyn Disk<Plain>>,
    destaging: Arc<Destaging>,
}

struct DestagedChannel {
    channel: Box<dyn Channel<Plain>>,
    /// Dropped after the channel, which may write until then.
    _destaging: Arc<Destaging>,
}

impl Channel<Plain> for DestagedChannel {
    fn submit(&mut self, io: Io<Plain>) {
        self.channel.submit(io);
    }

    fn kick(&mut self) {
        self.channel.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        self.channel.poll(done);
    }
}

impl Disk<Plain> for Destaged {
    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let channel = self.disk.open(thread, depth)?;
        Ok(Box::new(DestagedChannel { channel, _destaging: Arc::clone(&self.destaging) }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.disk.allocation(extent, report)
    }
}

/// As [`assemble`], over `blocks`: the volume's own, perhaps with instruments in between that delay
/// requests or make them fail.
pub fn assemble_over(
    blocks: Arc<dyn Disk<Sealed>>,
    mut volume: OpenVolume,
) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let size_bytes = volume.descriptor().size_bytes.bytes();
    let plain = plain_blocks_over(blocks, &mut volume)?;
    Ok(Arc::new(BlocksizeDisk::new(plain.disk, size_bytes, UNIT_BYTES, RangeLocks::new())?))
}
