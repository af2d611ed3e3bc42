//! Resumes a guest from its sealed memory.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use strongroom_host::orders::RunTask;
use strongroom_host::protocol::{OwnVolume, Problem, SavedMemory, VmSpec};
use strongroom_host::vm_directory::VmRecord;
use strongroom_hypervisor::qmp::Transfer;
use strongroom_hypervisor::{Qemu, QemuProgram};
use strongroom_streams::StreamReader;
use uuid::Uuid;

use super::{ASK_AGAIN, Needs, SAYS_WITHIN, open, remove};
use crate::keys::VmKeys;
use crate::own_volume::{OpenOwnVolume, hold_key};
use crate::transfer::{pipe, qmp_problem};
use crate::vtpm;

/// A verified memory that fits the VM.
pub struct Resuming {
    stream: StreamReader<OpenOwnVolume>,
    needs: Needs,
    /// The memory's name in error messages.
    place: String,
}

/// Returns the verified memory that a VM must resume; `None` if it must boot. Removes the remains
/// of other memories. The disks must already be open, since their state is compared.
///
/// # Errors
/// If a memory is not authentic or does not fit; the VM then stays suspended. Also if `abandoned`
/// was set.
pub fn to_take_up(
    task: &RunTask,
    keys: &VmKeys,
    program: &QemuProgram,
    abandoned: &AtomicBool,
) -> Result<Option<Resuming>, Problem> {
    let spec = &task.spec;
    let suspended = VmRecord::change(spec, |record| {
        if task.how.discard_memory && record.suspended.take().is_some() {
            tracing::info!(
                "VM {}: the memory that it was suspended with is discarded as requested",
                spec.name
            );
        }
        Ok(record.suspended.clone())
    })?;
    match suspended {
        Some(memory) => Resuming::open(spec, keys, program, &memory, abandoned).map(Some),
        None => remove(spec, OwnVolume::Memory).map(|()| None),
    }
}

impl Resuming {
    fn open(
        spec: &VmSpec,
        keys: &VmKeys,
        program: &QemuProgram,
        memory: &SavedMemory,
        abandoned: &AtomicBool,
    ) -> Result<Self, Problem> {
        let path = spec.own_volume_path(OwnVolume::Memory);
        let place = format!("the memory that VM {} was suspended with ({})", spec.name, path.display());
        let next = format!(
            "put the volume back as it was, or lose it and boot: `strongroom vm start {} --discard-memory`",
            spec.name
        );
        let refused = |why: String| {
            Problem::new("memory_refused", format!("{place} is not taken up: {why}")).with_next_step(&*next)
        };
        let kek = hold_key(keys, spec, OwnVolume::Memory).map_err(|error| error.problem())?;
        let (mut stream, needs) = open(&path, kek.as_deref(), memory).map_err(&refused)?;
        if spec.tpm {
            vtpm::check_memory(spec, keys, memory.volume).map_err(|error| refused(error.to_string()))?;
        }
        let now = Needs::of(spec, program.version().to_string(), program.kvm().is_ok(), Uuid::nil())?;
        needs.fit(&now).map_err(&refused)?;
        stream.verify(|_| still_wanted(abandoned)).map_err(|error| refused(error.to_string()))?;
        Ok(Self { stream, needs, place })
    }

    /// The id that the guest keeps (vmgenid), since it is not a copy.
    pub fn generation_id(&self) -> Uuid {
        self.needs.generation_id
    }

    /// Makes a QEMU that waits for its memory load this one. The machine is paused afterwards.
    ///
    /// # Errors
    /// If QEMU rejects it, or the volume has changed since it was verified. That QEMU must be
    /// discarded.
    pub fn load(mut self, qemu: &Qemu, abandoned: &AtomicBool) -> Result<(), Problem> {
        let (from_us, to_qemu) = pipe()?;
        let monitor = qemu.monitor();
        monitor.load_memory(from_us.as_fd()).map_err(qmp_problem)?;
        // Only QEMU has the other end now, so its end is noticed here.
        drop(from_us);
        let fed = self.stream.copy_to(File::from(to_qemu), |_| still_wanted(abandoned));
        let until = Instant::now() + SAYS_WITHIN;
        let why = loop {
            match monitor.transfer() {
                Ok(Transfer::Completed) if fed.is_ok() => return Ok(()),
                Ok(Transfer::UnderWay) if fed.is_ok() && Instant::now() < until => thread::sleep(ASK_AGAIN),
                Ok(Transfer::Failed(why)) => break why,
                Err(_) => break said(qemu),
                Ok(_) => break "QEMU has not loaded it".to_owned(),
            }
        };
        let why = match fed {
            Ok(_) => why,
            Err(error) => format!("{error}; {why}"),
        };
        Err(Problem::new("memory_not_loaded", format!("{} is not taken up: {why}", self.place)))
    }
}

fn said(qemu: &Qemu) -> String {
    let said = qemu.said();
    said.trim().lines().last().map_or("QEMU has ended".to_owned(), |last| format!("QEMU said: {last}"))
}

fn still_wanted(abandoned: &AtomicBool) -> io::Result<()> {
    match abandoned.load(Ordering::Relaxed) {
        true => Err(io::Error::other("it was stopped before it had started")),
        false => Ok(()),
    }
}
