//! Handles news of a VM's machine and volumes.

use strongroom_host::protocol::{
    Disk, DiskName, ObservedVolume, OffReason, PowerState, Problem, VolumeState,
};
use strongroom_hypervisor::qmp::RunStatus;
use strongroom_hypervisor::{PowerEvent, QmpError};
use strongroom_worker::control::Status;
use strongroom_worker::supervise::SuperviseError;

use super::{Stop, Vm};
use crate::machine::MachineNews;
use crate::observe;
use crate::starting::AwaitingDisk;
use crate::volumes::VolumeNews;

/// QEMU's status of a machine that was paused by a command and for no other reason.
const STANDS_STILL: &str = "paused";

impl Vm {
    /// Handles news of the machine. Returns why the VM is off, if it is.
    pub(super) fn machine_news(&mut self, news: MachineNews) -> Option<(OffReason, String)> {
        match news {
            MachineNews::Event(event) => self.machine_event(event),
            MachineNews::Missed(status) => self.machine_is(status),
            MachineNews::Ended(said) => return Some(self.machine_ended(&said)),
            MachineNews::CutOff(why) => return Some(self.machine_was_cut_off(&why)),
        }
        None
    }

    fn machine_event(&mut self, event: PowerEvent) {
        if matches!(self.standing.power, PowerState::Stopping)
            && !matches!(event, PowerEvent::Shutdown { .. })
        {
            return;
        }
        if let PowerEvent::Dumped { error } = event {
            return self.dump_was_said_to_fail(error);
        }
        match event {
            PowerEvent::Shutdown { guest: true, .. } => {
                let stop = self.stop.get_or_insert_with(|| Stop {
                    reason: OffReason::GuestShutdown,
                    message: "the guest shut down".to_owned(),
                    deadline: None,
                    guest_ended: true,
                });
                stop.guest_ended = true;
                self.standing.becomes(PowerState::Stopping, None);
            }
            PowerEvent::Panicked => {
                tracing::error!("VM {}: its guest's system has given up", self.task.spec.name);
                self.standing.becomes(PowerState::Paused, Some(observe::panicked()));
            }
            PowerEvent::IoError { device, stopped: true } => {
                self.standing.becomes(PowerState::Paused, Some(observe::io_error(&device)));
            }
            PowerEvent::Resumed
                if self.standing.power == PowerState::Paused && self.halted.reason().is_none() =>
            {
                self.standing.becomes(PowerState::Running, None);
            }
            PowerEvent::Stopped if self.standing.power == PowerState::Running => {
                self.standing.becomes(PowerState::Paused, None);
            }
            PowerEvent::Reset { .. } if self.losses.thaw_is_late => self.agent.guest_was_reset(),
            PowerEvent::NetworkLost { network } => self.network_lost(&network),
            PowerEvent::DeviceDeleted { .. } => self.activity.wake(),
            _ => {}
        }
    }

    /// The guest continues with a failed TPM.
    pub(super) fn tpm_lost(&mut self, said: &str) {
        if self.stop.is_none() {
            let said = said.lines().last().unwrap_or_default();
            tracing::error!("VM {}: its TPM has ended: {said}", self.task.spec.name);
            self.losses.tpm = true;
        }
    }

    /// The guest continues with a disconnected network card.
    fn network_lost(&mut self, network: &str) {
        if self.stop.is_none() {
            tracing::error!(
                "VM {}: passt, or the filter before it, of {network} has ended",
                self.task.spec.name
            );
            self.losses.networks.insert(network.to_owned());
        }
    }

    /// Handles the state after missed events or the replacement of a monitor: a command may have
    /// been lost meanwhile.
    fn machine_is(&mut self, status: Result<RunStatus, QmpError>) {
        if self.standing.power == PowerState::Stopping {
            return;
        }
        self.activity.wake();
        if self.activity.is_sealing_memory() {
            return;
        }
        let halted = self.halted.reason();
        match status {
            Ok(status)
                if status.running == halted.is_some() && (status.running || status.word == STANDS_STILL) =>
            {
                // A machine that resumes must not leave a saved memory behind.
                let may = if status.running { Ok(()) } else { self.let_go_of_memory() };
                if let Err(problem) = may.and_then(|()| self.halt_or_go_on()) {
                    tracing::error!("VM {}: {problem}", self.task.spec.name);
                }
            }
            Ok(status) if status.running => self.standing.becomes(PowerState::Running, None),
            Ok(_) => self.standing.becomes(PowerState::Paused, halted),
            Err(error) => tracing::warn!("VM {}: {error}", self.task.spec.name),
        }
    }

