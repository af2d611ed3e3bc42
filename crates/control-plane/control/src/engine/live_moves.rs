//! A VM moves to another host while it runs.
//!
//! ```text
//! offer    source: what its machine must find elsewhere
//! fetch    target that does not reach the volumes: it has them but for what the guest writes last
//! receive  target: room for it, and a relay that listens
//! send     source: its memory passes, its guest stands still, its volumes are closed
//! take up  target: its volumes are opened -> inventory: it is of the target, with the generation
//!          that was prepared
//! settle   target: it goes on. keys: only that generation is valid. source: nothing of it stays
//! remove   source that had the volumes alone: they are deleted; the target's copy, if the VM stays
//! ```
//!
//! Whatever fails before the inventory has the VM at the target gives the attempt up, and the VM
//! goes on at the source: at once as long as the target was not let open the volumes, and otherwise
//! once nothing of it is left there. `strongroom_host::migration` has the decisions, which are
//! durable in the task's record before a host hears of them.
//!
//! Whether the memory is encrypted on its way is decided for each attempt, once the source has
//! offered it, and signed ([`VmKeys::permit_move`](crate::keys::VmKeys::permit_move)): both hosts
//! do what that says.

use std::net::SocketAddr;
use std::ops::ControlFlow;

use strongroom_api::limits::{
    MOVE_CHANNELS_MAX, MOVE_PAUSE_DEFAULT_MS, MOVE_PAUSE_MAX_MS, MOVE_PAUSE_MIN_MS,
};
use strongroom_api::vm::MoveToHost;
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::client::READY_FOR;
use strongroom_host::migration::{Decision, Heard};
use strongroom_host::protocol::{
    FetchingLive, HandoverId, MigrationSettings, Network, Offer, OperationKind, OperationOutcome, Receiving,
    RunningMachine, Sending, VmGeneration, VolumeFacts, check_moves_live,
};
use strongroom_types::{BANDWIDTH_MAX_BYTES, Bandwidth, DatastoreId, MigrationMode, Secrecy};
use uuid::Uuid;

use super::advance::{End, Next, Step, keep_volumes};
use super::boards::lacks_cipher;
use super::datastores::{moves_live_tpm, speaks_of_live_moves};
use super::disks::failures_max;
use super::operate::Operated;
use super::snapshots::told_problem;
use super::tickets::MustRecord;
use super::wishes::Caller;
use super::{Control, HostSeat, RETRY_PAUSE};
use crate::inventory::{Draft, Failure, Index};
use crate::keys::{KeyProblem, LiveMoveOf};
use crate::problems;
use crate::records::{DatastorePaths, LiveEnd, LiveMove, LiveStage, LiveVolumes, VmRecord, Work};

/// The most live moves of a host at once, from it and to it together: they share its network, and
/// the last part of each has to pass quickly. The rest wait.
const AT_ONCE_OF_A_HOST: usize = 4;

/// How the memory of a VM passes.
///
/// # Errors
/// If a limit is out of bounds.
pub(super) fn settings(wish: &MoveToHost) -> Result<MigrationSettings, Problem> {
    let pause_ms = wish.pause_ms.unwrap_or(MOVE_PAUSE_DEFAULT_MS);
    if !(MOVE_PAUSE_MIN_MS..=MOVE_PAUSE_MAX_MS).contains(&pause_ms) {
        return Err(problems::invalid(format!(
            "pause_ms: a guest stands still for {MOVE_PAUSE_MIN_MS} to {MOVE_PAUSE_MAX_MS} ms"
        )));
    }
    // Without a limit it is higher than any link's.
    let bytes_per_second = wish.bytes_per_second.map_or(BANDWIDTH_MAX_BYTES, Bandwidth::get);
    let more_channels = match wish.channels.unwrap_or(1) {
        // QEMU's first connection alone.
        1 => 0,
        more @ 2..=MOVE_CHANNELS_MAX => more,
        _ => {
            return Err(problems::invalid(format!(
                "channels: memory passes over 1 to {MOVE_CHANNELS_MAX} channels"
            )));
        }
    };
    Ok(MigrationSettings { more_channels, pause_ms: pause_ms.into(), bytes_per_second })
}

