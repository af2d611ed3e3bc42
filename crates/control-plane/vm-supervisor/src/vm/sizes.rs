//! Gives a running VM more processors and memory, and takes processors that were plugged in.
//!
//! QEMU's own count says how far a change has come, so an order that is repeated, or carried out by
//! the next supervisor, does the rest. Memory is never taken: a guest has no means to promise that
//! it does not touch it any more.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use strongroom_host::orders::Report;
use strongroom_host::protocol::{Cpus, MemorySize, PowerState, Problem, VmSpec};
use strongroom_host::state_file::StartSizes;
use strongroom_host::vm_directory::VmRecord;
use strongroom_hypervisor::QmpError;

use super::activity::Activity;
use super::change::Change;
use super::unplug::{LETS_GO_WITHIN, await_news, ending};
use super::{Event, Vm};
use crate::disks;
use crate::door::Connection;
use crate::keys::VmKeys;
use crate::machine::Machine;
use crate::transfer::qmp_problem;

/// How many processors and how much memory a VM is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedSizes {
    /// Its processors.
    pub cpus: Cpus,
    /// Its memory.
    pub memory: MemorySize,
}

impl Vm {
    /// Begins a change, which is answered when it has ended. If the same change is requested again,
    /// for example by the next hostd, the last request gets the answer.
    pub(super) fn set_sizes(
        &mut self,
        asked_by: &Connection,
        request: u64,
        wanted: WantedSizes,
    ) -> Result<(), Problem> {
        let machine = self.machine()?;
        if let Some(same) = self.activity.size_change_mut().filter(|known| *known.wanted() == wanted) {
            same.answer_to(asked_by, request);
            return Ok(());
        }
        self.activity.allow_another()?;
        let spec = with_sizes(&self.task.spec, self.start_sizes(), wanted)?;
        if self.standing.power == PowerState::Paused && spec.cpus.count() < self.task.spec.cpus.count() {
            let message = format!("VM {} stands still, and cannot let go of a processor", spec.name);
            return Err(Problem::new("paused", message).with_next_step("resume it, or stop it"));
        }
        // Whatever is killed, what the next start needs is known before the guest has it.
        self.state.started = Some(self.start_sizes());
        self.state.write(&self.run).map_err(Problem::system)?;
        let (changing, wakes) = Change::new(wanted, asked_by, request);
        let keys = Arc::clone(&self.keys);
        let work = Work { spec, keys, machine, events: self.events.clone(), wakes };
        let run = move || {
            let done = work.run(wanted);
            let _ = work.events.send(Event::SizesChanged(done));
        };
        thread::Builder::new().name("sizes".to_owned()).spawn(run).map_err(Problem::system)?;
        self.activity = Activity::SizeChange(changing);
        Ok(())
    }

    /// What the machine was started with.
    fn start_sizes(&self) -> StartSizes {
        let (cpus, memory_bytes) = (self.task.spec.cpus, self.task.spec.memory_bytes);
        self.state.started.unwrap_or(StartSizes { cpus, memory_bytes })
    }

    /// Whether the next start would give the machine what it has.
    pub(super) fn has_sizes_as_started(&self) -> bool {
        let (cpus, memory_bytes) = (self.task.spec.cpus, self.task.spec.memory_bytes);
        self.start_sizes() == StartSizes { cpus, memory_bytes }
    }

    /// Records what the machine has, and sends the result to `done`.
    pub(super) fn sizes_step(&mut self, wanted: WantedSizes, done: &SyncSender<Result<(), Problem>>) {
        let mut spec = self.task.spec.as_ref().clone();
        (spec.cpus, spec.memory_bytes) = (wanted.cpus, wanted.memory);
        let _ = done.send(self.configure(&spec));
    }

