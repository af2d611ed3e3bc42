//! **No encryption.** What a guest writes lies below as it is, for anybody to read who holds,
//! copies or steals the storage.
//!
//! This stage exists for volumes that a person explicitly chose to keep clear: media that are
//! public anyway, and comparisons. It and [`mixed`](crate::mixed) are the only ways around
//! [`crypt`](crate::crypt): no other stage turns plain text into what a datastore takes, so a
//! volume cannot end up in the clear because somebody forgot a stage. The code that builds it says
//! so by its name, and nothing in this house builds it by default.
//!
//! Blocks bear the seal [`KeyEpoch::CLEAR`], which here means no more than "there"; a block
//! without a seal is not there and reads as zeroes. Bytes still pass through a buffer of our own,
//! because what is below expects memory that does not change under it.

use std::sync::Arc;

use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Plain, Sealed, Thread};
use strongroom_memory::{Buffer, GuestSlice};
use strongroom_types::{Extent, KeyEpoch};

use crate::bounce::{self, BounceChannel, Conversion};

/// A plain disk over a datastore **that will hold plain text**. See the [module](self).
pub struct CleartextDisk {
    below: Arc<dyn Disk<Sealed>>,
}

impl CleartextDisk {
    /// Stores in `below`, **unencrypted**, what is written.
    pub fn new(below: Arc<dyn Disk<Sealed>>) -> Self {
        Self { below }
    }
}

impl Disk<Plain> for CleartextDisk {
    fn limits(&self) -> Limits {
        bounce::limits(self.below.limits())
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(BounceChannel::open(&self.below, Copied, thread, depth)?))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

pub(crate) struct Copied;

impl Conversion for Copied {
    fn seal(&mut self, _: Extent, from: &GuestSlice, into: &mut Buffer) -> Result<(), IoError> {
        from.copy_to(0, into.bytes_mut());
        into.seals_mut().fill(Some(KeyEpoch::CLEAR));
        Ok(())
    }

    fn unseal(&mut self, _: Extent, from: &Buffer, into: &mut GuestSlice) -> Result<(), IoError> {
        for (run, seal) in bounce::runs(from.seals()) {
            match seal {
                Some(_) => into.copy_from(run.start, &from.bytes()[run]),
                None => into.fill_zero(run.start, run.len()),
            }
        }
        Ok(())
    }
}
