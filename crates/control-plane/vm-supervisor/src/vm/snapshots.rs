//! Changes the snapshots of a running VM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_host::protocol::{KnownVolume, PowerState, Problem, SnapshotChange, VmSnapshots, VmSpec};

use super::activity::Activity;
use super::{Event, Vm, now_and_then};
use crate::door::Connection;
use crate::memory::Saving;
use crate::snapshots::{self, Serving};

/// The pause before a guest is asked to thaw its file systems again.
const THAW_AGAIN: Duration = Duration::from_secs(5);
/// The same after many attempts: its agent is gone, or does not do so on purpose.
const THAW_AGAIN_MAX: Duration = Duration::from_secs(600);

/// A change in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct ChangingSnapshots {
    change: SnapshotChange,
    asked_by: Connection,
    request: u64,
    abandoned: Arc<AtomicBool>,
}

impl ChangingSnapshots {
    #[cfg(test)]
    pub(super) fn for_tests(asked_by: Connection, change: SnapshotChange) -> Self {
        Self { change, asked_by, request: 1, abandoned: Arc::default() }
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
        self.activity.allow_another()?;
        self.check_volumes()?;
        self.learn(known)?;
        let (spec, keys, events) = (self.task.spec.clone(), Arc::clone(&self.keys), self.events.clone());
        let (asked_by, abandoned) = (asked_by.clone(), Arc::new(AtomicBool::new(false)));
        let saving = Saving { spec, keys, machine, abandoned: Arc::clone(&abandoned) };
        let agent = Arc::clone(&self.agent);
        let changing = ChangingSnapshots { change: change.clone(), asked_by, request, abandoned };
        if changing.is_saving_memory() {
            self.check_memory_can_be_saved()?;
            if self.standing.power == PowerState::Paused && self.halted.reason().is_none() {
                let message = format!("the guest of VM {} is paused by an error", self.task.spec.name);
                return Err(Problem::new("paused", message).with_next_step("mend that, or reset the VM"));
            }
        }
        if change.freezes_guest() {
            self.check_guest_can_freeze()?;
        }
        let work = move || {
            let mut tell = now_and_then(|progress| {
                let _ = events.send(Event::Progress(progress));
            });
            let (keys, spec, serving) = (&saving.keys, &saving.spec, Serving::Yes(&saving, &agent));
            let changed = snapshots::change(keys, spec, &change, serving, |progress| {
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
        changing.asked_by.send(&answer);
    }
}
