//! The disks that move to another datastore while their VMs run (`disk-moves/VM.json`), and the
//! supervisors that are to take over for that.
//!
//! The record says where a disk is ([`disk_switch`]), from before its volume is closed at the
//! former place until the inventory and `vm.json` say it. Whatever is killed meanwhile, hostd has
//! the VM's next supervisor open the volume there, and nowhere if the record cannot be read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use strongroom_host::disk_switch::{self, DiskSwitch};
use strongroom_host::protocol::{DiskMove, Grant, Problem, VmSpec};
use strongroom_types::VmId;

/// The supervisor that takes over from one that stands down.
#[derive(Debug)]
pub struct Successor {
    /// The directories that it may enter beside those of the VM's volumes.
    pub reaches: Vec<PathBuf>,
    /// Grants for its keys.
    pub grants: Vec<Grant>,
}

/// The switches of this host.
#[derive(Debug)]
pub struct DiskSwitches {
    directory: PathBuf,
    successors: Mutex<BTreeMap<VmId, Successor>>,
}

impl DiskSwitches {
    /// Those that are recorded in hostd's home.
    pub fn of_home(home: &Path) -> Self {
        Self { directory: home.join("disk-moves"), successors: Mutex::default() }
    }

    /// What is recorded of a VM.
    ///
    /// # Errors
    /// If the record cannot be read: where the disk is, is not known.
    pub fn of(&self, vm: VmId) -> io::Result<Option<DiskSwitch>> {
        disk_switch::read(&self.file(vm), vm)
    }

    /// A VM's configuration, with a disk that moves where the record says.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn place(&self, spec: VmSpec) -> io::Result<(VmSpec, Option<DiskSwitch>)> {
        let known = self.of(spec.id)?;
        let placed = match &known {
            Some(DiskSwitch { moved, has_moved: true }) => moved.after(&spec),
            Some(DiskSwitch { moved, has_moved: false }) => moved.before(&spec),
            None => spec,
        };
        Ok((placed, known))
    }

    /// Records durably that a switch begins. Returns the file for the supervisor, which decides.
    ///
    /// # Errors
    /// `moving` if another one has not ended; if it cannot be recorded.
    pub fn begin(&self, vm: VmId, moved: &DiskMove) -> Result<File, Problem> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => Problem::new("moving", error.to_string()),
            _ => Problem::system(format!(
                "cannot record where {} of VM {vm} is in {}: {error}",
                moved.disk,
                self.directory.display()
            )),
        };
        if !self.directory.is_dir() {
            std::fs::create_dir_all(&self.directory).map_err(failed)?;
            strongroom_files::sync_directory(strongroom_files::directory_of(&self.directory))
                .map_err(failed)?;
        }
        disk_switch::begin(&self.file(vm), vm, moved).map_err(failed)
    }

    /// Ends a switch: the inventory says where the disk is, or nobody decides any more.
    ///
    /// # Errors
    /// If the record cannot be removed.
    pub fn end(&self, vm: VmId) -> Result<(), Problem> {
        strongroom_files::remove(&self.file(vm)).map(drop).map_err(Problem::system)
    }

    /// Notes who takes over when the VM's supervisor has ended.
    pub fn succeed_by(&self, vm: VmId, successor: Successor) {
        self.successors.lock().insert(vm, successor);
    }

    /// Who takes over, if that was noted.
    pub fn take_successor(&self, vm: VmId) -> Option<Successor> {
        self.successors.lock().remove(&vm)
    }

    fn file(&self, vm: VmId) -> PathBuf {
        self.directory.join(format!("{vm}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strongroom_host::protocol::{DiskPlace, MoveStep};
    use strongroom_host::vm_directory::VmRecord;
    use strongroom_types::DatastoreId;

    #[test]
    fn a_disk_is_where_the_record_says_also_for_the_next_hostd() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("vm.json"), include_str!("../../tests/former/vm.json")).unwrap();
        let spec = VmRecord::read(home.path()).unwrap().unwrap().spec;
        let (vm, disk) = (spec.id, spec.disks[0].name.clone());
        let to = Some(DiskPlace { datastore: DatastoreId::random(), path: "/srv/fast".into() });
        let moved = DiskMove { disk, from: None, to, step: MoveStep::Switch };
        let switches = DiskSwitches::of_home(home.path());
        assert_eq!(switches.place(spec.clone()).unwrap(), (spec.clone(), None));
        let record = switches.begin(vm, &moved).unwrap();
        // One that the supervisor has decided already for itself, but not in the record.
        assert_eq!(switches.place(moved.after(&spec)).unwrap().0, moved.before(&spec));
        disk_switch::decide(&record).unwrap();
        let next = DiskSwitches::of_home(home.path());
        let (placed, known) = next.place(spec.clone()).unwrap();
        assert!(placed == moved.after(&spec) && known.unwrap().has_moved);
        std::fs::write(next.file(vm), "half").unwrap();
        assert!(next.place(spec.clone()).is_err());
        next.end(vm).unwrap();
        next.end(vm).unwrap();
        assert_eq!(next.place(spec.clone()).unwrap().1, None);
    }
}
