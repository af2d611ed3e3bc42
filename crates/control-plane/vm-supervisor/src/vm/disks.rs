//! Adds, removes, grows and limits disks of a running VM.
//!
//! The work has a thread of its own: keys are fetched, volumes are made and closed, and the guest
//! takes its time to release a device. Each step that a later supervisor must know is sent to the
//! VM's own thread as a [`DiskStep`], and recorded before the work continues: a disk is in the
//! state file before QEMU has it, and stays there until QEMU no longer has it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread;

use strongroom_host::layout::{Layout, Place};
use strongroom_host::orders::RunTask;
use strongroom_host::protocol::{
    Disk, DiskChange, DiskFrontend, DiskKind, DiskName, KnownVolume, PowerState, Problem, VmSpec,
};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_hypervisor::qemu::{DeviceId, HotPlugError};
use strongroom_types::{IoLimits, VolumeSize};
use strongroom_worker::supervise::LimitPage;

use super::activity::Activity;
use super::change::Change;
use super::unplug::{LETS_GO_WITHIN, Release, ending, plug_problem};
use super::{Event, Vm, Volume};
use crate::door::Connection;
use crate::keys::VmKeys;
use crate::machine::{Machine, attachment};
use crate::seal::running::SealStep;
use crate::starter::Starter;
use crate::volumes::{ServedVolume, VolumeHost, VolumeNews};
use crate::{disks, observe, swap};

/// A step that must be recorded before the change continues.
#[derive(Debug)]
pub enum DiskStep {
    /// The disk's volume exists, and is about to be served.
    Known {
        /// Where it will be served.
        place: Place,
        /// The disk.
        disk: Box<Disk>,
    },
    /// The volume is served.
    Served {
        /// The number of its socket.
        socket: usize,
        /// Its thread.
        served: ServedVolume,
    },
    /// QEMU does not have the disk, so its volume must be closed.
    Leaves {
        /// The disk.
        disk: DiskName,
    },
    /// The disk is being encrypted or decrypted.
    Seal(SealStep),
    /// The disk has a new size.
    Resized {
        /// The disk.
        disk: DiskName,
        /// Its new size.
        size_bytes: VolumeSize,
        /// The generation of its descriptor, as the process that serves it knows it.
        generation: u64,
    },
    /// A disk has other limits, or all of them together if none is named.
    Limited {
        /// The disk.
        disk: Option<DiskName>,
        /// Its limits.
        limits: IoLimits,
    },
}

impl Vm {
    /// Begins a change, which is answered when it has ended. If the same change is requested again,
    /// for example by the next hostd, the last request gets the answer.
    pub(super) fn change_disk(
        &mut self,
        asked_by: &Connection,
        request: u64,
        change: DiskChange,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        let machine = self.machine()?;
        if let Some(same) = self.activity.disk_change_mut().filter(|known| *known.wanted() == change) {
            same.answer_to(asked_by, request);
            return Ok(());
        }
        self.activity.allow_another()?;
        self.learn(known)?;
        self.allow(&change)?;
        let (changing, wakes) = Change::new(change.clone(), asked_by, request);
        let work = Work {
            task: self.task.clone(),
            layout: self.state.layout.clone(),
            run: self.run.clone(),
            keys: Arc::clone(&self.keys),
            starter: self.starter.clone(),
            limits: Arc::clone(&self.limits),
            machine,
            events: self.events.clone(),
            wakes,
        };
        thread::Builder::new()
            .name("disks".to_owned())
            .spawn(move || {
                let changed = work.run(&change);
                let _ = work.events.send(Event::DiskChanged(changed));
            })
            .map_err(Problem::system)?;
        self.activity = Activity::DiskChange(changing);
        Ok(())
    }

    fn allow(&self, change: &DiskChange) -> Result<(), Problem> {
        let spec = &self.task.spec;
        change.applied_to(spec)?;
        match change {
            DiskChange::Remove { disk } | DiskChange::Unbind { disk, .. }
                if self.standing.power == PowerState::Paused && self.state.layout.place(disk).is_some() =>
            {
                let message = format!("VM {} stands still, and cannot let go of {disk}", spec.name);
                Err(Problem::new("paused", message).with_next_step("resume it, or stop it"))
            }
            DiskChange::Resize { disk, .. } => {
                let disk = spec.disks.iter().find(|known| known.name == *disk);
                let why = match disk.map(|disk| (disk.kind, disk.frontend)) {
                    Some((DiskKind::Swap, _)) => "is made at the VM's start",
                    Some((_, DiskFrontend::Nbd)) => {
                        "is on NBD, where a guest that runs is not told of a new size"
                    }
                    _ => return Ok(()),
                };
                let name = change.what();
                let problem = Problem::new("running", format!("{name} of VM {} {why}", spec.name));
                Err(problem.with_next_step("stop the VM first"))
            }
            DiskChange::Seal { disk } => Err(asked_otherwise(spec, disk)),
            DiskChange::Move(moved) => Err(moved_while_off(spec, &moved.disk)),
            _ => Ok(()),
        }
    }

