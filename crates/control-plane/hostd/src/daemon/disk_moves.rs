//! Moves a disk of a VM to another datastore of this host, step by step ([`DiskMove`]).
//!
//! Of a VM that is off, a job with its keys copies, takes and removes volumes; it may change
//! nothing else in a datastore, so the directories are made and removed here. Of one that runs, its
//! supervisor does:
//!
//! ```text
//! copy     a supervisor that may enter both places copies the layers, in rounds
//! switch   it is recorded that the switch begins -> the supervisor decides in the record
//! take     vm.json names the new place, the former volume is deleted -> the record is removed
//! ```
//!
//! A switch is answered when it is certain how it has ended: with the record's word the disk has
//! moved; without it, the disk stays, once nobody is left who could write it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use strongroom_datastore::file::space;
use strongroom_datastore::file::storage::is_gone;
use strongroom_host::orders::{RequestKind, Task};
use strongroom_host::process::ProcessIdentity;
use strongroom_host::protocol::{
    DiskChange, DiskMove, KnownVolume, MoveStep, OperationOutcome, PowerState, Problem, VmSpec, VolumeFacts,
};
use strongroom_host::state_file::StateFile;
use strongroom_host::vm_directory::{make_disks_elsewhere, remove_disks_elsewhere};
use strongroom_types::display_bytes;

use super::config::HostConfig;
use super::disk_switches::Successor;
use super::operations::{
    AWAY_MAX, LOOK_EVERY, OFF_WITHIN, Outcome, ask_running, ask_running_with, await_off, blocking, do_job,
    facts_after, is_off, learn, link_to, meant_for, off, settled,
};
use super::queue::{Failure, Job};
use super::vms::no_such_vm;
use super::{Hostd, capacity, fits};

/// The code of a problem: the disk is where it was.
const STAYS: &str = "stays";

