//! The layers of a volume as one disk of plain blocks: only whole blocks, and without range locks.

use std::sync::Arc;

use strongroom_crypto::CryptoError;
use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_datastore::file::chain::{ChainDisk, LowerLayer};
use strongroom_datastore::file::discards::{DiscardKeys, Discards, DiscardsFacts};
use strongroom_datastore::file::storage::StoredFile;
use strongroom_datastore::file::tags::{TagKeys, TagsDisk, TagsTuning};
use strongroom_datastore::file::{
    Deks, Descriptor, FileDisk, LayerBlocks, LayerRecord, LogError, MergeLayers, OpenVolume, RewriteKeys,
    RewriteLayers,
};
use strongroom_filters::blocksize::BlocksizeError;
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys, EpochKeysError};
use strongroom_filters::mixed::{MixedDisk, Writes};
use strongroom_filters::switch::SwitchError;
use strongroom_io::{Disk, IoError, Plain, Sealed};
use strongroom_types::KeyEpoch;
use thiserror::Error;

use crate::closing::ClosingLayer;
use crate::destaging::DestagingError;

/// The least memory for the tags of a layer, in pages: enough for a few requests at a time.
const TAG_PAGES_MIN: usize = 64;

/// Bytes of the log of a volume's top; a new top gets as many.
pub(crate) fn top_log_bytes(descriptor: &Descriptor) -> Option<u64> {
    descriptor.layer(descriptor.top).and_then(|layer| layer.log).map(|log| log.bytes)
}

