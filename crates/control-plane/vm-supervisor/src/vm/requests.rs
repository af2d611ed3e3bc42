//! The requests to a VM's supervisor.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use strongroom_host::orders::{Report, Request, RequestKind};
use strongroom_host::protocol::{OffReason, PowerState, Problem};

use super::nics::WantedNics;
use super::rekey::DataKeys;
use super::sizes::WantedSizes;
use super::{Stop, Vm};
use crate::console::{Wants, relay};
use crate::door::Connection;
use crate::look_only::LookOnly;
use crate::machine::Machine;
use crate::starter::QemuSocket;
use crate::transfer::{only_socket, qmp_problem};

impl Vm {
    pub(super) fn asked(&mut self, connection: &Connection, request: Request, files: Vec<OwnedFd>) {
        let id = request.id;
        let (done, ends_later) = match request.kind {
            RequestKind::SetNics { nics, boot_order, networks } => {
                let wanted = WantedNics { nics, boot_order };
                (self.set_nics(connection, id, wanted, networks, files), true)
            }
            RequestKind::Suspend => (self.suspend(connection, id), true),
            RequestKind::Rekey { to, known } => {
                (self.rekey(connection, id, &to, DataKeys::Kept, &known), true)
            }
            RequestKind::Reencrypt { to, known } => {
                (self.rekey(connection, id, &to, DataKeys::Renewed, &known), true)
            }
            RequestKind::Dump { operation, label } => (self.dump(connection, id, operation, label), true),
            RequestKind::DeleteDump { number } => (self.delete_dump(connection, id, number), true),
            RequestKind::ChangeDisk { change, known } => {
                (self.change_disk(connection, id, change, &known), true)
            }
            RequestKind::SealDisk { disk, known } => (self.seal_disk(connection, id, &disk, &known), true),
            RequestKind::ChangeSnapshots { change, known } => {
                (self.change_snapshots(connection, id, change, &known), true)
            }
            RequestKind::SnapshotGroup { attempt, order } => {
                (self.group_order(connection, id, attempt, order), true)
            }
            RequestKind::SetSizes { cpus, memory_bytes } => {
                (self.set_sizes(connection, id, WantedSizes { cpus, memory: memory_bytes }), true)
            }
            RequestKind::GiveVolumes { known } => (self.give_volumes(files, &known), false),
            RequestKind::FetchVolumes => (self.fetch_volumes(connection, id, files), true),
            RequestKind::SendMemory { settings, with_volumes } => {
                (self.send_memory(connection, id, settings, with_volumes), true)
            }
            RequestKind::SwitchOver => (self.switch_over(connection, id), true),
            RequestKind::TakeUp => (self.take_up(connection, id), true),
            RequestKind::GoOn => (self.go_on(connection, id), true),
            RequestKind::CopyDisk { moved, known } => (self.copy_disk(connection, id, moved, &known), true),
            RequestKind::SwitchDisk { moved } => (self.switch_disk(connection, id, &moved, files), true),
            RequestKind::TakeDisk { moved, known } => (self.take_disk(connection, id, &moved, &known), true),
            RequestKind::AbandonDiskMove => (self.abandon_disk_move(connection, id), true),
            RequestKind::StandDown => (self.stand_down(), true),
            kind => (self.carry_out(kind, files), false),
        };
        // The effect of the request is visible before its answer.
        self.tell();
        // What has begun and ends later is answered then.
        if done.is_err() || !ends_later {
            connection.send(&Report::answer(id, done.err()));
        }
    }

    fn carry_out(&mut self, kind: RequestKind, files: Vec<OwnedFd>) -> Result<(), Problem> {
        match kind {
            RequestKind::Stop { force, timeout_s } => {
                self.ask_to_stop(force, timeout_s);
                Ok(())
            }
            // These are answered elsewhere.
            RequestKind::Statistics { .. }
            | RequestKind::Suspend
            | RequestKind::Rekey { .. }
            | RequestKind::Reencrypt { .. }
            | RequestKind::ChangeDisk { .. }
            | RequestKind::SetNics { .. }
            | RequestKind::SetSizes { .. }
            | RequestKind::SealDisk { .. }
            | RequestKind::ChangeSnapshots { .. }
            | RequestKind::SnapshotGroup { .. }
            | RequestKind::GiveVolumes { .. }
            | RequestKind::FetchVolumes
            | RequestKind::SendMemory { .. }
            | RequestKind::SwitchOver
            | RequestKind::TakeUp
            | RequestKind::GoOn
            | RequestKind::CopyDisk { .. }
            | RequestKind::SwitchDisk { .. }
            | RequestKind::TakeDisk { .. }
            | RequestKind::AbandonDiskMove
            | RequestKind::StandDown
            | RequestKind::Dump { .. }
            | RequestKind::DeleteDump { .. } => Ok(()),
            RequestKind::AbandonSuspension => {
                self.abandon_suspension();
                Ok(())
            }
            RequestKind::AbandonReencryption => {
                self.abandon_reencryption();
                self.abandon_sealing();
                Ok(())
            }
            RequestKind::AbandonDump => {
                self.abandon_dump();
                Ok(())
            }
            RequestKind::AbandonQuiescedSnapshot => {
                self.abandon_quiesced_snapshot();
                Ok(())
            }
            RequestKind::AbandonMove => self.abandon_move(),
            RequestKind::OpenDump { number } => self.open_dump(number, only_socket(files)?),
            RequestKind::Grants(grants) => {
                self.keys.add_grants(grants);
                self.start.nudge();
                Ok(())
            }
            RequestKind::Pause => self.halt_by_request(true),
            RequestKind::Resume => self.halt_by_request(false),
            RequestKind::Reset => {
                let machine = self.machine()?;
                machine.qemu().monitor().reset().map_err(qmp_problem)?;
                // A panicked guest is paused until it is reset.
                self.halt_or_go_on()
            }
            RequestKind::Console { read_only, taken_by } => {
                let wants = match (read_only, taken_by) {
                    (true, _) => Wants::Read,
                    (false, None) => Wants::Write,
                    (false, Some(by)) => Wants::TakeOver { by },
                };
                self.serial.console()?.attach(only_socket(files)?, wants);
                Ok(())
            }
            RequestKind::ConsoleLog => self.serial.log()?.read(only_socket(files)?.into()),
            RequestKind::Vnc => self.vnc(only_socket(files)?, None),
            RequestKind::VncToLook => self.vnc(only_socket(files)?, Some(LookOnly::new())),
        }
    }