/// Does one step.
pub async fn carry_out(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, moved: DiskMove) -> Outcome {
    DiskChange::Move(moved.clone()).applied_to(&spec)?;
    let (before, after) = (moved.before(&spec), moved.after(&spec));
    hostd.check_spec(job.vm, &before)?;
    hostd.check_spec(job.vm, &after)?;
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    let runs = !is_off(&now);
    if moved.step == MoveStep::Copy {
        off(hostd, job.vm)?;
    }
    if runs {
        meant_for(job, &now)?;
    }
    let places = places_of(&moved);
    let (config, wanted, vm) = (hostd.config(), places.clone(), job.vm);
    let (needed, copies) = (moved.clone(), matches!(moved.step, MoveStep::Copy | MoveStep::CopyServed));
    blocking(move || {
        fits::check_mounted(&config, &before)?;
        fits::check_mounted(&config, &after)?;
        if copies {
            must_have_room(&config, &before, &after, &needed)?;
        }
        // Whoever enters them is confined to directories that exist.
        wanted.iter().try_for_each(|datastore| make_disks_elsewhere(datastore, vm)).map_err(Problem::from)
    })
    .await??;
    let done = match (moved.step, runs) {
        (MoveStep::CopyServed, true) => return copy_running(hostd, job, &spec, &moved).await,
        (MoveStep::Switch, _) => return switch(hostd, job, &spec, &moved, runs).await,
        (MoveStep::Abandon, _) => abandon(hostd, job, &spec, &moved, runs).await,
        (MoveStep::Take, true) => take_running(hostd, job, &spec, &moved).await,
        (MoveStep::Copy | MoveStep::CopyServed | MoveStep::Take, _) => {
            do_by_job(hostd, job, &spec, &moved).await
        }
    };
    if moved.step == MoveStep::Take && done.is_ok() {
        let theirs = Arc::clone(hostd);
        blocking(move || theirs.switches.end(vm)).await??;
    }
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

/// Does a step of a VM that is off.
async fn do_by_job(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    spec: &VmSpec,
    moved: &DiskMove,
) -> Result<Vec<VolumeFacts>, Failure> {
    let change = DiskChange::Move(moved.clone());
    do_job(hostd, job, Task::ChangeDisk { spec: Box::new(spec.clone()), change }, Vec::new()).await
}

/// Copies a disk beside its guest. If the operation is cancelled, nothing of that goes on.
async fn copy_running(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: &VmSpec, moved: &DiskMove) -> Outcome {
    let wanted = RequestKind::CopyDisk { moved: moved.clone(), known: spec.known_volumes() };
    let mut copied = std::pin::pin!(ask_who_reaches(hostd, job, moved, wanted));
    let copied = tokio::select! {
        copied = &mut copied => copied,
        () = job.cancelled() => {
            // A supervisor that is being replaced begins only afterwards.
            while tokio::time::timeout(LOOK_EVERY, &mut copied).await.is_err() {
                if let Ok(link) = hostd.vms.link(job.vm) {
                    let abandoned = link.ask(RequestKind::AbandonDiskMove, &[]);
                    let _ = tokio::time::timeout(LOOK_EVERY, abandoned).await;
                }
            }
            return Err(Failure::Cancelled);
        }
    };
    match copied {
        Ok(_) => Ok(Some(OperationOutcome::Copied)),
        // The VM has ended meanwhile.
        Err(problem) if matches!(problem.code.as_str(), "not_running" | "stopping") => {
            await_off(hostd, job.vm, OFF_WITHIN).await?;
            Ok(Some(OperationOutcome::Volumes(do_by_job(hostd, job, spec, moved).await?)))
        }
        Err(problem) => Err(problem.into()),
    }
}

/// Asks the VM's supervisor. One that does not reach both places of the disk is replaced first.
async fn ask_who_reaches(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    moved: &DiskMove,
    wanted: RequestKind,
) -> Result<Vec<KnownVolume>, Problem> {
    match ask_running(hostd, job, wanted.clone()).await {
        Err(problem) if problem.code == "cannot_enter" => {}
        asked => return asked,
    }
    replace(hostd, job, moved).await?;
    ask_running_with(hostd, job, wanted, &[]).await
}

/// Has another supervisor take over the VM that may enter both places of a disk: a supervisor is
/// confined before it has a key. The guest's requests wait meanwhile.
async fn replace(hostd: &Arc<Hostd>, job: &Arc<Job>, moved: &DiskMove) -> Result<(), Problem> {
    let (vm, reaches) = (job.vm, moved.directories(job.vm));
    let former = supervisor_of(hostd, job).await?;
    let link = link_to(hostd, vm, AWAY_MAX).await?;
    hostd.switches.succeed_by(vm, Successor { reaches, grants: job.request.grants.clone() });
    match link.ask(RequestKind::StandDown, &[]).await {
        Err(problem) if problem.code == "supervisor_away" => {}
        refused => {
            hostd.switches.take_successor(vm);
            return refused;
        }
    }
    let until = tokio::time::Instant::now() + AWAY_MAX;
    while supervisor_of(hostd, job).await.ok() == Some(former) && tokio::time::Instant::now() < until {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    match settled(hostd, vm).await.map(|now| now.power) {
        Some(PowerState::Running | PowerState::Paused) => Ok(()),
        _ => Err(Problem::new("supervisor_away", "the VM's next supervisor does not have its disks yet")),
    }
}

/// The process that supervises the VM.
async fn supervisor_of(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Result<ProcessIdentity, Problem> {
    let run = hostd.run.vm(job.vm);
    let state = blocking(move || StateFile::read(&run)).await?.map_err(Problem::system)?;
    let state = state.filter(|state| state.off.is_none());
    state.map(|state| state.supervisor).ok_or_else(|| Problem::new("not_running", "the VM is off"))
}

/// Switches a disk. An error means that it is not known how that has ended.
async fn switch(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: &VmSpec, moved: &DiskMove, runs: bool) -> Outcome {
    let stays = match (recorded(hostd, job, moved).await?, runs) {
        (Some(true), _) => None,
        (_, true) => switch_running(hostd, job, moved).await?,
        (Some(false), false) => Some(Problem::new(STAYS, "the VM has ended, and the disk is where it was")),
        // Another host had the VM.
        (None, false) => match do_by_job(hostd, job, spec, moved).await {
            Ok(_) => None,
            Err(Failure::Problem(problem)) if problem.code == STAYS => Some(problem),
            Err(failure) => return Err(failure),
        },
    };
    let theirs = Arc::clone(hostd);
    match stays {
        None => Ok(Some(OperationOutcome::Volumes(facts_after(moved.after(spec), &[]).await?))),
        Some(problem) => {
            let vm = job.vm;
            blocking(move || theirs.switches.end(vm)).await??;
            Ok(Some(OperationOutcome::Stays(problem)))
        }
    }
}

/// What the record of a switch says; `None` if there is none.
async fn recorded(hostd: &Arc<Hostd>, job: &Arc<Job>, moved: &DiskMove) -> Result<Option<bool>, Problem> {
    let (theirs, vm) = (Arc::clone(hostd), job.vm);
    let known = blocking(move || theirs.switches.of(vm)).await?.map_err(Problem::system)?;
    match known {
        Some(known) if !known.moved.is_of_same_move(moved) => {
            let message = format!("the move of {} of VM {vm} has not ended", known.moved.disk);
            Err(Problem::new("moving", message))
        }
        known => Ok(known.map(|known| known.has_moved)),
    }
}

/// Has the VM's supervisor switch a disk. Returns why it stays, if it does: nobody decides any more
/// then.
async fn switch_running(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    moved: &DiskMove,
) -> Result<Option<Problem>, Failure> {
    let vm = job.vm;
    loop {
        let asked_of = supervisor_of(hostd, job).await.ok();
        let (theirs, wanted) = (Arc::clone(hostd), moved.clone());
        let record = blocking(move || theirs.switches.begin(vm, &wanted)).await??;
        let asked = match link_to(hostd, vm, AWAY_MAX).await {
            Ok(link) => {
                link.ask(RequestKind::SwitchDisk { moved: moved.clone() }, &[OwnedFd::from(record)]).await
            }
            Err(problem) => Err(problem),
        };
        let is_answered = asked.as_ref().err().is_none_or(|problem| problem.code != "supervisor_away");
        // Only a supervisor that has the record decides, as long as it lives.
        if !is_answered && asked_of.is_some_and(ProcessIdentity::is_alive) {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        let has_moved = recorded(hostd, job, moved).await? == Some(true);
        return Ok(match asked {
            _ if has_moved => None,
            Ok(()) => Some(Problem::new(STAYS, "the VM's supervisor has not recorded that the disk moved")),
            Err(problem) => Some(problem),
        });
    }
}

/// Has a running VM's disk recorded where it is, and its former volume deleted.
async fn take_running(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    spec: &VmSpec,
    moved: &DiskMove,
) -> Result<Vec<VolumeFacts>, Failure> {
    let former = moved.before(spec).volume_path(&moved.disk);
    if recorded(hostd, job, moved).await?.is_none() && blocking(move || is_gone(&former)).await? {
        // Asked again: the record lasts until nothing is left of the former volume.
        return facts_after(moved.after(spec), &[]).await;
    }
    let wanted = RequestKind::TakeDisk { moved: moved.clone(), known: spec.known_volumes() };
    let known = ask_who_reaches(hostd, job, moved, wanted).await?;
    facts_after(moved.after(spec), &known).await
}

/// Removes the copy of a disk that does not move.
async fn abandon(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    spec: &VmSpec,
    moved: &DiskMove,
    runs: bool,
) -> Result<Vec<VolumeFacts>, Failure> {
    if runs {
        match link_to(hostd, job.vm, AWAY_MAX).await?.ask(RequestKind::AbandonDiskMove, &[]).await {
            // It has copied nothing beside a guest.
            Err(problem) if problem.code == "supervisor_too_old" => {}
            abandoned => abandoned?,
        }
    }
    if recorded(hostd, job, moved).await? == Some(true) {
        let message = format!("{} of VM {} is in its new datastore already", moved.disk, spec.name);
        return Err(Problem::new("has_moved", message).into());
    }
    let (theirs, vm) = (Arc::clone(hostd), job.vm);
    blocking(move || theirs.switches.end(vm)).await??;
    do_by_job(hostd, job, spec, moved).await
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
