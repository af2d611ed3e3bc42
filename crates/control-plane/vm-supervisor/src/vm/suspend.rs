//! Suspends a running VM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use strongroom_host::orders::Report;
use strongroom_host::protocol::{OffReason, OwnVolume, PowerState, Problem, Progress, SavedMemory};
use strongroom_host::vm_directory::VmRecord;
use strongroom_types::display_bytes;

use super::activity::Activity;
use super::{Event, Stop, Vm, now_and_then};
use crate::door::Connection;
use crate::memory::{self, Saving};
use crate::{observe, vtpm};

/// A suspension in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct Suspension {
    asked_by: Connection,
    request: u64,
    abandoned: Arc<AtomicBool>,
}

#[cfg(test)]
impl Suspension {
    pub(super) fn for_tests(asked_by: Connection) -> Self {
        Self { asked_by, request: 1, abandoned: Arc::default() }
    }
}

impl Vm {
    /// Begins a suspension on a thread of its own. The request is answered when it has ended.
    pub(super) fn suspend(&mut self, asked_by: &Connection, request: u64) -> Result<(), Problem> {
        let machine = self.machine()?;
        self.activity.allow_another()?;
        // It would not start again before the disk is whole, which it cannot become then.
        self.task.spec.check_whole()?;
        self.check_memory_can_be_saved()?;
        self.check_volumes()?;
        let abandoned = Arc::new(AtomicBool::new(false));
        let saving = Saving {
            spec: self.task.spec.clone(),
            keys: Arc::clone(&self.keys),
            machine,
            abandoned: Arc::clone(&abandoned),
        };
        let events = self.events.clone();
        let removal = self.removals.memory.take();
        let work = move || {
            // The volume's name is then free. The thread logs its own errors.
            let _ = removal.map(thread::JoinHandle::join);
            let saved = saving.suspend(now_and_then(|progress| {
                let _ = events.send(Event::Progress(progress));
            }));
            let _ = events.send(Event::Suspended(saved));
        };
        thread::Builder::new().name("suspend".to_owned()).spawn(work).map_err(Problem::system)?;
        self.activity = Activity::Suspension(Suspension { asked_by: asked_by.clone(), request, abandoned });
        self.standing.becomes(PowerState::Paused, Some(observe::suspending()));
        Ok(())
    }

    /// Checks that the VM's next start would fit its present memory.
    ///
    /// # Errors
    /// If it would not, or the VM does not run.
    pub(super) fn check_memory_can_be_saved(&self) -> Result<(), Problem> {
        if !self.is_as_started() {
            let message = "disks, network cards, processors or memory were plugged in or out since the VM's start, and its next start would not fit its memory";
            let next = "shut it down and start it once, then save its memory";
            return Err(Problem::new("disks_changed", message).with_next_step(next));
        }
        if !matches!(self.standing.power, PowerState::Running | PowerState::Paused) {
            return Err(self.not_running());
        }
        Ok(())
    }

    pub(super) fn tell_progress(&self, progress: Progress) {
        self.hosts.send(&Report::Progress(progress));
    }

    /// Abandons the suspension and resumes the guest, unless it is too late.
    pub(super) fn abandon_suspension(&self) {
        let Some(suspension) = self.activity.suspension() else { return };
        suspension.abandoned.store(true, Ordering::Relaxed);
        if let Some(machine) = &self.machine {
            let _ = machine.qemu().monitor().end_saving();
        }
    }

    /// Ends a suspension: the machine ends, or resumes.
    pub(super) fn suspended(&mut self, saved: Result<SavedMemory, Problem>) {
        let Some(suspension) = self.activity.end_suspension() else { return };
        let problem = match saved {
            Ok(memory) => {
                let message = format!(
                    "its memory is sealed ({}), and it goes on with it at its next start",
                    display_bytes(memory.bytes)
                );
                let reason = OffReason::Suspended;
                self.stop = Some(Stop { reason, message, deadline: None, guest_ended: false });
                self.standing.becomes(PowerState::Stopping, None);
                self.cut_off();
                None
            }
            Err(problem) => {
                tracing::warn!("VM {}: it is not suspended: {problem}", self.task.spec.name);
                // If `vm.json` already lists a memory, the entry must be removed before the guest
                // resumes.
                if self.stop.is_none()
                    && let Err(problem) = self.let_go_of_memory().and_then(|()| self.halt_or_go_on())
                {
                    tracing::error!("VM {}: {problem}", self.task.spec.name);
                }
                Some(problem)
            }
        };
        self.tell();
        let answer = Report::answer(suspension.request, problem);
        suspension.asked_by.send(&answer);
    }

    /// Called before the guest resumes: from now on its present memory is the only one. A memory
    /// that a dead supervisor began to save, or that QEMU has loaded, is no longer valid.
    pub(super) fn let_go_of_memory(&self) -> Result<(), Problem> {
        let spec = &self.task.spec;
        let is_saving = memory::is_there(spec) || self.snapshots.is_saving_memory();
        if let Some(machine) = self.machine.as_ref().filter(|_| is_saving) {
            // A supervisor that died may have begun to save it.
            let _ = machine.qemu().monitor().end_saving();
        }
        VmRecord::change(spec, |record| {
            record.suspended = None;
            Ok(())
        })?;
        // Whoever writes the datastore could put that memory, and with it the TPM's state, back.
        // The record of a TPM that has come with its guest names none already.
        match &self.tpm {
            Some(tpm) => tpm.orders().name_no_memory(),
            None if spec.tpm && self.arriving_tpm.is_none() => {
                vtpm::go_on_with(spec, &self.keys, None).map_err(|error| error.problem())
            }
            None => Ok(()),
        }
    }

    /// Once the guest runs, the volume is useless. It is large, so it is removed in the background.
    pub(super) fn remove_memory(&mut self) {
        let spec = self.task.spec.clone();
        if !memory::is_there(&spec) {
            return;
        }
        let work = move || {
            if let Err(problem) = memory::remove(&spec, OwnVolume::Memory) {
                tracing::warn!("VM {}: what it was suspended with is left: {problem}", spec.name);
            }
        };
        match thread::Builder::new().name("memory".to_owned()).spawn(work) {
            Ok(removal) => self.removals.memory = Some(removal),
            Err(error) => {
                tracing::warn!("VM {}: what it was suspended with is left: {error}", self.task.spec.name);
            }
        }
    }
}
