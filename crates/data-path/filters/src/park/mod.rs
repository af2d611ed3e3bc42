//! Keeps writes that found no room until there is some, and has the disk's owner hear of it.
//!
//! A virtual disk has no status for "the datastore is full": told an error, a guest gives its file
//! system up. So a write, zeroing or discard that comes back with [`IoError::NoSpace`] waits here
//! and is done again: one of those that wait is tried every [`PROBE_INTERVAL`], and when it has
//! found room the others follow. To the guest it is a pause. Where the client's protocol does know
//! the status ([`Patience::None`]), the client is told, and only the owner hears of it here too.
//!
//! - Only what cannot be done waits: requests that need no room pass at once, also while others
//!   wait.
//! - A flush covers what was done before it, so it waits for nobody. One that fails for want of
//!   room is not done again: the kernel tells a failed fsync once, and a second one would succeed
//!   over what was lost.
//! - No more waits than the channel has in flight. No memory of ours is held meanwhile: a plain
//!   transfer's is the guest's.
//! - Nothing wakes a thread where nothing waits.
//! - Requests that wait do not keep a queue from ending: [`ParkChannel::give_up`] hands them back.

mod channel;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Plain, Thread};
use strongroom_types::Extent;

pub use channel::ParkChannel;
pub use trouble::{Trouble, TroubleBook, Waiting};

/// How often it is tried whether there is room again: a guest that goes on a quarter of a second
/// after a person has made room is not late, and four failing writes a second are nothing to a file
/// system.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// What becomes of requests that find no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// They wait until there is some.
    UntilThereIsRoom,
    /// They fail.
    None,
}

/// A disk on which nothing fails for want of room.
pub struct ParkDisk {
    below: Arc<dyn Disk<Plain>>,
    patience: Patience,
    book: Arc<TroubleBook>,
}

impl ParkDisk {
    /// Over `below`. What the disk's owner should hear of is written into `book`.
    pub fn new(below: Arc<dyn Disk<Plain>>, patience: Patience, book: Arc<TroubleBook>) -> Self {
        Self { below, patience, book }
    }

    /// What is written into.
    pub fn book(&self) -> &Arc<TroubleBook> {
        &self.book
    }

    /// As [`Disk::open`], for callers that may have to end the channel before there is room.
    pub fn open_channel(&self, thread: &Thread, depth: usize) -> Result<ParkChannel, IoError> {
        let below = self.below.open(thread, depth)?;
        Ok(ParkChannel::new(below, thread, self.patience, Arc::clone(&self.book), depth))
    }
}

impl Disk<Plain> for ParkDisk {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(self.open_channel(thread, depth)?))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}