/// The limit of these settings, if there is one.
pub(super) fn limit_of(settings: MigrationSettings) -> Option<Bandwidth> {
    Bandwidth::new(settings.bytes_per_second).ok().filter(|limit| limit.get() < BANDWIDTH_MAX_BYTES)
}

/// How a VM's memory passes, whichever hosts it moves between.
pub(super) struct ModeOf {
    pub mode: MigrationMode,
    /// What its policy says, if that does not hold.
    pub overruled: Option<MigrationMode>,
}

/// What holds for a VM: what its policy says, unless it is encrypted, or was. Then its memory may
/// have what its disks had, and is encrypted whatever a policy says.
pub(super) fn mode_of(index: &Index, vm: &VmRecord) -> ModeOf {
    let rule = index.policy_of(vm).and_then(|policy| policy.rules.migration).unwrap_or_default();
    match rule {
        MigrationMode::Opportunistic | MigrationMode::Disabled if vm.is_or_was_encrypted() => {
            ModeOf { mode: MigrationMode::Required, overruled: Some(rule) }
        }
        MigrationMode::Required | MigrationMode::Opportunistic | MigrationMode::Disabled => {
            ModeOf { mode: rule, overruled: None }
        }
    }
}

/// How the memory of a VM passes in one attempt.
struct Passage {
    secrecy: Secrecy,
    /// Why, for people, unless it is encrypted as usual.
    told: Option<String>,
}

/// Checks that a VM that runs can move from one host to another.
///
/// # Errors
/// What keeps it where it is.
pub(super) fn may_move_live(vm: &VmRecord, former: &HostSeat, next: &HostSeat) -> Result<(), Problem> {
    speaks_of_live_moves(former)?;
    speaks_of_live_moves(next)?;
    let told = vm.told(&DatastorePaths::nowhere(vm)).ok_or_else(|| problems::key_never_made(vm))?;
    check_moves_live(&told).map_err(told_problem)?;
    if told.tpm {
        moves_live_tpm(vm, former)?;
        moves_live_tpm(vm, next)?;
    }
    Ok(())
}

/// What its guest loses by the move, for people.
pub(super) fn breaks(vm: &VmRecord) -> &'static str {
    let told = vm.told(&DatastorePaths::nowhere(vm));
    let is_user =
        |told: &strongroom_host::protocol::VmSpec| told.nics.iter().any(|nic| nic.network == Network::User);
    match told.as_ref().is_some_and(is_user) {
        true => "; the connections that its guest has over a network `user` end",
        false => "",
    }
}

impl LiveMove {
    /// An attempt that has not begun.
    pub(super) fn new(vm: &VmRecord, to: Uuid, attempt: u64, settings: MigrationSettings) -> Self {
        Self {
            from: vm.host,
            to,
            attempt,
            settings,
            volumes: None,
            decision: Decision::Prepared,
            stage: LiveStage::Offer,
            permit: None,
            in_plain_text: false,
            target_is_over: false,
            problem: None,
        }
    }

    /// The same, to a host that does not reach the volumes, which move to this datastore.
    pub(super) fn with_volumes(self, from: DatastoreId, to: DatastoreId) -> Self {
        let volumes = LiveVolumes { from, to, handover: HandoverId::random(), failures: 0 };
        Self { volumes: Some(volumes), ..self }
    }

    /// How the memory passes: beside the volumes, if they pass, too.
    fn settings_of_memory(&self) -> MigrationSettings {
        if self.volumes.is_some() { self.settings.beside_volumes() } else { self.settings }
    }

    fn next(&self, stage: LiveStage) -> Work {
        Work::Migrate(Box::new(Self { stage, ..self.clone() }))
    }

