//! Dumps a running guest into a sealed volume.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_datastore::file::{delete, describe};
use strongroom_host::dumps;
use strongroom_host::protocol::{Dump, OperationId, Problem, Progress, ProgressUnit, VmSpec};
use strongroom_hypervisor::Monitor;
use strongroom_hypervisor::qmp::Transfer;
use strongroom_keys::Kek;
use strongroom_streams::{SLOT_BYTES_MAX, StreamError, StreamKind, StreamWriter};
use strongroom_types::unix_seconds_now;

use super::{Description, FORMAT, PACKED, await_none};
use crate::keys::VmKeys;
use crate::machine::Machine;
use crate::own_volume::{LOCK_WAIT, OpenOwnVolume, OwnVolumeError, create_with};
use crate::room;
use crate::transfer::{pipe, qmp_problem, system_problem};

/// The inputs of a dump.
pub struct Dumping {
    /// The VM.
    pub spec: Box<VmSpec>,
    /// Its keys.
    pub keys: Arc<VmKeys>,
    /// Its machine.
    pub machine: Machine,
    /// The operation that requested it.
    pub operation: OperationId,
    /// The dump's label.
    pub label: Option<String>,
    /// Set to abandon the dump.
    pub abandoned: Arc<AtomicBool>,
}

impl Dumping {
    /// Dumps the memory. On success the dump is durable under its temporary name, and only has to
    /// be [published](dumps::publish). On failure nothing of it is left. In either case the machine
    /// is paused, and QEMU has ended its dump.
    ///
    /// # Errors
    /// If the file system is full, the VM has too many dumps, or its key is unavailable; if QEMU
    /// fails; if the dump was abandoned.
    pub fn run(&self, tell: impl FnMut(Progress)) -> Result<Dump, Problem> {
        let kek = self.keys.hold_for(self.spec.own_key(), None);
        let kek = kek.map_err(|error| OwnVolumeError::from(error).problem())?;
        dumps::remove_unfinished(&self.spec)?;
        let number = dumps::next_number(&self.spec)?;
        let size = room::for_memory(&self.spec, 0, "a dump", "make room, or delete dumps that nobody needs")?;
        let path = self.spec.dump_making_path(number);
        create_with(&path, size, kek.as_deref(), &[]).map_err(|error| error.problem())?;
        self.save(number, kek.as_deref(), tell).inspect_err(|_| {
            // The pipe has no reader any more. A QEMU that has ended gives an error here.
            if let Err(problem) = await_none(self.monitor()) {
                tracing::warn!("VM {}: {problem}", self.spec.name);
            }
            if let Err(error) = delete(&path, LOCK_WAIT) {
                tracing::warn!("VM {}: what is left of a dump: {error}", self.spec.name);
            }
        })
    }

    fn monitor(&self) -> &Monitor {
        self.machine.qemu().monitor()
    }

    fn save(&self, number: u32, kek: Option<&Kek>, mut tell: impl FnMut(Progress)) -> Result<Dump, Problem> {
        let (monitor, path) = (self.monitor(), self.spec.dump_making_path(number));
        let description = Description {
            format: FORMAT,
            vm: self.spec.id,
            number,
            at_unix_seconds: unix_seconds_now(),
            qemu: monitor.version().to_string(),
            content: PACKED.to_owned(),
        };
        let volume = describe(&path)?.descriptor.volume;
        let medium = OpenOwnVolume::open(&path, kek).map_err(|error| error.problem())?;
        let said =
            serde_json::to_vec(&description).map_err(|error| Problem::new("internal", error.to_string()))?;
        let mut stream = StreamWriter::begin(medium, StreamKind::Dump, volume, SLOT_BYTES_MAX, &said)
            .map_err(stream_problem)?;

        self.still_wanted().map_err(system_problem("go on"))?;
        monitor.stop().map_err(qmp_problem)?;
        let (from_qemu, to_us) = pipe()?;
        monitor.begin_dump(to_us.as_fd()).map_err(qmp_problem)?;
        drop(to_us);
        let total = self.spec.memory_bytes.bytes();
        let wanted = |bytes: u64| {
            tell(Progress::new(bytes.min(total), total, ProgressUnit::Bytes));
            self.still_wanted()
        };
        let bytes = stream.pack_from(File::from(from_qemu), wanted).map_err(stream_problem)?;
        // QEMU has closed its end, after success or failure.
        if let Transfer::Failed(why) = await_none(monitor)? {
            return Err(Problem::new("qemu", format!("QEMU does not dump its memory: {why}")));
        }
        self.still_wanted().map_err(system_problem("go on"))?;
        let (sealed_bytes, medium) = stream.finish().map_err(stream_problem)?;
        medium.close().map_err(|error| error.problem())?;
        let Description { at_unix_seconds, .. } = description;
        let (label, operation) = (self.label.clone(), self.operation);
        Ok(Dump { number, volume, bytes, sealed_bytes, at_unix_seconds, label, operation })
    }

    fn still_wanted(&self) -> io::Result<()> {
        match self.abandoned.load(Ordering::Relaxed) {
            true => Err(io::Error::other("it was abandoned")),
            false => Ok(()),
        }
    }
}

fn stream_problem(error: StreamError) -> Problem {
    Problem::new("dump", error.to_string())
}
