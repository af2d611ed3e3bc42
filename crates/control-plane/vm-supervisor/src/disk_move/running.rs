//! Moves a disk of a running VM, beside its guest.
//!
//! ```text
//! the layers that take no writes any more are copied, in rounds (`copy_served`); a guest that writes
//! as fast as they are copied is slowed down
//!     -> hostd has recorded that the switch begins, and gives the open record
//!     -> the volume is closed, and its worker keeps QEMU's session -> the rest is copied
//!     -> the copy has the volume's name -> the record says so: that is the decision
//!     -> the worker gets the volume at its new place
//! ```
//!
//! Between closing and opening, the guest's requests wait, for some seconds at most. This process
//! decides alone, because it waits for nobody then: not for hostd, and not for the control plane.
//! If it ends there, the next one opens the volume where the record says.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use strongroom_datastore::file::{Descriptor, RelocateProgress, withdraw};
use strongroom_host::disk_switch;
use strongroom_host::protocol::{Disk, DiskMove, Problem, Progress, ProgressUnit, VmSpec};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::vm_directory::VmRecord;
use strongroom_worker::control::Peer;
use strongroom_worker::supervise::{AwaitedVolume, LimitPage, Standby, Supervisor};
use strongroom_worker::{
    ChangedPlace, NotMoved, PARKED_MAX, PlaceKeeper, ServedCopy, ServedError, ServedVolume, Throttle,
    copy_served,
};

use super::{Places, STAYS, not_copied};
use crate::disks::no_such_disk;
use crate::keys::VmKeys;
use crate::rekey::reencryption::{Watch, merge_new_top};
use crate::slowdown::Slowdown;
use crate::starter::Starter;
use crate::volumes::VolumeHost;

/// How long a copy waits for its switch: the control plane records something in between.
const SWITCHED_WITHIN: Duration = Duration::from_secs(60);
/// How often it is looked meanwhile how much the guest has written.
const KEEPS_UP_EVERY: Duration = Duration::from_secs(1);

/// The move of a disk.
pub struct RunningMove<'a> {
    /// The VM's keys.
    pub keys: &'a VmKeys,
    /// Starts the VM's processes.
    pub starter: &'a Starter,
    /// Where its volumes are served.
    pub run: &'a VmRunDirectory,
    /// The page of the limits of all its disks together.
    pub limits: &'a Arc<LimitPage>,
    /// The VM, with the disk where it is.
    pub vm: &'a VmSpec,
    /// The move.
    pub moved: &'a DiskMove,
    /// Why the copy is to be given up, if it is; asked about twice a second.
    pub is_given_up: &'a dyn Fn() -> Option<Problem>,
}

/// What the VM's main thread does for a move.
pub trait MovesDisk {
    /// Tells how far it is.
    fn tell(&self, progress: Progress);
    /// Little is left to copy.
    ///
    /// # Errors
    /// If the VM has ended.
    fn copied(&self) -> Result<(), Problem>;
    /// Closes the volume, and returns its worker.
    ///
    /// # Errors
    /// If the VM ends, or the volume is in trouble. It is served as before.
    fn release(&self) -> Result<Standby, Problem>;
    /// The volume is served, at its new place or at the former one.
    ///
    /// # Errors
    /// If it is not.
    fn served(&self, supervisor: Supervisor, has_moved: bool) -> Result<(), Problem>;
}

