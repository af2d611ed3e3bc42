//! Saves a running guest into a sealed memory.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use strongroom_datastore::file::describe;
use strongroom_host::protocol::{OwnVolume, Problem, Progress, ProgressUnit, SuspendedMemory, VmSpec};
use strongroom_host::vm_directory::VmRecord;
use strongroom_hypervisor::Monitor;
use strongroom_hypervisor::qmp::Transfer;
use strongroom_keys::Kek;
use strongroom_streams::{SLOT_BYTES_MAX, StreamKind, StreamWriter};
use strongroom_types::unix_seconds_now;
use uuid::Uuid;

use super::{
    ASK_AGAIN, Needs, PIPE_BYTES, SAYS_WITHIN, make_disks_durable, qmp_problem, remove, stream_problem,
    system_problem,
};
use crate::keys::VmKeys;
use crate::machine::Machine;
use crate::own_volume::{OpenOwnVolume, create_with, hold_key};
use crate::room;

/// The inputs of a suspension.
pub struct Saving {
    /// The VM.
    pub spec: Box<VmSpec>,
    /// Its keys.
    pub keys: Arc<VmKeys>,
    /// Its machine.
    pub machine: Machine,
    /// Set to abandon the suspension.
    pub abandoned: Arc<AtomicBool>,
}

impl Saving {
    /// Saves the memory. On success `vm.json` records the VM as suspended, and the machine must not
    /// resume. On failure nothing of the memory is left, and the machine is paused.
    ///
    /// # Errors
    /// If the file system is full, or the VM's key is unavailable; if QEMU cannot save a device's
    /// state; if the suspension was abandoned.
    pub fn run(&self, tell: impl FnMut(Progress)) -> Result<SuspendedMemory, Problem> {
        let kek = hold_key(&self.keys, &self.spec, OwnVolume::Memory).map_err(|error| error.problem())?;
        remove(&self.spec)?;
        let size = room::for_memory(&self.spec, "a memory", "make room, or stop the VM instead")?;
        let path = self.spec.own_volume_path(OwnVolume::Memory);
        create_with(&path, size, kek.as_deref(), &[]).map_err(|error| error.problem())?;
        self.save(kek.as_deref(), tell).inspect_err(|_| {
            let _ = self.monitor().end_saving();
            if let Err(problem) = remove(&self.spec) {
                tracing::warn!("VM {}: {problem}", self.spec.name);
            }
        })
    }

    fn monitor(&self) -> &Monitor {
        self.machine.qemu().monitor()
    }

    fn save(&self, kek: Option<&Kek>, mut tell: impl FnMut(Progress)) -> Result<SuspendedMemory, Problem> {
        let monitor = self.monitor();
        let kvm = monitor.runs_on_kvm().map_err(qmp_problem)?;
        let generation_id = monitor.generation_id().map_err(qmp_problem)?.unwrap_or_else(Uuid::nil);
        let needs = Needs::of(&self.spec, monitor.version().to_string(), kvm, generation_id)?;
        let description =
            serde_json::to_vec(&needs).map_err(|error| Problem::new("internal", error.to_string()))?;
        let path = self.spec.own_volume_path(OwnVolume::Memory);
        let volume = describe(&path)?.descriptor.volume;
        let medium = OpenOwnVolume::open(&path, kek).map_err(|error| error.problem())?;
        let kind = StreamKind::Memory;
        let mut stream = StreamWriter::begin(medium, kind, volume, SLOT_BYTES_MAX, &description)
            .map_err(stream_problem)?;

        monitor.stop().map_err(qmp_problem)?;
        make_disks_durable(&self.spec).map_err(system_problem("make the disks durable"))?;
        let (from_qemu, to_us) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| system_problem("make a pipe")(errno.into()))?;
        // Without the larger buffer the save is slower, but correct.
        let _ = fcntl_setpipe_size(&from_qemu, PIPE_BYTES);
        monitor.save_memory(to_us.as_fd()).map_err(qmp_problem)?;
        drop(to_us);
        let total = self.spec.memory_bytes.bytes();
        let mut wanted = |bytes: u64| {
            tell(Progress { done: bytes.min(total), total, unit: ProgressUnit::Bytes });
            self.still_wanted()
        };
        stream.copy_from(File::from(from_qemu), &mut wanted).map_err(stream_problem)?;
        self.await_saved(monitor)?;
        self.still_wanted().map_err(system_problem("go on"))?;
        let (bytes, medium) = stream.finish().map_err(stream_problem)?;
        medium.close().map_err(|error| error.problem())?;

        let memory = SuspendedMemory { volume, bytes, at_unix_seconds: unix_seconds_now() };
        self.record(memory.clone())?;
        Ok(memory)
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
    fn record(&self, memory: SuspendedMemory) -> Result<(), Problem> {
        VmRecord::change(&self.spec, |record| {
            record.suspended = Some(memory);
            Ok(())
        })
    }
}
