//! Puts the memory of a snapshot back: the VM is then suspended, and its guest goes on at the next
//! start.

use std::io::{self, Write};

use strongroom_host::protocol::{DiskName, OwnVolume, Problem, Progress, ProgressUnit, SavedMemory, VmSpec};
use strongroom_keys::Kek;
use strongroom_streams::{StreamReader, StreamWriter};
use strongroom_types::SnapshotId;
use uuid::Uuid;

use super::{Copied, Needs, open, remove, stream_problem};
use crate::own_volume::{OpenOwnVolume, create_with};
use crate::room;

/// The memory of a snapshot, which fits the VM as the snapshot has it.
pub struct KeptMemory {
    stream: StreamReader<OpenOwnVolume>,
    needs: Needs,
    bytes: u64,
}

impl KeptMemory {
    /// Opens the memory of a snapshot, and verifies all of it. `then` is the VM with the sizes that
    /// its disks had. `is_part` tells which of its volumes have the snapshot, according to their
    /// authenticated descriptors; the others must be as they were.
    ///
    /// # Errors
    /// If it is not authentic, not the snapshot's, or if the VM has other hardware now.
    pub fn open(
        then: &VmSpec,
        kek: Option<&Kek>,
        (snapshot, memory): (SnapshotId, &SavedMemory),
        is_part: impl Fn(&DiskName) -> bool,
        mut tell: impl FnMut(Progress) -> Result<(), Problem>,
    ) -> Result<Self, Problem> {
        let path = then.own_volume_path(OwnVolume::SnapshotMemory(snapshot));
        let refused = |why: String| {
            let message = format!("the memory of the snapshot ({}) is not put back: {why}", path.display());
            Problem::new("memory_refused", message)
                .with_next_step("revert the disks alone: --disks-only; the VM boots then")
        };
        let (mut stream, needs) = open(&path, kek, memory).map_err(refused)?;
        let now = Needs::of(then, needs.qemu.clone(), needs.kvm, Uuid::nil())?;
        let mut reverted = Needs { snapshot: Some(snapshot), ..now };
        // The revert puts these layers below new tops, or what they were merged into.
        for disk in reverted.disks.iter_mut().filter(|disk| is_part(&disk.name)) {
            disk.aside.clear();
        }
        needs.fit(&reverted).map_err(refused)?;
        let total = memory.bytes;
        let verified = stream.verify(|done| told(&mut tell, done, total));
        verified.map_err(|error| refused(error.to_string()))?;
        Ok(Self { stream, needs, bytes: memory.bytes })
    }

    /// Copies it into the VM's own volume `memory`, for the disks as they are now. Its guest gets
    /// another generation id (vmgenid), since its past is not the only one.
    ///
    /// # Errors
    /// If there is no room, or a volume fails. `vm.json` does not list the copy yet.
    pub fn put_back(
        mut self,
        now: &VmSpec,
        kek: Option<&Kek>,
        mut tell: impl FnMut(Progress) -> Result<(), Problem>,
    ) -> Result<SavedMemory, Problem> {
        remove(now, OwnVolume::Memory)?;
        let next = "make room, or revert the disks alone: --disks-only";
        let size = room::for_content(now, self.bytes, "the memory that is put back", next)?;
        let path = now.own_volume_path(OwnVolume::Memory);
        create_with(&path, size, kek, &[]).map_err(|error| error.problem())?;
        let needs = Needs::of(now, self.needs.qemu, self.needs.kvm, Uuid::new_v4())?;
        let mut copied = Copied::begin(&path, kek, &needs)?;
        let total = self.bytes;
        self.stream
            .copy_to(Appending(&mut copied.stream), |done| told(&mut tell, done, total))
            .map_err(stream_problem)?;
        copied.finish()
    }
}

fn told(tell: &mut impl FnMut(Progress) -> Result<(), Problem>, done: u64, total: u64) -> io::Result<()> {
    tell(Progress::new(done, total, ProgressUnit::Bytes)).map_err(io::Error::other)
}

/// A stream as the sink of another one.
struct Appending<'a>(&'a mut StreamWriter<OpenOwnVolume>);

impl Write for Appending<'_> {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        self.0.write(content).map_err(io::Error::other)?;
        Ok(content.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
