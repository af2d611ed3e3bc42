//! Carries out operations.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_datastore::file::move_volume;
use strongroom_host::dumps;
use strongroom_host::orders::{Brought, JobRequest, Report, RequestKind, Task};
use strongroom_host::protocol::{
    CloneSource, DatastoreState, DiskChange, DiskName, Dump, Grant, HandoverId, HeldVolume, JudgeRequest,
    Judgement, KnownVolume, MacAddress, ObservedVm, OperationKind, OperationOutcome, PowerState, Problem,
    SnapshotChange, StartOptions, TicketRequest, VmSpec, VolumeFacts, WaitingFor,
};
use strongroom_host::state_file::StateFile;
use strongroom_host::vm_directory::{
    StagedVm, VmRecord, delete_disks_elsewhere, delete_vm, has_handover, remove_handover, write_handover,
};
use strongroom_host::vm_lock::VmLock;
use strongroom_host::volume_facts::facts;
use strongroom_host::wire::{Wire, WireError};
use strongroom_hypervisor::QemuProgram;
use strongroom_types::VmId;
use strongroom_vm::limits::DUMP_LABEL_BYTES_MAX;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::config::DatastoreConfig;
use super::queue::{Failure, Job};
use super::tickets::Image;
use super::vms::{Kept, no_such_vm};
use super::{Hostd, another_host, capacity, disk_moves, fits, group, link, live_moves, networks};
use crate::boot_files;
use crate::checks::{Root, crypto_safe};

/// The least speed at which a suspended memory is verified and loaded, in bytes per second: that of
/// a slow disk.
const MEMORY_BYTES_A_SECOND: u64 = 32 << 20;
/// Timeout of a start, until the guest runs or is known to wait for a key.
pub const START_WITHIN: Duration = Duration::from_secs(180);
/// How long an operation waits for a supervisor that is being replaced.
pub const AWAY_MAX: Duration = Duration::from_secs(15);
/// How long a forced stop may take: its volumes are drained.
pub const OFF_WITHIN: Duration = Duration::from_secs(180);
/// How often a job checks whether it was cancelled.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long a supervisor may take to fetch keys with its grants before it is sent them again.
const GRANTS_WORK_WITHIN: Duration = Duration::from_secs(5);
/// How often one operation sends its grants.
const GRANTS_GIVEN_MAX: u32 = 3;

/// How long a job of a killed hostd may take to notice.
pub const PREDECESSOR_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// How long a cancelled re-encryption may take to leave a volume that opens: it writes a
/// descriptor, and before that completes what it is at.
const WOUND_UP_WITHIN: Duration = Duration::from_secs(60);
/// How long an import may take to delete what it has of the image. One that waits for a key does
/// not hear of it, and has nothing.
const IMPORT_WOUND_UP_WITHIN: Duration = Duration::from_secs(5);

/// Timeout of sending a console log: its key is fetched, and its client reads it.
pub const LOG_WITHIN: Duration = Duration::from_secs(120);

/// Timeout of a judgement of a configuration: its keys are fetched.
const JUDGED_WITHIN: Duration = Duration::from_secs(60);

/// How an operation ends.
pub type Outcome = Result<Option<OperationOutcome>, Failure>;

