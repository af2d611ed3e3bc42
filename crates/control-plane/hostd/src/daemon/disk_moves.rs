//! Moves a disk of a VM that is off to another datastore of this host, step by step
//! ([`DiskMove`]). A job with the VM's keys copies, takes and removes volumes; it may change
//! nothing else in a datastore, so the directories are made and removed here.

use std::path::PathBuf;
use std::sync::Arc;

use strongroom_datastore::file::space;
use strongroom_host::orders::Task;
use strongroom_host::protocol::{DiskChange, DiskMove, MoveStep, OperationOutcome, Problem, VmSpec};
use strongroom_host::vm_directory::{make_disks_elsewhere, remove_disks_elsewhere};
use strongroom_types::display_bytes;

use super::config::HostConfig;
use super::operations::{Outcome, blocking, do_job, learn, off};
use super::queue::Job;
use super::{Hostd, capacity, fits};

/// Does one step.
pub async fn carry_out(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, moved: DiskMove) -> Outcome {
    let change = DiskChange::Move(moved.clone());
    change.applied_to(&spec)?;
    let (before, after) = (moved.before(&spec), moved.after(&spec));
    hostd.check_spec(job.vm, &before)?;
    hostd.check_spec(job.vm, &after)?;
    off(hostd, job.vm)?;
    let places = places_of(&moved);
    let (config, wanted, vm) = (hostd.config(), places.clone(), job.vm);
    let copies = moved.step == MoveStep::Copy;
    blocking(move || {
        fits::check_mounted(&config, &before)?;
        fits::check_mounted(&config, &after)?;
        if copies {
            must_have_room(&config, &before, &after, &moved)?;
        }
        // The job is confined to directories that exist.
        wanted.iter().try_for_each(|datastore| make_disks_elsewhere(datastore, vm)).map_err(Problem::from)
    })
    .await??;
    let done =
        do_job(hostd, job, Task::ChangeDisk { spec: Box::new(spec.clone()), change }, Vec::new()).await;
    blocking(move || {
        for datastore in &places {
            if let Err(error) = remove_disks_elsewhere(datastore, vm) {
                tracing::warn!("an empty directory of VM {vm} stays: {error}");
            }
        }
    })
    .await?;
    // A partial change is recorded in the VM's directory.
    learn(hostd, &spec).await?;
    Ok(Some(OperationOutcome::Volumes(done?)))
}

/// The datastores other than the VM's that the disk lies in, before the move or after it.
fn places_of(moved: &DiskMove) -> Vec<PathBuf> {
    moved.from.iter().chain(&moved.to).map(|place| place.path.clone()).collect()
}

/// Checks that the datastore has room for a copy of the volume, as far as its files can be read.
fn must_have_room(
    config: &HostConfig,
    before: &VmSpec,
    after: &VmSpec,
    moved: &DiskMove,
) -> Result<(), Problem> {
    let Some(disk) = before.disk(&moved.disk) else { return Ok(()) };
    let path = moved.to.as_ref().map_or(&after.datastore, |place| &place.path);
    let Some(used) = config.datastore(path) else { return Ok(()) };
    let Ok(taken) = space(&before.volume_path(&moved.disk), disk.volume) else { return Ok(()) };
    let free_bytes = capacity::datastore(used).free_bytes;
    if taken.committed_bytes <= free_bytes {
        return Ok(());
    }
    let message = format!(
        "{} of VM {} takes {}, and datastore {} has {} free",
        moved.disk,
        before.name,
        display_bytes(taken.committed_bytes),
        path.display(),
        display_bytes(free_bytes)
    );
    Err(Problem::new("no_space", message).with_next_step("make room there, or use another one"))
}
