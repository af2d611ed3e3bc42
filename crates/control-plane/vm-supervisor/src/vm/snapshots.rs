//! Changes the snapshots of a running VM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_host::orders::{GroupOrder, Report};
use strongroom_host::protocol::{
    GroupAttempt, KnownVolume, NewVmSnapshot, PowerState, Problem, Progress, SnapshotChange, VmSnapshots,
    VmSpec,
};

use super::activity::Activity;
use super::{Event, Vm, now_and_then};
use crate::door::Connection;
use crate::group_part::Orders;
use crate::machine::Machine;
use crate::memory::Saving;
use crate::snapshots::{self, Serving};

/// The pause before a guest is asked to thaw its file systems again.
const THAW_AGAIN: Duration = Duration::from_secs(5);
/// The same after many attempts: its agent is gone, or does not do so on purpose.
const THAW_AGAIN_MAX: Duration = Duration::from_secs(600);

/// Takes the progress of a change.
type Tell<'a> = dyn FnMut(Progress) -> Result<(), Problem> + 'a;

/// A change in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct ChangingSnapshots {
    change: SnapshotChange,
    asked_by: Connection,
    request: u64,
    abandoned: Arc<AtomicBool>,
    /// For a part of a group's snapshot.
    part: Option<Part>,
}

/// The VM's part in a snapshot of several, for which orders come.
#[derive(Debug)]
struct Part {
    attempt: GroupAttempt,
    /// `None` when it is given up.
    orders: Option<Sender<GroupOrder>>,
    /// Whether an order is being carried out.
    is_busy: bool,
    /// The request that gives it up waits until there is no part.
    given_up_by: Option<(Connection, u64)>,
}

impl ChangingSnapshots {
    #[cfg(test)]
    pub(super) fn for_tests(asked_by: Connection, change: SnapshotChange) -> Self {
        Self { change, asked_by, request: 1, abandoned: Arc::default(), part: None }
    }

    /// Whether the guest's memory is being saved, so that only that pauses and resumes the guest.
    pub(super) fn is_saving_memory(&self) -> bool {
        self.change.saves_memory()
    }
}

/// Returns the VM's snapshots.
pub(super) fn found(spec: &VmSpec) -> VmSnapshots {
    let found = snapshots::read(spec);
    found
        .inspect_err(|problem| tracing::warn!("VM {}: its snapshots: {problem}", spec.name))
        .unwrap_or_default()
}

impl Vm {
    /// Begins a change on a thread of its own. The request is answered when the change has ended.
    /// If the same change is requested again, for example by the next hostd, the last request gets
    /// the answer.
    pub(super) fn change_snapshots(
        &mut self,
        asked_by: &Connection,
        request: u64,
        change: SnapshotChange,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        let machine = self.machine()?;
        if let Some(changing) =
            self.activity.snapshot_change_mut().filter(|changing| changing.change == change)
        {
            (changing.asked_by, changing.request) = (asked_by.clone(), request);
            return Ok(());
        }
        let agent = Arc::clone(&self.agent);
        let changing = ChangingSnapshots {
            change: change.clone(),
            asked_by: asked_by.clone(),
            request,
            abandoned: Arc::default(),
            part: None,
        };
        self.begin(machine, known, changing, move |saving, tell| {
            let serving = Serving::Yes(saving, &agent);
            snapshots::change(&saving.keys, &saving.spec, &change, serving, tell)
        })
    }

