//! From an open volume to what a frontend serves.
//!
//! ```text
//! frontend -> blocksize (any byte, exact size, range locks) -> crypt or cleartext -> the volume's blocks
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;

use strongroom_crypto::CryptoError;
use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_datastore::file::{Deks, FileDisk, LayerFacts, LogError, OpenLayer, OpenVolume};
use strongroom_filters::blocksize::{BlocksizeDisk, BlocksizeError};
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys, EpochKeysError};
use strongroom_io::{Disk, Plain, RangeLocks, Sealed};
use strongroom_types::{KeyEpoch, VolumeSize};
use thiserror::Error;

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
    /// Data keys that contradict each other.
    #[error(transparent)]
    Epochs(#[from] EpochKeysError),
    /// The layer's first-write log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A size that the stages cannot have.
    #[error(transparent)]
    Size(#[from] BlocksizeError),
}

/// What seals a volume's blocks, and opens them.
pub enum Ciphers {
    /// Those of its keys.
    Of(EpochKeys),
    /// None: a person chose that.
    Unencrypted,
}

/// The stages of a layer that is served, kept apart as far as it takes to make it larger while it is.
pub struct Stack {
    layer: FileDisk,
    facts: LayerFacts,
    blocks: Arc<BlocksizeDisk>,
}

impl Stack {
    /// Puts the stages over a layer together.
    pub fn new(layer: OpenLayer, ciphers: Ciphers) -> Result<Self, StackError> {
        let facts = layer.facts;
        let layer = FileDisk::new(layer)?;
        let blocks = stages_over(Arc::new(layer.clone()), ciphers, facts.size_bytes)?;
        Ok(Self { layer, facts, blocks: Arc::new(blocks) })
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

    /// What the layer is by now.
    pub fn facts(&self) -> LayerFacts {
        self.facts
    }

    /// Whether a flush has failed, which whoever the layer is handed to would not know.
    pub fn has_failed_flush(&self) -> bool {
        self.layer.has_failed_flush()
    }

    /// The layer's open files, to be handed on; their locks go with them.
    pub fn duplicate_files(&self) -> Result<Vec<OwnedFd>, rustix::io::Errno> {
        self.layer.duplicate_files()
    }
}

/// Puts the stages of a volume together. It takes the volume, because one volume has one set of range locks; the
/// layer stays open and locked as long as the disk, or a channel of it, is there. The data keys are wiped when
/// the ciphers are set up.
pub fn assemble(volume: OpenVolume) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let blocks = Arc::clone(&volume.disk);
    assemble_over(blocks, volume)
}

/// As [`assemble`], over `blocks`: the volume's own, perhaps with instruments in between that delay requests or make
/// them fail.
pub fn assemble_over(
    blocks: Arc<dyn Disk<Sealed>>,
    mut volume: OpenVolume,
) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    let ciphers = match &volume.descriptor().encryption {
        Some(_) => Ciphers::Of(epoch_keys(volume.take_deks())?),
        None => Ciphers::Unencrypted,
    };
    Ok(Arc::new(stages_over(blocks, ciphers, volume.descriptor().size_bytes)?))
}

fn stages_over(
    blocks: Arc<dyn Disk<Sealed>>,
    ciphers: Ciphers,
    size: VolumeSize,
) -> Result<BlocksizeDisk, StackError> {
    let plain: Arc<dyn Disk<Plain>> = match ciphers {
        Ciphers::Of(keys) => Arc::new(CryptDisk::new(blocks, Arc::new(keys))),
        Ciphers::Unencrypted => Arc::new(CleartextDisk::new(blocks)),
    };
    Ok(BlocksizeDisk::new(plain, size.bytes(), UNIT_BYTES, RangeLocks::new())?)
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
