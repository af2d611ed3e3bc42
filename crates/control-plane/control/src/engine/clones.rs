//! Clones: new VMs that begin with the content of another one.
//!
//! A clone is made like a new VM, with the hardware of its origin, and with a key, an id,
//! addresses, a TPM and a seed of its own. Its host copies the volumes, re-encrypted, before the VM
//! has its name.

use std::path::Path;

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{AddDisk, CloneVm, CreateVm, EncryptionWish, Nic};
use strongroom_api::{ErrorCode, Name, ObjectKind, Problem};
use strongroom_host::protocol::CloneSource;

use super::Control;
use super::snapshots::{snapshot_in, snapshots_of};
use super::wishes::{Caller, idle_vm, state};
use crate::problems;
use crate::records::{CloneOf, DiskSealing, TaskRecord, VmRecord, Work};

impl Control {
    /// Requests a clone of a VM that is off, or of a snapshot of it.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn clone_vm(&self, caller: &Caller, named: &str, wish: &CloneVm) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            if index.find_vm(wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::Vm, wish.name.as_str()));
            }
            let origin = idle_vm(index, named)?;
            let power = self.power_of(index, origin);
            let snapshot = match &wish.snapshot {
                Some(named) => Some(snapshot_in(&snapshots_of(index, origin), origin, named)?.id),
                None if power.is_on() => {
                    return Err(state(origin, power, "its disks change while they are copied").next(
                        format!(
                            "clone a snapshot: `strongroom vm snapshot create {} NAME`, then --snapshot NAME",
                            origin.name
                        ),
                    ));
                }
                None => None,
            };
            let mut vm = self.place(index, &like(origin, wish)?, id)?;
            if vm.host != origin.host {
                let message = format!("VM {} is on another host than that datastore", origin.name);
                return Err(problems::invalid(message).next("choose a datastore of the VM's host"));
            }
            for (disk, of) in vm.hardware.disks.iter_mut().zip(&origin.hardware.disks) {
                (disk.name, disk.thick) = (of.name.clone(), of.thick);
            }
            let task = self.task(id, TaskKind::VmClone, vm.object(), caller);
            let work = Work::Create { fill: Vec::new(), from: Some(CloneOf { vm: origin.id, snapshot }) };
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, self.draft().create_named(&vm)))
        })
    }

    /// Converts the origin of a clone for its host, without grants; `None` if it is gone, or lacks
    /// a key.
    pub(super) fn origin_told(&self, of: &CloneOf) -> Option<CloneSource> {
        let origin = self.inventory.read().vm(of.vm).cloned()?;
        let datastore = self.datastore_path(&origin)?;
        let spec = origin.told(Path::new(&datastore))?;
        Some(CloneSource { spec, snapshot: of.snapshot, grants: Vec::new() })
    }
}

/// The request for a VM with the hardware of another one.
fn like(origin: &VmRecord, wish: &CloneVm) -> Result<CreateVm, Problem> {
    let hardware = &origin.hardware;
    let sealed = hardware.disks.iter().find(|disk| disk.sealing != DiskSealing::Clear);
    if sealed.is_some() && hardware.disks.iter().any(|disk| disk.sealing == DiskSealing::Clear) {
        let message = format!("some disks of VM {} are encrypted, and others are not", origin.name);
        return Err(problems::conflict(message).next("export its disks, and make VMs of the images"));
    }
    let provider = sealed.and_then(|disk| disk.sealing.key()).map(|key| Name::new(key.provider.as_str()));
    let provider = provider.transpose().map_err(|error| problems::invalid(error.to_string()))?;
    let disk = |disk: &crate::records::DiskRecord| AddDisk {
        size_bytes: disk.size,
        kind: disk.kind,
        frontend: disk.frontend,
        fill: false,
        integrity: disk.integrity,
    };
    Ok(CreateVm {
        name: wish.name.clone(),
        datastore: Some(wish.datastore.clone().unwrap_or_else(|| origin.datastore.to_string())),
        policy: origin.policy.map(|policy| policy.to_string()),
        board: hardware.board,
        firmware: hardware.firmware,
        cpus: hardware.cpus,
        memory_bytes: hardware.memory,
        disks: hardware.disks.iter().map(disk).collect(),
        nics: Some(hardware.nics.iter().map(|nic| Nic { mac: None, ..nic.clone() }).collect()),
        tpm: hardware.tpm,
        seed: hardware.seed,
        fill_seed: false,
        boot: hardware.boot.clone(),
        cdrom: hardware.cdrom.clone(),
        encryption: EncryptionWish { encrypted: sealed.is_some(), provider, key: None },
        restart: origin.restart,
    })
}

/// Why the origin of a clone cannot be read.
pub(super) fn origin_gone() -> Problem {
    Problem::new(ErrorCode::NotFound, "the VM whose clone it is does not exist any more")
}
