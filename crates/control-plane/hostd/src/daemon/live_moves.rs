//! A VM moves to another host, or comes from one, while it runs.
//!
//! ```text
//! source   its memory passes > its guest stands still > it is leaving, durably > its volumes are closed > the rest passes
//! target   it is coming, durably > QEMU waits for its memory > its volumes are opened
//! both     where it goes on, durably > it goes on there
//! ```
//!
//! What is durable decides what hostd does by itself after a death ([`Residences`]): nothing of a
//! VM that is leaving goes on, and nothing of one that is coming runs.
//!
//! [`Residences`]: super::residence::Residences

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use strongroom_host::orders::{Incoming, RelayBirth, RelayEnd, RequestKind, Task};
use strongroom_host::protocol::{
    FetchingLive, MigrationSettings, Offer, OperationOutcome, PowerState, Problem, Receiving, Sending,
    StartOptions, VmGeneration, VmSpec, check_moves_live,
};
use strongroom_host::state_file::StateFile;
use strongroom_hypervisor::RunDirectory;
use strongroom_types::VmId;

use super::operations::{
    AWAY_MAX, OFF_WITHIN, Outcome, START_WITHIN, ask_running, await_off, blocking, do_job, facts_after, fits,
    is_off, link_to, off, settled_as, started,
};
use super::queue::{Failure, Job};
use super::vms::no_such_vm;
use super::{Hostd, another_host, link};
use crate::checks::{Root, crypto_safe};

/// What a VM that runs must find on another host.
pub async fn offer(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Outcome {
    let state = state_of(hostd, job.vm, job.request.generation).await?;
    check_moves_live(&state.spec)?;
    let Some(machine) = state.machine else {
        let message = format!("VM {} was started by an older program", state.spec.name);
        let next = "restart it once, and move it then; or stop it, and move it";
        return Err(Problem::new("supervisor_too_old", message).with_next_step(next).into());
    };
    let offer = Offer { machine, paused: state.paused_by_request, spec: Box::new(state.spec) };
    Ok(Some(OperationOutcome::Offer(Box::new(offer))))
}

/// The state of a VM that runs in this generation.
async fn state_of(hostd: &Arc<Hostd>, vm: VmId, running: VmGeneration) -> Result<StateFile, Problem> {
    let now = hostd.vms.get(vm).ok_or_else(|| no_such_vm(vm))?;
    if !matches!(now.power, PowerState::Running | PowerState::Paused) || now.generation != running {
        let message = format!("VM {} does not run as its start {running}", now.name);
        return Err(Problem::new("not_running", message));
    }
    let run = hostd.run.vm(vm);
    let state = blocking(move || StateFile::read(&run)).await?.map_err(Problem::system)?;
    state.ok_or_else(|| Problem::new("not_running", format!("VM {} does not run", now.name)))
}

/// Fetches the volumes of a VM that comes, but what its guest writes last.
pub async fn fetch_live(hostd: &Arc<Hostd>, job: &Arc<Job>, fetching: FetchingLive) -> Outcome {
    let (vm, attempt) = (job.vm, job.request.generation);
    let FetchingLive { offer, settings, handover, from } = fetching;
    if !is_awaited(hostd, vm, attempt)? {
        may_come(hostd, &offer.spec).await?;
        let (theirs, wanted) = (Arc::clone(hostd), offer.spec.clone());
        blocking(move || another_host::remove_other_attempt(&theirs, &wanted, handover)).await??;
        do_job(hostd, job, Task::ExpectVolumes { spec: offer.spec.clone(), handover }, Vec::new()).await?;
        let theirs = Arc::clone(hostd);
        blocking(move || theirs.residences.begin_coming(vm, attempt)).await??;
        await_memory(hostd, job, offer, settings, true).await?;
    }
    let socket = [another_host::connect(hostd.port.as_ref(), &from).await?];
    let link = link_to(hostd, vm, AWAY_MAX).await?;
    tokio::select! {
        fetched = link.ask(RequestKind::FetchVolumes, &socket) => fetched?,
        // What goes on ends with the VM's supervisor, when the attempt is settled.
        () = job.cancelled() => return Err(Failure::Cancelled),
    }
    has_started(hostd, job).await?;
    Ok(None)
}

/// Makes room for a VM that comes.
pub async fn receive(hostd: &Arc<Hostd>, job: &Arc<Job>, receiving: Receiving) -> Outcome {
    let (vm, attempt) = (job.vm, job.request.generation);
    let Receiving { offer, settings, permit } = receiving;
    let is_encrypted = offer.spec.is_encrypted();
    if !is_awaited(hostd, vm, attempt)? {
        may_come(hostd, &offer.spec).await?;
        let theirs = Arc::clone(hostd);
        blocking(move || theirs.residences.begin_coming(vm, attempt)).await??;
        await_memory(hostd, job, offer, settings, false).await?;
    }
    has_started(hostd, job).await?;
    let theirs = Arc::clone(hostd);
    let listens = blocking(move || {
        // The relay's port is on the address at which the control plane reaches this host.
        let address = theirs.port.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |port| port.listen.ip());
        let listener = TcpListener::bind((address, 0)).map_err(Problem::system)?;
        let listens = listener.local_addr().map_err(Problem::system)?;
        let run = theirs.run.vm(vm);
        let state = StateFile::read(&run).map_err(Problem::system)?;
        let qemu_user = state.and_then(|state| state.qemu).map_or(0, |qemu| qemu.uid);
        let qemu = RunDirectory::open(run.path()).map_err(Problem::system)?.incoming();
        let end = RelayEnd::Target { qemu };
        let (home, generation) = (theirs.home.clone(), attempt);
        let birth = RelayBirth { home, vm, generation, is_encrypted, permit, settings, qemu_user, end };
        let relay = theirs.relay.start(&birth, OwnedFd::from(listener))?;
        theirs.relays.keep(vm, relay);
        Ok::<_, Problem>(listens)
    })
    .await??;
    Ok(Some(OperationOutcome::Listening(listens)))
}

