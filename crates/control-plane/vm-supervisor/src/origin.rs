//! The VM whose content a new VM begins with.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strongroom_datastore::file::{
    Access, CloneOrigin, DatastoreError, Descriptor, OpenOptions, describe, link_snapshot, open,
};
use strongroom_host::protocol::{CloneSource, DiskName, OwnVolume, Problem};
use strongroom_host::served::served;
use strongroom_io::{Disk as Stage, Plain};
use strongroom_keys::Kek;
use strongroom_types::VolumeSize;
use strongroom_worker::{Progress, assemble, assemble_destaged, copy_disk};

use crate::export::{LOCK_WAIT, open_to_read};
use crate::job::{granted, key_problem};
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
        self.open(disk)?.ok_or_else(|| self.lacks(disk))
    }

    /// Whether volumes share its layers, instead of being copied.
    pub fn is_linked(&self) -> bool {
        self.source.linked
    }

    /// Makes a volume at `path` that shares the layers of a disk's snapshot, under this KEK.
    ///
    /// # Errors
    /// As [`link`](Self::link), and if the origin does not have the disk.
    pub fn link_disk(&self, disk: &DiskName, path: &Path, kek: Option<&Kek>) -> Result<Descriptor, Problem> {
        self.link(disk, path, kek)?.ok_or_else(|| self.lacks(disk))
    }

    /// Makes a volume at `path` that shares the layers of a snapshot. Returns `None` if the
    /// snapshot does not have the volume.
    ///
    /// # Errors
    /// If its key is unavailable, its volume is another one or damaged, or it cannot be shared.
    pub fn link(
        &self,
        name: &DiskName,
        path: &Path,
        kek: Option<&Kek>,
    ) -> Result<Option<Descriptor>, Problem> {
        let spec = &self.source.spec;
        let snapshot = self.source.snapshot.ok_or_else(|| {
            Problem::new("bad_request", "a linked clone is made of a snapshot, and none was named")
        })?;
        let Some(disk) = served(spec).into_iter().find(|disk| disk.name == *name) else { return Ok(None) };
        let of = spec.volume_path(&disk.name);
        let described = describe(&of)?.descriptor;
        let theirs = self.keys.hold_for(&disk.key, Some(&described)).map_err(key_problem)?;
        let options = OpenOptions {
            protection: protection(theirs.as_deref()),
            access: Access::ReadOnly,
            lock_wait: LOCK_WAIT,
            least_generation: disk.least_generation,
        };
        let origin = CloneOrigin { path: &of, volume: disk.volume, snapshot, options };
        match link_snapshot(&origin, path, protection(kek)) {
            Err(DatastoreError::NoSnapshot { .. }) => Ok(None),
            linked => Ok(Some(linked?)),
        }
    }

    fn lacks(&self, disk: &DiskName) -> Problem {
        let vm = &self.source.spec.name;
        let message = match self.source.snapshot {
            Some(snapshot) => format!("snapshot {snapshot} of VM {vm} has no {disk}"),
            None => format!("VM {vm} has no {disk}"),
        };
        Problem::new("no_such_disk", message)
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
