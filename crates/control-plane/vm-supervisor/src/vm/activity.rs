//! The activity of a running VM. There is at most one, so that none finds the VM in the middle of
//! another.

use strongroom_host::protocol::{DiskChange, Problem};

use super::change::Change;
use super::disk_move::MovingDisk;
use super::dump::DumpUnderWay;
use super::moving::Moving;
use super::nics::WantedNics;
use super::rekey::Rekeying;
use super::seal::SealingDisk;
use super::sizes::WantedSizes;
use super::snapshots::ChangingSnapshots;
use super::suspend::Suspension;

/// An activity has a thread of its own, and ends when that thread reports so as an
/// [`Event`](super::Event).
#[derive(Debug, Default)]
pub(super) enum Activity {
    /// None.
    #[default]
    Idle,
    /// The guest's memory is saved, and then the VM ends.
    Suspension(Suspension),
    /// The VM's volumes move to another key.
    Rekey(Rekeying),
    /// The guest's memory is dumped, and then the guest resumes.
    Dump(DumpUnderWay),
    /// A disk is added, removed or grown.
    DiskChange(Change<DiskChange>),
    /// Network cards are plugged in or out.
    NicChange(Change<WantedNics>),
    /// Processors or memory are plugged in or out.
    SizeChange(Change<WantedSizes>),
    /// A disk is encrypted or decrypted.
    SealDisk(SealingDisk),
    /// A snapshot is made or deleted.
    SnapshotChange(ChangingSnapshots),
    /// The VM moves to another host, or comes from one.
    Move(Moving),
    /// A disk moves to another datastore.
    MoveDisk(MovingDisk),
    /// Another supervisor is about to take over.
    StandDown,
}

impl Activity {
    /// Why another activity is refused.
    fn refusal(&self) -> Option<Problem> {
        let wait = |message: String| Problem::new("busy", message).with_next_step("wait for it");
        match self {
            Self::Idle => None,
            Self::Suspension(_) => Some(Problem::new("suspending", "the VM is being suspended")),
            Self::Move(_) => {
                let problem = Problem::new("moving", "the VM is moving between two hosts while it runs");
                Some(problem.with_next_step("wait for that, or cancel it (`strongroom task list`)"))
            }
            Self::Dump(_) => {
                let problem = Problem::new("dumping", "the VM's guest is being dumped");
                Some(problem.with_next_step("wait for that, or cancel it (`strongroom task list`)"))
            }
            Self::Rekey(_) => Some(wait("the VM is moving to another key".to_owned())),
            Self::SnapshotChange(_) => Some(wait("a snapshot of the VM is being made or deleted".to_owned())),
            Self::DiskChange(changing) => {
                Some(wait(format!("{} of the VM is being changed", changing.wanted().what())))
            }
            Self::NicChange(_) => Some(wait("the network cards of the VM are being changed".to_owned())),
            Self::SizeChange(_) => {
                Some(wait("the processors and the memory of the VM are being changed".to_owned()))
            }
            Self::MoveDisk(moving) => {
                let problem = wait(format!("{} of the VM is moving to another datastore", moving.disk()));
                Some(problem.with_next_step("wait for that, or cancel it (`strongroom task list`)"))
            }
            Self::StandDown => Some(
                Problem::new("not_ready", "another supervisor of the VM is about to take over")
                    .with_next_step("try again in a moment"),
            ),
            Self::SealDisk(sealing) => {
                let problem = wait(format!("{} of the VM is being encrypted or decrypted", sealing.disk()));
                Some(problem.with_next_step("wait for that, or cancel it (`strongroom task list`)"))
            }
        }
    }

    /// Checks that an activity may begin.
    ///
    /// # Errors
    /// If another one is in progress.
    pub(super) fn allow_another(&self) -> Result<(), Problem> {
        self.refusal().map_or(Ok(()), Err)
    }

    /// Checks that a request may use the guest or its memory's volumes without being an activity
    /// itself.
    ///
    /// # Errors
    /// If the guest's memory is being sealed.
    pub(super) fn allow_use_of_guest(&self) -> Result<(), Problem> {
        if self.is_sealing_memory() { self.allow_another() } else { Ok(()) }
    }

    /// Whether the guest's memory is being sealed, and nothing else may pause or resume it.
    pub(super) fn is_sealing_memory(&self) -> bool {
        match self {
            Self::Suspension(_) | Self::Dump(_) | Self::Move(_) | Self::StandDown => true,
            Self::SnapshotChange(changing) => changing.is_saving_memory(),
            Self::Idle
            | Self::Rekey(_)
            | Self::DiskChange(_)
            | Self::NicChange(_)
            | Self::SizeChange(_)
            | Self::MoveDisk(_)
            | Self::SealDisk(_) => false,
        }
    }