    fn decided(&self, heard: Heard) -> Self {
        Self { decision: self.decision.after(heard), ..self.clone() }
    }

    /// Whether one of the hosts has volumes of a VM that is at the other one.
    fn leaves_copy_at(&self, end: LiveEnd) -> bool {
        let without_vm = match self.decision {
            Decision::Committed => Some(LiveEnd::Source),
            Decision::Aborted => Some(LiveEnd::Target),
            Decision::Prepared | Decision::HandedOver | Decision::Aborting => None,
        };
        self.volumes.is_some() && without_vm == Some(end)
    }

    /// What comes after a host has done what is decided.
    fn after(&self, settled: LiveEnd) -> LiveStage {
        match (self.decision, settled) {
            (Decision::Committed, LiveEnd::Target) => LiveStage::Keys,
            (_, LiveEnd::Source) if !self.target_is_over => LiveStage::Settle { end: LiveEnd::Target },
            (_, LiveEnd::Source | LiveEnd::Target) => LiveStage::Keys,
        }
    }
}

impl Control {
    /// Advances a live move.
    pub(super) fn migrate(&self, step: &Step, live: &LiveMove) -> Result<Next, Failure> {
        let (Some(source), Some(target)) = (self.seat(live.from), self.seat(live.to)) else {
            self.note(&step.task, "a host of the move is not known any more".to_owned())?;
            return Ok(Next::Wait(RETRY_PAUSE));
        };
        match &live.stage {
            LiveStage::Offer => self.ask_for_offer(step, live, source, target),
            LiveStage::Fetch { machine, paused } => {
                self.fetch_with_live(step, live, source, target, machine, *paused)
            }
            LiveStage::Receive { machine, paused } => self.make_room(step, live, target, machine, *paused),
            LiveStage::Send { relay } => self.send_memory(step, live, source, *relay),
            LiveStage::TakeUp => self.take_up(step, live, source, target),
            LiveStage::Settle { end } => {
                let seat = match end {
                    LiveEnd::Source => source,
                    LiveEnd::Target => target,
                };
                self.settle_live(step, live, *end, seat)
            }
            LiveStage::Keys => self.end_generation(step, live),
            LiveStage::Remove { end: LiveEnd::Source } => {
                self.remove_copy(step, &leaving(step, live), End::Done)
            }
            LiveStage::Remove { end: LiveEnd::Target } => {
                let end = live.problem.clone().map_or(End::Cancelled, End::Failed);
                self.remove_copy(step, &self.coming(step, live), end)
            }
        }
    }

