//! Saves the memory of a running guest.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use strongroom_host::protocol::{OwnVolume, Problem, Progress, ProgressUnit, SavedMemory, VmSpec};
use strongroom_host::vm_directory::VmRecord;
use strongroom_hypervisor::Monitor;
use strongroom_hypervisor::qmp::Transfer;
use strongroom_keys::Kek;
use uuid::Uuid;

use super::{ASK_AGAIN, Copied, Needs, SAYS_WITHIN, make_disks_durable, remove, stream_problem};
use crate::keys::VmKeys;
use crate::machine::Machine;
use crate::own_volume::{create_with, hold_key};
use crate::room;
use crate::transfer::{pipe, qmp_problem, system_problem};
use crate::vtpm;

/// A guest that still runs is paused when so much was saved: all pages, and a quarter of them
/// again. So it is also the most that is saved before the pause.
fn live_bytes_max(spec: &VmSpec) -> u64 {
    let memory_bytes = spec.memory_bytes.bytes();
    memory_bytes + memory_bytes / 4
}

/// What a guest does while its memory is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// It is paused from the beginning.
    Paused,
    /// It runs as long as possible.
    Runs,
}

/// The inputs of saving a memory.
pub struct Saving {
    /// The VM.
    pub spec: Box<VmSpec>,
    /// Its keys.
    pub keys: Arc<VmKeys>,
    /// Its machine.
    pub machine: Machine,
    /// Set to abandon it.
    pub abandoned: Arc<AtomicBool>,
}

impl Saving {
    /// Suspends a VM. On success `vm.json` records it as suspended, and the machine must not
    /// resume. On failure nothing of the memory is left, and the machine is paused.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn suspend(&self, tell: impl FnMut(Progress)) -> Result<SavedMemory, Problem> {
        let copied = self.copy(OwnVolume::Memory, Guest::Paused, tell)?;
        let saved = copied.finish().and_then(|memory| {
            if self.spec.tpm {
                vtpm::go_on_with(&self.spec, &self.keys, Some(memory.volume))
                    .map_err(|error| error.problem())?;
            }
            self.record(memory)
        });
        saved.inspect_err(|_| self.give_up(OwnVolume::Memory))
    }

    /// Copies the memory into a new volume. The machine is paused afterwards. On failure nothing is
    /// left of the volume.
    ///
    /// # Errors
    /// If the file system is full, or the VM's key is unavailable; if QEMU cannot save a device's
    /// state; if it was abandoned.
    pub fn copy(
        &self,
        which: OwnVolume,
        guest: Guest,
        tell: impl FnMut(Progress),
    ) -> Result<Copied, Problem> {
        let kek = hold_key(&self.keys, &self.spec, which).map_err(|error| error.problem())?;
        remove(&self.spec, which)?;
        let (changed_bytes, what, next) = match guest {
            Guest::Paused => (0, "a memory", "make room, or stop the VM instead"),
            Guest::Runs => {
                let most = live_bytes_max(&self.spec);
                (most, "the memory of a guest that runs", "make room, or make the snapshot without memory")
            }
        };
        let size = room::for_memory(&self.spec, changed_bytes, what, next)?;
        let path = self.spec.own_volume_path(which);
        create_with(&path, size, kek.as_deref(), &[]).map_err(|error| error.problem())?;
        self.copy_into(which, kek.as_deref(), guest, tell).inspect_err(|_| self.give_up(which))
    }

    /// Removes what is left of a memory that was not saved.
    fn give_up(&self, which: OwnVolume) {
        let _ = self.monitor().end_saving();
        if let Err(problem) = remove(&self.spec, which) {
            tracing::warn!("VM {}: {problem}", self.spec.name);
        }
    }

    fn monitor(&self) -> &Monitor {
        self.machine.qemu().monitor()
    }

    fn copy_into(
        &self,
        which: OwnVolume,
        kek: Option<&Kek>,
        guest: Guest,
        mut tell: impl FnMut(Progress),
    ) -> Result<Copied, Problem> {
        let monitor = self.monitor();
        let kvm = monitor.runs_on_kvm().map_err(qmp_problem)?;
        let generation_id = monitor.generation_id().map_err(qmp_problem)?.unwrap_or_else(Uuid::nil);
        let mut needs = Needs::of(&self.spec, monitor.version().to_string(), kvm, generation_id)?;
        if let OwnVolume::SnapshotMemory(snapshot) = which {
            needs.snapshot = Some(snapshot);
        }
        let mut copied = Copied::begin(&self.spec.own_volume_path(which), kek, &needs)?;

        if guest == Guest::Paused {
            monitor.stop().map_err(qmp_problem)?;
            make_disks_durable(&self.spec).map_err(system_problem("make the disks durable"))?;
        }
        let (from_qemu, to_us) = pipe()?;
        monitor.save_memory(to_us.as_fd()).map_err(qmp_problem)?;
        drop(to_us);
        let total = self.spec.memory_bytes.bytes();
        thread::scope(|scope| {
            let mut pausing = None;
            let mut wanted = |bytes: u64| {
                if guest == Guest::Runs && bytes > live_bytes_max(&self.spec) && pausing.is_none() {
                    // It changes its memory faster than it is saved. QEMU may answer only after
                    // more of the memory was read, so this thread does not wait.
                    pausing = Some(scope.spawn(|| monitor.stop()));
                }
                tell(Progress::new(bytes.min(total), total, ProgressUnit::Bytes));
                self.still_wanted()
            };
            copied.stream.copy_from(File::from(from_qemu), &mut wanted).map_err(stream_problem)
        })?;
        self.await_saved(monitor)?;
        self.still_wanted().map_err(system_problem("go on"))?;
        Ok(copied)
    }

    fn still_wanted(&self) -> io::Result<()> {
        match self.abandoned.load(Ordering::Relaxed) {
            true => Err(io::Error::other("it was abandoned")),
            false => Ok(()),
        }
    }

    /// QEMU has closed its end, after success or failure.
    fn await_saved(&self, monitor: &Monitor) -> Result<(), Problem> {
        let until = Instant::now() + SAYS_WITHIN;
        loop {
            match monitor.transfer().map_err(qmp_problem)? {
                Transfer::Completed => return Ok(()),
                Transfer::Failed(why) => {
                    return Err(Problem::new("qemu", format!("QEMU does not save its memory: {why}")));
                }
                Transfer::UnderWay if Instant::now() > until => {
                    return Err(Problem::new("qemu", "QEMU does not say that it has saved its memory"));
                }
                Transfer::UnderWay => thread::sleep(ASK_AGAIN),
            }
        }
    }

    /// From here on the VM is suspended.
    fn record(&self, memory: SavedMemory) -> Result<SavedMemory, Problem> {
        VmRecord::change(&self.spec, |record| {
            record.suspended = Some(memory.clone());
            Ok(memory)
        })
    }
}
