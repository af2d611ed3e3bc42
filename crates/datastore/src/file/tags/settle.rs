//! Settling: after a crash every block of the unsettled regions is read once, and adopted where it does not match, so
//! that from then on all of them are verified.
//!
//! It reads beside the guest, one transfer at a time, on one channel. Whatever it has not come to yet is adopted when
//! the guest reads it.

use strongroom_io::{IoError, Request};
use strongroom_types::Extent;

use super::channel::TagsChannel;
use super::layout::REGION_BYTES;

/// What is read at a time: as much as keeps a device busy and a guest waiting for a moment only.
const READ_BYTES: u64 = 256 << 10;

/// How far this channel has come.
pub struct Settler {
    region: u64,
    /// The next to be read.
    at: u64,
    /// How many changes had failed when the region was begun.
    failures: u64,
    /// A read is under way.
    reading: bool,
    /// Something of the region could not be read.
    failed: bool,
}

impl TagsChannel {
    /// Takes the work over, if there is any and no other channel does it.
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
        self.begin(None, Request::Read { extent, into });
    }

    /// A piece has been read, and what had to be is adopted.
    pub(super) fn settled(&mut self, extent: Extent, result: Result<(), IoError>) {
        if let Some(settler) = &mut self.settler {
            settler.reading = false;
            settler.at = extent.end();
            settler.failed |= result.is_err();
        }
    }

    /// Goes to the next region. One that cannot be read stays unsettled until the volume is opened again.
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
        tracing::warn!(
            volume = %self.shared.binding.volume,
            adopted = counts.adopted,
            unsettled_regions,
            "every block that may have been in flight when the volume was last used has been read; those that were are tagged anew"
        );
    }
}

impl Settler {
    fn of(region: u64, failures: u64) -> Self {
        Self { region, at: region * REGION_BYTES, failures, reading: false, failed: false }
    }
}