/// Whether QEMU waits here for the memory of this attempt, or is about to.
fn is_awaited(hostd: &Hostd, vm: VmId, attempt: VmGeneration) -> Result<bool, Problem> {
    match hostd.vms.get(vm) {
        Some(now) if now.generation == attempt && !is_off(&now) => {
            Ok(hostd.residences.is_coming(vm, attempt))
        }
        Some(_) => off(hostd, vm).map(|_| false),
        None => Ok(false),
    }
}

async fn may_come(hostd: &Arc<Hostd>, spec: &VmSpec) -> Result<(), Problem> {
    check_moves_live(spec)?;
    fits(hostd, spec).await?;
    crypto_safe::may_start(&Root::machine(), hostd.config().crypto_safe, spec)
}

/// Starts a supervisor whose QEMU waits for the memory.
async fn await_memory(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    offer: Offer,
    settings: MigrationSettings,
    with_volumes: bool,
) -> Result<(), Problem> {
    let Offer { machine, paused, spec } = offer;
    let how = StartOptions { paused, ..StartOptions::default() };
    let incoming = Incoming { machine, settings, with_volumes };
    let (theirs, grants, attempt) = (Arc::clone(hostd), job.request.grants.clone(), job.request.generation);
    blocking(move || link::start(&theirs, &spec, attempt, grants, how, Some(incoming))).await?
}

