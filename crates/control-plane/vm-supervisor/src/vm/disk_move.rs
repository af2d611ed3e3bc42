//! Moves a disk of a running VM to another datastore.
//!
//! ```text
//! Copying > Copied --(hostd has recorded that the switch begins)--> Switching > it is served
//! Taking: vm.json names the new place, and the former volume is deleted
//! ```
//!
//! The work has a thread of its own (`disk_move/running.rs`). This thread closes the volume for it,
//! and learns where it is served.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

use strongroom_datastore::file::storage::BY_PATH;
use strongroom_host::orders::Report;
use strongroom_host::protocol::{Disk, DiskMove, KnownVolume, MoveStep, Problem, Progress, VolumeState};
use strongroom_worker::supervise::{Standby, Supervisor};

use super::activity::Activity;
use super::unplug::ending;
use super::{Event, Vm};
use crate::disk_move::running::{MovesDisk, RunningMove};
use crate::disk_move::{self, STAYS};
use crate::disks::no_such_disk;
use crate::door::Connection;
use crate::starting::keep_served;
use crate::transfer::only_socket;
use crate::volumes::ServedVolume;

/// A move of a disk, with the connections and requests that wait for its step or for its end.
#[derive(Debug)]
pub(super) struct MovingDisk {
    moved: DiskMove,
    socket: usize,
    stage: Stage,
    asked_by: Option<(Connection, u64)>,
    awaited_by: Vec<(Connection, u64)>,
    abandoned: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Stage {
    /// It is copied beside its guest. The record of its switch goes there.
    Copying(Sender<File>),
    /// Little is left to copy.
    Copied(Sender<File>),
    /// Its rest is copied. The worker of its volume goes there, as soon as that is closed.
    Switching(Option<SyncSender<Result<Standby, Problem>>>),
    /// Its former volume is deleted.
    Taking,
}

/// News of a move.
#[derive(Debug)]
pub enum DiskMoveNews {
    /// Little is left to copy.
    Copied,
    /// The volume is to be closed.
    Release(SyncSender<Result<Standby, Problem>>),
    /// The volume is served again.
    Served {
        /// Its thread.
        served: ServedVolume,
        /// Whether it is at its new place.
        has_moved: bool,
    },
    /// The step has ended.
    Ended(Result<(), Problem>),
}

impl MovingDisk {
    /// The disk.
    pub(super) fn disk(&self) -> &str {
        self.moved.disk.as_str()
    }

    /// Gives up a copy. A switch and a deletion go on.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn for_tests(moved: DiskMove) -> Self {
        let stage = Stage::Taking;
        Self { moved, socket: 0, stage, asked_by: None, awaited_by: Vec::new(), abandoned: Arc::default() }
    }
}

/// The thread's way to the VM's own.
struct Main {
    events: Sender<Event>,
    socket: usize,
    disk: Disk,
}

impl Main {
    fn send(&self, news: DiskMoveNews) -> Result<(), Problem> {
        self.events.send(Event::DiskMove(news)).map_err(|_| ending())
    }
}

impl MovesDisk for Main {
    fn tell(&self, progress: Progress) {
        let _ = self.events.send(Event::Progress(progress));
    }

    fn copied(&self) -> Result<(), Problem> {
        self.send(DiskMoveNews::Copied)
    }

    fn release(&self) -> Result<Standby, Problem> {
        let (done, released) = sync_channel(1);
        self.send(DiskMoveNews::Release(done))?;
        released.recv().map_err(|_| ending())?
    }

    fn served(&self, supervisor: Supervisor, has_moved: bool) -> Result<(), Problem> {
        let served = keep_served(self.socket, supervisor, &self.disk, &self.events);
        self.send(DiskMoveNews::Served { served: served.map_err(Problem::system)?, has_moved })
    }
}