    pub(super) fn volume_news(&mut self, socket: usize, news: VolumeNews) {
        let Some(at) = self.volumes.iter().position(|volume| volume.socket == socket) else { return };
        let volume = &mut self.volumes[at];
        match news {
            VolumeNews::Status(status) => {
                observe::learn(&mut volume.observed, &status);
                self.missing_key(&status);
                self.room_changed();
            }
            VolumeNews::Released(standby) => {
                volume.ended = true;
                volume.observed.state = VolumeState::Closed;
                (volume.observed.worker_pid, volume.observed.restarts) = (None, 0);
                let Some(standby) = self.released_for_switch(socket, *standby) else { return };
                let volume = &mut self.volumes[at];
                let (disk, done) = (volume.observed.disk.clone(), volume.leaving.take());
                let disk = self.layout_disk(&disk);
                if let (Some(moving), Some(disk)) = (self.activity.moving_mut(), disk) {
                    moving.released(AwaitingDisk { socket, disk, standby });
                }
                if let Some(done) = done {
                    let _ = done.send(Ok(()));
                }
            }
            VolumeNews::Ended(ended) if self.take_release(socket).is_some() => {
                tracing::error!("VM {}: a disk is not closed for its switch: {ended:?}", self.task.spec.name);
                // Its guest waits. Another supervisor opens the volume where it was.
                std::process::exit(1);
            }
            VolumeNews::Ended(ended) => {
                let volume = &mut self.volumes[at];
                volume.ended = true;
                volume.observed.state = VolumeState::Closed;
                volume.observed.worker_pid = None;
                if let Some(done) = volume.leaving.take() {
                    let disk = volume.observed.disk.clone();
                    let closed = ended.map_err(|error| Problem::new("worker", format!("{disk}: {error}")));
                    if let Err(problem) = &closed {
                        tracing::error!("VM {}: {problem}", self.task.spec.name);
                    }
                    self.volumes.remove(at);
                    // The volume of a disk that is removed is deleted in any case.
                    let _ = done.send(self.activity.moving().map_or(Ok(()), |_| closed));
                    self.room_changed();
                } else if self.stop.is_none() {
                    let (reason, message) = why_lost(&volume.observed, ended);
                    self.end_because(reason, message);
                } else if let Err(error) = ended {
                    tracing::error!("VM {}: {}: {error}", self.task.spec.name, volume.observed.disk);
                }
            }
        }
    }

    /// The disk of this name.
    fn layout_disk(&self, name: &DiskName) -> Option<Disk> {
        let mut disks = self.state.layout.disks(&self.task.spec).into_iter();
        disks.find_map(|(_, disk)| (disk.name == *name).then_some(disk))
    }

    /// While the VM runs, only future workers need the key.
    fn missing_key(&mut self, status: &Status) {
        if self.machine.is_none() {
            return;
        }
        let Some(key) = &status.key else { return };
        let found = self.task.spec.disks.iter().filter_map(|disk| disk.key.provider_key());
        let key =
            found.into_iter().find(|found| found.key == key.key && found.provider == key.provider).cloned();
        self.standing.missing = key.and_then(|key| self.keys.missing(&key));
    }

    /// A guest whose disk waits for space is paused, so that its own timeouts do not expire
    /// meanwhile.
    fn room_changed(&mut self) {
        let parked = self.volumes.iter().any(|volume| volume.observed.state == VolumeState::Parked);
        if parked == self.halted.for_room || self.machine.is_none() || self.stop.is_some() {
            return;
        }
        self.halted.for_room = parked;
        if self.activity.is_sealing_memory() {
            return;
        }
        if let Err(problem) = self.halt_or_go_on() {
            tracing::error!("VM {}: {problem}", self.task.spec.name);
        }
    }

    /// The QEMU may be under an attacker's control.
    fn machine_was_cut_off(&mut self, why: &str) -> (OffReason, String) {
        match &self.stop {
            Some(stop) => (stop.reason, stop.message.clone()),
            None => {
                let message = format!("nobody could speak with QEMU any more, and it was cut off: {why}");
                (OffReason::QemuDied, message)
            }
        }
    }

    fn machine_ended(&mut self, said: &str) -> (OffReason, String) {
        match &self.stop {
            Some(stop) => (stop.reason, stop.message.clone()),
            None => {
                let said = said.trim();
                let message = match said.lines().last() {
                    Some(last) => format!("QEMU has ended by itself, or was killed; it said last: {last}"),
                    None => "QEMU has ended by itself, or was killed".to_owned(),
                };
                (OffReason::QemuDied, message)
            }
        }
    }
}

fn why_lost(volume: &ObservedVolume, ended: Result<(), SuperviseError>) -> (OffReason, String) {
    match ended {
        Ok(()) => (OffReason::VolumeLost, format!("{} is not served any more", volume.disk)),
        Err(error @ SuperviseError::Revoked { .. }) => {
            (OffReason::KeyRevoked, format!("{}: {error}", volume.disk))
        }
        Err(error) => (OffReason::VolumeLost, format!("{}: {error}", volume.disk)),
    }
}