/// Carries out an operation.
pub async fn carry_out(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Outcome {
    let vm = job.vm;
    must_be_here(hostd, job)?;
    if let Some(spec) = job.request.kind.spec() {
        hostd.check_spec(vm, spec)?;
        if !takes_half_clear(&job.request.kind) {
            spec.check_whole()?;
        }
    }
    match job.request.kind.clone() {
        OperationKind::Create { spec, from } => create(hostd, job, *spec, from).await,
        OperationKind::Configure { spec } => configure(hostd, job, *spec).await,
        OperationKind::Delete => delete(hostd, vm).await,
        OperationKind::Start { spec, how } => start(hostd, job, *spec, how).await,
        OperationKind::Suspend => suspend(hostd, job).await,
        OperationKind::Dump { label } => dump(hostd, job, label).await,
        OperationKind::DeleteDump { spec, number } => delete_dump(hostd, job, *spec, number).await,
        OperationKind::Stop { force, timeout_s } => stop(hostd, job, force, timeout_s).await,
        OperationKind::Rekey { spec, data: false } => rekey(hostd, job, *spec).await,
        OperationKind::Rekey { spec, data: true } => reencrypt(hostd, job, *spec).await,
        OperationKind::ChangeDisk { spec, change: change @ DiskChange::Seal { .. } } => {
            seal_disk(hostd, job, *spec, change).await
        }
        OperationKind::ChangeDisk { spec, change: DiskChange::Move(moved) } => {
            disk_moves::carry_out(hostd, job, *spec, moved).await
        }
        OperationKind::ChangeDisk { spec, change } => change_disk(hostd, job, *spec, change).await,
        OperationKind::SetNics { spec, open } => set_nics(hostd, job, *spec, &open).await,
        OperationKind::SetSizes { spec } => set_sizes(hostd, job, *spec).await,
        OperationKind::ChangeSnapshots { spec, change } => change_snapshots(hostd, job, *spec, change).await,
        OperationKind::SnapshotGroup { snapshot, members } => {
            group::snapshot(hostd, job, &snapshot, members).await
        }
        OperationKind::Pause => ask(hostd, job, RequestKind::Pause).await,
        OperationKind::Resume => ask(hostd, job, RequestKind::Resume).await,
        OperationKind::Reset => ask(hostd, job, RequestKind::Reset).await,
        OperationKind::SupplyGrants => supply_grants(hostd, job).await,
        OperationKind::ImportDisk { spec, disk, ticket, format } => {
            off(hostd, vm)?;
            let wanted = TicketRequest::Upload { disk: disk.clone() };
            let Image { brought, from } = hostd.tickets.image(&ticket, vm, &wanted).await?;
            let task = Task::Import { spec, disk, format, brought };
            let volumes = do_job(hostd, job, task, vec![from]).await?;
            Ok(Some(OperationOutcome::Volumes(volumes)))
        }
        OperationKind::Leave { spec, handover } => leave(hostd, job, *spec, handover).await,
        OperationKind::Arrive { spec, handover } => arrive(hostd, job, *spec, handover).await,
        OperationKind::Fetch { spec, handover, from, bytes_per_second } => {
            another_host::fetch(hostd, job, *spec, handover, *from, bytes_per_second).await
        }
        OperationKind::RemoveCopy { spec } => another_host::remove_copy(hostd, job, *spec).await,
        OperationKind::Offer => live_moves::offer(hostd, job).await,
        OperationKind::FetchLive(fetching) => live_moves::fetch_live(hostd, job, *fetching).await,
        OperationKind::Receive(receiving) => live_moves::receive(hostd, job, *receiving).await,
        OperationKind::Send(sending) => live_moves::send(hostd, job, *sending).await,
        OperationKind::TakeUp => live_moves::take_up(hostd, job).await,
        OperationKind::Settle { here } => live_moves::settle(hostd, job, here).await,
    }
}

/// Refuses an operation on a VM that has left this host, other than its return.
fn must_be_here(hostd: &Hostd, job: &Job) -> Result<(), Problem> {
    let kind = &job.request.kind;
    // A departure that is repeated has its effect already.
    let moves = kind.is_of_live_move()
        || matches!(
            kind,
            OperationKind::Leave { .. }
                | OperationKind::Arrive { .. }
                | OperationKind::Fetch { .. }
                | OperationKind::RemoveCopy { .. }
        );
    let own = (!moves).then_some(job.vm);
    let members = kind.members().iter().map(|member| member.spec.id);
    let all = own.into_iter().chain(kind.origin()).chain(members);
    all.into_iter().try_for_each(|vm| hostd.residences.must_be_here(vm))
}

/// Whether an operation is possible on a VM with a half-clear disk.
fn takes_half_clear(kind: &OperationKind) -> bool {
    match kind {
        OperationKind::ChangeDisk { change, .. } => match change {
            DiskChange::Seal { .. } => true,
            DiskChange::Add { .. }
            | DiskChange::Remove { .. }
            | DiskChange::Resize { .. }
            | DiskChange::Limit { .. }
            | DiskChange::Bind { .. }
            | DiskChange::Unbind { .. }
            | DiskChange::Move(_) => false,
        },
        OperationKind::Delete
        | OperationKind::DeleteDump { .. }
        | OperationKind::Stop { .. }
        | OperationKind::Suspend
        | OperationKind::Dump { .. }
        | OperationKind::Pause
        | OperationKind::Resume
        | OperationKind::Reset
        | OperationKind::Leave { .. }
        | OperationKind::Arrive { .. }
        | OperationKind::RemoveCopy { .. }
        | OperationKind::Offer
        | OperationKind::Send(_)
        | OperationKind::TakeUp
        | OperationKind::Settle { .. }
        | OperationKind::SupplyGrants => true,
        OperationKind::Create { .. }
        | OperationKind::Start { .. }
        | OperationKind::Configure { .. }
        | OperationKind::ImportDisk { .. }
        | OperationKind::Rekey { .. }
        | OperationKind::SetNics { .. }
        | OperationKind::SetSizes { .. }
        | OperationKind::ChangeSnapshots { .. }
        | OperationKind::Fetch { .. }
        | OperationKind::FetchLive(_)
        | OperationKind::Receive(_)
        | OperationKind::SnapshotGroup { .. } => false,
    }
}

/// Checks whether a VM can be made as requested, before it has a key.
pub async fn check(hostd: &Arc<Hostd>, vm: VmId, spec: VmSpec) -> Result<(), Problem> {
    hostd.check_spec(vm, &spec)?;
    fits(hostd, &spec).await
}

/// Checks whether this host has the resources for it.
pub async fn fits(hostd: &Arc<Hostd>, spec: &VmSpec) -> Result<(), Problem> {
    hostd.check_boot_files(spec)?;
    let (hostd, spec) = (Arc::clone(hostd), spec.clone());
    blocking(move || {
        let (memory_bytes, _) = capacity::memory_bytes();
        let config = hostd.config();
        fits::check_machine(&Root::machine(), memory_bytes, config.interfaces.as_deref(), &spec)?;
        // A start without QEMU says so itself.
        if spec.board.is_pinned()
            && let Ok(qemu) = QemuProgram::probe_once(&config.qemu, &hostd.run.qemu_findings())
            && let Some(capabilities) = capacity::capabilities(Some(&qemu))
        {
            fits::check_board(&capabilities, &qemu, &spec)?;
        }
        fits::check_datastores(&config, &spec)
    })
    .await?
}

async fn create(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, from: Option<Box<CloneSource>>) -> Outcome {
    if let Some(from) = &from {
        hostd.check_spec(from.spec.id, &from.spec)?;
        from.spec.check_whole()?;
    }
    fits(hostd, &spec).await?;
    let task = Task::Create { spec: Box::new(spec.clone()), from };
    match do_job(hostd, job, task, Vec::new()).await {
        Ok(volumes) => {
            learn(hostd, &spec).await?;
            Ok(Some(OperationOutcome::Volumes(volumes)))
        }
        Err(failure) => {
            abandon(hostd, spec).await;
            Err(failure)
        }
    }
}

/// Removes what a creation that failed has left: it takes space, and a linked clone's files keep
/// the layers of its origin from being merged. What cannot be removed now is removed by the next
/// attempt.
async fn abandon(hostd: &Arc<Hostd>, spec: VmSpec) {
    let run = hostd.run.clone();
    let removed = blocking(move || {
        let _lock = VmLock::take(&run, spec.id, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
        StagedVm::of(&spec).abandon().map_err(Problem::from)
    });
    if let Err(problem) = removed.await.and_then(|removed| removed) {
        tracing::warn!("what is left of a VM that was not made stays: {}", problem.message);
    }
}

async fn configure(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec) -> Outcome {
    hostd.vms.get(spec.id).ok_or_else(|| no_such_vm(spec.id))?;
    fits(hostd, &spec).await?;
    reconfigure(hostd, job, spec).await
}

/// Writes the configuration of a VM that is off.
async fn reconfigure(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec) -> Outcome {
    let volumes = do_job(hostd, job, Task::Configure(Box::new(spec.clone())), Vec::new()).await?;
    learn(hostd, &spec).await?;
    Ok(Some(OperationOutcome::Volumes(volumes)))
}

/// Reads the configuration that a job has written.
pub async fn learn(hostd: &Arc<Hostd>, spec: &VmSpec) -> Result<(), Problem> {
    let (directory, vm) = (spec.directory(), spec.id);
    let mut record = blocking(move || VmRecord::read_of(&directory, vm)).await?.map_err(Problem::from)?;
    let config = hostd.config();
    record.spec.place(spec.datastore.clone(), |id| config.path_of(id));
    match hostd.vms.get(vm) {
        // A revert of a VM that is off may put a memory back.
        Some(now) if !is_off(&now) || now.suspended == record.suspended => {
            hostd.vms.configure(record.spec, record.snapshots);
        }
        Some(_) | None => {
            let kept = Kept::from(&record);
            hostd.vms.set_off(record.spec, record.generation, None, kept);
        }
    }
    Ok(())
}

async fn delete(hostd: &Arc<Hostd>, vm: VmId) -> Outcome {
    let config = hostd.config();
    let known = hostd.vms.get(vm).map(|_| off(hostd, vm)).transpose()?;
    let places = match &known {
        Some(now) => vec![now.directory.clone()],
        // Includes the remains of a killed creation.
        None => config.datastores.iter().map(|datastore| datastore.path.join(vm.to_string())).collect(),
    };
    let theirs = Arc::clone(hostd);
    blocking(move || {
        // What is not there now is not waited for.
        let is_there =
            |datastore: &&DatastoreConfig| theirs.state_of(datastore).state != DatastoreState::Missing;
        let datastores: Vec<&Path> =
            config.datastores.iter().filter(is_there).map(|datastore| datastore.path.as_path()).collect();
        let _lock = VmLock::take(&theirs.run, vm, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
        let spec = known.and_then(|now| now.spec);
        let has_disks_in =
            |path: &Path| spec.as_ref().is_none_or(|spec| spec.places().any(|place| place.path == path));
        if let Some(spec) = &spec {
            fits::check_mounted(&config, spec)?;
        }
        places.iter().try_for_each(|place| {
            delete_vm(place.parent().unwrap_or(place), place, vm).map_err(Problem::from)
        })?;
        for datastore in datastores {
            match delete_disks_elsewhere(datastore, vm) {
                // It has no disk there, but a move that was given up may have left something.
                Err(error) if !has_disks_in(datastore) => {
                    tracing::warn!("what is left of VM {vm} in {} stays: {error}", datastore.display());
                }
                deleted => deleted?,
            }
        }
        theirs.switches.end(vm)?;
        theirs.residences.forget(vm).map_err(Problem::system)
    })
    .await??;
    hostd.vms.forget(vm);
    Ok(None)
}

/// Gives up a VM that is off.
///
/// ```text
/// no process of it runs here -> the handover is in its directory, durably -> it has left, durably -> it is not listed
/// ```
///
/// It has left before the control plane hears of it, so the next host starts it after that only.
async fn leave(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, handover: HandoverId) -> Outcome {
    let (vm, generation) = (job.vm, job.request.generation);
    if hostd.vms.get(vm).is_some() {
        off(hostd, vm)?;
    }
    let theirs = Arc::clone(hostd);
    blocking(move || {
        let _lock = VmLock::take(&theirs.run, vm, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
        let state = StateFile::read(&theirs.run.vm(vm)).map_err(Problem::system)?;
        if state.is_some_and(|state| state.off.is_none()) {
            return Err(Problem::new("running", "what is left of its last start has not ended"));
        }
        if !theirs.residences.has_left_at(vm, generation) {
            VmRecord::read_of(&spec.directory(), vm)?;
            write_handover(&spec.directory(), handover)?;
        }
        theirs.switches.end(vm)?;
        theirs.residences.leave(vm, generation)
    })
    .await??;
    hostd.vms.forget(vm);
    Ok(None)
}

/// Takes over a VM that another host has given up.
async fn arrive(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, handover: Option<HandoverId>) -> Outcome {
    let (vm, generation) = (job.vm, job.request.generation);
    if hostd.vms.get(vm).is_some() {
        off(hostd, vm)?;
    }
    let theirs = Arc::clone(hostd);
    let record = blocking(move || {
        let _lock = VmLock::take(&theirs.run, vm, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
        let directory = spec.directory();
        let mut record = VmRecord::read_of(&directory, vm)?;
        if record.generation >= generation {
            let message = format!("VM {} had start {} already", spec.name, record.generation);
            return Err(Problem::new("generation_used", message));
        }
        if !theirs.residences.has_arrived_at(vm, generation) {
            if let Some(handover) = handover
                && !has_handover(&directory, handover)?
            {
                let message = format!(
                    "{} is not what the former host of VM {} has given up, but a copy of it",
                    directory.display(),
                    spec.name
                );
                return Err(Problem::new("other_datastore", message)
                    .with_next_step("mount the same storage on both hosts"));
            }
            theirs.residences.arrive(vm, generation)?;
        }
        remove_handover(&directory)?;
        // The present paths of the datastores count.
        let path_of = |id| spec.places().find(|place| place.datastore == id).map(|place| place.path.clone());
        record.spec.place(spec.datastore.clone(), path_of);
        Ok::<_, Problem>(record)
    })
    .await??;
    let kept = Kept::from(&record);
    hostd.vms.set_off(record.spec, record.generation, None, kept);
    Ok(None)
}

async fn start(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, how: StartOptions) -> Outcome {
    let (vm, generation) = (job.vm, job.request.generation);
    if spec.holds_volume {
        let message = format!("{} is no VM: it holds a volume that no VM has", spec.name);
        return Err(Problem::new("bad_spec", message).into());
    }
    if let Some(now) = hostd.vms.get(vm)
        && !is_off(&now)
    {
        if now.generation != generation {
            let message = format!("the VM runs already, as its start {}", now.generation);
            return Err(Problem::new("already_running", message).into());
        }
        return started(hostd, job, START_WITHIN).await;
    }
    let directory = spec.directory();
    let record = blocking(move || VmRecord::read_of(&directory, vm)).await?.map_err(Problem::from)?;
    if generation <= record.generation {
        let message =
            format!("start {generation} of this VM is over; the last one was {}", record.generation);
        return Err(Problem::new("generation_used", message).into());
    }
    record.snapshots.check_whole(&spec.name)?;
    let memory_s = record.suspended.map_or(0, |memory| memory.bytes / MEMORY_BYTES_A_SECOND);
    fits(hostd, &spec).await?;
    let rule = hostd.config().crypto_safe;
    crypto_safe::may_start(&Root::machine(), rule, &spec)?;
    let (theirs, grants) = (Arc::clone(hostd), job.request.grants.clone());
    blocking(move || link::start(&theirs, &spec, generation, grants, how, None)).await??;
    started(hostd, job, START_WITHIN + Duration::from_secs(memory_s)).await
}

/// Waits until the guest runs, or the reason that it does not is known.
pub async fn started(hostd: &Arc<Hostd>, job: &Arc<Job>, within: Duration) -> Outcome {
    let mut watch = hostd.vms.watch(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    let decided =
        wait_for(&mut watch, |now| !matches!(now.power, PowerState::Starting | PowerState::Stopping));
    let now = tokio::select! {
        decided = tokio::time::timeout(within, decided) => match decided {
            Ok(Some(now)) => now,
            Ok(None) => return Err(no_such_vm(job.vm).into()),
            Err(_) => {
                let message = format!("the VM has not started within {within:?}; it may still");
                return Err(Problem::new("start_timeout", message).into());
            }
        },
        () = job.cancelled() => {
            cut_off(hostd, job.vm).await?;
            return Err(Failure::Cancelled);
        }
    };
    match now.power {
        PowerState::Stopped | PowerState::Crashed | PowerState::Suspended | PowerState::Stopping => {
            let reason = now.reason.map_or_else(|| "it ended at once".to_owned(), |reason| reason.message);
            Err(Problem::new("start_failed", format!("the VM did not start: {reason}")).into())
        }
        PowerState::KeyUnavailable => {
            Ok(now.waiting_for.first().map(|waiting| OperationOutcome::KeyUnavailable(waiting.key.clone())))
        }
        PowerState::Starting | PowerState::Running | PowerState::Paused => Ok(None),
    }
}

async fn stop(hostd: &Arc<Hostd>, job: &Arc<Job>, force: bool, timeout_s: u32) -> Outcome {
    let Some(now) = hostd.vms.get(job.vm) else { return Err(no_such_vm(job.vm).into()) };
    if is_off(&now) {
        return Ok(None);
    }
    let link = link_to(hostd, job.vm, START_WITHIN).await?;
    link.ask(RequestKind::Stop { force, timeout_s }, &[]).await?;
    let within = OFF_WITHIN + Duration::from_secs(if force { 0 } else { timeout_s.into() });
    tokio::select! {
        off = await_off(hostd, job.vm, within) => off.map(|()| None).map_err(Failure::from),
        () = job.cancelled() => Err(Failure::Cancelled),
    }
}

/// The facts about the volumes of a changed VM, with what its supervisor knows of them.
pub(super) async fn facts_after(
    mut changed: VmSpec,
    known: &[KnownVolume],
) -> Result<Vec<VolumeFacts>, Failure> {
    changed.learn(known)?;
    Ok(blocking(move || facts(&changed)).await??)
}

/// Completes when every volume is under the next key.
async fn rekey(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec) -> Outcome {
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    let volumes = match (is_off(&now), spec.moving()) {
        (true, _) => do_job(hostd, job, Task::Rekey(Box::new(spec.clone())), Vec::new()).await?,
        (false, Some((to, _))) => {
            meant_for(job, &now)?;
            let wanted = RequestKind::Rekey { to: to.clone(), known: spec.known_volumes() };
            facts_after(spec.clone(), &ask_running(hostd, job, wanted).await?).await?
        }
        (false, None) => return Err(Problem::new("bad_spec", "no disk is moving to another key").into()),
    };
    learn(hostd, &spec).await?;
    Ok(Some(OperationOutcome::Volumes(volumes)))
}

/// Completes when every volume is under the next key, and rewritten under new data keys.
async fn reencrypt(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec) -> Outcome {
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    if now.power == PowerState::Suspended {
        let message = format!("VM {} is suspended, and its memory fits its data as it is", now.name);
        return Err(Problem::new("suspended", message).with_next_step("start it").into());
    }
    let Some((to, _)) = spec.moving() else {
        return Err(Problem::new("bad_spec", "no disk is moving to another key").into());
    };
    let volumes = match is_off(&now) {
        true => do_job(hostd, job, Task::Reencrypt(Box::new(spec.clone())), Vec::new()).await?,
        false => {
            meant_for(job, &now)?;
            let wanted = RequestKind::Reencrypt { to: to.clone(), known: spec.known_volumes() };
            facts_after(spec.clone(), &reencrypt_running(hostd, job, wanted).await?).await?
        }
    };
    learn(hostd, &spec).await?;
    Ok(Some(OperationOutcome::Volumes(volumes)))
}

/// Completes when the supervisor has rewritten the volumes, or has left them as they are after a
/// cancellation, which may come too late.
async fn reencrypt_running(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    wanted: RequestKind,
) -> Result<Vec<KnownVolume>, Failure> {
    let mut moved = std::pin::pin!(ask_running(hostd, job, wanted));
    tokio::select! {
        moved = &mut moved => Ok(moved?),
        () = job.cancelled() => {
            link_to(hostd, job.vm, AWAY_MAX).await?.ask(RequestKind::AbandonReencryption, &[]).await?;
            moved.await.map_err(|_| Failure::Cancelled)
        }
    }
}

/// Completes when a half-clear disk is encrypted or decrypted as a whole. If the VM ends meanwhile,
/// that is continued as the job of a VM that is off.
async fn seal_disk(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, change: DiskChange) -> Outcome {
    let changed = change.applied_to(&spec)?;
    hostd.check_spec(job.vm, &changed)?;
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    let asked = match is_off(&now) {
        true => None,
        false => {
            meant_for(job, &now)?;
            let disk = change.disk().and_then(|name| spec.disk(name));
            let disk =
                disk.ok_or_else(|| Problem::new("no_such_disk", format!("no disk {}", change.what())))?;
            let wanted = RequestKind::SealDisk { disk: Box::new(disk.clone()), known: spec.known_volumes() };
            match reencrypt_running(hostd, job, wanted).await {
                Err(Failure::Problem(problem))
                    if matches!(problem.code.as_str(), "not_running" | "stopping") =>
                {
                    await_off(hostd, job.vm, OFF_WITHIN).await?;
                    None
                }
                asked => Some(asked),
            }
        }
    };
    let volumes = match asked {
        None => {
            do_job(hostd, job, Task::ChangeDisk { spec: Box::new(spec.clone()), change }, Vec::new()).await
        }
        Some(Ok(known)) => facts_after(changed, &known).await,
        Some(Err(failure)) => Err(failure),
    };
    // A partial change is recorded in the VM's directory.
    learn(hostd, &spec).await?;
    Ok(Some(OperationOutcome::Volumes(volumes?)))
}

/// Completes when the disk is changed, also for the guest if the VM runs.
async fn change_disk(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, change: DiskChange) -> Outcome {
    let changed = change.applied_to(&spec)?;
    hostd.check_spec(job.vm, &changed)?;
    hostd.check_boot_files(&changed)?;
    let takes_no_more = matches!(change, DiskChange::Bind { .. } | DiskChange::Unbind { .. });
    if !takes_no_more {
        let (config, wanted) = (hostd.config(), changed.clone());
        blocking(move || fits::check_datastores(&config, &wanted)).await??;
    }
    if let DiskChange::Bind { disk, from } = &change {
        let to = spec.volume_path(&disk.name);
        move_held(hostd, &spec, from, from.path(&spec.datastore), to).await?;
    }
    let wanted = RequestKind::ChangeDisk { change: change.clone(), known: spec.known_volumes() };
    let task = Task::ChangeDisk { spec: Box::new(spec.clone()), change: change.clone() };
    let outcome = change_volumes(hostd, job, &spec, changed, wanted, task).await;
    match (&outcome, &change) {
        (Ok(_), DiskChange::Unbind { disk, to: held }) => give_back(hostd, &spec, disk, held).await?,
        // What the VM does not have is its holder's again, so that nothing has to be undone.
        (Err(_), DiskChange::Bind { disk, from: held }) if !has_disk(&spec, &disk.name).await? => {
            give_back(hostd, &spec, &disk.name, held).await?;
        }
        _ => {}
    }
    outcome
}

/// Completes when the guest has the cards that are new and has released those that are gone.
async fn set_nics(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, open: &[MacAddress]) -> Outcome {
    let Some(now) = running(hostd, job, &spec).await? else { return reconfigure(hostd, job, spec).await };
    let granted = networks::open(hostd, &now, &spec, open).await?;
    let (nics, boot_order) = (spec.nics.clone(), spec.boot_order.clone());
    let wanted = RequestKind::SetNics { nics, boot_order, networks: granted.networks };
    plug(hostd, job, spec, wanted, &granted.files).await
}

/// Completes when the machine has these processors and this memory.
async fn set_sizes(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec) -> Outcome {
    if running(hostd, job, &spec).await?.is_none() {
        return reconfigure(hostd, job, spec).await;
    }
    let wanted = RequestKind::SetSizes { cpus: spec.cpus, memory_bytes: spec.memory_bytes };
    plug(hostd, job, spec, wanted, &[]).await
}

/// The VM that gets this configuration, if it runs; `None` if it is off.
///
/// # Errors
/// If the host cannot have it, or it is another start of the VM than the job was meant for.
async fn running(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: &VmSpec) -> Result<Option<ObservedVm>, Failure> {
    fits(hostd, spec).await?;
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    meant_for(job, &now)?;
    Ok(Some(now).filter(|now| !is_off(now)))
}

/// Has a running VM's supervisor change the machine. If the VM is off by then, its configuration is
/// changed for the next start.
async fn plug(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    spec: VmSpec,
    wanted: RequestKind,
    files: &[OwnedFd],
) -> Outcome {
    let asked = ask_running_with(hostd, job, wanted, files).await;
    if asked.as_ref().is_err_and(|problem| problem.code == "not_running") {
        return reconfigure(hostd, job, spec).await;
    }
    // A partial change is recorded in the VM's directory.
    learn(hostd, &spec).await?;
    asked?;
    Ok(Some(OperationOutcome::Volumes(Vec::new())))
}

/// Whether a VM's directory says that it has this disk.
async fn has_disk(spec: &VmSpec, disk: &DiskName) -> Result<bool, Problem> {
    let (directory, vm, disk) = (spec.directory(), spec.id, disk.clone());
    let record = blocking(move || VmRecord::read_of(&directory, vm)).await?.map_err(Problem::from)?;
    Ok(record.spec.disk(&disk).is_some())
}

/// Moves a disk's volume from a VM's directory to its holder's.
async fn give_back(
    hostd: &Arc<Hostd>,
    spec: &VmSpec,
    disk: &DiskName,
    held: &HeldVolume,
) -> Result<(), Problem> {
    move_held(hostd, spec, held, spec.volume_path(disk), held.path(&spec.datastore)).await
}

/// Moves a volume between the directories of its holder and of a VM. Neither it nor anything else
/// of the holder is in use.
async fn move_held(
    hostd: &Arc<Hostd>,
    spec: &VmSpec,
    held: &HeldVolume,
    from: PathBuf,
    to: PathBuf,
) -> Result<(), Problem> {
    let (holder, run) = (held.holder, hostd.run.clone());
    let found = off(hostd, holder)?;
    if found.directory != spec.datastore.join(held.name.as_str()) {
        let message = format!("the holder of volume {} is in {}", held.name, found.directory.display());
        return Err(Problem::new("other_directory", message).with_next_step("look through the datastore"));
    }
    blocking(move || {
        let _lock = VmLock::take(&run, holder, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
        move_volume(&from, &to).map_err(Problem::from)
    })
    .await?
}

/// Completes when every volume of the VM has the change.
async fn change_snapshots(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    spec: VmSpec,
    change: SnapshotChange,
) -> Outcome {
    let wanted = RequestKind::ChangeSnapshots { change: change.clone(), known: spec.known_volumes() };
    let task = Task::ChangeSnapshots { spec: Box::new(spec.clone()), change };
    change_volumes(hostd, job, &spec, spec.clone(), wanted, task).await
}

/// Has the supervisor of a running VM change its volumes, or a job those of a VM that is off.
/// `changed` is the VM's configuration after the change.
async fn change_volumes(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    spec: &VmSpec,
    changed: VmSpec,
    wanted: RequestKind,
    task: Task,
) -> Outcome {
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    let mut abandoned = false;
    let asked = match is_off(&now) {
        true => None,
        false => {
            meant_for(job, &now)?;
            let may_be_abandoned =
                matches!(&wanted, RequestKind::ChangeSnapshots { change, .. } if change.freezes_guest());
            let mut asked = std::pin::pin!(ask_running(hostd, job, wanted));
            let asked = tokio::select! {
                asked = &mut asked => asked,
                () = job.cancelled(), if may_be_abandoned => {
                    let abandon = RequestKind::AbandonQuiescedSnapshot;
                    link_to(hostd, job.vm, AWAY_MAX).await?.ask(abandon, &[]).await?;
                    // The cancellation may have come too late.
                    abandoned = true;
                    asked.await
                }
            };
            // The VM may be off by now.
            (!asked.as_ref().is_err_and(|problem| problem.code == "not_running")).then_some(asked)
        }
    };
    let volumes = match asked {
        None => do_job(hostd, job, task, Vec::new()).await,
        Some(Ok(known)) => facts_after(changed, &known).await,
        Some(Err(_)) if abandoned => Err(Failure::Cancelled),
        Some(Err(problem)) => Err(problem.into()),
    };
    // A partial change is recorded in the VM's directory.
    learn(hostd, spec).await?;
    Ok(Some(OperationOutcome::Volumes(volumes?)))
}

/// Completes when the memory is sealed and none of the VM's processes runs.
async fn suspend(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Outcome {
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    if now.power == PowerState::Suspended {
        return Ok(None);
    }
    meant_for(job, &now)?;
    let mut sealed = std::pin::pin!(ask_running(hostd, job, RequestKind::Suspend));
    let sealed = tokio::select! {
        sealed = &mut sealed => sealed.map(drop),
        () = job.cancelled() => {
            link_to(hostd, job.vm, AWAY_MAX).await?.ask(RequestKind::AbandonSuspension, &[]).await?;
            // The cancellation may have come too late.
            if sealed.await.is_err() {
                return Err(Failure::Cancelled);
            }
            Ok(())
        }
    };
    sealed?;
    await_off(hostd, job.vm, OFF_WITHIN).await?;
    Ok(None)
}

/// Completes when the whole dump is sealed and the guest continues.
async fn dump(hostd: &Arc<Hostd>, job: &Arc<Job>, label: Option<String>) -> Outcome {
    let made = |hostd: &Hostd| -> Option<Dump> {
        let dumps = hostd.vms.get(job.vm)?.dumps?;
        dumps.into_iter().find(|dump| dump.operation == job.request.operation)
    };
    if let Some(dump) = made(hostd) {
        return Ok(Some(OperationOutcome::Dump(dump)));
    }
    if label
        .as_ref()
        .is_some_and(|label| label.len() > DUMP_LABEL_BYTES_MAX || label.chars().any(char::is_control))
    {
        let message =
            format!("a dump's label has at most {DUMP_LABEL_BYTES_MAX} bytes, and no control characters");
        return Err(Problem::new("bad_request", message).into());
    }
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    meant_for(job, &now)?;
    let wanted = RequestKind::Dump { operation: job.request.operation, label };
    let mut sealed = std::pin::pin!(ask_running(hostd, job, wanted));
    let sealed = tokio::select! {
        sealed = &mut sealed => sealed.map(drop),
        () = job.cancelled() => {
            link_to(hostd, job.vm, AWAY_MAX).await?.ask(RequestKind::AbandonDump, &[]).await?;
            // The cancellation may have come too late.
            if sealed.await.is_err() {
                return Err(Failure::Cancelled);
            }
            Ok(())
        }
    };
    sealed?;
    // The supervisor reports the dump before it answers.
    Ok(made(hostd).map(OperationOutcome::Dump))
}

async fn delete_dump(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec, number: u32) -> Outcome {
    let (vm, now) = (job.vm, hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?);
    if !is_off(&now) {
        link_to(hostd, vm, AWAY_MAX).await?.ask(RequestKind::DeleteDump { number }, &[]).await?;
        return Ok(None);
    }
    let run = hostd.run.clone();
    let left = blocking(move || {
        let _lock = VmLock::take(&run, vm, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
        dumps::remove_unfinished(&spec)?;
        dumps::delete(&spec, number)
    })
    .await??;
    hostd.vms.set_dumps(vm, left);
    Ok(None)
}

/// Sends a request to the supervisor of a VM that is on, with the job's grants first. A supervisor
/// that has just taken over may not have found QEMU yet; the request is then repeated. Returns the
/// VM's volumes, for requests that change volumes.
pub async fn ask_running(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    kind: RequestKind,
) -> Result<Vec<KnownVolume>, Problem> {
    ask_running_with(hostd, job, kind, &[]).await
}

/// As [`ask_running`], with files beside the request.
pub async fn ask_running_with(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    kind: RequestKind,
    files: &[OwnedFd],
) -> Result<Vec<KnownVolume>, Problem> {
    let until = Instant::now() + AWAY_MAX;
    loop {
        if !job.request.grants.is_empty() {
            give_grants(hostd, job).await?;
        }
        let asked = link_to(hostd, job.vm, AWAY_MAX).await?.ask_of_volumes(kind.clone(), files).await;
        match asked {
            Err(problem) if problem.code == "not_ready" && Instant::now() < until => {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            asked => return asked,
        }
    }
}

/// Sends a job's grants to the VM's supervisor, and waits until it has its keys: a supervisor that
/// takes over has QEMU only then. If it dies, its successor gets the grants as well.
async fn give_grants(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Result<Option<ObservedVm>, Problem> {
    let (mut given, until) = (0, Instant::now() + START_WITHIN);
    loop {
        let link = link_to(hostd, job.vm, AWAY_MAX).await?;
        match link.ask(RequestKind::Grants(job.request.grants.clone()), &[]).await {
            Err(problem) if problem.code != "supervisor_away" => return Err(problem),
            _ => given += 1,
        }
        loop {
            if let Ok(now) = tokio::time::timeout(GRANTS_WORK_WITHIN, settled(hostd, job.vm)).await {
                return Ok(now);
            }
            let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
            if now.power == PowerState::KeyUnavailable || Instant::now() >= until {
                break;
            }
        }
        if given >= GRANTS_GIVEN_MAX || Instant::now() >= until {
            return Err(still_waits(hostd, job.vm));
        }
    }
}

/// Why a VM has no keys although it has got grants.
fn still_waits(hostd: &Hostd, vm: VmId) -> Problem {
    let waiting = hostd.vms.get(vm).and_then(|now| now.waiting_for.into_iter().next());
    let message = match waiting {
        Some(WaitingFor { key, reason, .. }) => format!("the VM waits for {key}: {reason}"),
        None => "the VM's supervisor waits for its keys, and does not say why".to_owned(),
    };
    Problem::new("key_unavailable", message).with_next_step("try it again when the key is there")
}

/// Brings grants to a VM that waits for a key. What comes of it is in the VM's state.
async fn supply_grants(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Outcome {
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    meant_for(job, &now)?;
    let link = link_to(hostd, job.vm, AWAY_MAX).await?;
    link.ask(RequestKind::Grants(job.request.grants.clone()), &[]).await?;
    Ok(None)
}

/// Waits until the VM is on or off, and not in between. Returns its state.
pub async fn settled(hostd: &Arc<Hostd>, vm: VmId) -> Option<ObservedVm> {
    settled_as(hostd, vm, &[PowerState::Running, PowerState::Paused]).await
}

/// Waits until a VM is off, or in one of these states.
pub async fn settled_as(hostd: &Arc<Hostd>, vm: VmId, states: &[PowerState]) -> Option<ObservedVm> {
    let mut watch = hostd.vms.watch(vm)?;
    let is_settled = |now: &ObservedVm| is_off(now) || states.contains(&now.power);
    tokio::time::timeout(START_WITHIN, wait_for(&mut watch, is_settled)).await.ok()?
}

/// Waits for a limited time while the VM's supervisor is being replaced, or has not found QEMU yet.
pub async fn await_supervisor(hostd: &Arc<Hostd>, vm: VmId) {
    let found = async {
        if link_to(hostd, vm, AWAY_MAX).await.is_ok() {
            settled(hostd, vm).await;
        }
    };
    // A request that comes too early after that is refused.
    let _ = tokio::time::timeout(AWAY_MAX, found).await;
}

/// Returns the VM's supervisor. Waits for one that takes over, or that a new hostd has not found
/// yet.
pub async fn link_to(hostd: &Arc<Hostd>, vm: VmId, within: Duration) -> Result<Arc<link::Link>, Problem> {
    let mut watch = hostd.vms.watch(vm).ok_or_else(|| no_such_vm(vm))?;
    let deadline = tokio::time::Instant::now() + within;
    loop {
        match hostd.vms.link(vm) {
            Err(problem) if problem.code == "supervisor_away" => {}
            found => return found,
        }
        // A supervisor reports the VM's state as soon as it is found.
        if !matches!(tokio::time::timeout_at(deadline, watch.changed()).await, Ok(Ok(()))) {
            return hostd.vms.link(vm);
        }
    }
}

pub async fn await_off(hostd: &Arc<Hostd>, vm: VmId, within: Duration) -> Result<(), Problem> {
    let Some(mut watch) = hostd.vms.watch(vm) else { return Ok(()) };
    match tokio::time::timeout(within, wait_for(&mut watch, is_off)).await {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(Problem::new("stop_timeout", format!("the VM is not off after {within:?}; it may still end")))
        }
    }
}

/// Waits until the VM's state satisfies `so`, and returns the state; `None` if the VM is gone.
async fn wait_for(
    watch: &mut watch::Receiver<ObservedVm>,
    so: impl FnMut(&ObservedVm) -> bool,
) -> Option<ObservedVm> {
    watch.wait_for(so).await.ok().map(|now| now.clone())
}

async fn cut_off(hostd: &Arc<Hostd>, vm: VmId) -> Result<(), Problem> {
    match hostd.vms.link(vm) {
        Ok(link) => link.ask(RequestKind::Stop { force: true, timeout_s: 0 }, &[]).await?,
        Err(problem) if problem.code == "not_running" => return Ok(()),
        Err(problem) => return Err(problem),
    }
    await_off(hostd, vm, OFF_WITHIN).await
}

async fn ask(hostd: &Arc<Hostd>, job: &Arc<Job>, kind: RequestKind) -> Outcome {
    let now = hostd.vms.get(job.vm).ok_or_else(|| no_such_vm(job.vm))?;
    meant_for(job, &now)?;
    ask_running(hostd, job, kind).await?;
    Ok(None)
}

/// Checks that the VM runs as the generation that the request names.
pub fn meant_for(job: &Job, now: &ObservedVm) -> Result<(), Problem> {
    if now.generation == job.request.generation || is_off(now) {
        return Ok(());
    }
    let message = format!(
        "it was meant for start {} of the VM, and this is {}",
        job.request.generation, now.generation
    );
    Err(Problem::new("other_generation", message))
}

pub fn off(hostd: &Hostd, vm: VmId) -> Result<ObservedVm, Problem> {
    let now = hostd.vms.get(vm).ok_or_else(|| no_such_vm(vm))?;
    if is_off(&now) {
        return Ok(now);
    }
    Err(Problem::new("running", format!("VM {} is not off", now.name)).with_next_step("stop it first"))
}

pub fn is_off(now: &ObservedVm) -> bool {
    now.power.is_off()
}

/// Has a separate supervisor do a job. The supervisor ends with the operation.
pub async fn do_job(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    task: Task,
    files: Vec<OwnedFd>,
) -> Result<Vec<VolumeFacts>, Failure> {
    // Others leave nothing behind, or what the next one takes up.
    let winds_up = match &task {
        Task::Reencrypt(_) => Some(WOUND_UP_WITHIN),
        Task::Import { .. } => Some(IMPORT_WOUND_UP_WITHIN),
        _ => None,
    };
    let filled_by_client = match &task {
        Task::Import { disk, brought: Brought::Client, .. } => Some(disk.clone()),
        _ => None,
    };
    let birth = hostd.birth(hostd.run.path(), job.request.grants.clone(), task);
    let (hostd, job) = (Arc::clone(hostd), Arc::clone(job));
    blocking(move || {
        let (wire, mut child) = hostd.supervisor.start(&birth, &files)?;
        drop(birth);
        let wire = Arc::new(wire);
        let _listed = filled_by_client.map(|disk| hostd.image_jobs.list(job.vm, disk, Arc::clone(&wire)));
        let mut told = hear_job(&hostd, &job, &wire, &mut child);
        if let (Some(within), Err(Failure::Cancelled)) = (winds_up, &told) {
            told = wind_up(&wire, within);
        }
        if told.is_err() {
            // After a failure it has already ended; after a cancellation it must be killed.
            let _ = child.kill();
        }
        let _ = child.wait();
        told
    })
    .await?
}

/// Returns the objections to a configuration as the one that the VM's supervisor last attested. A
/// separate process holds the keys.
pub async fn judge(hostd: &Arc<Hostd>, vm: VmId, request: JudgeRequest) -> Result<Judgement, Problem> {
    hostd.check_spec(vm, &request.spec)?;
    hostd.vms.get(vm).ok_or_else(|| no_such_vm(vm))?;
    let hostd = Arc::clone(hostd);
    let (task, grants) = (Task::Judge(request.spec), request.grants);
    match blocking(move || told_by(&hostd, task, grants, &[], Some(JUDGED_WITHIN))).await?? {
        Report::Judged(doubts) => Ok(Judgement { doubts }),
        _ => Err(Problem::new("internal", "its configuration was not judged")),
    }
}

/// Has a separate supervisor send data of a VM that is off to a client. Without `within`, the
/// supervisor's own timeouts apply.
pub fn give_while_off(
    hostd: &Hostd,
    vm: VmId,
    task: Task,
    grants: Vec<Grant>,
    files: &[OwnedFd],
    within: Option<Duration>,
) -> Result<(), Problem> {
    off(hostd, vm)?;
    told_by(hostd, task, grants, files, within).map(drop)
}

/// Returns the final report of a separate supervisor for a task.
fn told_by(
    hostd: &Hostd,
    task: Task,
    grants: Vec<Grant>,
    files: &[OwnedFd],
    within: Option<Duration>,
) -> Result<Report, Problem> {
    let birth = hostd.birth(hostd.run.path(), grants, task);
    let (wire, mut child) = hostd.supervisor.start(&birth, files)?;
    let told = match within {
        Some(within) => wire.receive_within::<Report>(within),
        None => wire.receive::<Report>(),
    };
    if told.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    match told {
        Ok((Report::Failed(problem), _)) => Err(problem),
        Ok((report, _)) => Ok(report),
        Err(error) => Err(Problem::new("job_died", format!("the process that reads it ended: {error}"))),
    }
}

fn hear_job(
    hostd: &Hostd,
    job: &Arc<Job>,
    wire: &Wire,
    child: &mut Child,
) -> Result<Vec<VolumeFacts>, Failure> {
    let begun = Instant::now();
    loop {
        match wire.receive_within::<Report>(LOOK_EVERY) {
            Ok((Report::Done(volumes), _)) => return Ok(volumes),
            Ok((Report::Failed(problem), _)) => return Err(problem.into()),
            Ok((Report::Progress(progress), _)) => hostd.queue.progress(job, progress),
            Ok((Report::ClientIsAway, _)) => hostd.queue.client_is_away(job),
            Ok(_) => {}
            Err(WireError::Silent(_)) if job.is_cancelled() => return Err(Failure::Cancelled),
            Err(WireError::Silent(_)) => {}
            Err(error) => {
                let how = child.wait().map_or_else(|error| error.to_string(), |how| how.to_string());
                let message =
                    format!("the process that did it ended after {:?} ({how}): {error}", begun.elapsed());
                return Err(Problem::new("job_died", message).with_next_step("try it again").into());
            }
        }
        if job.is_cancelled() {
            return Err(Failure::Cancelled);
        }
    }
}

/// Has a cancelled job leave a VM that can be started. A job that was about to be done is done.
fn wind_up(wire: &Wire, within: Duration) -> Result<Vec<VolumeFacts>, Failure> {
    let deadline = Instant::now() + within;
    if wire.send(&JobRequest::WindUp {}, &[]).is_err() {
        return Err(Failure::Cancelled);
    }
    loop {
        match wire.receive_within::<Report>(deadline.saturating_duration_since(Instant::now())) {
            Ok((Report::Done(volumes), _)) => return Ok(volumes),
            Ok((Report::Progress(_) | Report::ClientIsAway, _)) => {}
            Ok(_) | Err(_) => return Err(Failure::Cancelled),
        }
    }
}

/// Runs `work`, which may block, on a thread for blocking work.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    spawn_blocking(work).await.map_err(|error| Problem::new("internal", error.to_string()))
}

impl Hostd {
    /// Checks that the configuration belongs to this VM: it is on a datastore of this host, and in
    /// the VM's present place if the VM exists.
    pub(super) fn check_spec(&self, vm: VmId, spec: &VmSpec) -> Result<(), Problem> {
        spec.check().map_err(|error| Problem::new("bad_spec", error.to_string()))?;
        if spec.id != vm {
            return Err(Problem::new(
                "bad_spec",
                format!("the configuration is of VM {}, not of VM {vm}", spec.id),
            ));
        }
        let config = self.config();
        let missing = |path: &Path| {
            let message = format!("this host has no datastore {}", path.display());
            Err(Problem::new("no_such_datastore", message).with_next_step("add it to the host"))
        };
        if config.datastore(&spec.datastore).is_none() {
            return missing(&spec.datastore);
        }
        for place in spec.places() {
            match config.datastore(&place.path) {
                Some(used) if used.id == place.datastore => {}
                Some(_) | None => return missing(&place.path),
            }
        }
        match self.vms.get(vm).filter(|found| found.directory != spec.directory()) {
            Some(found) => {
                let (found, meant) = (found.directory, spec.directory());
                let message = format!(
                    "VM {vm} is in {}, and not in {}; a VM keeps its name and its datastore",
                    found.display(),
                    meant.display()
                );
                Err(Problem::new("other_directory", message))
            }
            None => Ok(()),
        }
    }

    /// Checks that the VM's kernel and images may be read here, before it is made, changed or
    /// started. Operations that only read its disks do not need them.
    fn check_boot_files(&self, spec: &VmSpec) -> Result<(), Problem> {
        boot_files::check(spec.boot_files(), &self.config().boot_directories)
    }
}
