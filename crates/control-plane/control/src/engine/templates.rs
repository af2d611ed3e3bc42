//! Templates: VMs that are only cloned; and what has to stay for linked clones.
//!
//! A VM becomes a template when it has a snapshot of its content, on which its clones hang. It is
//! not started and not changed until it is a template no more.

use std::collections::BTreeSet;

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{PowerState, TemplateVm};
use strongroom_api::{ErrorCode, Name, Problem};
use strongroom_host::protocol::{NewVmSnapshot, SnapshotChange};
use strongroom_types::SnapshotId;

use super::Control;
use super::access::Rights;
use super::snapshots::{free_name, snapshots_of, told_problem};
use super::wishes::{Caller, idle_vm, state, stop_it, suspended};
use crate::inventory::{Index, Row};
use crate::problems;
use crate::records::{VmRecord, Work};

/// The name of the snapshot that a template gets.
const SNAPSHOT: &str = "template";

/// The most VMs that a refusal names.
const NAMED_MAX: usize = 10;

impl Control {
    /// Requests that a VM that is off becomes a template, or is one no more.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn template_vm(&self, caller: &Caller, named: &str, wish: &TemplateVm) -> Result<Task, Problem> {
        if wish.undo {
            return self.undo_template(caller, named);
        }
        let id = SnapshotId::random();
        self.indexed_vm_wish(caller, named, TaskKind::VmTemplate, |index, vm, power| {
            if power.is_on() {
                return Err(state(vm, power, "a template is off").next(stop_it(vm)));
            }
            if power == PowerState::Suspended {
                return Err(suspended(vm, "a template has no memory"));
            }
            let all = snapshots_of(index, vm);
            let snapshot = NewVmSnapshot::of_disks(id, free_name(&all, SNAPSHOT)?);
            all.check_new(&snapshot).map_err(told_problem)?;
            let change = SnapshotChange::Create { snapshot };
            Ok(Work::ChangeSnapshots { change, failures: 0, makes_template: true })
        })
    }

    fn undo_template(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let vm = idle_vm(index, named)?;
            if vm.template.is_none() {
                return Err(problems::conflict(format!("VM {} is no template", vm.name)));
            }
            let changed = VmRecord { template: None, ..VmRecord::clone(&vm.record) };
            let task = self.task_done(id, TaskKind::VmTemplateUndo, vm.object(), caller);
            Ok((task, self.draft().replace(vm, &changed)))
        })
    }
}

/// How a template becomes a VM again.
pub(super) fn no_template_more(vm: &VmRecord) -> String {
    format!("`strongroom vm template {} --undo` makes it a VM again", vm.name)
}

/// Refuses what is not done to a template.
pub(super) fn refuse_of_template(vm: &VmRecord, kind: TaskKind) -> Result<(), Problem> {
    let changes_it = matches!(
        kind,
        TaskKind::VmStart
            | TaskKind::VmRestart
            | TaskKind::VmConfigure
            | TaskKind::VmAddNic
            | TaskKind::VmRemoveNic
            | TaskKind::VmSetNic
            | TaskKind::VmAddDisk
            | TaskKind::VmRemoveDisk
            | TaskKind::VmResizeDisk
            | TaskKind::VmMoveDisk
            | TaskKind::VmLimit
            | TaskKind::VmEncryptDisk
            | TaskKind::VmDecryptDisk
            | TaskKind::VmImportDisk
            | TaskKind::VmSnapshotRevert
            | TaskKind::VmTemplate
            | TaskKind::VolumeBind
            | TaskKind::VolumeUnbind
    );
    if vm.template.is_none() || !changes_it {
        return Ok(());
    }
    let message = format!("VM {} is a template, which is not started or changed", vm.name);
    let next = format!("clone it: `strongroom vm clone {} NAME --linked`; {}", vm.name, no_template_more(vm));
    Err(problems::conflict(message).next(next))
}

/// The linked clones that share disks of a VM, by name, including clones of clones.
pub(super) fn linked_clones(index: &Index, vm: &VmRecord) -> Vec<Name> {
    named(index.clones_of(vm.id))
}

/// Those of them that a caller may view.
pub(super) fn seen_clones(index: &Index, rights: &Rights, vm: &VmRecord) -> Vec<Name> {
    named(index.clones_of(vm.id).filter(|other| rights.sees_vm(other)))
}

fn named<'index>(vms: impl Iterator<Item = &'index Row<VmRecord>>) -> Vec<Name> {
    let mut names: Vec<Name> = vms.map(|vm| vm.name.clone()).collect();
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names
}

/// Refuses the deletion of a VM with linked clones: they keep reading what they share with it.
pub(super) fn without_clones(index: &Index, vm: &VmRecord) -> Result<(), Problem> {
    let clones = linked_clones(index, vm);
    if clones.is_empty() {
        return Ok(());
    }
    let message = format!("linked clones share the disks of {}: {}", problems::called(vm), listed(&clones));
    Err(Problem::new(ErrorCode::InUse, message).next(
        "delete them first; or delete it with --leave-to-clones: they keep reading what they share, under their \
         own keys, so its content is not gone with its key",
    ))
}

/// Refuses to encrypt or decrypt a disk of a VM that shares layers: another VM has them under its
/// own key, or in the clear.
pub(super) fn without_shared_layers(index: &Index, vm: &VmRecord) -> Result<(), Problem> {
    let origins = vm.shared().filter_map(|shared| index.vm(shared));
    let others: BTreeSet<&Name> = index.clones_of(vm.id).chain(origins).map(|other| &other.name).collect();
    let others: Vec<Name> = others.into_iter().cloned().collect();
    if others.is_empty() {
        return Ok(());
    }
    let message = format!("{} shares layers of its disks with {}", problems::called(vm), listed(&others));
    Err(Problem::new(ErrorCode::InUse, message).next(format!(
        "make a full clone that is stored as wanted: `strongroom vm clone {} NAME --encrypt`, or --unencrypted",
        vm.name
    )))
}

/// The first of these names, and how many more there are.
fn listed(names: &[Name]) -> String {
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = names.iter().take(NAMED_MAX).map(Name::as_str).collect::<Vec<_>>().join(", ");
    format!("{named}{more}")
}