    /// Begins a change on a thread of its own, if the VM is in a state for it.
    fn begin(
        &mut self,
        machine: Machine,
        known: &[KnownVolume],
        changing: ChangingSnapshots,
        work: impl FnOnce(&Saving, &mut Tell<'_>) -> Result<VmSpec, Problem> + Send + 'static,
    ) -> Result<(), Problem> {
        self.activity.allow_another()?;
        self.check_volumes()?;
        self.learn(known)?;
        if changing.is_saving_memory() {
            self.check_memory_can_be_saved()?;
            if self.standing.power == PowerState::Paused && self.halted.reason().is_none() {
                let message = format!("the guest of VM {} is paused by an error", self.task.spec.name);
                return Err(Problem::new("paused", message).with_next_step("mend that, or reset the VM"));
            }
        }
        if changing.change.freezes_guest() {
            self.check_guest_can_freeze()?;
        }
        let (spec, keys, events) = (self.task.spec.clone(), Arc::clone(&self.keys), self.events.clone());
        let saving = Saving { spec, keys, machine, abandoned: Arc::clone(&changing.abandoned) };
        let work = move || {
            let mut tell = now_and_then(|progress| {
                let _ = events.send(Event::Progress(progress));
            });
            let changed = work(&saving, &mut |progress| {
                tell(progress);
                Ok(())
            });
            let _ = events.send(Event::SnapshotsChanged(changed.map(Box::new)));
        };
        let begun = thread::Builder::new().name("snapshots".to_owned()).spawn(work);
        begun.map_err(Problem::system)?;
        self.activity = Activity::SnapshotChange(changing);
        Ok(())
    }

    /// Carries out an order for the VM's part in a snapshot of several. The request is answered
    /// when that is done.
    pub(super) fn group_order(
        &mut self,
        asked_by: &Connection,
        request: u64,
        attempt: GroupAttempt,
        order: GroupOrder,
    ) -> Result<(), Problem> {
        if let GroupOrder::Begin { snapshot, known } = order {
            return self.begin_part(asked_by, request, attempt, snapshot, &known);
        }
        let is_abandoned = matches!(order, GroupOrder::Abandon);
        let changing = self.activity.snapshot_change_mut();
        let found = changing.filter(|known| known.part.as_ref().is_some_and(|part| part.attempt == attempt));
        let Some(changing) = found else {
            if is_abandoned {
                asked_by.send(&Report::answer(request, None));
                return Ok(());
            }
            let message = "the VM has no part any more in the snapshot of the group";
            return Err(Problem::new("group_void", message).with_next_step("make it again"));
        };
        let Some(part) = &mut changing.part else { return Ok(()) };
        if is_abandoned {
            part.given_up_by = Some((asked_by.clone(), request));
            self.give_up_part();
            return Ok(());
        }
        let busy = || Problem::new("group_void", "the VM carries out another order for the group");
        if part.is_busy {
            return Err(busy());
        }
        part.is_busy = true;
        (changing.asked_by, changing.request) = (asked_by.clone(), request);
        // Its thread may be about to end without a part, which answers the request.
        let _ = part.orders.as_ref().map(|orders| orders.send(order));
        Ok(())
    }

    fn begin_part(
        &mut self,
        asked_by: &Connection,
        request: u64,
        attempt: GroupAttempt,
        snapshot: NewVmSnapshot,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        let machine = self.machine()?;
        let agent = Arc::clone(&self.agent);
        let (orders, coming) = channel();
        let coming = Orders::new(coming, self.events.clone());
        let changing = ChangingSnapshots {
            change: SnapshotChange::Prepare { snapshot: snapshot.clone() },
            asked_by: asked_by.clone(),
            request,
            abandoned: Arc::default(),
            part: Some(Part { attempt, orders: Some(orders), is_busy: true, given_up_by: None }),
        };
        self.begin(machine, known, changing, move |saving, tell| {
            snapshots::take_part(&saving.keys, &saving.spec, &snapshot, (saving, &agent), &coming, tell)
        })
    }

    /// Answers the order that is carried out.
    pub(super) fn group_step_done(&mut self) {
        let Some(changing) = self.activity.snapshot_change_mut() else { return };
        let Some(part) = changing.part.as_mut().filter(|part| part.is_busy) else { return };
        part.is_busy = false;
        changing.asked_by.send(&Report::answer(changing.request, None));
    }

    /// Gives up the VM's part in a snapshot of several, unless it is there already.
    pub(super) fn give_up_part(&mut self) {
        let Some(changing) = self.activity.snapshot_change_mut() else { return };
        let Some(part) = &mut changing.part else { return };
        part.orders = None;
        if changing.change.freezes_guest() {
            changing.abandoned.store(true, Ordering::Relaxed);
            self.agent.hang_up();
        }
    }

    /// Gives up a part whose orders came from a hostd that is gone.
    pub(super) fn part_is_nobodys(&mut self, connection: u64) {
        let changing = self.activity.snapshot_change();
        if changing.is_some_and(|known| known.part.is_some() && known.asked_by.id == connection) {
            self.give_up_part();
        }
    }

    /// Checks that the guest's file systems can be frozen.
    ///
    /// # Errors
    /// If the guest does not run, or has no channel to its agent.
    fn check_guest_can_freeze(&self) -> Result<(), Problem> {
        let name = &self.task.spec.name;
        if !self.task.spec.board.guest_agent {
            let message = format!("VM {name} has no channel to a guest agent");
            return Err(Problem::new("guest_agent", message).with_next_step("leave out --quiesce"));
        }
        match self.standing.power {
            PowerState::Running => Ok(()),
            PowerState::Paused => {
                let message = format!("the guest of VM {name} is paused, and cannot freeze its file systems");
                Err(Problem::new("paused", message).with_next_step("resume it first, or leave out --quiesce"))
            }
            _ => Err(self.not_running()),
        }
    }

    /// Has the guest's file systems thawed, if they may be frozen: again and again until its agent
    /// confirms it, on a thread of its own.
    pub(super) fn pay_thaw(&mut self) {
        let is_asked = self.losses.thaw_is_late && self.losses.thaw_again_at.take().is_none();
        if is_asked {
            return;
        }
        self.losses.thaw_is_late = self.agent.owes_thaw();
        if !self.losses.thaw_is_late {
            return;
        }
        let (agent, events, abandoned) =
            (Arc::clone(&self.agent), self.events.clone(), self.start.abandoned());
        let work = move || {
            let mut pause = THAW_AGAIN;
            while let Err(problem) = agent.thaw_owed() {
                if abandoned.load(Ordering::Relaxed) {
                    return;
                }
                tracing::error!("{problem}");
                thread::sleep(pause);
                pause = (2 * pause).min(THAW_AGAIN_MAX);
            }
            let _ = events.send(Event::Thawed);
        };
        if let Err(error) = thread::Builder::new().name("thaw".to_owned()).spawn(work) {
            tracing::error!("VM {}: its guest may be frozen: {error}", self.task.spec.name);
            self.losses.thaw_again_at = Some(Instant::now() + THAW_AGAIN);
        }
    }

    /// Abandons a snapshot for which the guest's file systems are frozen, unless it is too late.
    pub(super) fn abandon_quiesced_snapshot(&self) {
        if let Some(changing) = self.activity.snapshot_change().filter(|known| known.change.freezes_guest()) {
            changing.abandoned.store(true, Ordering::Relaxed);
            self.agent.hang_up();
        }
    }

    /// Abandons a snapshot with memory, and resumes the guest, unless it is too late.
    pub(super) fn abandon_snapshot_memory(&self) {
        if let Some(changing) = self.activity.snapshot_change().filter(|changing| changing.is_saving_memory())
        {
            changing.abandoned.store(true, Ordering::Relaxed);
        }
    }

    /// Ends a change. One that failed can have changed some volumes.
    pub(super) fn snapshots_changed(&mut self, changed: Result<Box<VmSpec>, Problem>) {
        let Some(changing) = self.activity.end_snapshot_change() else { return };
        let changed = changed.and_then(|spec| self.configure(&spec));
        if let Err(problem) = &changed {
            tracing::warn!("VM {}: its snapshots: {problem}", self.task.spec.name);
        }
        self.snapshots = found(&self.task.spec);
        self.pay_thaw();
        if changing.is_saving_memory() {
            self.go_on_after_saving(self.standing.power, self.standing.reason.clone());
        }
        self.tell();
        let answer = self.answer_of_volumes(changing.request, changed.err());
        if changing.part.as_ref().is_none_or(|part| part.is_busy) {
            changing.asked_by.send(&answer);
        }
        if let Some((by, request)) = changing.part.and_then(|part| part.given_up_by) {
            by.send(&Report::answer(request, None));
        }
    }
}
