//! Holds requests back so that a disk, or all disks of a VM together, stay within limits of
//! operations and bytes a second.
//!
//! Each limit is a token bucket in a page of words that the volume's supervisor makes
//! ([`LimitPage`]) and its workers map ([`Limits`]): the supervisor writes the rate, the workers
//! what they have spent. So a limit changes while requests are under way, the bucket outlives a
//! worker, and several workers share the bucket of their VM. `docs/decisions/0036-limits.md` has
//! the reasons.
//!
//! - A request that must wait waits here, in the order of its queue, and below it is as if it had
//!   not come yet: a [`switch`](crate::switch) does not wait for it. It takes no memory of ours.
//! - A flush never waits. It covers what was done before it, and what waits was not.
//! - Each queue has a place for one request in the bucket's order at a time. So queues take turns,
//!   however deep they are.
//! - Reads and writes cost their bytes, and one operation for each started [`OPERATION_BYTES`].
//!   Discards and zeroings cost one operation: they move no data, whatever their length.
//! - A queue that ends does not wait ([`QosChannel::hasten`]): what it holds goes below at once,
//!   and is paid for by what follows.
//! - Nothing wakes a thread where nothing waits; where something waits, the thread looks whether
//!   the limit has changed every [`LOOKS_EVERY`].
//! - Without a limit, a request costs one load for each page.

mod bucket;
mod channel;
mod page;

use std::sync::Arc;
use std::time::Duration;

use strongroom_io::{Allocation, Channel, Disk, IoError, Limits as DiskLimits, Payload, Thread};
use strongroom_types::Extent;

pub use bucket::{Position, Rate};
pub use channel::QosChannel;
pub use page::{Clock, LAYOUT, LimitPage, LimitPageError, Limits, PAGES_MAX, Throttled};

/// The bytes of a transfer that count as one operation; a longer one counts as several. Without
/// that a guest would get around a limit of operations with long requests. It is the unit of
/// solid-state disks of the large clouds.
pub const OPERATION_BYTES: u64 = 256 << 10;

/// How soon a thread whose requests wait notices another limit.
pub const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// A disk within limits.
pub struct QosDisk<P: Payload> {
    below: Arc<dyn Disk<P>>,
    limits: Limits,
}

impl<P: Payload> QosDisk<P> {
    /// Keeps what goes to `below` within `limits`.
    pub fn new(below: Arc<dyn Disk<P>>, limits: Limits) -> Self {
        Self { below, limits }
    }
}

impl<P: Payload> Disk<P> for QosDisk<P> {
    fn limits(&self) -> DiskLimits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError> {
        let below = self.below.open(thread, depth)?;
        Ok(Box::new(QosChannel::new(below, thread, self.limits.clone(), depth)))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}