    /// Wakes a change that waits for the guest: QEMU has released a device, or may have.
    pub(super) fn wake(&self) {
        match self {
            Self::DiskChange(changing) => changing.wake(),
            Self::NicChange(changing) => changing.wake(),
            Self::SizeChange(changing) => changing.wake(),
            Self::Idle
            | Self::Suspension(_)
            | Self::Rekey(_)
            | Self::Dump(_)
            | Self::Move(_)
            | Self::MoveDisk(_)
            | Self::StandDown
            | Self::SealDisk(_)
            | Self::SnapshotChange(_) => {}
        }
    }

    pub(super) fn suspension(&self) -> Option<&Suspension> {
        if let Self::Suspension(suspension) = self { Some(suspension) } else { None }
    }

    pub(super) fn moving(&self) -> Option<&Moving> {
        if let Self::Move(moving) = self { Some(moving) } else { None }
    }

    pub(super) fn moving_mut(&mut self) -> Option<&mut Moving> {
        if let Self::Move(moving) = self { Some(moving) } else { None }
    }

    pub(super) fn dump(&self) -> Option<&DumpUnderWay> {
        if let Self::Dump(dump) = self { Some(dump) } else { None }
    }

    pub(super) fn dump_mut(&mut self) -> Option<&mut DumpUnderWay> {
        if let Self::Dump(dump) = self { Some(dump) } else { None }
    }

    pub(super) fn disk_change_mut(&mut self) -> Option<&mut Change<DiskChange>> {
        if let Self::DiskChange(changing) = self { Some(changing) } else { None }
    }

    pub(super) fn nic_change_mut(&mut self) -> Option<&mut Change<WantedNics>> {
        if let Self::NicChange(changing) = self { Some(changing) } else { None }
    }

    pub(super) fn size_change_mut(&mut self) -> Option<&mut Change<WantedSizes>> {
        if let Self::SizeChange(changing) = self { Some(changing) } else { None }
    }

    pub(super) fn rekey_mut(&mut self) -> Option<&mut Rekeying> {
        if let Self::Rekey(rekeying) = self { Some(rekeying) } else { None }
    }

    pub(super) fn sealing_mut(&mut self) -> Option<&mut SealingDisk> {
        if let Self::SealDisk(sealing) = self { Some(sealing) } else { None }
    }

    pub(super) fn disk_move_mut(&mut self) -> Option<&mut MovingDisk> {
        if let Self::MoveDisk(moving) = self { Some(moving) } else { None }
    }

    pub(super) fn snapshot_change(&self) -> Option<&ChangingSnapshots> {
        if let Self::SnapshotChange(changing) = self { Some(changing) } else { None }
    }

    pub(super) fn snapshot_change_mut(&mut self) -> Option<&mut ChangingSnapshots> {
        if let Self::SnapshotChange(changing) = self { Some(changing) } else { None }
    }

    /// Ends the suspension, if one is in progress.
    pub(super) fn end_suspension(&mut self) -> Option<Suspension> {
        match std::mem::take(self) {
            Self::Suspension(suspension) => Some(suspension),
            other => self.keep(other),
        }
    }

    /// Ends the move to another key, if one is in progress.
    pub(super) fn end_rekey(&mut self) -> Option<Rekeying> {
        match std::mem::take(self) {
            Self::Rekey(rekeying) => Some(rekeying),
            other => self.keep(other),
        }
    }

    /// Ends the dump, if one is in progress.
    pub(super) fn end_dump(&mut self) -> Option<DumpUnderWay> {
        match std::mem::take(self) {
            Self::Dump(dump) => Some(dump),
            other => self.keep(other),
        }
    }

    /// Ends the disk change, if one is in progress.
    pub(super) fn end_disk_change(&mut self) -> Option<Change<DiskChange>> {
        match std::mem::take(self) {
            Self::DiskChange(changing) => Some(changing),
            other => self.keep(other),
        }
    }

    /// Ends the change of network cards, if one is in progress.
    pub(super) fn end_nic_change(&mut self) -> Option<Change<WantedNics>> {
        match std::mem::take(self) {
            Self::NicChange(changing) => Some(changing),
            other => self.keep(other),
        }
    }

    /// Ends the change of the machine's sizes, if one is in progress.
    pub(super) fn end_size_change(&mut self) -> Option<Change<WantedSizes>> {
        match std::mem::take(self) {
            Self::SizeChange(changing) => Some(changing),
            other => self.keep(other),
        }
    }

    /// Ends the encryption or decryption of a disk, if one is in progress.
    pub(super) fn end_sealing(&mut self) -> Option<SealingDisk> {
        match std::mem::take(self) {
            Self::SealDisk(sealing) => Some(sealing),
            other => self.keep(other),
        }
    }

