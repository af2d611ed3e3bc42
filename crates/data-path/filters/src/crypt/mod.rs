//! Encryption: plain text above, AES-256-XTS ciphertext below.
//!
//! Block N of the volume is one data unit of 4096 bytes with the number N, as dm-crypt's
//! `aes-xts-plain64` with large sectors has it, and lies in the same place below. Each block is
//! sealed under the key of one epoch, which its seal names: writes use the current one, reads the
//! one that the seal names, and a block without a seal is not there and reads as zeroes.
//!
//! Encryption is always from guest memory into a buffer of our own, decryption the other way; see
//! [`bounce`](crate::bounce).
//!
//! What XTS does not do: it detects neither tampering nor rollback, and shows when a block is
//! written with the same content again. `docs/THREAT_MODEL.md` has the whole of it.

mod keys;

use std::sync::Arc;

use strongroom_crypto::CryptoError;
use strongroom_crypto::guest::GuestSession;
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Plain, Sealed, Thread};
use strongroom_memory::{Buffer, GuestSlice};
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch};

pub use keys::{EpochKeys, EpochKeysError};

use crate::bounce::{self, BounceChannel, Conversion};

/// A plain disk over a sealed one, under the keys of its epochs.
pub struct CryptDisk {
    below: Arc<dyn Disk<Sealed>>,
    keys: Arc<EpochKeys>,
}

impl CryptDisk {
    /// Encrypts and decrypts what passes to and from `below`. Keys may be added, and the write
    /// epoch changed, while channels are open.
    pub fn new(below: Arc<dyn Disk<Sealed>>, keys: Arc<EpochKeys>) -> Self {
        Self { below, keys }
    }
}

impl Disk<Plain> for CryptDisk {
    fn limits(&self) -> Limits {
        bounce::limits(self.below.limits())
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let sessions = Sessions::open(&self.keys)?;
        Ok(Box::new(BounceChannel::open(&self.below, sessions, thread, depth)?))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

/// One channel's sessions: one for each epoch that it has met. A volume has few epochs.
pub(crate) struct Sessions {
    keys: Arc<EpochKeys>,
    open: Vec<(KeyEpoch, GuestSession)>,
}

impl Sessions {
    /// Sets up the current key now, and not during the first write.
    pub(crate) fn open(keys: &Arc<EpochKeys>) -> Result<Self, IoError> {
        let mut sessions = Self { keys: Arc::clone(keys), open: Vec::new() };
        sessions.of(keys.write_epoch())?;
        Ok(sessions)
    }

    /// Decrypts a run of blocks that the key of one epoch has sealed. `run` are bytes of the
    /// transfer at `extent`.
    pub(crate) fn decrypt(
        &mut self,
        extent: Extent,
        run: std::ops::Range<usize>,
        epoch: KeyEpoch,
        from: &Buffer,
        into: &mut GuestSlice,
    ) -> Result<(), IoError> {
        let block = (extent.offset() + run.start as u64) / BLOCK_BYTES;
        let session = self.of(epoch)?.ok_or(IoError::UnknownEpoch { block, epoch })?;
        let start = run.start;
        session.decrypt(block, &from.bytes()[run], into, start).map_err(failed("decryption failed", epoch))
    }

    /// The session of an epoch, or `None` if there is no such key.
    fn of(&mut self, epoch: KeyEpoch) -> Result<Option<&mut GuestSession>, IoError> {
        let index = match self.open.iter().position(|(of, _)| *of == epoch) {
            Some(index) => index,
            None => {
                let Some(xts) = self.keys.get(epoch) else { return Ok(None) };
                let session = GuestSession::new(&xts).map_err(failed("no cipher session", epoch))?;
                self.open.push((epoch, session));
                self.open.len() - 1
            }
        };
        Ok(Some(&mut self.open[index].1))
    }
}

/// Says what went wrong with the cipher, for which the data path's error has no room.
fn failed(what: &'static str, epoch: KeyEpoch) -> impl FnOnce(CryptoError) -> IoError {
    move |error| {
        tracing::error!(%epoch, %error, what);
        IoError::Cipher
    }
}

impl Conversion for Sessions {
    fn seal(&mut self, extent: Extent, from: &GuestSlice, into: &mut Buffer) -> Result<(), IoError> {
        let epoch = self.keys.write_epoch();
        // A write epoch always has a key.
        let session = self.of(epoch)?.ok_or(IoError::Cipher)?;
        let (bytes, seals) = into.parts_mut();
        session
            .encrypt(extent.offset() / BLOCK_BYTES, from, 0, bytes)
            .map_err(failed("encryption failed", epoch))?;
        // A block of zeroes means "nothing here" below, and would read as zeroes instead of what
        // was written. One plain text among 2^32768 is encrypted to it: a broken cipher makes one
        // sooner than chance does.
        debug_assert!(
            bytes.chunks_exact(BLOCK_BYTES as usize).all(|block| block.iter().any(|byte| *byte != 0))
        );
        seals.fill(Some(epoch));
        Ok(())
    }

    fn unseal(&mut self, extent: Extent, from: &Buffer, into: &mut GuestSlice) -> Result<(), IoError> {
        for (run, seal) in bounce::runs(from.seals()) {
            match seal {
                None => into.fill_zero(run.start, run.len()),
                Some(epoch) => self.decrypt(extent, run, epoch, from, into)?,
            }
        }
        Ok(())
    }
}