impl Vm {
    /// Begins to copy a disk. Answered when little is left. A repeated request gets the answer.
    pub(super) fn copy_disk(
        &mut self,
        asked_by: &Connection,
        request: u64,
        moved: DiskMove,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        if let Some(same) = self.activity.disk_move_mut().filter(|now| now.moved.is_of_same_move(&moved)) {
            match same.stage {
                Stage::Copying(_) => same.asked_by = Some((asked_by.clone(), request)),
                Stage::Copied(_) => asked_by.send(&self.answer_of_volumes(request, None)),
                Stage::Switching(_) | Stage::Taking => return self.activity.allow_another(),
            }
            return Ok(());
        }
        self.machine()?;
        self.activity.allow_another()?;
        self.check_volumes()?;
        self.must_enter(moved.directories(self.task.spec.id))?;
        self.learn(known)?;
        let vm = self.task.spec.as_ref().clone();
        let place = self.state.layout.place(&moved.disk).ok_or_else(|| no_such_disk(&vm, &moved.disk))?;
        let (socket, disk) = (place.socket, vm.disk(&moved.disk).cloned());
        let disk = disk.ok_or_else(|| no_such_disk(&vm, &moved.disk))?;
        if vm.volume_path(&disk.name) != moved.before(&vm).volume_path(&disk.name) {
            let message = format!("{} of VM {} is not where it is to move from", disk.name, vm.name);
            return Err(Problem::new("other_place", message));
        }
        let (records, recorded) = channel();
        let (abandoned, is_ending) = (Arc::new(AtomicBool::new(false)), self.start.abandoned());
        let moving = MovingDisk {
            moved: moved.clone(),
            socket,
            stage: Stage::Copying(records),
            asked_by: Some((asked_by.clone(), request)),
            awaited_by: Vec::new(),
            abandoned: Arc::clone(&abandoned),
        };
        let (keys, starter, run) = (Arc::clone(&self.keys), self.starter.clone(), self.run.clone());
        let (limits, events) = (Arc::clone(&self.limits), self.events.clone());
        let work = move || {
            let is_given_up = || match is_ending.load(Ordering::Relaxed) {
                true => Some(ending()),
                false => abandoned.load(Ordering::Relaxed).then(cancelled),
            };
            let main = Main { events, socket, disk };
            let job = RunningMove {
                keys: &keys,
                starter: &starter,
                run: &run,
                limits: &limits,
                vm: &vm,
                moved: &moved,
                is_given_up: &is_given_up,
            };
            let ended = job.complete(&main, &recorded);
            let _ = main.send(DiskMoveNews::Ended(ended));
        };
        thread::Builder::new().name("move".to_owned()).spawn(work).map_err(Problem::system)?;
        self.activity = Activity::MoveDisk(moving);
        Ok(())
    }

    /// Switches a disk that was copied. Answered when it is served; with an error if it is where
    /// it was. hostd relies on that: after an error this process does not decide any more.
    pub(super) fn switch_disk(
        &mut self,
        asked_by: &Connection,
        request: u64,
        moved: &DiskMove,
        files: Vec<OwnedFd>,
    ) -> Result<(), Problem> {
        let is_off = self.stop.is_some();
        let moving = self.activity.disk_move_mut().filter(|now| now.moved.is_of_same_move(moved));
        let moving = moving.ok_or_else(not_copied)?;
        match &moving.stage {
            Stage::Copied(records) if !is_off => {
                let record = File::from(only_socket(files)?);
                records.send(record).map_err(|_| not_copied())?;
                moving.stage = Stage::Switching(None);
            }
            Stage::Switching(_) => {}
            Stage::Copying(_) | Stage::Copied(_) | Stage::Taking => return Err(not_copied()),
        }
        moving.asked_by = Some((asked_by.clone(), request));
        Ok(())
    }

    /// Gives up copying a disk. Answered when nothing of that goes on.
    pub(super) fn abandon_disk_move(&mut self, asked_by: &Connection, request: u64) -> Result<(), Problem> {
        match self.activity.disk_move_mut() {
            Some(moving) => {
                moving.abandon();
                moving.awaited_by.push((asked_by.clone(), request));
            }
            None => asked_by.send(&Report::answer(request, None)),
        }
        Ok(())
    }

    /// Records where a disk is, and deletes its former volume.
    pub(super) fn take_disk(
        &mut self,
        asked_by: &Connection,
        request: u64,
        moved: &DiskMove,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        let moved = DiskMove { step: MoveStep::Take, ..moved.clone() };
        let same = self.activity.disk_move_mut().filter(|now| now.moved == moved);
        if let Some(same) = same {
            same.asked_by = Some((asked_by.clone(), request));
            return Ok(());
        }
        self.machine()?;
        self.activity.allow_another()?;
        self.must_enter(moved.directories(self.task.spec.id))?;
        self.learn(known)?;
        let vm = self.task.spec.as_ref().clone();
        if vm.volume_path(&moved.disk) != moved.after(&vm).volume_path(&moved.disk) {
            let message = format!("{} of VM {} is not served where it has moved", moved.disk, vm.name);
            return Err(Problem::new("other_place", message));
        }
        // Another supervisor would look for it there.
        self.configure(&vm)?;
        let (keys, events, taken) = (Arc::clone(&self.keys), self.events.clone(), moved.clone());
        let work = move || {
            let done = disk_move::step(&keys, &vm, &taken, |_| Ok(())).map(drop);
            let _ = events.send(Event::DiskMove(DiskMoveNews::Ended(done)));
        };
        thread::Builder::new().name("move".to_owned()).spawn(work).map_err(Problem::system)?;
        self.activity = Activity::MoveDisk(MovingDisk {
            moved,
            socket: 0,
            stage: Stage::Taking,
            asked_by: Some((asked_by.clone(), request)),
            awaited_by: Vec::new(),
            abandoned: Arc::default(),
        });
        Ok(())
    }

