//! The data keys of one volume.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;
use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_types::KeyEpoch;
use thiserror::Error;

/// Why a key is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EpochKeysError {
    /// The key is set up for another unit than the block.
    #[error("the key of epoch {0} is not for units of 4096 bytes")]
    UnitSize(KeyEpoch),
    /// An epoch's key never changes: what it sealed could not be read again.
    #[error("there is a key of epoch {0} already")]
    Known(KeyEpoch),
    /// Nothing can be written under a key that is not there.
    #[error("there is no key of epoch {0}")]
    Unknown(KeyEpoch),
}

/// The key of each epoch that may be met on a volume, and which of them new writes are sealed
/// under.
#[derive(Debug)]
pub struct EpochKeys {
    keys: RwLock<BTreeMap<KeyEpoch, Arc<Xts>>>,
    write_epoch: AtomicU32,
}

impl EpochKeys {
    /// One key, under which writes are sealed.
    ///
    /// # Errors
    /// [`EpochKeysError::UnitSize`].
    pub fn new(write_epoch: KeyEpoch, key: Arc<Xts>) -> Result<Self, EpochKeysError> {
        let keys = Self { keys: RwLock::default(), write_epoch: AtomicU32::new(write_epoch.number()) };
        keys.insert(write_epoch, key)?;
        Ok(keys)
    }

    /// Adds the key of another epoch.
    ///
    /// # Errors
    /// [`EpochKeysError::UnitSize`], [`EpochKeysError::Known`].
    pub fn insert(&self, epoch: KeyEpoch, key: Arc<Xts>) -> Result<(), EpochKeysError> {
        if key.unit_size() != UnitSize::Bytes4096 {
            return Err(EpochKeysError::UnitSize(epoch));
        }
        let mut keys = self.keys.write();
        if keys.contains_key(&epoch) {
            return Err(EpochKeysError::Known(epoch));
        }
        keys.insert(epoch, key);
        Ok(())
    }

    /// Seals what is written from now on under another epoch's key.
    ///
    /// # Errors
    /// [`EpochKeysError::Unknown`].
    pub fn set_write_epoch(&self, epoch: KeyEpoch) -> Result<(), EpochKeysError> {
        if !self.contains(epoch) {
            return Err(EpochKeysError::Unknown(epoch));
        }
        self.write_epoch.store(epoch.number(), Ordering::Release);
        Ok(())
    }

    /// The same keys, with writes sealed under the key of `epoch`.
    ///
    /// # Errors
    /// [`EpochKeysError::Unknown`].
    pub fn sealing_under(&self, epoch: KeyEpoch) -> Result<Self, EpochKeysError> {
        let keys = RwLock::new(self.keys.read().clone());
        let sealing = Self { keys, write_epoch: AtomicU32::new(epoch.number()) };
        sealing.set_write_epoch(epoch)?;
        Ok(sealing)
    }

    /// The same keys and `newer` ones, with writes sealed under the write epoch of those.
    ///
    /// # Errors
    /// [`EpochKeysError::Known`].
    pub fn followed_by(&self, newer: &Self) -> Result<Self, EpochKeysError> {
        let keys = self.sealing_under(self.write_epoch())?;
        for (epoch, key) in newer.keys.read().iter() {
            keys.insert(*epoch, Arc::clone(key))?;
        }
        keys.set_write_epoch(newer.write_epoch())?;
        Ok(keys)
    }

    /// The epoch that writes are sealed under.
    pub fn write_epoch(&self) -> KeyEpoch {
        // The number is always one of an epoch; the first is never reached.
        KeyEpoch::new(self.write_epoch.load(Ordering::Acquire)).unwrap_or(KeyEpoch::FIRST)
    }

    /// The key of an epoch.
    pub fn get(&self, epoch: KeyEpoch) -> Option<Arc<Xts>> {
        self.keys.read().get(&epoch).cloned()
    }

    /// Whether there is a key of this epoch.
    pub fn contains(&self, epoch: KeyEpoch) -> bool {
        self.keys.read().contains_key(&epoch)
    }
}

#[cfg(test)]
mod tests {
    use strongroom_memory::secret::SecretBytes;

    use super::*;

    fn key(unit: UnitSize) -> Arc<Xts> {
        Arc::new(Xts::new(&SecretBytes::random(64).unwrap(), unit).unwrap())
    }

    #[test]
    fn only_keys_that_are_there_and_fit_are_used() {
        let second = KeyEpoch::new(2).unwrap();
        let keys = EpochKeys::new(KeyEpoch::FIRST, key(UnitSize::Bytes4096)).unwrap();
        assert_eq!(keys.set_write_epoch(second), Err(EpochKeysError::Unknown(second)));
        assert_eq!(keys.insert(second, key(UnitSize::Bytes512)), Err(EpochKeysError::UnitSize(second)));
        assert_eq!(keys.write_epoch(), KeyEpoch::FIRST);
        keys.insert(second, key(UnitSize::Bytes4096)).unwrap();
        assert_eq!(keys.insert(second, key(UnitSize::Bytes4096)), Err(EpochKeysError::Known(second)));
        keys.set_write_epoch(second).unwrap();
        assert_eq!(keys.write_epoch(), second);
        let first = keys.sealing_under(KeyEpoch::FIRST).unwrap();
        assert_eq!((first.write_epoch(), keys.write_epoch()), (KeyEpoch::FIRST, second));
        assert!(first.contains(second));
        let third = KeyEpoch::new(3).unwrap();
        let newer = EpochKeys::new(third, key(UnitSize::Bytes4096)).unwrap();
        let all = keys.followed_by(&newer).unwrap();
        assert_eq!((all.write_epoch(), keys.write_epoch()), (third, second));
        assert!(all.contains(KeyEpoch::FIRST) && all.contains(second) && !keys.contains(third));
        assert_eq!(keys.followed_by(&first).err(), Some(EpochKeysError::Known(KeyEpoch::FIRST)));
    }
}
