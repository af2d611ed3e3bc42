//! A disk moves to another datastore while its guest writes to it. Whoever is killed at whatever
//! step, the guest goes on where the host's record says, with all that it was told is written.

#![allow(clippy::print_stdout, reason = "how a switch ended is for people to read")]

use std::io::Write;
use std::time::Instant;

use strongroom_host::disk_switch;
use strongroom_host::protocol::{DiskFrontend, DiskMove, DiskPlace, MoveStep, PowerState};

use super::running::{Running, writing_boot_sector};
use super::*;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Supervisor,
    Worker,
    Hostd,
    Both,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Little is left to copy, and the switch has not begun.
    Copied,
    /// hostd has recorded that the switch begins.
    Begun,
    /// The copy has the volume's name.
    Named,
    /// It is decided.
    Decided,
}

/// A running VM whose first disk moves between its datastore and another one.
struct Moving {
    vm: Running,
    fast: DiskPlace,
}

impl Moving {
    fn new() -> Self {
        let by_nbd = |at: usize, disk: &mut Disk| {
            if at == 1 {
                disk.frontend = DiskFrontend::Nbd;
            }
        };
        let (subject, fast) = Subject::with_fast_and(by_nbd, writing_boot_sector());
        let mut vm = Running::of(subject);
        vm.write(5);
        Self { vm, fast }
    }

    /// The other place of the first disk.
    fn to(&self) -> Option<DiskPlace> {
        self.vm.subject.spec.disks[0].place.is_none().then(|| self.fast.clone())
    }

    fn moved(&self, step: MoveStep) -> DiskMove {
        self.vm.subject.moved(0, self.to().as_ref(), step)
    }

    fn begin(&self, moved: &DiskMove) -> OperationId {
        let subject = &self.vm.subject;
        let request = subject.host.request(subject.generation, subject.change(&subject.spec, moved.clone()));
        subject.host.operate(&subject.spec, &request).unwrap();
        request.operation
    }

    fn ended(&self, operation: OperationId) -> Option<OperationOutcome> {
        let ended = self.vm.subject.host.await_operation(operation);
        assert_eq!(ended.error, None, "{ended:?}");
        ended.outcome
    }

    fn step(&self, step: MoveStep) -> Option<OperationOutcome> {
        self.ended(self.begin(&self.moved(step)))
    }

    /// Copies the disk beside its guest. Its supervisor may be replaced by one that reaches both
    /// places.
    fn copy(&mut self) {
        // A worker that was killed a moment ago may not have its successor yet.
        self.vm.await_served();
        let before = self.vm.now().supervisor_pid;
        let copied = self.step(MoveStep::CopyServed);
        assert_eq!(copied, Some(OperationOutcome::Copied));
        if self.vm.now().supervisor_pid != before {
            self.vm.console = Running::attach(&self.vm.subject);
        }
    }

    /// Asks until the host has said where the disk is. Returns whether it has moved.
    fn has_switched(&self) -> bool {
        match self.step(MoveStep::Switch) {
            Some(OperationOutcome::Volumes(_)) => true,
            Some(OperationOutcome::Stays(_)) => false,
            other => panic!("{other:?}"),
        }
    }

    /// What the control plane does once it knows that the disk has moved.
    fn take(&mut self) {
        let moved = self.moved(MoveStep::Take);
        let former = self.vm.disk();
        self.vm.subject.spec = moved.after(&self.vm.subject.spec);
        for _ in 0..2 {
            let told = self.ended(self.begin(&moved));
            self.vm.subject.keep(told);
        }
        assert!(!former.exists() && self.vm.disk().exists());
        let subject = &self.vm.subject;
        // A merge in the background may have raised the generation since.
        let read = subject.host.read(&subject.spec);
        assert_eq!(read.disks[0].place, subject.spec.disks[0].place, "vm.json says where it is");
        assert!(!self.record().exists());
    }

    fn record(&self) -> PathBuf {
        self.vm.subject.host.path(&format!("home/disk-moves/{}.json", self.vm.subject.spec.id))
    }