/// Waits until QEMU waits for the memory.
async fn has_started(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Result<(), Failure> {
    match started(hostd, job, START_WITHIN).await? {
        Some(OperationOutcome::KeyUnavailable(key)) => {
            let message = format!("key {} of the VM is not to be had here", key.key);
            Err(Problem::new("key_unavailable", message).into())
        }
        Some(_) | None => Ok(()),
    }
}

/// Passes a VM's memory on. From the point at which the VM is leaving, the error is `leaving`.
pub async fn send(hostd: &Arc<Hostd>, job: &Arc<Job>, sending: Sending) -> Outcome {
    let (vm, attempt) = (job.vm, job.request.generation);
    let Sending { running, to, settings, permit, with_volumes } = sending;
    if hostd.residences.is_on_its_way(vm) {
        // A hostd that was killed does not know how far it is, and nothing goes on by itself.
        let message = "the VM is leaving already, in a sending that was interrupted";
        return Err(Problem::new("leaving", message).into());
    }
    hostd.residences.must_be_here(vm)?;
    let state = state_of(hostd, vm, running).await?;
    let (qemu_user, is_encrypted) = (state.qemu.map_or(0, |qemu| qemu.uid), state.spec.is_encrypted());
    let theirs = Arc::clone(hostd);
    let relay = blocking(move || {
        let socket = RunDirectory::open(theirs.run.vm(vm).path()).map_err(Problem::system)?.outgoing();
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(Problem::system)?;
        chown(&socket, Some(qemu_user), None).map_err(Problem::system)?;
        let (home, generation, end) = (theirs.home.clone(), running, RelayEnd::Source { to });
        let birth = RelayBirth { home, vm, generation, is_encrypted, permit, settings, qemu_user, end };
        theirs.relay.start(&birth, OwnedFd::from(listener))
    })
    .await??;
    pass(hostd, job, RequestKind::SendMemory { settings, with_volumes }).await?;
    // The guest stands still.
    let theirs = Arc::clone(hostd);
    let recorded = blocking(move || theirs.residences.begin_leaving(vm, attempt)).await.flatten();
    if let Err(problem) = recorded {
        link_to(hostd, vm, AWAY_MAX).await?.ask(RequestKind::AbandonMove, &[]).await?;
        return Err(problem.into());
    }
    let leaving = |problem: Problem| Problem { code: "leaving".to_owned(), ..problem };
    let link = link_to(hostd, vm, AWAY_MAX).await.map_err(leaving)?;
    link.ask(RequestKind::SwitchOver, &[]).await.map_err(leaving)?;
    blocking(move || relay.end()).await.flatten().map_err(leaving)?;
    Ok(None)
}

/// Passes the memory on until the guest stands still.
async fn pass(hostd: &Arc<Hostd>, job: &Arc<Job>, wanted: RequestKind) -> Result<(), Failure> {
    let mut passed = std::pin::pin!(ask_running(hostd, job, wanted));
    tokio::select! {
        passed = &mut passed => Ok(passed.map(drop)?),
        () = job.cancelled() => {
            link_to(hostd, job.vm, AWAY_MAX).await?.ask(RequestKind::AbandonMove, &[]).await?;
            match passed.await {
                // It stands still already, and the guest goes on.
                Ok(_) | Err(_) => Err(Failure::Cancelled),
            }
        }
    }
}

/// Opens the volumes of a VM that has come.
pub async fn take_up(hostd: &Arc<Hostd>, job: &Arc<Job>) -> Outcome {
    let (vm, attempt) = (job.vm, job.request.generation);
    if !hostd.residences.is_coming(vm, attempt) {
        let message = format!("VM {vm} is not coming to this host in attempt {attempt}");
        return Err(Problem::new("other_generation", message).into());
    }
    let known = link_to(hostd, vm, AWAY_MAX).await?.ask_of_volumes(RequestKind::TakeUp, &[]).await?;
    hostd.relays.end(vm);
    if known.is_empty() {
        return Ok(None);
    }
    let spec = hostd.vms.get(vm).and_then(|now| now.spec).ok_or_else(|| no_such_vm(vm))?;
    Ok(Some(OperationOutcome::Volumes(facts_after(*spec, &known).await?)))
}

/// Ends an attempt here.
pub async fn settle(hostd: &Arc<Hostd>, job: &Arc<Job>, here: bool) -> Outcome {
    let (vm, attempt) = (job.vm, job.request.generation);
    let theirs = Arc::clone(hostd);
    blocking(move || match here {
        true => theirs.residences.arrive(vm, attempt),
        false => theirs.switches.end(vm).and_then(|()| theirs.residences.leave(vm, attempt)),
    })
    .await??;
    hostd.relays.end(vm);
    let runs = hostd.vms.get(vm).is_some_and(|now| !is_off(&now));
    match (here, runs) {
        // Its guest has ended meanwhile, and the VM is off here.
        (true, false) => {
            let theirs = Arc::clone(hostd);
            let look = move || theirs.config().datastores.iter().for_each(|used| theirs.scan(&used.path));
            blocking(look).await?;
            Ok(None)
        }
        (true, true) => {
            let link = link_to(hostd, vm, AWAY_MAX).await;
            let asked = match link {
                Ok(link) => link.ask(RequestKind::GoOn, &[]).await,
                Err(problem) => Err(problem),
            };
            match asked {
                Err(problem) if !["supervisor_away", "not_running"].contains(&problem.code.as_str()) => {
                    return Err(problem.into());
                }
                Ok(()) | Err(_) => {}
            }
            // A supervisor that has taken over from one that died may wait for grants, which come
            // with another operation.
            let states = [PowerState::Running, PowerState::Paused, PowerState::KeyUnavailable];
            match settled_as(hostd, vm, &states).await {
                Some(_) => Ok(None),
                None => Err(Problem::new("start_timeout", "the VM does not go on yet; it may still").into()),
            }
        }
        (false, true) => {
            let stop = RequestKind::Stop { force: true, timeout_s: 0 };
            match hostd.vms.link(vm) {
                Ok(link) => drop(link.ask(stop, &[]).await),
                // Without a supervisor, what is left is ended as soon as it is found.
                Err(problem) => tracing::warn!("VM {vm}: {problem}"),
            }
            await_off(hostd, vm, OFF_WITHIN).await?;
            hostd.vms.forget(vm);
            Ok(None)
        }
        (false, false) => {
            hostd.vms.forget(vm);
            Ok(None)
        }
    }
}