    /// Ends a change.
    pub(super) fn sizes_changed(&mut self, changed: Result<(), Problem>) {
        let Some(changing) = self.activity.end_size_change() else { return };
        let vm = &self.task.spec.name;
        match &changed {
            Ok(()) => tracing::info!("VM {vm}: it has the processors and the memory that were asked for"),
            Err(problem) => {
                tracing::warn!("VM {vm}: its processors or its memory are not as asked: {problem}")
            }
        }
        self.tell();
        changing.answer(|request| Report::answer(request, changed.err()));
    }
}

/// The VM's configuration with these sizes.
///
/// # Errors
/// If the machine cannot have them before its next start.
fn with_sizes(spec: &VmSpec, started: StartSizes, wanted: WantedSizes) -> Result<VmSpec, Problem> {
    let changed = VmSpec { cpus: wanted.cpus, memory_bytes: wanted.memory, ..spec.clone() };
    changed.check().map_err(|error| Problem::new("bad_spec", error.to_string()))?;
    spec.check_growth_to(wanted.cpus, wanted.memory)?;
    if wanted.cpus.count() < started.cpus.count() {
        let (vm, count) = (&spec.name, started.cpus.count());
        let message = format!("VM {vm} was started with {count} CPUs, and only those that came later can go");
        return Err(Problem::new("not_growable", message).with_next_step("stop the VM first"));
    }
    Ok(changed)
}

/// The inputs of a change.
struct Work {
    /// The VM after the change.
    spec: VmSpec,
    keys: Arc<VmKeys>,
    machine: Machine,
    events: Sender<Event>,
    wakes: Receiver<()>,
}

impl Work {
    fn run(&self, wanted: WantedSizes) -> Result<(), Problem> {
        self.grow_memory(wanted.memory)?;
        self.set_cpus(u64::from(wanted.cpus.count()))?;
        VmRecord::change(&self.spec, |record| disks::attest(&self.keys, record, &self.spec))?;
        let (done, answer) = sync_channel(1);
        self.events.send(Event::Sizes(wanted, done)).map_err(|_| ending())?;
        answer.recv().map_err(|_| ending())?
    }

    fn grow_memory(&self, wanted: MemorySize) -> Result<(), Problem> {
        let monitor = self.machine.qemu().monitor();
        let has = monitor.memory_bytes().map_err(qmp_problem)?;
        match wanted.bytes().checked_sub(has) {
            Some(0) => Ok(()),
            Some(more) => {
                monitor.plug_memory(more).map_err(|error| size_problem(&self.spec, "module of memory", error))
            }
            None => {
                let message = format!("VM {} runs, and its memory only grows", self.spec.name);
                Err(Problem::new("not_growable", message).with_next_step("stop the VM first"))
            }
        }
    }

    fn set_cpus(&self, wanted: u64) -> Result<(), Problem> {
        let (monitor, until) = (self.machine.qemu().monitor(), Instant::now() + LETS_GO_WITHIN);
        loop {
            let has = monitor.cpu_count().map_err(qmp_problem)?;
            if has == wanted {
                return Ok(());
            }
            if has < wanted {
                monitor.plug_cpu().map_err(|error| size_problem(&self.spec, "processor", error))?;
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!(
                    "the guest of VM {} has not let go of a processor within {LETS_GO_WITHIN:?}; it may still",
                    self.spec.name
                );
                let next = "have the guest set the processor offline and try again, or stop the VM first";
                return Err(Problem::new("guest_keeps_cpu", message).with_next_step(next));
            }
            if let Err(error) = monitor.unplug_cpu() {
                tracing::debug!("VM {}: {error}", self.spec.name);
            }
            await_news(&self.wakes, left)?;
        }
    }
}

fn size_problem(spec: &VmSpec, what: &str, error: QmpError) -> Problem {
    match error {
        QmpError::NoPort => {
            let message = format!("the machine of VM {} has no place for another {what}", spec.name);
            Problem::new("not_growable", message).with_next_step("stop the VM first")
        }
        error => qmp_problem(error),
    }
}