    pub(super) fn machine(&self) -> Result<Machine, Problem> {
        if self.standing.power == PowerState::Stopping {
            return Err(Problem::new("stopping", "the VM is stopping"));
        }
        self.activity.allow_use_of_guest()?;
        self.machine.clone().ok_or_else(|| self.not_running())
    }

    /// Why a request that needs QEMU is refused: `not_ready` means that QEMU runs and is about to
    /// be found.
    pub(super) fn not_running(&self) -> Problem {
        match &self.state.qemu {
            Some(_) => Problem::new("not_ready", "the VM is being taken over")
                .with_next_step("try again in a moment"),
            None => Problem::new("not_running", "the VM does not run yet"),
        }
    }

    fn vnc(&self, client: OwnedFd, looks: Option<LookOnly>) -> Result<(), Problem> {
        let failed = |error: std::io::Error| {
            Problem::new("vnc", format!("the VM's screen cannot be reached: {error}"))
        };
        if !self.task.spec.board.vnc {
            return Err(Problem::new("no_screen", "the VM has no screen"));
        }
        self.machine()?;
        let server = self.starter.connect(QemuSocket::Vnc).map_err(failed)?;
        relay(client, server, looks).map_err(failed)
    }

    /// A refused request is undone. Otherwise it would take effect later, although its caller was
    /// told that it failed.
    fn halt_by_request(&mut self, halted: bool) -> Result<(), Problem> {
        self.machine()?;
        let before = std::mem::replace(&mut self.halted.by_request, halted);
        self.remember_pause();
        self.halt_or_go_on().inspect_err(|_| {
            self.halted.by_request = before;
            self.remember_pause();
        })
    }

    fn remember_pause(&mut self) {
        self.state.paused_by_request = self.halted.by_request;
        if let Err(error) = self.state.write(&self.run) {
            tracing::warn!("VM {}: its state cannot be written: {error}", self.task.spec.name);
        }
    }

    pub(super) fn ask_to_stop(&mut self, force: bool, timeout_s: u32) {
        let deadline = Instant::now().checked_add(Duration::from_secs(timeout_s.into()));
        self.abandon_suspension();
        self.abandon_dump();
        self.abandon_snapshot_memory();
        self.abandon_quiesced_snapshot();
        self.give_up_part();
        if let Some(moving) = self.activity.disk_move_mut() {
            moving.abandon();
        }
        let is_between_hosts = self.is_between_hosts();
        if !is_between_hosts && let Err(problem) = self.abandon_move() {
            tracing::warn!("VM {}: its move is not given up: {problem}", self.task.spec.name);
        }
        let (reason, message) = match force {
            true => (OffReason::ForcedOff, "it was cut off, as was asked for"),
            false => (OffReason::Stopped, "it was stopped, as was asked for"),
        };
        self.stop = Some(Stop { reason, message: message.to_owned(), deadline, guest_ended: false });
        let is_awake = self.standing.power != PowerState::Paused;
        self.standing.becomes(PowerState::Stopping, None);
        // A guest between two hosts must not run to shut down.
        match force || is_between_hosts || self.activity.suspension().is_some() {
            true => self.cut_off(),
            // The guest is asked as soon as its memory is no longer needed.
            false if self.activity.is_sealing_memory() => {}
            false => self.ask_guest_to_end(is_awake),
        }
    }

    /// Presses the power button of a machine. If that fails, the machine is stopped by force.
    pub(super) fn ask_guest_to_end(&mut self, is_awake: bool) {
        let asked = self.machine.as_ref().is_some_and(|machine| {
            let monitor = machine.qemu().monitor();
            // A paused guest would not see the button.
            let awake = if is_awake { Ok(()) } else { monitor.cont() };
            awake.and_then(|()| monitor.press_power_button()).is_ok()
        });
        if !asked {
            self.cut_off();
        }
    }
}