    /// Ends the step of a disk's move, if one is in progress.
    pub(super) fn end_disk_move(&mut self) -> Option<MovingDisk> {
        match std::mem::take(self) {
            Self::MoveDisk(moving) => Some(moving),
            other => self.keep(other),
        }
    }

    /// Ends the change of snapshots, if one is in progress.
    pub(super) fn end_snapshot_change(&mut self) -> Option<ChangingSnapshots> {
        match std::mem::take(self) {
            Self::SnapshotChange(changing) => Some(changing),
            other => self.keep(other),
        }
    }

    /// Keeps an activity that is not the one to end.
    fn keep<Ended>(&mut self, other: Self) -> Option<Ended> {
        *self = other;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use strongroom_host::protocol::{
        Cpus, DiskMove, DiskName, MemorySize, MoveStep, OperationId, SnapshotChange,
    };
    use strongroom_host::wire::Wire;
    use strongroom_types::SnapshotId;

    use super::*;
    use crate::door::Connection;

    fn asked_by() -> Connection {
        Connection { id: 1, wire: Arc::new(Wire::pair().unwrap().0) }
    }

    fn began<Wanted: PartialEq>(wanted: Wanted) -> Change<Wanted> {
        Change::new(wanted, &asked_by(), 1).0
    }

    /// One activity of each kind, with the code with which it refuses others.
    fn each() -> [(Activity, &'static str); 11] {
        let disk: DiskName = "disk1".parse().unwrap();
        let sealed = disk.clone();
        let moved = DiskMove { disk: disk.clone(), from: None, to: None, step: MoveStep::CopyServed };
        let sizes = WantedSizes { cpus: Cpus::of_cores(1), memory: MemorySize::MIN };
        let snapshots = SnapshotChange::Delete { snapshot: SnapshotId::random() };
        [
            (Activity::Suspension(Suspension::for_tests(asked_by())), "suspending"),
            (Activity::Rekey(Rekeying::for_tests(asked_by())), "busy"),
            (Activity::Dump(DumpUnderWay::for_tests(asked_by(), OperationId::random())), "dumping"),
            (Activity::DiskChange(began(DiskChange::Remove { disk })), "busy"),
            (Activity::SnapshotChange(ChangingSnapshots::for_tests(asked_by(), snapshots)), "busy"),
            (Activity::SealDisk(SealingDisk::for_tests(asked_by(), sealed)), "busy"),
            (Activity::NicChange(began(WantedNics { nics: Vec::new(), boot_order: Vec::new() })), "busy"),
            (Activity::SizeChange(began(sizes)), "busy"),
            (Activity::MoveDisk(MovingDisk::for_tests(moved)), "busy"),
            (Activity::Move(Moving::for_tests()), "moving"),
            (Activity::StandDown, "not_ready"),
        ]
    }

    #[test]
    fn nothing_begins_beside_an_activity_and_its_refusal_says_which() {
        Activity::Idle.allow_another().unwrap();
        for (activity, code) in each() {
            let refused = activity.allow_another().unwrap_err();
            assert_eq!(refused.code, code, "{activity:?}");
            assert!(refused.message.contains("VM"), "{refused}");
        }
        let change = &each()[3].0;
        assert!(change.allow_another().unwrap_err().message.starts_with("disk1 of the VM"));
    }

    #[test]
    fn the_guest_is_reached_unless_its_memory_is_being_sealed() {
        Activity::Idle.allow_use_of_guest().unwrap();
        let reached = each().map(|(activity, _)| activity.allow_use_of_guest().is_ok());
        assert_eq!(reached, [false, true, false, true, true, true, true, true, true, false, false]);
    }

    #[test]
    fn an_end_ends_its_own_activity_and_no_other() {
        // A move between hosts ends when it is decided where the guest goes on, and this process
        // ends after the last one.
        for (at, (mut activity, code)) in each().into_iter().take(9).enumerate() {
            let ended = |activity: &mut Activity, at| match at {
                0 => activity.end_suspension().is_some(),
                1 => activity.end_rekey().is_some(),
                2 => activity.end_dump().is_some(),
                3 => activity.end_disk_change().is_some(),
                5 => activity.end_sealing().is_some(),
                6 => activity.end_nic_change().is_some(),
                7 => activity.end_size_change().is_some(),
                8 => activity.end_disk_move().is_some(),
                _ => activity.end_snapshot_change().is_some(),
            };
            for other in (0..9).filter(|other| *other != at) {
                assert!(!ended(&mut activity, other));
                assert_eq!(activity.allow_another().unwrap_err().code, code);
            }
            assert!(ended(&mut activity, at));
            activity.allow_another().unwrap();
        }
    }
}
