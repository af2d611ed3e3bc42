//! Sealed and clear layers side by side, while a person has a volume encrypted or decrypted that is
//! in use.
//!
//! A block whose seal is [`KeyEpoch::CLEAR`] passes as it is; any other one is opened as
//! [`crypt`](crate::crypt) does. The seal comes from the layer that has the block, and which layers
//! are clear comes from the volume's descriptor, authenticated under its KEK: no content of a layer
//! makes it clear. What is written is of one sort, which the code that builds this stage names.

use std::sync::Arc;

use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Plain, Sealed, Thread};
use strongroom_memory::{Buffer, GuestSlice};
use strongroom_types::{Extent, KeyEpoch};

use crate::bounce::{self, BounceChannel, Conversion};
use crate::cleartext::Copied;
use crate::crypt::{EpochKeys, Sessions};

/// What becomes of blocks that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// They are encrypted: the volume is being encrypted.
    Sealed,
    /// They stay **clear**: a person has the volume decrypted.
    Clear,
}

/// A plain disk over one whose blocks are partly sealed and partly clear. See the [module](self).
pub struct MixedDisk {
    below: Arc<dyn Disk<Sealed>>,
    keys: Arc<EpochKeys>,
    writes: Writes,
}

impl MixedDisk {
    /// Decrypts what `below` has sealed, and passes its **clear** blocks as they are.
    pub fn new(below: Arc<dyn Disk<Sealed>>, keys: Arc<EpochKeys>, writes: Writes) -> Self {
        Self { below, keys, writes }
    }
}

impl Disk<Plain> for MixedDisk {
    fn limits(&self) -> Limits {
        bounce::limits(self.below.limits())
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let by_seal = BySeal { sessions: Sessions::open(&self.keys)?, writes: self.writes };
        Ok(Box::new(BounceChannel::open(&self.below, by_seal, thread, depth)?))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct BySeal {
    sessions: Sessions,
    writes: Writes,
}

impl Conversion for BySeal {
    fn seal(&mut self, extent: Extent, from: &GuestSlice, into: &mut Buffer) -> Result<(), IoError> {
        match self.writes {
            Writes::Sealed => self.sessions.seal(extent, from, into),
            Writes::Clear => Copied.seal(extent, from, into),
        }
    }

    fn unseal(&mut self, extent: Extent, from: &Buffer, into: &mut GuestSlice) -> Result<(), IoError> {
        for (run, seal) in bounce::runs(from.seals()) {
            match seal {
                None => into.fill_zero(run.start, run.len()),
                Some(KeyEpoch::CLEAR) => into.copy_from(run.start, &from.bytes()[run]),
                Some(epoch) => self.sessions.decrypt(extent, run, epoch, from, into)?,
            }
        }
        Ok(())
    }
}