/// The reasons why a volume's stages cannot be assembled.
#[derive(Debug, Error)]
pub enum StackError {
    /// An encrypted volume without a key.
    #[error("the volume has no data key")]
    NoKey,
    /// A top layer of another sort than what is written.
    #[error("the volume's top layer is not sealed as what is written is: {top} instead of {writes}")]
    OtherTop {
        /// The seal of the layer's blocks.
        top: KeyEpoch,
        /// The seal of what is written.
        writes: KeyEpoch,
    },
    /// A data key that no cipher takes.
    #[error("the data key of epoch {epoch} cannot be used: {error}")]
    Cipher {
        /// The key's epoch.
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
    /// Data keys that no key for the record of discards can be derived from.
    #[error("the keys of the volume's record of discards cannot be derived: {0}")]
    DiscardKeys(#[source] CryptoError),
    /// The record of discards cannot be read.
    #[error("the record of what a layer of the volume hides of those below cannot be read: {0}")]
    Discards(#[source] IoError),
    /// A layer to be merged into, below no other one.
    #[error("a layer of the volume is to be merged into, and none lies on it")]
    NoUpperLayer,
    /// A layer on another one, without a record of discards.
    #[error("a layer of the volume has layers below it, and no record of discards")]
    NoDiscards,
    /// The volume's files cannot be kept open for a successor.
    #[error("the volume's files cannot be kept for a successor: {0}")]
    Files(#[source] rustix::io::Errno),
    /// The layer's first-write log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// First writes cannot be brought to the layer.
    #[error(transparent)]
    Destaging(#[from] DestagingError),
    /// A new top on a layer that lies on one that is not complete.
    #[error("the layer below the top is still being completed")]
    Closing,
    /// A new top, where the last writes cannot be made durable.
    #[error("a flush failed, and no other one succeeds until the volume is exposed anew")]
    FailedFlush,
    /// A new top that is not as large as the volume.
    #[error("the new layer does not have the volume's size")]
    OtherSize,
    /// The clients' threads do not change to other stages.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A size that the stages do not support.
    #[error(transparent)]
    Size(#[from] BlocksizeError),
}

/// The ciphers that seal and open a volume's blocks.
pub enum Ciphers {
    /// Those of a volume's keys.
    Of(Box<Keyed>),
    /// Those of a volume's keys for its sealed layers. The others are clear, because a person has
    /// the volume encrypted or decrypted.
    Mixed(Box<Keyed>, Writes),
    /// None, because none of these layers is sealed, of a volume that a person has decrypted.
    Decrypted,
    /// None, because a person chose an unencrypted volume.
    Unencrypted,
}

/// The ciphers and keys derived from a volume's data keys.
pub struct Keyed {
    blocks: EpochKeys,
    tags: TagKeys,
    discards: DiscardKeys,
}

impl Ciphers {
    /// Sets up the ciphers of these keys, and wipes the keys.
    pub fn of(deks: Deks) -> Result<Self, StackError> {
        Ok(Self::Of(Box::new(Keyed::of(deks)?)))
    }

    /// As [`Self::of`], for a volume some of whose layers are clear. Without a key all of them are:
    /// that must be what is written, too.
    pub fn mixed(deks: Deks, writes: Writes) -> Result<Self, StackError> {
        match writes {
            Writes::Clear if deks.is_empty() => Ok(Self::Decrypted),
            Writes::Clear | Writes::Sealed => Ok(Self::Mixed(Box::new(Keyed::of(deks)?), writes)),
        }
    }

    /// Those of these keys; none if there are no keys, because the descriptor says that the layer
    /// is clear.
    fn of_layer(deks: Deks) -> Result<Self, StackError> {
        if deks.is_empty() { Ok(Self::Unencrypted) } else { Self::of(deks) }
    }

    /// What opens and seals blocks, and the keys of tags and of records of discards.
    fn into_parts(self) -> (Sealing, Option<(TagKeys, DiscardKeys)>) {
        match self {
            Self::Of(keyed) => {
                let Keyed { blocks, tags, discards } = *keyed;
                (Sealing::Keys(Arc::new(blocks)), Some((tags, discards)))
            }
            Self::Mixed(keyed, writes) => {
                let Keyed { blocks, tags, discards } = *keyed;
                (Sealing::Mixed { keys: Arc::new(blocks), writes }, Some((tags, discards)))
            }
            Self::Decrypted | Self::Unencrypted => (Sealing::Clear, None),
        }
    }
}

impl Keyed {
    fn of(deks: Deks) -> Result<Self, StackError> {
        let tags = TagKeys::derive(&deks).map_err(StackError::TagKeys)?.ok_or(StackError::NoKey)?;
        let discards = DiscardKeys::derive(&deks).map_err(StackError::DiscardKeys)?;
        Ok(Self { blocks: epoch_keys(deks)?, tags, discards })
    }
}

/// What opens blocks, and seals those that are written. Clones share the keys.
#[derive(Clone)]
enum Sealing {
    /// All blocks are sealed.
    Keys(Arc<EpochKeys>),
    /// Blocks of some layers are sealed, those of others clear.
    Mixed { keys: Arc<EpochKeys>, writes: Writes },
    /// No block is sealed, because a person chose an unencrypted volume.
    Clear,
}

impl Sealing {
    /// The stage that opens and seals blocks.
    fn over(self, sealed: Arc<dyn Disk<Sealed>>) -> Arc<dyn Disk<Plain>> {
        match self {
            Self::Keys(keys) => Arc::new(CryptDisk::new(sealed, keys)),
            Self::Mixed { keys, writes } => Arc::new(MixedDisk::new(sealed, keys, writes)),
            Self::Clear => Arc::new(CleartextDisk::new(sealed)),
        }
    }

    /// The same for a layer with this seal: what is written to it has that.
    fn of_layer(&self, seal: KeyEpoch) -> Result<Self, StackError> {
        let under = |keys: &EpochKeys| keys.sealing_under(seal).map(Arc::new);
        Ok(match self {
            Self::Keys(keys) => Self::Keys(under(keys)?),
            Self::Mixed { keys, .. } if seal == KeyEpoch::CLEAR => {
                Self::Mixed { keys: Arc::clone(keys), writes: Writes::Clear }
            }
            Self::Mixed { keys, .. } => Self::Mixed { keys: under(keys)?, writes: Writes::Sealed },
            Self::Clear => Self::Clear,
        })
    }

    /// The same with the keys of a new top, which it is over, and with what is written to that. The
    /// top of a volume whose writes are sealed is clear only if the volume is being decrypted.
    /// `top` is the seal of the layer that is the top until then.
    fn followed_by(&self, newer: Self, is_decrypting: bool, top: KeyEpoch) -> Result<Self, StackError> {
        let all = |keys: &Arc<EpochKeys>, newer: &EpochKeys| keys.followed_by(newer).map(Arc::new);
        Ok(match (self, newer) {
            (Self::Keys(keys), Self::Keys(newer)) => Self::Keys(all(keys, &newer)?),
            (
                Self::Mixed { keys, .. },
                Self::Keys(newer) | Self::Mixed { keys: newer, writes: Writes::Sealed },
            )
            | (Self::Keys(keys), Self::Mixed { keys: newer, writes: Writes::Sealed }) => {
                Self::Mixed { keys: all(keys, &newer)?, writes: Writes::Sealed }
            }
            (Self::Clear, Self::Mixed { keys, writes: Writes::Sealed }) if top == KeyEpoch::CLEAR => {
                Self::Mixed { keys, writes: Writes::Sealed }
            }
            (Self::Clear, Self::Clear) => Self::Clear,
            (Self::Mixed { keys, writes: Writes::Clear }, Self::Clear) => {
                Self::Mixed { keys: Arc::clone(keys), writes: Writes::Clear }
            }
            (Self::Keys(keys) | Self::Mixed { keys, writes: Writes::Sealed }, Self::Clear)
                if is_decrypting =>
            {
                Self::Mixed { keys: Arc::clone(keys), writes: Writes::Clear }
            }
            (Self::Keys(_) | Self::Mixed { .. }, Self::Clear | Self::Mixed { writes: Writes::Clear, .. })
            | (Self::Clear, Self::Keys(_) | Self::Mixed { .. }) => return Err(StackError::NoKey),
        })
    }

    /// Refuses a top whose blocks have another seal than what is written to it.
    fn expect_top(&self, top: KeyEpoch) -> Result<(), StackError> {
        let writes = match self {
            Self::Keys(keys) | Self::Mixed { keys, writes: Writes::Sealed } => keys.write_epoch(),
            Self::Mixed { writes: Writes::Clear, .. } => KeyEpoch::CLEAR,
            // Supervisors of former releases say another one, and all blocks are clear.
            Self::Clear => return Ok(()),
        };
        if top == writes { Ok(()) } else { Err(StackError::OtherTop { top, writes }) }
    }
}

/// A volume's plain blocks, and the stages below whose state can be queried.
pub struct PlainBlocks {
    /// The blocks.
    pub disk: Arc<dyn Disk<Plain>>,
    /// The top's stage of tags, if the volume has tags.
    pub tags: Option<TagsDisk>,
    /// The stage that reads through the layers, if there are several.
    pub chain: Option<ChainDisk>,
    /// The layer below the top, if it is not complete.
    pub closing: Option<ClosingLayer>,
    /// The stages for a merge, if one of the layers can be merged into the layer below it.
    pub merge: Option<MergeStages>,
    layers: Layers,
    sealing: Sealing,
}

/// The stages of each layer, for a new top over them.
struct Layers {
    /// The top's own blocks, with its log.
    top: FileDisk,
    /// All layers, the top first.
    all: Vec<LowerLayer>,
}

impl PlainBlocks {
    /// Assembles the stages of a new, empty top over these layers, whose stages stay as they are
    /// and may be in use. The layer that was the top takes no more writes once the new stages are
    /// used, and is to be completed.
    pub fn with_new_top(&self, top: LayerBlocks, ciphers: Ciphers) -> Result<Self, StackError> {
        let is_decrypting = matches!(ciphers, Ciphers::Decrypted);
        let (newer, assembly) = Assembly::of(ciphers, 1 + self.layers.all.len())?;
        let sealing = self.sealing.followed_by(newer, is_decrypting, self.layers.top.write_epoch())?;
        let nearest = Some(Nearest { layer: self.layers.top.clone(), tags: self.tags.clone() });
        let below = Below { layers: self.layers.all.clone(), nearest };
        let blocks = Arc::clone(&top.disk) as Arc<dyn Disk<Sealed>>;
        Ok(Self { merge: self.merge.clone(), ..assembly.on(blocks, top, below, sealing)? })
    }

    /// The top's own blocks, with its log.
    pub fn top(&self) -> &FileDisk {
        &self.layers.top
    }
}

/// Assembles the stages that turn `blocks` into plain blocks. `blocks` are the volume's own,
/// perhaps with instruments in between.
pub fn plain_blocks_over(
    blocks: Arc<dyn Disk<Sealed>>,
    volume: &mut OpenVolume,
) -> Result<PlainBlocks, StackError> {
    // How the volume was opened says which of its layers may be clear.
    let descriptor = volume.descriptor();
    let is_clear = |layer: &LayerRecord| layer.is_clear();
    let writes = match descriptor.layer(descriptor.top).is_some_and(is_clear) {
        true => Writes::Clear,
        false => Writes::Sealed,
    };
    let (is_encrypted, has_clear) = (descriptor.encryption.is_some(), descriptor.chain().any(is_clear));
    let ciphers = match (is_encrypted, has_clear) {
        (true, false) => Ciphers::of(volume.take_deks())?,
        (true, true) => Ciphers::mixed(volume.take_deks(), writes)?,
        (false, _) => Ciphers::Unencrypted,
    };
    let top = LayerBlocks {
        disk: Arc::clone(&volume.disk),
        tags: volume.tags.take(),
        discards: volume.discards.take(),
        is_merged_into: false,
    };
    plain_over(blocks, top, std::mem::take(&mut volume.lower), ciphers)
}

/// Assembles the stages of all layers. `blocks` are those of the top, perhaps with instruments in
/// between.
pub(crate) fn plain_over(
    blocks: Arc<dyn Disk<Sealed>>,
    top: LayerBlocks,
    lower: Vec<LayerBlocks>,
    ciphers: Ciphers,
) -> Result<PlainBlocks, StackError> {
    let (sealing, assembly) = Assembly::of(ciphers, 1 + lower.len())?;
    assembly.plain(blocks, top, lower, sealing)
}

/// The plain blocks of a disk that is no layer of a volume: it has no files and no tags.
pub(crate) fn plain_over_alone(blocks: Arc<dyn Disk<Sealed>>, ciphers: Ciphers) -> Arc<dyn Disk<Plain>> {
    let (sealing, _) = ciphers.into_parts();
    sealing.over(blocks)
}

/// The stages between which the blocks of a layer are moved: into the one below it, which it is
/// merged with, or into a new one that takes its place. Clones share them.
#[derive(Clone)]
pub struct MergeStages {
    /// The upper layer's sealed blocks.
    pub(crate) from: Arc<dyn Disk<Sealed>>,
    /// The upper layer's record of the blocks that it hides.
    pub(crate) hidden: Option<Arc<Discards>>,
    /// The lower layer, on those below it. What is written is sealed by its newest key.
    pub(crate) into: Arc<dyn Disk<Plain>>,
    /// The lower layer's stage of tags, if it has any.
    pub(crate) into_tags: Option<TagsDisk>,
    /// The lower layer's record of discards, if there are layers below it.
    pub(crate) into_discards: Option<Arc<Discards>>,
    /// What opens the upper layer's blocks.
    sealing: Sealing,
}

impl MergeStages {
    /// The stages that rewrite a layer into a new one under other keys. The new layer is read by
    /// nobody meanwhile, so the layer below is there only for its size.
    pub fn rewriting(layers: RewriteLayers, keys: RewriteKeys) -> Result<Self, StackError> {
        let RewriteLayers { from, into, below } = layers;
        let (from_sealing, of_old) = Assembly::of(Ciphers::of_layer(keys.from)?, 2)?;
        let (into_sealing, of_new) = Assembly::of(Ciphers::of_layer(keys.into)?, 2)?;
        let upper = of_old.lower(from)?;
        let AssembledLower { layer: LowerLayer { blocks, discards, .. }, tags, .. } = of_new.lower(into)?;
        let below =
            below.map(|layer| LowerLayer { blocks: layer.disk, discards: None, is_merged_into: false });
        let sealed: Arc<dyn Disk<Sealed>> = match below {
            None => blocks,
            Some(below) => {
                Arc::new(ChainDisk::new(blocks, discards.clone().ok_or(StackError::NoDiscards)?, vec![below]))
            }
        };
        Ok(Self {
            from: upper.layer.blocks,
            hidden: upper.layer.discards,
            into: into_sealing.over(sealed),
            into_tags: tags,
            into_discards: discards,
            sealing: from_sealing,
        })
    }

    /// The stages of a volume that nobody serves.
    pub(crate) fn of(layers: MergeLayers, ciphers: Ciphers) -> Result<Self, StackError> {
        let MergeLayers { from, into, lower } = layers;
        let (sealing, assembly) = Assembly::of(ciphers, 2 + lower.len())?;
        let layers = [from, into].into_iter().chain(lower).map(|layer| assembly.lower(layer));
        Self::between(&layers.collect::<Result<Vec<_>, _>>()?, 1, sealing)
    }

    /// The stages for a merge into the layer at `into`; the others are those above and below it.
    fn between(layers: &[AssembledLower], into: usize, sealing: Sealing) -> Result<Self, StackError> {
        let (Some(upper), Some(lower)) =
            (into.checked_sub(1).and_then(|at| layers.get(at)), layers.get(into))
        else {
            return Err(StackError::NoUpperLayer);
        };
        let below: Vec<_> = layers[into + 1..].iter().map(|layer| layer.layer.clone()).collect();
        let LowerLayer { blocks, discards, .. } = lower.layer.clone();
        let sealed: Arc<dyn Disk<Sealed>> = match below.is_empty() {
            true => blocks,
            false => Arc::new(ChainDisk::new(blocks, discards.clone().ok_or(StackError::NoDiscards)?, below)),
        };
        let into_sealing = sealing.of_layer(lower.write_epoch)?;
        Ok(Self {
            from: Arc::clone(&upper.layer.blocks),
            hidden: upper.layer.discards.clone(),
            into: into_sealing.over(sealed),
            into_tags: lower.tags.clone(),
            into_discards: discards,
            sealing,
        })
    }

    /// The plain blocks of the upper layer alone: what it does not have reads as zeroes. `watch` is
    /// put on its sealed blocks.
    pub(crate) fn upper_over(
        &self,
        watch: impl FnOnce(Arc<dyn Disk<Sealed>>) -> Arc<dyn Disk<Sealed>>,
    ) -> Arc<dyn Disk<Plain>> {
        self.sealing.clone().over(watch(Arc::clone(&self.from)))
    }

    /// The end of the upper layer, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.from.limits().size_bytes
    }
}

/// The parameters that the stages of all layers share.
struct Assembly {
    /// `None` in a clear volume, whose layers have no tags.
    keys: Option<(TagKeys, DiscardKeys)>,
    /// For the records of clear layers.
    clear_discards: DiscardKeys,
    tuning: TagsTuning,
}

/// Blocks, and the stage of their tags if there is one.
type Tagged = (Arc<dyn Disk<Sealed>>, Option<TagsDisk>);

/// The record of a layer's discards, not read yet.
type Recorded = (Arc<dyn StoredFile>, DiscardsFacts);

impl Assembly {
    /// Splits the ciphers for `layers` layers into those of the blocks and the rest.
    fn of(ciphers: Ciphers, layers: usize) -> Result<(Sealing, Self), StackError> {
        let (sealing, keys) = ciphers.into_parts();
        let clear_discards = DiscardKeys::derive(&Deks::new()).map_err(StackError::DiscardKeys)?;
        // The layers share the memory for tags.
        let tuning = TagsTuning::default();
        let pages_max = (tuning.pages_max / layers).max(TAG_PAGES_MIN);
        Ok((sealing, Self { keys, clear_discards, tuning: TagsTuning { pages_max, ..tuning } }))
    }

    /// All layers as one disk. `blocks` are those of the top, perhaps with instruments in between.
    fn plain(
        &self,
        blocks: Arc<dyn Disk<Sealed>>,
        top: LayerBlocks,
        lower: Vec<LayerBlocks>,
        sealing: Sealing,
    ) -> Result<PlainBlocks, StackError> {
        let nearest = lower.first().map(|layer| FileDisk::clone(&layer.disk));
        let lower = lower.into_iter().map(|layer| self.lower(layer)).collect::<Result<Vec<_>, _>>()?;
        let takes_merge =
            |layer: &AssembledLower| layer.layer.is_merged_into && !layer.layer.blocks.limits().read_only;
        let into = lower.iter().position(takes_merge);
        let merge = into.map(|into| MergeStages::between(&lower, into, sealing.clone())).transpose()?;
        let tags = lower.first().and_then(|layer| layer.tags.clone());
        let nearest = nearest.map(|layer| Nearest { layer, tags });
        let below = Below { layers: lower.into_iter().map(|lower| lower.layer).collect(), nearest };
        Ok(PlainBlocks { merge, ..self.on(blocks, top, below, sealing)? })
    }

    /// A top and the stages below it as one disk.
    fn on(
        &self,
        blocks: Arc<dyn Disk<Sealed>>,
        top: LayerBlocks,
        below: Below,
        sealing: Sealing,
    ) -> Result<PlainBlocks, StackError> {
        let (top_bytes, top_epoch) = (blocks.limits().size_bytes, top.disk.write_epoch());
        sealing.expect_top(top_epoch)?;
        let (sealed, tags) = self.tagged(blocks, &top)?;
        let layer = FileDisk::clone(&top.disk);
        let Below { layers: lower, nearest } = below;
        let own = LowerLayer { blocks: Arc::clone(&sealed), discards: None, is_merged_into: false };
        let Some((Nearest { layer: below, tags: below_tags }, first)) = nearest.zip(lower.first()) else {
            let (disk, layers) = (sealing.clone().over(sealed), Layers { top: layer, all: vec![own] });
            return Ok(PlainBlocks { disk, tags, chain: None, closing: None, merge: None, layers, sealing });
        };
        let recorded = top.discards.ok_or(StackError::NoDiscards)?;
        let discards = self.discards(recorded, top_bytes, top_epoch)?;
        let own = LowerLayer { discards: Some(Arc::clone(&discards)), ..own };
        let chain = ChainDisk::new(sealed, discards, lower.clone());
        let closing = chain.lower_flushes().map(|flushes| ClosingLayer {
            layer: below,
            blocks: Arc::clone(&first.blocks),
            tags: below_tags,
            flushes,
        });
        let disk = sealing.clone().over(Arc::new(chain.clone()));
        let all = std::iter::once(own).chain(lower).collect();
        let layers = Layers { top: layer, all };
        Ok(PlainBlocks { disk, tags, chain: Some(chain), closing, merge: None, layers, sealing })
    }

    /// Blocks, with the stage of their tags if they have any.
    fn tagged(&self, blocks: Arc<dyn Disk<Sealed>>, layer: &LayerBlocks) -> Result<Tagged, StackError> {
        let (Some((file, facts)), Some((keys, _))) = (&layer.tags, &self.keys) else {
            return Ok((blocks, None));
        };
        let keys = keys.of_layer(layer.disk.write_epoch());
        let tags = TagsDisk::over(blocks, Arc::clone(file), *facts, keys, self.tuning);
        let tags = tags.map_err(StackError::Tags)?;
        Ok((Arc::new(tags.clone()), Some(tags)))
    }

    fn discards(
        &self,
        (file, facts): Recorded,
        layer_bytes: u64,
        newest: KeyEpoch,
    ) -> Result<Arc<Discards>, StackError> {
        let keys = match &self.keys {
            Some((_, keys)) if newest != KeyEpoch::CLEAR => keys.of_layer(newest),
            Some(_) | None => self.clear_discards.clone(),
        };
        let discards = Discards::over(file, facts, keys, layer_bytes);
        discards.map(Arc::new).map_err(StackError::Discards)
    }

    fn lower(&self, layer: LayerBlocks) -> Result<AssembledLower, StackError> {
        let disk = Arc::clone(&layer.disk);
        let (layer_bytes, write_epoch) = (disk.limits().size_bytes, disk.write_epoch());
        let is_merged_into = layer.is_merged_into;
        let (blocks, tags) = self.tagged(disk, &layer)?;
        let discards = layer.discards.map(|recorded| self.discards(recorded, layer_bytes, write_epoch));
        let discards = discards.transpose()?;
        Ok(AssembledLower { layer: LowerLayer { blocks, discards, is_merged_into }, tags, write_epoch })
    }
}

/// The layers that a top lies on.
struct Below {
    /// Nearest first.
    layers: Vec<LowerLayer>,
    nearest: Option<Nearest>,
}

/// The nearest of them, if it has yet to be completed.
struct Nearest {
    /// Its own blocks, with its log.
    layer: FileDisk,
    tags: Option<TagsDisk>,
}

/// A layer below the top, and the stage of its tags if it has any.
struct AssembledLower {
    layer: LowerLayer,
    tags: Option<TagsDisk>,
    /// The epoch that seals what is written to it.
    write_epoch: KeyEpoch,
}

/// The ciphers of all epochs; the last one seals writes.
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