    /// Whether a saved memory would fit the layout that the next start makes.
    pub(super) fn is_as_started(&self) -> bool {
        self.state.layout == Layout::of(&self.task.spec)
            && self.has_nics_as_started()
            && self.has_sizes_as_started()
    }

    /// Records a step, and sends the result to `done`.
    pub(super) fn disk_step(&mut self, step: DiskStep, done: SyncSender<Result<(), Problem>>) {
        let (mut spec, mut layout) = (self.task.spec.as_ref().clone(), self.state.layout.clone());
        let told = match step {
            DiskStep::Known { place, disk } => {
                let volume = Volume {
                    socket: place.socket,
                    served: None,
                    observed: observe::opening(&disk),
                    ended: false,
                    leaving: None,
                };
                spec.disks.retain(|known| known.name != disk.name);
                spec.disks.push(*disk);
                layout.add(place);
                self.become_configured(&spec, layout).map(|()| self.volumes.push(volume))
            }
            DiskStep::Served { socket, served } => {
                let volume = self.volumes.iter_mut().find(|volume| volume.socket == socket);
                match volume.filter(|volume| self.stop.is_none() && !volume.ended) {
                    Some(volume) => {
                        volume.served = Some(served);
                        Ok(())
                    }
                    None => {
                        served.stop();
                        Err(ending())
                    }
                }
            }
            DiskStep::Seal(SealStep::HalfClear { disk }) => {
                let known = spec.disks.iter_mut().find(|known| known.name == disk.name);
                let before = self.state.changed_over.clone();
                if let Some(known) = known {
                    if known.key != disk.key {
                        self.state.changed_over = None;
                    }
                    (known.key, known.integrity) = (disk.key, disk.integrity);
                }
                let told = self.become_configured(&spec, layout);
                if told.is_err() {
                    self.state.changed_over = before;
                }
                told
            }
            DiskStep::Seal(SealStep::ChangedOver { disk, generation }) => {
                spec.raise_generation(&disk, generation);
                self.state.changed_over = Some(disk);
                self.become_configured(&spec, layout)
            }
            DiskStep::Resized { disk, size_bytes, generation } => {
                spec.disks
                    .iter_mut()
                    .filter(|known| known.name == disk)
                    .for_each(|disk| disk.size_bytes = size_bytes);
                spec.raise_generation(&disk, generation);
                self.become_configured(&spec, layout)
            }
            DiskStep::Limited { disk, limits } => {
                spec.limit(disk.as_ref(), limits);
                let told = self.become_configured(&spec, layout);
                match (&told, &disk) {
                    (Ok(()), Some(disk)) => {
                        let volume = self.volumes.iter().find(|volume| volume.observed.disk == *disk);
                        volume.and_then(|volume| volume.served.as_ref()).iter().for_each(|served| {
                            served.limit(limits);
                        });
                    }
                    (Ok(()), None) => self.limits.set(limits),
                    (Err(_), _) => {}
                }
                told
            }
            DiskStep::Leaves { disk } => {
                spec.disks.retain(|known| known.name != disk);
                layout.remove(&disk);
                let told = self.become_configured(&spec, layout);
                let at = self.volumes.iter().position(|volume| volume.observed.disk == disk);
                match (&told, at) {
                    (Ok(()), Some(at)) if self.volumes[at].served.is_some() && !self.volumes[at].ended => {
                        let volume = &mut self.volumes[at];
                        volume.served.iter().for_each(ServedVolume::stop);
                        volume.leaving = Some(done);
                        return;
                    }
                    (Ok(()), Some(at)) => drop(self.volumes.remove(at)),
                    _ => {}
                }
                told
            }
        };
        let _ = done.send(told);
    }

    /// Ends a change.
    pub(super) fn disk_changed(&mut self, changed: Result<(), Problem>) {
        let Some(changing) = self.activity.end_disk_change() else { return };
        let (vm, what) = (&self.task.spec.name, changing.wanted().what());
        match &changed {
            Ok(()) => tracing::info!("VM {vm}: {what} is changed, as was asked for"),
            Err(problem) => tracing::warn!("VM {vm}: {what} is not changed: {problem}"),
        }
        self.tell();
        changing.answer(|request| self.answer_of_volumes(request, changed.err()));
    }
}

/// The problem of a request of a former hostd, which has a disk encrypted or decrypted only while
/// its VM is off.
fn asked_otherwise(spec: &VmSpec, disk: &DiskName) -> Problem {
    let message = format!("{disk} of VM {} is encrypted or decrypted only while the VM is off", spec.name);
    Problem::new("running", message).with_next_step("stop the VM first")
}

/// The same for a disk that moves: one that does not while its VM is off has requests of its own.
fn moved_while_off(spec: &VmSpec, disk: &DiskName) -> Problem {
    let message = format!("{disk} of VM {} moves to another datastore while the VM is off", spec.name);
    Problem::new("running", message).with_next_step("stop the VM first")
}

/// The inputs of a change.
struct Work {
    task: RunTask,
    layout: Layout,
    run: VmRunDirectory,
    keys: Arc<VmKeys>,
    starter: Starter,
    limits: Arc<LimitPage>,
    machine: Machine,
    events: Sender<Event>,
    wakes: Receiver<()>,
}

