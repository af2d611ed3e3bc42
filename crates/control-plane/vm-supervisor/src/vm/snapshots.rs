//! Changes the snapshots of a running VM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use strongroom_host::protocol::{KnownVolume, PowerState, Problem, SnapshotChange, VmSnapshots, VmSpec};

use super::activity::Activity;
use super::{Event, Vm, now_and_then};
use crate::door::Connection;
use crate::memory::Saving;
use crate::snapshots::{self, Serving};

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
        let changing = ChangingSnapshots { change: change.clone(), asked_by, request, abandoned };
        if changing.is_saving_memory() {
            self.check_memory_can_be_saved()?;
            if self.power == PowerState::Paused && self.halted.reason().is_none() {
                let message = format!("the guest of VM {} is paused by an error", self.task.spec.name);
                return Err(Problem::new("paused", message).with_next_step("mend that, or reset the VM"));
            }
        }
        let work = move || {
            let mut tell = now_and_then(|progress| {
                let _ = events.send(Event::Progress(progress));
            });
            let (keys, spec) = (&saving.keys, &saving.spec);
            let changed = snapshots::change(keys, spec, &change, Serving::Yes(&saving), |progress| {
                tell(progress);
                Ok(())
            });
            let _ = events.send(Event::SnapshotsChanged(changed.map(Box::new)));
        };
        let begun = thread::Builder::new().name("snapshots".to_owned()).spawn(work);
        begun.map_err(|error| Problem::new("system", error.to_string()))?;
        self.activity = Activity::SnapshotChange(changing);
        Ok(())
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
        if changing.is_saving_memory() {
            self.go_on_after_saving(self.power, self.reason.clone());
        }
        self.tell();
        let answer = self.answer_of_volumes(changing.request, changed.err());
        changing.asked_by.send(&answer);
    }
}
