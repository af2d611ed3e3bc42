//! Titles of tasks: what one does, with the names of all that it is about.
//!
//! The words for a kind of task are [`TaskKind::title`]'s. A title is made with its task, because
//! later stages of the work do not have it all.

use strongroom_api::task::TaskKind;
use strongroom_host::protocol::{DiskName, SnapshotChange};
use strongroom_types::{DatastoreId, VmId};
use uuid::Uuid;

use super::snapshots::snapshots_of;
use crate::inventory::Index;
use crate::records::{TaskRecord, Work};

/// The title of a task that is about to begin.
pub(super) fn title(index: &Index, task: &TaskRecord) -> String {
    detailed(index, task).unwrap_or_else(|| task.kind().title(&task.task.object))
}

/// The title of a move to a host.
pub(super) fn moved_to(task: &TaskRecord, host: &str) -> String {
    let object = &task.task.object;
    format!("Move {} {} to host {host}", object.kind.noun(), object.name)
}

/// The title with what the task's work is about besides its object.
fn detailed(index: &Index, task: &TaskRecord) -> Option<String> {
    let object = &task.task.object;
    let called = format!("{} {}", object.kind.noun(), object.name);
    let to_host = |id: Uuid| index.hosts.get(&id.to_string()).map(|host| moved_to(task, host.name.as_str()));
    let to_datastore = |disk: &DiskName, id: DatastoreId| {
        let datastore = index.datastores.get(&id.to_string())?;
        Some(format!("Move {disk} of {called} to datastore {}", datastore.name))
    };
    match (task.kind(), &task.work) {
        (TaskKind::VmMoveHost, Work::StopToMove { to, .. } | Work::Leave { to, .. }) => to_host(*to),
        (TaskKind::VmMoveHost, Work::Migrate(live)) => to_host(live.to),
        (TaskKind::VmMoveHost, Work::Carry(carried)) => to_host(carried.to),
        (TaskKind::VmMoveDisk, Work::MoveDisk { disk, to, .. } | Work::SwitchDisk { disk, to, .. }) => {
            to_datastore(disk, *to)
        }
        (TaskKind::VmAddDisk, Work::AddDisk { disk, .. }) => Some(format!("Add {} to {called}", disk.name)),
        (TaskKind::VmRemoveDisk, Work::RemoveDisk { disk, .. }) => {
            Some(format!("Remove {disk} from {called}"))
        }
        (TaskKind::VmResizeDisk, Work::ResizeDisk { disk, .. }) => Some(format!("Grow {disk} of {called}")),
        (TaskKind::VmLimit, Work::Limit { disk: Some(disk), .. }) => {
            Some(format!("Change the limits of {disk} of {called}"))
        }
        (TaskKind::VmEncryptDisk, Work::SealDisk { disk, .. }) => Some(format!("Encrypt {disk} of {called}")),
        (TaskKind::VmDecryptDisk, Work::SealDisk { disk, .. }) => Some(format!("Decrypt {disk} of {called}")),
        (TaskKind::VmImportDisk, Work::ImportDisk { disk, .. }) => {
            Some(format!("Fill {disk} of {called} with an image"))
        }
        (TaskKind::VmDumpDelete, Work::DeleteDump { number }) => {
            Some(format!("Delete dump {number} of {called}"))
        }
        (TaskKind::VmTemplate, _) => None,
        (_, Work::MakeGroup { snapshot, .. }) => {
            Some(format!("Make snapshot {} of {called} and others", snapshot.name))
        }
        (_, Work::ChangeSnapshots { change, .. }) => snapshot_title(index, task.vm?, change, &called),
        _ => None,
    }
}

fn snapshot_title(index: &Index, vm: VmId, change: &SnapshotChange, called: &str) -> Option<String> {
    let named = |id| {
        let all = snapshots_of(index, index.vm(vm)?);
        all.list.iter().find(|snapshot| snapshot.id == id).map(|snapshot| snapshot.name.to_string())
    };
    match change {
        SnapshotChange::Create { snapshot } => Some(format!("Make snapshot {} of {called}", snapshot.name)),
        SnapshotChange::Revert { to, .. } => Some(format!("Revert {called} to snapshot {}", named(*to)?)),
        SnapshotChange::Delete { snapshot } => {
            Some(format!("Delete snapshot {} of {called}", named(*snapshot)?))
        }
        // Of a snapshot of a group, which has its own work.
        SnapshotChange::Prepare { .. } | SnapshotChange::Keep { .. } => None,
    }
}
