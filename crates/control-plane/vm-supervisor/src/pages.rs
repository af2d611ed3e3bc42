//! What a VM's workers count in shared pages, readable while the VM's own thread is busy.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_host::protocol::DiskName;
use strongroom_statistics::Snapshot;
use strongroom_worker::supervise::Counters;

/// The pages of the served volumes.
#[derive(Clone, Debug, Default)]
pub struct Pages(Arc<Mutex<BTreeMap<DiskName, Counters>>>);

impl Pages {
    /// Replaces the set of pages.
    pub fn set(&self, pages: impl Iterator<Item = (DiskName, Counters)>) {
        *self.0.lock() = pages.collect();
    }

    /// Returns a disk's counters; `None` if it is not served, or has none.
    pub fn read(&self, disk: &DiskName) -> Option<Snapshot> {
        let page = self.0.lock().get(disk).cloned()?;
        Some(page.read())
    }
}
