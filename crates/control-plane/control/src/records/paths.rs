//! Where a host has the datastores of a VM.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use strongroom_host::protocol::DiskPlace;
use strongroom_types::DatastoreId;

use super::VmRecord;

/// The paths of a VM's datastores on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatastorePaths {
    own: PathBuf,
    others: BTreeMap<DatastoreId, PathBuf>,
}

impl DatastorePaths {
    /// Those of a VM, if `path_of` has the path of each of its datastores.
    pub fn of(vm: &VmRecord, path_of: impl Fn(DatastoreId) -> Option<PathBuf>) -> Option<Self> {
        let others = vm.hardware.disks.iter().filter_map(|disk| disk.datastore);
        let others = others.map(|id| Some((id, path_of(id)?))).collect::<Option<_>>()?;
        Some(Self { own: path_of(vm.datastore)?, others })
    }

    /// Paths for a configuration that no host is told: what depends on a path is not looked at.
    pub fn nowhere(vm: &VmRecord) -> Self {
        let root = || PathBuf::from("/");
        Self::of(vm, |_| Some(root())).unwrap_or_else(|| Self { own: root(), others: BTreeMap::new() })
    }

    /// The path of the datastore with the VM's own directory.
    pub fn own(&self) -> &Path {
        &self.own
    }

    /// The place of a disk in another datastore.
    pub fn place(&self, datastore: DatastoreId) -> Option<DiskPlace> {
        Some(DiskPlace { datastore, path: self.others.get(&datastore)?.clone() })
    }
}