impl RunningMove<'_> {
    /// Copies the disk, and switches it when the record comes.
    ///
    /// # Errors
    /// If the disk is where it was.
    pub fn complete(&self, main: &dyn MovesDisk, records: &Receiver<File>) -> Result<(), Problem> {
        let disk = self.disk()?;
        let places = Places::of(self.keys, self.vm, disk, self.moved).map_err(|error| error.problem())?;
        VmRecord::read_of(&self.vm.directory(), self.vm.id)?.snapshots.check_whole(&self.vm.name)?;
        withdraw(&places.to, places.volume, &places.options(0))?;
        let stop = AtomicBool::new(false);
        let mut watch = Watch::new(&stop);
        let mut report = |progress: RelocateProgress| {
            watch.look(|| {
                let total = progress.done_bytes + progress.left_bytes;
                main.tell(Progress::new(progress.done_bytes, total, ProgressUnit::Bytes));
                (self.is_given_up)()
            });
        };
        let slowdown = Slowdown::new(Arc::clone(self.limits), self.vm.limits);
        let ready = self.copy(&places, main, records, &slowdown, &stop, &mut report);
        match (ready, watch.halted) {
            (Ok((copy, record)), _) => self.switch(&places, main, copy, record),
            (Err(_), Some(given_up)) => Err(given_up),
            (Err(problem), None) => Err((self.is_given_up)().unwrap_or(problem)),
        }
    }

    fn disk(&self) -> Result<&Disk, Problem> {
        self.vm.disk(&self.moved.disk).ok_or_else(|| no_such_disk(self.vm, &self.moved.disk))
    }

    /// Copies most of the disk, and waits for the record of its switch.
    fn copy<'p>(
        &self,
        places: &'p Places<'_>,
        main: &dyn MovesDisk,
        records: &Receiver<File>,
        slowdown: &Slowdown,
        stop: &AtomicBool,
        report: &mut dyn FnMut(RelocateProgress),
    ) -> Result<(ServedCopy<'p>, File), Problem> {
        let not_copied = |error| not_copied_beside(&places.from, error);
        let served = ServedVolume { path: &places.from, supervisor: Peer::ThisProcess };
        let options = places.options(places.disk.least_generation);
        let throttle = Throttle::default();
        let mut copy =
            copy_served(served, &places.to, &options, throttle, stop, report).map_err(not_copied)?;
        let mut slow = |round, passed| {
            tracing::info!(
                "VM {}: its guest writes as fast as {} is copied: slower",
                self.vm.name,
                self.moved.disk
            );
            slowdown.after(round, passed);
        };
        copy.catch_up(throttle, stop, report, &mut slow).map_err(not_copied)?;
        main.copied()?;
        let until = Instant::now() + SWITCHED_WITHIN;
        loop {
            match records.recv_timeout(KEEPS_UP_EVERY) {
                Ok(record) => return Ok((copy, record)),
                Err(RecvTimeoutError::Disconnected) => return Err(not_switched()),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => return Err(not_switched()),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(given_up) = (self.is_given_up)() {
                        return Err(given_up);
                    }
                    copy.keep_up(throttle, stop, report).map_err(not_copied)?;
                }
            }
        }
    }

    fn switch(
        &self,
        places: &Places<'_>,
        main: &dyn MovesDisk,
        copy: ServedCopy<'_>,
        record: File,
    ) -> Result<(), Problem> {
        let standby = main.release()?;
        let mut keeper = Keeper { moving: self, places, record };
        let ChangedPlace { supervisor, moved, pause } =
            copy.change_place(standby, &mut keeper, PARKED_MAX).unwrap_or_else(|error| replaced(&error));
        main.served(supervisor, moved.is_ok()).unwrap_or_else(|problem| replaced(&problem));
        let (vm, disk) = (&self.vm.name, &self.moved.disk);
        match moved {
            Ok(_) => {
                tracing::info!("VM {vm}: {disk} is in its new datastore; its guest waited for {pause:?}");
                merge_new_top(&places.to, places.disk.least_generation);
                Ok(())
            }
            Err(NotMoved::Copy(error)) => Err(not_copied(&places.from, error)),
            Err(NotMoved::Commit(problem)) => Err(problem),
        }
    }
}

/// Decides, and opens the volume.
struct Keeper<'a, 'v> {
    moving: &'a RunningMove<'v>,
    places: &'a Places<'a>,
    record: File,
}

impl PlaceKeeper for Keeper<'_, '_> {
    type Error = Problem;

    fn commit(&mut self, _moved: &Descriptor) -> Result<(), Problem> {
        // Whether half of a record counts is for the next process to read.
        disk_switch::decide(&self.record).unwrap_or_else(|error| replaced(&error));
        Ok(())
    }

    fn open(&mut self, path: &Path) -> Result<AwaitedVolume, Problem> {
        let RunningMove { keys, starter, run, limits, vm, moved, .. } = *self.moving;
        let vm = if path == self.places.to {
            moved.after(vm)
        } else {
            self.places.take_name_back()?;
            moved.before(vm)
        };
        let disk = vm.disk(&moved.disk).ok_or_else(|| no_such_disk(&vm, &moved.disk))?;
        let host = VolumeHost { keys, starter, run, limits, changed_over: None };
        host.open(&vm, disk).map_err(|error| error.problem())
    }
}

/// Ends this process in the middle of a switch. hostd has another one take over, which opens the
/// volume where the record says.
fn replaced(error: &dyn std::fmt::Display) -> ! {
    tracing::error!("a disk between two datastores is not served, and so its supervisor ends: {error}");
    std::process::exit(1);
}

fn not_switched() -> Problem {
    Problem::new(STAYS, "its switch did not follow the copy in time").with_next_step("try it again")
}

fn not_copied_beside(path: &Path, error: ServedError) -> Problem {
    match error {
        ServedError::Rewrite(error) => not_copied(path, error),
        ServedError::Control(error) => Problem::new(error.code(), error.to_string()),
    }
}
