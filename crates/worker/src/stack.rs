//! From an open volume to what a frontend serves.
//!
//! ```text
//! frontend -> blocksize (any byte, exact size, range locks) -> crypt or cleartext
//!     -> tags, of a volume that has them -> the volume's blocks
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;

use strongroom_crypto::CryptoError;
use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_datastore::file::tags::{TagKeys, TagsDisk, TagsTuning};
use strongroom_datastore::file::{Deks, FileDisk, LayerBlocks, LayerFacts, LogError, OpenLayer, OpenVolume};
use strongroom_filters::blocksize::{BlocksizeDisk, BlocksizeError};
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys, EpochKeysError};
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, RangeLocks, Sealed, Thread,
};
use strongroom_ring::Lanes;
use strongroom_types::{Extent, KeyEpoch, VolumeSize};
use thiserror::Error;

use crate::destaging::{Destaging, DestagingError};

/// The unit that clients address: NBD knows bytes, and a guest's sectors are made of them.
const UNIT_BYTES: u32 = 1;

/// Why a volume's stages do not fit together.
#[derive(Debug, Error)]
pub enum StackError {
    /// An encrypted volume without a key.
    #[error("the volume has no data key")]
    NoKey,
    /// A data key that no cipher takes.
    #[error("the data key of epoch {epoch} cannot be used: {error}")]
    Cipher {
        /// Which key.
        epoch: KeyEpoch,
        /// Why not.
        error: CryptoError,
    },
    /// A data key that no key for tags can be derived from.
    #[error("the keys of the volume's tags cannot be derived: {0}")]
    TagKeys(#[source] CryptoError),
    /// The volume's tags cannot be read.
    #[error("the volume's tags cannot be read: {0}")]
    Tags(#[source] IoError),
    /// Data keys that contradict each other.
    #[error(transparent)]
    Epochs(#[from] EpochKeysError),
    /// Layers on each other, which are not served yet.
    #[error("the volume has {count} layers; this version serves volumes of one")]
    Layers {
        /// How many.
        count: usize,
    },
    /// The files cannot be kept open for a successor.
    #[error("the volume's files cannot be kept for a successor: {0}")]
    Files(#[source] rustix::io::Errno),
    /// The layer's first-write log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// First writes cannot be brought to the layer.
    #[error(transparent)]
    Destaging(#[from] DestagingError),
    /// A size that the stages cannot have.
    #[error(transparent)]
    Size(#[from] BlocksizeError),
}

/// What seals a volume's blocks, and opens them.
pub enum Ciphers {
    /// Those of its keys, and what tags the blocks of a volume that asks for it.
    Of(EpochKeys, TagKeys),
    /// None: a person chose that.
    Unencrypted,
}

impl Ciphers {
    /// Those of these keys, which are wiped.
    pub fn of(deks: Deks) -> Result<Self, StackError> {
        let tags = TagKeys::derive(&deks).map_err(StackError::TagKeys)?.ok_or(StackError::NoKey)?;
        Ok(Self::Of(epoch_keys(deks)?, tags))
    }
}

/// The stages of a volume that is served, kept apart as far as it takes to make it larger while it is.
pub struct Stack {
    layer: FileDisk,
    tags: Option<TagsDisk>,
    /// All open files, for a successor.
    files: Vec<OwnedFd>,
    facts: LayerFacts,
    lower: Vec<LayerFacts>,
    blocks: Arc<BlocksizeDisk>,
}

impl Stack {
    /// Puts the stages over a layer, and those below it, together.
    pub fn new(layer: OpenLayer, ciphers: Ciphers) -> Result<Self, StackError> {
        let (facts, lower) = (layer.facts, layer.lower_facts());
        let files = layer.duplicate_files().map_err(StackError::Files)?;
        let (top, below) = layer.into_blocks()?;
        let layer = FileDisk::clone(&top.disk);
        let PlainBlocks { disk, tags } = plain_over(Arc::new(layer.clone()), top, below, ciphers)?;
        let blocks = BlocksizeDisk::new(disk, facts.size_bytes.bytes(), UNIT_BYTES, RangeLocks::new())?;
        Ok(Self { layer, tags, files, facts, lower, blocks: Arc::new(blocks) })
    }

    /// What a frontend serves.
    pub fn disk(&self) -> Arc<dyn Disk<Plain>> {
        Arc::clone(&self.blocks) as _
    }

    /// Makes what has grown usable, also while channels are open.
    pub fn grow(&mut self, size: VolumeSize) -> Result<(), StackError> {
        self.layer.set_size(size);
        self.blocks.grow(size.bytes())?;
        self.facts.size_bytes = size;
        Ok(())
    }

    /// What the top layer is by now.
    pub fn facts(&self) -> LayerFacts {
        self.facts
    }

    /// What the layers below it are, nearest first.
    pub fn lower_facts(&self) -> &[LayerFacts] {
        &self.lower
    }

    /// Whether a flush has failed, which whoever the layer is handed to would not know.
    pub fn has_failed_flush(&self) -> bool {
        self.layer.has_failed_flush() || self.tags.as_ref().is_some_and(TagsDisk::has_failed_flush)
    }

    /// Leaves the tags, if there are any, for a successor to go on with; nothing may be in flight. What the layer is to the successor is
    /// in the facts from then on.
    pub fn close(&mut self) {
        if let (Some(tags), Some(facts)) = (&self.tags, &mut self.facts.tags) {
            facts.handed_over = tags.close();
        }
    }

    /// Begins to bring first writes from the layer's log to the layer.
    pub fn destage(&self, lanes: &Lanes) -> Result<Destaging, DestagingError> {
        Destaging::on(&self.layer, lanes)
    }

    /// The open files of all layers, to be handed on; their locks go with them. [`OpenLayer::from_files`] takes them in.
    pub fn duplicate_files(&self) -> Result<Vec<OwnedFd>, rustix::io::Errno> {
        self.files.iter().map(|file| rustix::io::fcntl_dupfd_cloexec(file, 0)).collect()
    }
}

/// Puts the stages of a volume together. It takes the volume, because one volume has one set of range locks; the
/// layer stays open and locked as long as the disk, or a channel of it, is there. The data keys are wiped when
/// the ciphers are set up.
pub fn assemble(volume: OpenVolume) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let blocks = Arc::clone(&volume.disk);
    assemble_over(blocks, volume)
}

/// As [`assemble`], with a thread of its own that empties the first-write log. The log is empty when the disk, and every channel of it,
/// is gone.
pub fn assemble_destaged(volume: OpenVolume) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let destaging = Destaging::on_own_thread(&volume.disk)?;
    Ok(Arc::new(Destaged { disk: assemble(volume)?, destaging: Arc::new(destaging) }))
}

/// A volume's stages, with what empties its first-write log until the last of its channels is gone.
struct Destaged {
    disk: Arc<dyn Disk<Plain>>,
    destaging: Arc<Destaging>,
}

struct DestagedChannel {
    channel: Box<dyn Channel<Plain>>,
    /// After the channel, which may write until then.
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

/// As [`assemble`], over `blocks`: the volume's own, perhaps with instruments in between that delay requests or make
/// them fail.
pub fn assemble_over(
    blocks: Arc<dyn Disk<Sealed>>,
    mut volume: OpenVolume,
) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let size_bytes = volume.descriptor().size_bytes.bytes();
    let plain = plain_blocks_over(blocks, &mut volume)?;
    Ok(Arc::new(BlocksizeDisk::new(plain.disk, size_bytes, UNIT_BYTES, RangeLocks::new())?))
}

/// A volume's plain blocks, and what the tags see of them.
pub struct PlainBlocks {
    /// The blocks.
    pub disk: Arc<dyn Disk<Plain>>,
    /// The stage of tags, of a volume that has them.
    pub tags: Option<TagsDisk>,
}

/// Puts the stages together that make plain blocks of `blocks`: whole ones, and without range locks.
pub fn plain_blocks_over(
    blocks: Arc<dyn Disk<Sealed>>,
    volume: &mut OpenVolume,
) -> Result<PlainBlocks, StackError> {
    let ciphers = match &volume.descriptor().encryption {
        Some(_) => Ciphers::of(volume.take_deks())?,
        None => Ciphers::Unencrypted,
    };
    let top = LayerBlocks {
        disk: Arc::clone(&volume.disk),
        tags: volume.tags.take(),
        discards: volume.discards.take(),
    };
    plain_over(blocks, top, std::mem::take(&mut volume.lower), ciphers)
}

/// Puts the stages of all layers together. `blocks` are those of the top, perhaps with instruments in between.
fn plain_over(
    blocks: Arc<dyn Disk<Sealed>>,
    top: LayerBlocks,
    lower: Vec<LayerBlocks>,
    ciphers: Ciphers,
) -> Result<PlainBlocks, StackError> {
    if !lower.is_empty() {
        return Err(StackError::Layers { count: 1 + lower.len() });
    }
    let (keys, tag_keys) = match ciphers {
        Ciphers::Unencrypted => {
            return Ok(PlainBlocks { disk: Arc::new(CleartextDisk::new(blocks)), tags: None });
        }
        Ciphers::Of(keys, tag_keys) => (Arc::new(keys), tag_keys),
    };
    match top.tags {
        None => Ok(PlainBlocks { disk: Arc::new(CryptDisk::new(blocks, keys)), tags: None }),
        Some((file, facts)) => {
            let tags = TagsDisk::over(blocks, file, facts, tag_keys, TagsTuning::default());
            let tags = tags.map_err(StackError::Tags)?;
            Ok(PlainBlocks { disk: Arc::new(CryptDisk::new(Arc::new(tags.clone()), keys)), tags: Some(tags) })
        }
    }
}

/// The ciphers of all epochs; the last one seals what is written.
pub fn epoch_keys(deks: Deks) -> Result<EpochKeys, StackError> {
    let mut keys: Option<EpochKeys> = None;
    for (epoch, dek) in deks {
        let cipher =
            Xts::new(&dek, UnitSize::Bytes4096).map_err(|error| StackError::Cipher { epoch, error })?;
        match &keys {
            None => keys = Some(EpochKeys::new(epoch, Arc::new(cipher))?),
            Some(keys) => {
                keys.insert(epoch, Arc::new(cipher))?;
                keys.set_write_epoch(epoch)?;
            }
        }
    }
    keys.ok_or(StackError::NoKey)
}

#[cfg(test)]
mod tests {
    use strongroom_memory::secret::SecretBytes;

    use super::*;

    #[test]
    fn the_last_epoch_writes_and_all_read() {
        let second = KeyEpoch::new(2).unwrap();
        let dek = || SecretBytes::random(64).unwrap();
        let keys = epoch_keys(vec![(KeyEpoch::FIRST, dek()), (second, dek())]).unwrap();
        assert_eq!(keys.write_epoch(), second);
        assert!(keys.contains(KeyEpoch::FIRST) && keys.contains(second));
        assert!(matches!(epoch_keys(Vec::new()), Err(StackError::NoKey)));
    }
}
