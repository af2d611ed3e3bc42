//! Settling: after a crash every block of the unsettled regions is read once, and adopted if it
//! does not match, so that from then on all of them are verified.
//!
//! It reads concurrently with the guest, one transfer at a time, on one channel. A block that it
//! has not reached yet is adopted when the guest reads it.
//!
//! While the volume is in use, the blocks of a failed change are read at once, on its channel,
//! before the failure is reported: most are unchanged, and match their tags.

use strongroom_io::{IoError, Request, Slot};
use strongroom_types::Extent;

use super::channel::TagsChannel;
use super::layout::REGION_BYTES;
use super::request::{Active, Asker, Work};

/// The bytes that are read at a time: enough to keep a device busy, and few enough not to delay the
/// guest.
const READ_BYTES: u64 = 256 << 10;

/// The progress of settling on this channel.
pub struct Settler {
    region: u64,
    /// The offset of the next read.
    at: u64,
    /// How many changes had failed when the region was begun.
    failures: u64,
    /// Whether a read is under way.
    reading: bool,
    /// Whether a part of the region could not be read.
    failed: bool,
}

/// The blocks of a failed change, and the progress of examining them.
pub struct Doubt {
    /// The change.
    change: Slot,
    /// The extent that is still to be read.
    rest: Extent,
    /// Whether a read is under way.
    reading: bool,
    /// Why a part could not be read.
    error: Option<IoError>,
}

impl TagsChannel {
    /// Queues the blocks of a failed change for examination. The change ends when that is done.
    pub(super) fn look_at(&mut self, change: Slot, extent: Extent) {
        self.doubts.push_back(Doubt { change, rest: extent, reading: false, error: None });
        self.moved = true;
    }

    /// Reads the next piece of a failed change's blocks.
    pub(super) fn go_on_looking(&mut self) {
        while let Some(doubt) = self.doubts.front_mut().filter(|doubt| !doubt.reading) {
            if doubt.rest.is_empty() {
                self.end_doubt();
                continue;
            }
            let end = (doubt.rest.offset() + READ_BYTES).min(doubt.rest.end());
            let extent = Extent::between(doubt.rest.offset(), end);
            let Some(into) = self.pool.take(extent.length() as usize) else { return };
            doubt.reading = true;
            self.begin(Asker::Doubt, Request::Read { extent, into });
        }
    }

    /// Takes the result of reading a piece of a failed change's blocks.
    pub(super) fn looked_at(&mut self, extent: Extent, result: Result<(), IoError>) {
        if let Some(doubt) = self.doubts.front_mut() {
            doubt.reading = false;
            doubt.rest = Extent::between(extent.end(), doubt.rest.end());
            doubt.error = doubt.error.or(result.err());
        }
    }

    fn end_doubt(&mut self) {
        let Some(Doubt { change, error, .. }) = self.doubts.pop_front() else { return };
        if let Some(error) = error {
            tracing::warn!(
                volume = %self.shared.binding.volume,
                %error,
                "what a failed write has left cannot be read: its regions stay marked until it can, or is written anew"
            );
        }
        let Some(active) = self.active.get_mut(change) else { return };
        let request = std::mem::take(active);
        if let Active { work: Work::Failed(error), .. } = request {
            self.finish(change, request, Err(error));
        }
    }

    /// Begins to settle, if there is any need and no other channel does it.
    pub(super) fn begin_settling(&mut self) {
        let shared = std::sync::Arc::clone(&self.shared);
        let mut state = shared.state();
        if shared.read_only || state.settling {
            return;
        }
        let Some(region) = state.regions.next_unsettled(0) else { return };
        state.settling = true;
        self.settler = Some(Settler::of(region, state.regions.failures()));
        drop(state);
        self.go_on_settling();
    }

    /// Reads the next piece.
    pub(super) fn go_on_settling(&mut self) {
        let Some(settler) = self.settler.as_mut().filter(|settler| !settler.reading) else { return };
        let size_bytes = self.shared.limits().size_bytes;
        let end = ((settler.region + 1) * REGION_BYTES).min(size_bytes);
        let extent = Extent::between(settler.at.min(end), (settler.at + READ_BYTES).min(end));
        if extent.is_empty() {
            return self.end_region();
        }
        let Some(into) = self.pool.take(extent.length() as usize) else { return };
        settler.reading = true;
        self.begin(Asker::Settling, Request::Read { extent, into });
    }

    /// Takes the result of reading a piece, whose blocks were adopted where necessary.
    pub(super) fn settled(&mut self, extent: Extent, result: Result<(), IoError>) {
        if let Some(settler) = &mut self.settler {
            settler.reading = false;
            settler.at = extent.end();
            settler.failed |= result.is_err();
        }
    }

    /// Goes to the next region. One that cannot be read stays unsettled until the volume is
    /// reopened.
    fn end_region(&mut self) {
        let Some(Settler { region, failures, failed, .. }) = self.settler.take() else { return };
        let mut state = self.shared.state();
        if !failed {
            state.regions.settle(region, failures);
        }
        if let Some(next) = state.regions.next_unsettled(region + 1) {
            self.settler = Some(Settler::of(next, state.regions.failures()));
            drop(state);
            return self.go_on_settling();
        }
        let unsettled_regions = state.regions.unsettled_count();
        drop(state);
        let counts = self.shared.counts.now(unsettled_regions);
        let volume = self.shared.binding.volume;
        match counts.adopted {
            0 => tracing::info!(
                %volume,
                unsettled_regions,
                "every block that may have been in flight when the volume was last used has been read, and matches its tag"
            ),
            adopted => tracing::error!(
                %volume,
                adopted,
                unsettled_regions,
                "blocks did not match their tags, may have been in flight when power or process failed, and were taken as they \
                 are. If the volume was closed in order, this is an alarm: somebody has changed them"
            ),
        }
    }
}

impl Settler {
    fn of(region: u64, failures: u64) -> Self {
        Self { region, at: region * REGION_BYTES, failures, reading: false, failed: false }
    }
}
