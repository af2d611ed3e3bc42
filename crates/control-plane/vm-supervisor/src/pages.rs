//! The pages in which the workers of a VM count, for whoever asks while the VM's own thread is
//! busy.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_host::protocol::DiskName;
use strongroom_statistics::{Page, Snapshot};

/// The pages of the volumes that are served.
#[derive(Clone, Debug, Default)]
pub struct Pages(Arc<Mutex<BTreeMap<DiskName, Arc<Page>>>>);

impl Pages {
    /// These are served now.
    pub fn set(&self, pages: impl Iterator<Item = (DiskName, Arc<Page>)>) {
        *self.0.lock() = pages.collect();
    }

    /// What was asked of a disk; `None` if it is not served, or not counted.
    pub fn read(&self, disk: &DiskName) -> Option<Snapshot> {
        let page = self.0.lock().get(disk).cloned()?;
        Some(page.read())
    }
}
