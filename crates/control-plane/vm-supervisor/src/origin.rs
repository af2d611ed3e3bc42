//! The VM whose content a new VM begins with.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strongroom_datastore::file::{Access, OpenOptions, open};
use strongroom_host::protocol::{CloneSource, DiskName, OwnVolume, Problem};
use strongroom_host::served::served;
use strongroom_io::{Disk as Stage, Plain};
use strongroom_keys::Kek;
use strongroom_types::VolumeSize;
use strongroom_worker::{Progress, assemble, assemble_destaged, copy_disk};

use crate::export::{LOCK_WAIT, open_to_read};
use crate::job::granted;
use crate::keys::VmKeys;
use crate::own_volume::protection;

/// A VM, or a snapshot of it, whose volumes are read.
pub struct Origin<'a> {
    source: &'a CloneSource,
    keys: Arc<VmKeys>,
}

/// A volume of the origin, open to read.
pub struct OriginVolume {
    stage: Arc<dyn Stage<Plain>>,
}

impl<'a> Origin<'a> {
    /// An origin whose keys are fetched with the grants that came with it.
    ///
    /// # Errors
    /// If the configuration of this machine's key providers cannot be read.
    pub fn open_with_grants(home: &Path, source: &'a CloneSource) -> Result<Self, Problem> {
        Ok(Self { source, keys: granted(home, source.grants.clone(), &source.spec)? })
    }

    /// Opens the volume of a disk.
    ///
    /// # Errors
    /// Also if the origin does not have it.
    pub fn volume(&self, disk: &DiskName) -> Result<OriginVolume, Problem> {
        self.open(disk)?.ok_or_else(|| {
            let message = match self.source.snapshot {
                Some(snapshot) => {
                    format!("snapshot {snapshot} of VM {} has no {disk}", self.source.spec.name)
                }
                None => format!("VM {} has no {disk}", self.source.spec.name),
            };
            Problem::new("no_such_disk", message)
        })
    }

    /// Opens the volume of UEFI's variables, if the origin has them.
    ///
    /// # Errors
    /// As [`volume`](Self::volume).
    pub fn variables(&self) -> Result<Option<OriginVolume>, Problem> {
        OwnVolume::Nvram.name().parse().map_or(Ok(None), |name| self.open(&name))
    }

    /// Opens a volume of the origin. Nobody can write to it meanwhile; the volume of a snapshot can
    /// be in use. Returns `None` if the snapshot, or the VM, does not have it.
    ///
    /// # Errors
    /// If its key is unavailable, or its volume is another one, damaged or in use.
    fn open(&self, name: &DiskName) -> Result<Option<OriginVolume>, Problem> {
        let spec = &self.source.spec;
        let Some(disk) = served(spec).into_iter().find(|disk| disk.name == *name) else { return Ok(None) };
        let volume = match open_to_read(spec, &disk, self.source.snapshot, &self.keys) {
            Err(problem) if problem.code == "no_snapshot" => return Ok(None),
            opened => opened?,
        };
        let stage = assemble(volume).map_err(|error| Problem::new("clone", error.to_string()))?;
        Ok(Some(OriginVolume { stage }))
    }
}

impl OriginVolume {
    /// The size that its guest sees.
    ///
    /// # Errors
    /// If no volume can have that size.
    pub fn size(&self) -> Result<VolumeSize, Problem> {
        let size = VolumeSize::new(self.stage.limits().size_bytes);
        size.map_err(|error| Problem::new("bad_size", error.to_string()))
    }

    /// Copies its content into the new volume at `path`, under the key of that volume. `report`
    /// gets the bytes that are done.
    ///
    /// # Errors
    /// If one of them fails, or there is no room.
    pub fn copy_into(
        &self,
        path: &Path,
        kek: Option<&Kek>,
        stop: &AtomicBool,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), Problem> {
        let (protection, access) = (protection(kek), Access::ReadWrite);
        let options = OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation: 0 };
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new("clone", format!("{} is not filled: {error}", path.display()))
        };
        let into = assemble_destaged(open(path, &options)?).map_err(|error| failed(&error))?;
        copy_disk(&*self.stage, &*into, &mut Progress { stop, report }).map_err(|error| failed(&error))
    }
}