impl Work {
    fn run(&self, change: &DiskChange) -> Result<(), Problem> {
        let spec = &self.task.spec;
        match change {
            DiskChange::Add { disk } => self.attach(&disks::make(Arc::clone(&self.keys), spec, disk)?),
            DiskChange::Bind { disk, .. } => {
                disks::bind(&self.keys, spec, disk)?;
                self.attach(disk)
            }
            DiskChange::Remove { disk } => {
                self.detach(disk)?;
                disks::remove(&self.keys, spec, disk)
            }
            DiskChange::Unbind { disk, .. } => {
                self.detach(disk)?;
                disks::unbind(&self.keys, spec, disk)
            }
            DiskChange::Seal { disk } => Err(asked_otherwise(spec, disk)),
            DiskChange::Move(moved) => Err(moved_while_off(spec, &moved.disk)),
            DiskChange::Resize { disk, size_bytes } => {
                let found =
                    spec.disk(disk).ok_or_else(|| Problem::new("no_such_disk", format!("no disk {disk}")))?;
                let (disk, size_bytes) = (disk.clone(), *size_bytes);
                let generation = disks::grow_served(spec, found, size_bytes)?;
                let mut grown = spec.clone();
                grown.raise_generation(&disk, generation);
                self.tell(DiskStep::Resized { disk: disk.clone(), size_bytes, generation })?;
                disks::note_size(&self.keys, &grown, &disk, size_bytes)
            }
            DiskChange::Limit { disk, limits } => {
                disks::note(&self.keys, spec, change)?;
                self.tell(DiskStep::Limited { disk: disk.clone(), limits: *limits })
            }
        }
    }

    /// Serves a disk's volume, and gives the guest the disk.
    fn attach(&self, disk: &Disk) -> Result<(), Problem> {
        let place = match self.layout.place(&disk.name) {
            // A supervisor that died has added it, or an earlier request whose hostd died.
            Some(place) => place.clone(),
            None => {
                let place = self.layout.next(&disk.name);
                if disk.kind == DiskKind::Swap {
                    swap::renew(&self.task, disk, &self.keys).map_err(|error| error.problem())?;
                }
                self.tell(DiskStep::Known { place: place.clone(), disk: Box::new(disk.clone()) })?;
                let served = self.serve(disk, &place);
                if served.is_err() {
                    self.tell(DiskStep::Leaves { disk: disk.name.clone() })?;
                }
                self.tell(DiskStep::Served { socket: place.socket, served: served? })?;
                place
            }
        };
        self.plug(disk, &place).map_err(|error| plug_problem(&error))
    }

    /// Takes a disk from the guest, and closes its volume.
    fn detach(&self, disk: &DiskName) -> Result<(), Problem> {
        let Some(place) = self.layout.place(disk) else { return Ok(()) };
        self.unplug(&place.device().map_err(|error| plug_problem(&error))?, disk)?;
        self.tell(DiskStep::Leaves { disk: disk.clone() })
    }

    fn serve(&self, disk: &Disk, place: &Place) -> Result<ServedVolume, Problem> {
        // A disk that is added is whole.
        let changed_over = None;
        let (run, limits) = (&self.run, &self.limits);
        let host = VolumeHost { keys: &self.keys, starter: &self.starter, run, limits, changed_over };
        let supervisor = host.serve(&self.task.spec, disk, place.socket).map_err(|error| error.problem())?;
        let (events, socket) = (self.events.clone(), place.socket);
        let tell = move |news: VolumeNews| drop(events.send(Event::Volume(socket, news)));
        ServedVolume::run(supervisor, disk.name.as_str(), tell).map_err(Problem::system)
    }

    fn plug(&self, disk: &Disk, place: &Place) -> Result<(), HotPlugError> {
        let (device, qemu) = (place.device()?, self.machine.qemu());
        if qemu.is_plugged(&device)? {
            return Ok(());
        }
        let attached = attachment(&self.task.spec, &self.run, place.socket, disk);
        // Its socket was given to QEMU's user when it was made.
        qemu.plug_served_disk(&device, &attached)
    }

    /// Waits until the guest has released the device.
    fn unplug(&self, device: &DeviceId, disk: &DiskName) -> Result<(), Problem> {
        let release = Release { machine: &self.machine, wakes: &self.wakes };
        release.await_of(device, || {
            let message = format!(
                "the guest of VM {} has not let go of {disk} within {LETS_GO_WITHIN:?}; it may still",
                self.task.spec.name
            );
            let next = "have the guest end what uses it and try again, or stop the VM first";
            Problem::new("guest_keeps_disk", message).with_next_step(next)
        })
    }

    fn tell(&self, step: DiskStep) -> Result<(), Problem> {
        record(&self.events, step)
    }
}

/// Has the VM's own thread record a step.
pub(super) fn record(events: &Sender<Event>, step: DiskStep) -> Result<(), Problem> {
    let (done, answer) = sync_channel(1);
    events.send(Event::Disk(step, done)).map_err(|_| ending())?;
    answer.recv().map_err(|_| ending())?
}
