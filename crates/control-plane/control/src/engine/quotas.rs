//! What the VMs and volumes in a folder may have together.
//!
//! Every request that becomes a task passes [`within_quotas`] with its transaction, so no operation
//! can be without it. What a task will add counts from its request on, and until it has ended.

use std::collections::{BTreeMap, BTreeSet};

use strongroom_api::access::{FolderUse, Quota};
use strongroom_api::{ErrorCode, Problem};
use strongroom_types::display_bytes;
use uuid::Uuid;

use crate::inventory::{Draft, Facet, Index, Row};
use crate::records::{FolderRecord, TaskRecord, VmRecord, Work};

/// Refuses a request with which a folder would have more than its quota, and more than before.
/// Otherwise makes the transaction conditional on what the folders have, so that requests at the
/// same time do not use the same room.
pub(super) fn within_quotas(
    index: &Index,
    task: &TaskRecord,
    changed: &[VmRecord],
    draft: Draft,
) -> Result<Draft, Problem> {
    if index.folders.iter().all(|folder| folder.quota.is_unlimited()) {
        return Ok(draft);
    }
    let of_task = task.vm.and_then(|vm| index.vm(vm)).and_then(|vm| vm.folder);
    let folders: BTreeSet<Uuid> = changed.iter().filter_map(|vm| vm.folder).chain(of_task).collect();
    folders.into_iter().filter_map(|folder| index.folders.get(&folder.to_string())).try_fold(
        draft,
        |draft, folder| {
            if folder.quota.is_unlimited() {
                return Ok(draft);
            }
            let before = used_in(index, folder.id, &[], None);
            let after = used_in(index, folder.id, changed, Some(task));
            let dimensions = dimensions(folder.quota, before, after);
            check(folder, &dimensions)?;
            let grows = dimensions.iter().any(|one| one.has > one.had);
            Ok(if grows { draft.replace(folder, &folder.record) } else { draft })
        },
    )
}

/// One of the things that a quota limits.
struct Dimension {
    noun: &'static str,
    most: Option<u64>,
    had: u64,
    has: u64,
    text: fn(u64) -> String,
}

fn dimensions(quota: Quota, before: FolderUse, after: FolderUse) -> [Dimension; 4] {
    let Quota { vms, cpus, memory_bytes, disk_bytes } = quota;
    let count = |noun, most, had, has| Dimension { noun, most, had, has, text: |count| count.to_string() };
    let bytes = |noun, most, had, has| Dimension { noun, most, had, has, text: display_bytes };
    [
        count("VMs and volumes", vms, before.vms, after.vms),
        count("processors", cpus, before.cpus, after.cpus),
        bytes("memory", memory_bytes, before.memory_bytes, after.memory_bytes),
        bytes("disk space", disk_bytes, before.disk_bytes, after.disk_bytes),
    ]
}

fn check(folder: &FolderRecord, dimensions: &[Dimension]) -> Result<(), Problem> {
    for &Dimension { noun, most, had, has, text } in dimensions {
        let Some(most) = most.filter(|most| has > *most && has > had) else { continue };
        let message = format!(
            "{noun} of folder {}: {} are used of at most {}, and this takes {} more",
            folder.name,
            text(had),
            text(most),
            text(has - had)
        );
        return Err(Problem::new(ErrorCode::QuotaExceeded, message)
            .next("delete something in the folder, or have its quota raised (`strongroom folder quota`)"));
    }
    Ok(())
}

/// What is used in a folder, with the changed records and the new task.
pub(super) fn used_in(
    index: &Index,
    folder: Uuid,
    changed: &[VmRecord],
    task: Option<&TaskRecord>,
) -> FolderUse {
    let is_changed = |vm: &VmRecord| changed.iter().any(|other| other.id == vm.id);
    let others = index.vms_with(&Facet::Folder(folder));
    let others = others.map(|vm| &*vm.record).filter(|vm| !is_changed(vm));
    let inside = others.chain(changed).filter(|vm| vm.folder == Some(folder));
    inside.fold(FolderUse::default(), |used, vm| plus(used, need(vm, work_of(index, vm, task))))
}

/// What is used in each folder that has something.
pub(super) fn used(index: &Index) -> BTreeMap<Uuid, FolderUse> {
    let mut used = BTreeMap::new();
    for vm in index.vms.iter() {
        let Some(folder) = vm.folder else { continue };
        let known: &mut FolderUse = used.entry(folder).or_default();
        *known = plus(*known, need(vm, work_of(index, vm, None)));
    }
    used
}

fn plus(one: FolderUse, other: FolderUse) -> FolderUse {
    FolderUse {
        vms: one.vms.saturating_add(other.vms),
        cpus: one.cpus.saturating_add(other.cpus),
        memory_bytes: one.memory_bytes.saturating_add(other.memory_bytes),
        disk_bytes: one.disk_bytes.saturating_add(other.disk_bytes),
    }
}

/// The work of the task that has a VM.
fn work_of<'index>(
    index: &'index Index,
    vm: &VmRecord,
    new: Option<&'index TaskRecord>,
) -> Option<&'index Work> {
    let id = vm.task?;
    let new = new.filter(|task| task.task.id == id);
    new.or_else(|| index.task(id).map(|known: &Row<TaskRecord>| &*known.record)).map(|task| &task.work)
}

/// What a VM or volume uses, with what its task adds.
fn need(vm: &VmRecord, work: Option<&Work>) -> FolderUse {
    if let Some(Work::BindVolume { holder, .. }) = work
        && *holder == vm.id
    {
        // Its VM has it already.
        return FolderUse::default();
    }
    let hardware = &vm.hardware;
    let mut disks: BTreeMap<_, u64> =
        hardware.disks.iter().map(|disk| (&disk.name, disk.size.bytes())).collect();
    match work {
        Some(Work::AddDisk { disk, .. } | Work::UndoAddDisk { disk, .. } | Work::BindVolume { disk, .. }) => {
            disks.insert(&disk.name, disk.size.bytes());
        }
        Some(Work::ResizeDisk { disk, size, .. }) => {
            disks.insert(disk, size.bytes());
        }
        // No other work adds to what its records have.
        _ => {}
    }
    // A volume and a template run on no processor.
    let (cpus, memory_bytes) = match vm.holds_volume || vm.template.is_some() {
        true => (0, 0),
        false => (u64::from(hardware.cpus.count()), hardware.memory.bytes()),
    };
    FolderUse { vms: 1, cpus, memory_bytes, disk_bytes: disks.values().sum() }
}