    fn await_moment(&self, moment: Moment) {
        let (record, vm) = (self.record(), self.vm.subject.spec.id);
        let disk = self.vm.subject.spec.disks[0].name.clone();
        let to = self.moved(MoveStep::Switch).after(&self.vm.subject.spec).volume_path(&disk);
        let looked = Instant::now();
        while looked.elapsed() < Duration::from_secs(60) {
            let has_come = match moment {
                Moment::Copied => true,
                Moment::Begun => record.exists(),
                Moment::Named => to.join("descriptor").exists(),
                Moment::Decided => {
                    disk_switch::read(&record, vm).is_ok_and(|now| now.is_some_and(|now| now.has_moved))
                }
            };
            if has_come {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{moment:?} does not come");
    }

    /// Switches the disk, and kills somebody at a moment of that.
    fn switch_with_a_kill(&mut self, victim: Victim, moment: Moment) {
        let before = self.vm.now();
        self.copy();
        self.vm.write(3);
        let supervisor = self.vm.now().supervisor_pid.unwrap();
        let worker = self.vm.now().volumes[0].worker_pid.unwrap();
        let operation = (moment != Moment::Copied).then(|| self.begin(&self.moved(MoveStep::Switch)));
        self.await_moment(moment);
        if matches!(victim, Victim::Hostd | Victim::Both) {
            self.vm.subject.host.kill_hostd();
        }
        match victim {
            Victim::Supervisor | Victim::Both => kill(supervisor),
            Victim::Worker => kill(worker),
            Victim::Hostd => {}
        }
        if matches!(victim, Victim::Hostd | Victim::Both) {
            self.vm.subject.host.start_hostd();
        } else if let Some(operation) = operation {
            self.ended(operation);
        }
        let has_moved = self.has_switched();
        println!("{victim:?} is killed at {moment:?}: {}", if has_moved { "it moves" } else { "it stays" });
        if moment == Moment::Decided {
            assert!(has_moved, "it was decided");
        }
        if moment == Moment::Copied && victim == Victim::Supervisor {
            assert!(!has_moved, "nobody has copied it");
        }
        self.vm.await_served();
        if self.vm.now().supervisor_pid != Some(supervisor) {
            self.vm.console = Running::attach(&self.vm.subject);
        }
        self.vm.write(3);
        assert_eq!(self.vm.now().qemu_pid, before.qemu_pid, "its guest goes on");
        match has_moved {
            true => self.take(),
            false => self.abandon(),
        }
        self.vm.write(3);
    }

    fn abandon(&self) {
        self.step(MoveStep::Abandon);
        let moved = self.moved(MoveStep::Abandon);
        let disk = self.vm.subject.spec.disks[0].name.clone();
        let there = moved.after(&self.vm.subject.spec).volume_path(&disk);
        assert!(!there.exists() && !self.record().exists());
    }

    /// Its second disk, which QEMU reaches by NBD, moves to the other datastore.
    fn second_disk_moves(&mut self) {
        let fast = self.fast.clone();
        for step in [MoveStep::CopyServed, MoveStep::Switch, MoveStep::Take] {
            let moved = self.vm.subject.moved(1, Some(&fast), step);
            if step == MoveStep::Take {
                let from = DiskMove { from: None, ..moved };
                self.vm.subject.spec = from.after(&self.vm.subject.spec);
                self.ended(self.begin(&from));
            } else {
                let told = self.ended(self.begin(&moved));
                assert!(!matches!(told, Some(OperationOutcome::Stays(_))), "{told:?}");
            }
        }
        self.vm.console = Running::attach(&self.vm.subject);
        self.vm.write(3);
    }

    fn end(mut self) {
        self.vm.write(3);
        self.vm.subject.stop();
        self.vm.subject.assert_whole();
        self.vm.subject.host.assert_nobody_left();
    }
}

pub fn there_and_back() {
    let mut moving = Moving::new();
    let before = moving.vm.now();
    for _ in 0..2 {
        moving.copy();
        moving.vm.write(5);
        moving.copy();
        // The guest writes while the disk is switched.
        let switches = moving.begin(&moving.moved(MoveStep::Switch));
        let longest = (0..50).map(|_| {
            let began = Instant::now();
            moving.vm.write(1);
            began.elapsed()
        });
        println!("the longest of 50 writes took {:?}", longest.max());
        let told = moving.ended(switches);
        assert!(matches!(told, Some(OperationOutcome::Volumes(_))), "{told:?}");
        assert!(moving.has_switched(), "asked again");
        moving.vm.write(5);
        moving.take();
        moving.vm.write(5);
    }
    moving.second_disk_moves();
    let now = moving.vm.now();
    assert_eq!((now.qemu_pid, now.supervisor_deaths), (before.qemu_pid, 0));
    moving.end();
}

pub fn killed() {
    let mut moving = Moving::new();
    moving.switch_with_a_kill(Victim::Supervisor, Moment::Copied);
    moving.switch_with_a_kill(Victim::Supervisor, Moment::Named);
    moving.switch_with_a_kill(Victim::Both, Moment::Decided);
    moving.end();
}

pub fn all_are_killed() {
    let mut moving = Moving::new();
    for victim in [Victim::Supervisor, Victim::Worker, Victim::Hostd, Victim::Both] {
        for moment in [Moment::Copied, Moment::Begun, Moment::Named, Moment::Decided] {
            moving.switch_with_a_kill(victim, moment);
        }
    }
    // QEMU is killed: the rest is done while the VM is off.
    moving.copy();
    kill(moving.vm.now().qemu_pid.unwrap());
    moving.vm.subject.host.await_vm(&moving.vm.subject.spec, |vm| vm.power == PowerState::Crashed);
    assert!(!moving.has_switched());
    let copied = moving.step(MoveStep::CopyServed);
    assert!(matches!(copied, Some(OperationOutcome::Volumes(_))), "{copied:?}");
    moving.take();
    moving.vm.subject.assert_whole();
    moving.vm.subject.host.assert_nobody_left();
}

/// What a datastore says decides nothing, and what the record does not say is opened nowhere.
pub fn attacked() {
    let mut moving = Moving::new();
    moving.copy();
    moving.vm.write(3);
    assert!(moving.has_switched());
    moving.vm.write(3);
    // The former volume is there still, and vm.json names it. A supervisor that takes over serves
    // what was decided.
    let former = moving.vm.disk();
    assert!(former.exists());
    let before = moving.vm.now().supervisor_pid.unwrap();
    kill(before);
    let spec = moving.vm.subject.spec.clone();
    moving.vm.subject.host.await_vm(&spec, |vm| vm.supervisor_pid.is_some_and(|pid| pid != before));
    moving.vm.await_served();
    moving.vm.console = Running::attach(&moving.vm.subject);
    moving.vm.write(3);

    // Without a readable record none takes over, until it can be read.
    let before = moving.vm.now().supervisor_pid.unwrap();
    let record = std::fs::read(moving.record()).unwrap();
    std::fs::write(moving.record(), "half").unwrap();
    kill(before);
    moving.vm.subject.host.await_vm(&spec, |vm| vm.supervisor_pid.is_none());
    std::fs::File::create(moving.record()).unwrap().write_all(&record).unwrap();
    moving.vm.subject.host.await_vm(&spec, |vm| vm.supervisor_pid.is_some_and(|pid| pid != before));
    moving.vm.await_served();
    moving.vm.console = Running::attach(&moving.vm.subject);
    moving.vm.write(3);
    moving.take();
    moving.end();
}

pub fn cancelled() {
    let mut moving = Moving::new();
    let there = moving.fast.directory_of(moving.vm.subject.spec.id);
    let operation = moving.begin(&moving.moved(MoveStep::CopyServed));
    until("a part of the copy is there", || {
        let arriving = std::fs::read_dir(&there).ok()?.next()?.ok()?.path();
        std::fs::read_dir(arriving).ok()?.next().map(drop)
    });
    moving.vm.subject.host.cancel(operation);
    let ended = moving.vm.subject.host.await_operation(operation);
    assert!(matches!(ended.state, OperationState::Cancelled | OperationState::Done), "{ended:?}");
    moving.abandon();
    assert!(!there.exists(), "nothing is left of it");
    moving.vm.await_served();
    moving.vm.console = Running::attach(&moving.vm.subject);
    moving.vm.write(5);

    // The next one begins anew, also one that is given up after all of it was copied.
    moving.copy();
    moving.vm.write(3);
    moving.abandon();
    assert!(!moving.has_switched());
    moving.vm.write(3);
    moving.end();
}