    /// Checks that this process was let into directories when it was confined.
    fn must_enter(&self, directories: Vec<PathBuf>) -> Result<(), Problem> {
        let enters = |path: &PathBuf| BY_PATH.open_directory(path).and_then(|opened| opened.names()).is_ok();
        match directories.into_iter().find(|path| !enters(path)) {
            Some(path) => {
                let message = format!("the VM's supervisor does not reach {}", path.display());
                Err(Problem::new("cannot_enter", message))
            }
            None => Ok(()),
        }
    }

    pub(super) fn disk_move_news(&mut self, news: DiskMoveNews) {
        match news {
            DiskMoveNews::Copied => {
                let Some(moving) = self.activity.disk_move_mut() else { return };
                if let Stage::Copying(records) = &moving.stage {
                    moving.stage = Stage::Copied(records.clone());
                }
                let asked_by = moving.asked_by.take();
                self.answer_disk_move(asked_by, None);
            }
            DiskMoveNews::Release(done) => {
                if let Err(problem) = self.release_moving(&done) {
                    let _ = done.send(Err(problem));
                }
            }
            DiskMoveNews::Served { served, has_moved } => self.moving_is_served(served, has_moved),
            DiskMoveNews::Ended(ended) => self.disk_move_ended(ended),
        }
    }

    fn release_moving(&mut self, done: &SyncSender<Result<Standby, Problem>>) -> Result<(), Problem> {
        if self.stop.is_some() {
            return Err(ending());
        }
        self.check_volumes()?;
        let moving = self.activity.disk_move_mut().ok_or_else(ending)?;
        let volume = self.volumes.iter().find(|volume| volume.socket == moving.socket);
        let served = volume.and_then(|volume| volume.served.as_ref()).ok_or_else(ending)?;
        moving.stage = Stage::Switching(Some(done.clone()));
        served.release();
        Ok(())
    }

    /// Passes on the worker of a volume that was closed for its switch; gives it back if it was
    /// not closed for that.
    pub(super) fn released_for_switch(&mut self, socket: usize, standby: Standby) -> Option<Standby> {
        match self.take_release(socket) {
            Some(done) => {
                let _ = done.send(Ok(standby));
                None
            }
            None => Some(standby),
        }
    }

    /// Who waits for the worker of a volume that is being closed for its switch.
    pub(super) fn take_release(&mut self, socket: usize) -> Option<SyncSender<Result<Standby, Problem>>> {
        let moving = self.activity.disk_move_mut().filter(|moving| moving.socket == socket)?;
        if let Stage::Switching(done) = &mut moving.stage { done.take() } else { None }
    }

    fn moving_is_served(&mut self, served: ServedVolume, has_moved: bool) {
        let Some(moving) = self.activity.disk_move_mut() else {
            served.stop();
            return;
        };
        let (moved, socket) = (moving.moved.clone(), moving.socket);
        if has_moved {
            let spec = moved.after(&self.task.spec);
            (self.state.spec, *self.task.spec) = (spec.clone(), spec);
            // The record of the switch has it, until it is written.
            if let Err(error) = self.state.write(&self.run) {
                tracing::warn!("VM {}: its state cannot be written: {error}", self.task.spec.name);
            }
        }
        if self.stop.is_some() {
            served.stop();
        }
        if let Some(volume) = self.volumes.iter_mut().find(|volume| volume.socket == socket) {
            (volume.served, volume.ended) = (Some(served), false);
            volume.observed.state = VolumeState::Serving;
        }
    }

    fn disk_move_ended(&mut self, ended: Result<(), Problem>) {
        let Some(moving) = self.activity.end_disk_move() else { return };
        let (vm, disk) = (&self.task.spec.name, moving.disk());
        if let Err(problem) = &ended {
            tracing::warn!("VM {vm}: {disk} does not move: {problem}");
        }
        self.tell();
        self.answer_disk_move(moving.asked_by, ended.err());
        for (connection, request) in moving.awaited_by {
            connection.send(&Report::answer(request, None));
        }
    }

    fn answer_disk_move(&self, asked_by: Option<(Connection, u64)>, problem: Option<Problem>) {
        if let Some((connection, request)) = asked_by {
            connection.send(&self.answer_of_volumes(request, problem));
        }
    }
}

fn not_copied() -> Problem {
    Problem::new(STAYS, "the disk was not copied by the VM's present supervisor")
}

fn cancelled() -> Problem {
    Problem::new("cancelled", "the move of the disk was cancelled")
}