    fn ask_for_offer(
        &self,
        step: &Step,
        live: &LiveMove,
        source: &HostSeat,
        target: &HostSeat,
    ) -> Result<Next, Failure> {
        if step.task.operation.is_none() && !step.task.task.cancelling {
            let busy = [source, target].into_iter().find(|seat| self.has_its_share(seat.id));
            if let Some(busy) = busy {
                let note =
                    format!("waiting: {AT_ONCE_OF_A_HOST} VMs move from or to host {} already", busy.name);
                self.note(&step.task, note)?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
        }
        let offered = match self.operate(&step.task, &step.vm, source, |_| Some(OperationKind::Offer))? {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(Some(OperationOutcome::Offer(offer))) => *offer,
            Operated::Done(_) => {
                let message = format!("host {} does not say what runs there", source.name);
                return self.stays_here(step, Some(Problem::new(ErrorCode::HostFailed, message)));
            }
            Operated::Failed(problem) => return self.stays_here(step, Some(problem)),
            Operated::Cancelled | Operated::Forgotten => return self.stays_here(step, None),
        };
        let Offer { machine, paused, .. } = offered;
        if live.volumes.is_some() {
            let stage = LiveStage::Fetch { machine, paused };
            return self.turn(step, live.next(stage), VmRecord::clone(&step.vm.record));
        }
        self.permit(step, live, source, target, machine, paused)
    }

    /// Has the target fetch the volumes. What has arrived is used after a failure.
    fn fetch_with_live(
        &self,
        step: &Step,
        live: &LiveMove,
        source: &HostSeat,
        target: &HostSeat,
        machine: &RunningMachine,
        paused: bool,
    ) -> Result<Next, Failure> {
        let Some(volumes) = &live.volumes else {
            return self.permit(step, live, source, target, machine.clone(), paused);
        };
        let coming = self.coming(step, live);
        if let Some(next) = self.volumes_may_pass(step, &coming, target)? {
            return match next {
                ControlFlow::Continue(next) => Ok(next),
                ControlFlow::Break(problem) => self.abandon(step, live, Some(problem)),
            };
        }
        let mut trouble = None;
        let operated = self.operate(&step.task, &coming, target, |paths| {
            let spec = Box::new(coming.told(paths)?);
            let offer = Offer { machine: machine.clone(), paused, spec };
            match self.volumes_at_former(step) {
                Ok(from) => {
                    let (settings, handover) = (live.settings, volumes.handover);
                    let fetching = FetchingLive { offer, settings, handover, from };
                    Some(OperationKind::FetchLive(Box::new(fetching)))
                }
                Err(problem) => {
                    trouble = Some(problem);
                    None
                }
            }
        })?;
        match (operated, trouble) {
            (Operated::Pending(next), _) => Ok(next),
            (Operated::Done(_), _) => self.permit(step, live, source, target, machine.clone(), paused),
            // The target has not heard of it.
            (_, Some(problem)) if problem.code == ErrorCode::HostUnavailable => {
                self.note(&step.task, format!("waiting: {}", problem.message))?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            (Operated::Failed(_), Some(problem)) => self.abandon(step, live, Some(problem)),
            (Operated::Failed(problem), None) => {
                if step.task.task.cancelling || volumes.failures >= failures_max(problem.code) {
                    return self.abandon(step, live, Some(problem));
                }
                let volumes = LiveVolumes { failures: volumes.failures + 1, ..volumes.clone() };
                let again = LiveMove { volumes: Some(volumes), ..live.clone() };
                self.ask_host_again(step, again.next(live.stage.clone()), format!("trying again: {problem}"))
            }
            (Operated::Cancelled | Operated::Forgotten, _) => self.abandon(step, live, None),
        }
    }

    /// Permits the two hosts to pass the memory on, and has the target make room.
    fn permit(
        &self,
        step: &Step,
        live: &LiveMove,
        source: &HostSeat,
        target: &HostSeat,
        machine: RunningMachine,
        paused: bool,
    ) -> Result<Next, Failure> {
        let stays = |problem| match live.stage {
            LiveStage::Offer => self.stays_here(step, problem),
            _ => self.abandon(step, live, problem),
        };
        let Passage { secrecy, told } = self.passage(&step.vm, source, target);
        let in_plain_text = secrecy == Secrecy::Plain;
        // Guest data passes to another machine.
        let how = if in_plain_text { " in plain text" } else { "" };
        let what = format!("the memory of VM {} passes to host {}{how}", step.vm.name, target.name);
        let by = Caller::machine(&step.task.task.by);
        if let Err(problem) = self.put_on_record(&by, &step.vm, &what, MustRecord::OfEncrypted) {
            return stays(Some(problem));
        }
        let of = LiveMoveOf {
            vm: step.vm.id,
            running: step.vm.generation(),
            prepared: VmGeneration(live.attempt),
            source: source.name.as_str(),
            target: target.name.as_str(),
            secrecy,
        };
        let permit = match self.keys.permit_move(&of) {
            Ok(permit) => permit,
            Err(KeyProblem::Unavailable(_)) if step.task.task.cancelling => return stays(None),
            Err(KeyProblem::Unavailable(reason)) => {
                self.note_key(&step.task, format!("waiting for the key server: {reason}"))?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
            Err(KeyProblem::Refused(reason)) => return stays(Some(problems::conflict(reason))),
        };
        let permitted = LiveMove { permit: Some(permit), in_plain_text, ..live.clone() };
        let stage = LiveStage::Receive { machine, paused };
        let (object, task) = (step.vm.object(), Some(step.task.task.id));
        let draft = match told {
            Some(why) => self.draft().event("vm.memory_passes", &object, format!("{what}: {why}"), task),
            None => self.draft(),
        };
        self.turn_with(step, permitted.next(stage), VmRecord::clone(&step.vm.record), draft)
    }

    /// How the memory of a VM passes from one host to another now.
    fn passage(&self, vm: &VmRecord, source: &HostSeat, target: &HostSeat) -> Passage {
        let index = self.inventory.read();
        let policy = index.policy_of(vm).map_or("", |policy| policy.name.as_str());
        let ModeOf { mode, overruled } = mode_of(&index, vm);
        if let Some(rule) = overruled {
            let told = Some(format!(
                "it is encrypted, although policy {policy} says `{rule}`: the VM is encrypted, or was"
            ));
            return Passage { secrecy: Secrecy::Encrypted, told };
        }
        let encrypted = Passage { secrecy: Secrecy::Encrypted, told: None };
        let plain = |why: String| Passage { secrecy: Secrecy::Plain, told: Some(why) };
        match mode {
            MigrationMode::Required => encrypted,
            MigrationMode::Disabled => plain(format!("policy {policy} has it so (`{mode}`)")),
            MigrationMode::Opportunistic => {
                match [source, target].into_iter().find(|host| lacks_cipher(host)) {
                    Some(host) => plain(format!(
                        "policy {policy} has it so (`{mode}`), and the processor of host {} has no instructions for encryption",
                        host.name
                    )),
                    None => encrypted,
                }
            }
        }
    }

    fn make_room(
        &self,
        step: &Step,
        live: &LiveMove,
        target: &HostSeat,
        machine: &RunningMachine,
        paused: bool,
    ) -> Result<Next, Failure> {
        let coming = self.coming(step, live);
        let operated = self.operate(&step.task, &coming, target, |datastore| {
            // What it is, and under which keys, is what the inventory says.
            let spec = Box::new(coming.told(datastore)?);
            let offer = Offer { machine: machine.clone(), paused, spec };
            let (settings, permit) = (live.settings_of_memory(), live.permit.clone()?);
            Some(OperationKind::Receive(Box::new(Receiving { offer, settings, permit })))
        })?;
        let listens = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(Some(OperationOutcome::Listening(listens))) => listens,
            Operated::Done(_) => {
                let message = format!("host {} does not say where it listens", target.name);
                return self.abandon(step, live, Some(Problem::new(ErrorCode::HostFailed, message)));
            }
            Operated::Failed(problem) => return self.abandon(step, live, Some(problem)),
            Operated::Cancelled | Operated::Forgotten => return self.abandon(step, live, None),
        };
        let relay = relay_of(&self.inventory.read(), live, target, listens);
        match relay {
            Ok(relay) => {
                self.turn(step, live.next(LiveStage::Send { relay }), VmRecord::clone(&step.vm.record))
            }
            Err(problem) => self.abandon(step, live, Some(problem)),
        }
    }

    fn send_memory(
        &self,
        step: &Step,
        live: &LiveMove,
        source: &HostSeat,
        relay: SocketAddr,
    ) -> Result<Next, Failure> {
        let leaving = leaving(step, live);
        let operated = self.operate(&step.task, &leaving, source, |_| {
            let (running, settings) = (step.vm.generation(), live.settings_of_memory());
            let permit = live.permit.clone()?;
            let with_volumes = live.volumes.is_some();
            let sending = Sending { running, to: relay, settings, permit, with_volumes };
            Some(OperationKind::Send(Box::new(sending)))
        })?;
        match operated {
            Operated::Pending(next) => {
                // Once its guest stands still, it would wait for the target's handshake.
                if let Some(target) = self.seat(live.to) {
                    target.host.prepare();
                }
                Ok(match next {
                    Next::Wait(pause) => Next::Wait(pause.min(READY_FOR)),
                    other => other,
                })
            }
            Operated::Done(_) => {
                let released = live.decided(Heard::Released);
                self.turn(step, released.next(LiveStage::TakeUp), VmRecord::clone(&step.vm.record))
            }
            Operated::Failed(problem) => self.abandon(step, live, Some(problem)),
            Operated::Cancelled | Operated::Forgotten => self.abandon(step, live, None),
        }
    }

    fn take_up(
        &self,
        step: &Step,
        live: &LiveMove,
        source: &HostSeat,
        target: &HostSeat,
    ) -> Result<Next, Failure> {
        if self.cannot_write(step, live) {
            let message = format!("host {} was declared lost", target.name);
            return self.abandon(step, live, Some(Problem::new(ErrorCode::HostUnavailable, message)));
        }
        if !target.is_up() {
            return match live.volumes {
                None => self.await_answer(step, target),
                // It cannot write to the volumes that the guest had until now.
                Some(_) => {
                    let message = format!("host {} does not answer any more", target.name);
                    self.abandon(step, live, Some(Problem::new(ErrorCode::HostUnavailable, message)))
                }
            };
        }
        let coming = self.coming(step, live);
        match self.operate_at(step, &coming, target, |_| Some(OperationKind::TakeUp))? {
            Operated::Pending(next) => Ok(next),
            Operated::Done(outcome) => {
                let mut coming = coming;
                let draft = match &live.volumes {
                    None => self.draft(),
                    Some(volumes) => {
                        let arrived = OperationOutcome::into_volumes(outcome);
                        match self.keep_arrived(&mut coming, live.to, volumes.to, &arrived) {
                            Ok(draft) => draft,
                            Err(problem) => return self.abandon(step, live, Some(problem)),
                        }
                    }
                };
                let committed = live.decided(Heard::Ready);
                let how = if live.in_plain_text { "; its memory passed in plain text" } else { "" };
                let message = format!(
                    "{} is of host {} from now on, where it goes on as it was on host {}{how}",
                    problems::called(&step.vm),
                    target.name,
                    source.name
                );
                let (object, task) = (step.vm.object(), Some(step.task.task.id));
                let draft = draft.event("vm.migrated", &object, message, task);
                let stage = LiveStage::Settle { end: LiveEnd::Target };
                self.turn_with(step, committed.next(stage), coming, draft)
            }
            Operated::Failed(problem) => self.abandon(step, live, Some(problem)),
            Operated::Cancelled | Operated::Forgotten => self.abandon(step, live, None),
        }
    }

    /// What the inventory learns of volumes that have arrived in a datastore, which the host must
    /// reach still.
    fn keep_arrived(
        &self,
        coming: &mut VmRecord,
        host: Uuid,
        datastore: DatastoreId,
        arrived: &[VolumeFacts],
    ) -> Result<Draft, Problem> {
        let index = self.inventory.read();
        let there = index.datastores.get(&datastore.to_string());
        let there = there
            .filter(|there| there.on(host).is_some())
            .ok_or_else(|| problems::conflict("the next host does not reach the datastore any more"))?;
        // Written again, so that a request that takes it away meanwhile looks once more.
        let draft = self.draft().replace(there, &there.record);
        keep_volumes(&index, coming, arrived, draft)
    }

    /// Has a host do what is decided, until it has.
    fn settle_live(
        &self,
        step: &Step,
        live: &LiveMove,
        end: LiveEnd,
        seat: &HostSeat,
    ) -> Result<Next, Failure> {
        let same = || VmRecord::clone(&step.vm.record);
        let is_committed = live.decision == Decision::Committed;
        let (here, vm) = match end {
            LiveEnd::Target if is_committed => (true, same()),
            LiveEnd::Target => (false, self.coming(step, live)),
            LiveEnd::Source => (!is_committed, leaving(step, live)),
        };
        // A supervisor that has taken over from one that died waits for grants; nobody else brings
        // them to a VM with a task.
        let seen = self.inventory.read().observed(step.vm.id).cloned();
        if let Some(seen) = seen.filter(|_| here) {
            self.supply_waiting(&step.vm, &seen);
        }
        // A target with volumes of its own has none of the source's.
        let may_write = live.decision == Decision::Aborting && live.volumes.is_none();
        let is_awaited = here || may_write;
        let is_over = end == LiveEnd::Target && !here && self.cannot_write(step, live);
        let settled = match seat.is_up() {
            _ if is_over => Operated::Done(None),
            true => self.operate_at(step, &vm, seat, |_| Some(OperationKind::Settle { here }))?,
            false if is_awaited => return self.await_answer(step, seat),
            // It refuses to delete the volumes before it has done that.
            false if live.leaves_copy_at(end) && !step.task.task.cancelling => {
                let (host, vm) = (&seat.name, &step.vm.name);
                let note = format!(
                    "waiting for host {host}, which does not answer: it has a copy of the volumes of VM {vm}, which is at another host; cancel the task to leave it there"
                );
                self.note(&step.task, note)?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
            // What is left there is ended when it answers (`strays`).
            false => Operated::Done(None),
        };
        match settled {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(_) => {}
            Operated::Cancelled | Operated::Forgotten | Operated::Failed(_) => {
                if let Operated::Failed(problem) = &settled {
                    let name = &seat.name;
                    tracing::warn!(vm = %step.vm.name, host = %name, %problem, "a move is not over there yet");
                }
                // It is ordered once more, as another operation.
                self.turn(step, live.next(LiveStage::Settle { end }), same())?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
        }
        if here && let Some(wait) = self.look_first(step)? {
            return Ok(wait);
        }
        if is_committed && end == LiveEnd::Source {
            return match live.volumes {
                Some(_) => self.turn(step, live.next(LiveStage::Remove { end }), same()),
                None => self.end(step, &step.vm, self.draft(), End::Done),
            };
        }
        if live.decision == Decision::Aborting {
            let target_is_over = is_over || seat.is_up();
            let aborted = LiveMove { target_is_over, ..live.decided(Heard::TargetOver) };
            return self.turn(step, aborted.next(LiveStage::Settle { end: LiveEnd::Source }), same());
        }
        self.turn(step, live.next(live.after(end)), same())
    }

    /// Ends the generation that was given up at the key server: that of the source, or that which
    /// was prepared.
    fn end_generation(&self, step: &Step, live: &LiveMove) -> Result<Next, Failure> {
        let is_committed = live.decision == Decision::Committed;
        let (vm, attempt) = (step.vm.id, VmGeneration(live.attempt));
        let ended = match step.vm.hardware.keys().is_empty() {
            true => Ok(()),
            false if is_committed => self.keys.fence(vm, attempt),
            false => self.keys.void_prepared(vm, attempt),
        };
        if let Err(problem) = ended
            && !step.task.task.cancelling
        {
            self.note_key(&step.task, format!("waiting for the key server: {problem}"))?;
            return Ok(Next::Wait(RETRY_PAUSE));
        }
        if is_committed {
            let stage = LiveStage::Settle { end: LiveEnd::Source };
            return self.turn(step, live.next(stage), VmRecord::clone(&step.vm.record));
        }
        if live.volumes.is_some() {
            let stage = LiveStage::Remove { end: LiveEnd::Target };
            return self.turn(step, live.next(stage), VmRecord::clone(&step.vm.record));
        }
        self.stays_here(step, live.problem.clone())
    }

    /// Gives an attempt up: the VM goes on at the source.
    fn abandon(&self, step: &Step, live: &LiveMove, problem: Option<Problem>) -> Result<Next, Failure> {
        let abandoned = LiveMove { problem, ..live.decided(Heard::Abandon) };
        let end = match live.stage {
            // Its guest may stand still.
            LiveStage::Send { .. } => LiveEnd::Source,
            _ => LiveEnd::Target,
        };
        self.turn(step, abandoned.next(LiveStage::Settle { end }), VmRecord::clone(&step.vm.record))
    }

    /// Ends a move of a VM that runs where it ran.
    fn stays_here(&self, step: &Step, problem: Option<Problem>) -> Result<Next, Failure> {
        self.end(step, &step.vm, self.draft(), problem.map_or(End::Cancelled, End::Failed))
    }

    /// Whether as many VMs move from or to a host as may.
    fn has_its_share(&self, host: Uuid) -> bool {
        let index = self.inventory.read();
        let moves = index.open_tasks().filter(|task| match &task.work {
            Work::Migrate(live) => {
                let has_begun = task.operation.is_some() || live.stage != LiveStage::Offer;
                has_begun && [live.from, live.to].contains(&host)
            }
            _ => false,
        });
        moves.count() >= AT_ONCE_OF_A_HOST
    }

    /// The record of a VM as it is at the target.
    fn coming(&self, step: &Step, live: &LiveMove) -> VmRecord {
        let same = VmRecord::clone(&step.vm.record);
        let datastore = live.volumes.as_ref().map_or(same.datastore, |volumes| volumes.to);
        self.now_on(live.to, VmRecord { generation: live.attempt, datastore, ..same })
    }

    /// Whether nothing that the target writes can land any more.
    fn cannot_write(&self, step: &Step, live: &LiveMove) -> bool {
        let index = self.inventory.read();
        let host = index.hosts.get(&live.to.to_string());
        let is_fenced = host.and_then(|host| host.fenced.as_ref()).is_some_and(|fenced| fenced.complete);
        let is_on_cluster = |id: DatastoreId| {
            let mount = index.datastores.get(&id.to_string()).and_then(|datastore| datastore.on(live.to));
            mount.is_some_and(|mount| mount.client.is_some())
        };
        is_fenced && step.vm.datastores().into_iter().all(is_on_cluster)
    }

    /// Waits for a host on which it depends who runs the VM, and says what a person can do.
    fn await_answer(&self, step: &Step, seat: &HostSeat) -> Result<Next, Failure> {
        let (host, vm) = (&seat.name, &step.vm.name);
        let note = format!(
            "waiting for host {host}, which does not answer: VM {vm} stands still until it does, or is declared lost (`strongroom host fence {host}`)"
        );
        self.note(&step.task, note)?;
        Ok(Next::Wait(RETRY_PAUSE))
    }
}

/// The record of a VM as the orders to its source have it.
fn leaving(step: &Step, live: &LiveMove) -> VmRecord {
    let same = VmRecord::clone(&step.vm.record);
    let datastore = live.volumes.as_ref().map_or(same.datastore, |volumes| volumes.from);
    VmRecord { host: live.from, generation: live.attempt, datastore, ..same }
}

/// Where the source reaches the relay of the target.
fn relay_of(
    index: &Index,
    live: &LiveMove,
    target: &HostSeat,
    listens: SocketAddr,
) -> Result<SocketAddr, Problem> {
    let joined = |host: Uuid| index.hosts.get(&host.to_string()).and_then(|host| host.joined.as_ref());
    if let Some(joined) = joined(live.to) {
        // Where the control plane reaches it, its other hosts do.
        return Ok(SocketAddr::new(joined.address.ip(), listens.port()));
    }
    let is_reached = !listens.ip().is_loopback() && !listens.ip().is_unspecified();
    if is_reached || joined(live.from).is_none() {
        return Ok(listens);
    }
    Err(without_address(target))
}

/// Why other hosts do not connect to one.
pub(super) fn without_address(host: &HostSeat) -> Problem {
    let message = format!("host {} has no address at which others reach it", host.name);
    Problem::new(ErrorCode::NoHost, message)
        .next("start it with one: `strongroom serve --listen-guests ADDRESS:PORT`")
}
