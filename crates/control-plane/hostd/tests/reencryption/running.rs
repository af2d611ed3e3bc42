//! All data of a VM is rewritten under new data keys while its guest writes.

use std::path::PathBuf;

use strongroom_host::process::ProcessIdentity;
use strongroom_host::protocol::{PowerState, VolumeState};

use super::*;
use crate::support::{Console, booting};

/// The first sector that the guest writes, and how far the next one is.
const FIRST_SECTOR: usize = 800;
const SECTORS_APART: usize = 8;
const SECTOR: usize = 512;

/// A disk whose guest prints `ready`, and then, for each `w`, fills another sector with its number
/// and echoes the `w`, or says `!` if that failed. It echoes all other input.
pub fn writing_boot_sector() -> Vec<u8> {
    let code: &[u8] = &[
        0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // ds, es, ss = 0
        0xbc, 0x00, 0x7c, 0xfc, // sp = 7c00
        0x88, 0x16, 0x6a, 0x7c, // drive = dl
        0xba, 0xf8, 0x03, 0xbe, 0x7c, 0x7c, // dx = COM1, si = message
        0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // say it to its zero byte
        0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, // wait for a byte
        0xba, 0xf8, 0x03, 0xec, 0x3c, 0x71, 0x74, 0x0a, 0x3c, 0x77, 0x74, 0x10, // q, w
        0xba, 0xf8, 0x03, 0xee, 0xeb, 0xe6, // say it again
        0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xf6, // ACPI's S5 of q35
        0xfe, 0x06, 0x6b, 0x7c, 0xa0, 0x6b, 0x7c, // al = ++fill
        0xbf, 0x00, 0x80, 0xb9, 0x00, 0x02, 0xf3, 0xaa, // fill a sector at 8000
        0xbe, 0x6c, 0x7c, 0xb8, 0x00, 0x43, 0x8a, 0x16, 0x6a, 0x7c, 0xcd, 0x13, // write it
        0xb0, 0x21, 0x72, 0xd1, // !
        0x83, 0x06, 0x74, 0x7c, 0x08, 0xb0, 0x77, 0xeb, 0xc8, // the next sector; w
        0x00, 0x00, // drive, fill
        0x10, 0x00, 0x01, 0x00, 0x00, 0x80, 0x00, 0x00, 0x20, 0x03, 0, 0, 0, 0, 0, 0, // its address
    ];
    booting(code)
}

/// A running VM whose guest writes.
pub struct Running {
    pub subject: Subject,
    pub console: Console,
    written: usize,
}

impl Running {
    fn new() -> Self {
        let subject = Subject::booting(writing_boot_sector());
        subject.copy_descriptors(&subject.site.key.clone());
        Self::of(subject)
    }

    pub fn of(mut subject: Subject) -> Self {
        subject.start();
        let console = Self::attach(&subject);
        Self { subject, console, written: 0 }
    }

    /// The console from here on: what its guest said before is told again.
    pub fn attach(subject: &Subject) -> Console {
        until("its guest answers", || {
            let mut console = subject.host.console(&subject.spec);
            console.is_echoed(&format!("<{}>", SnapshotId::random())).then_some(console)
        })
    }

    /// Its guest writes further sectors, each within another block.
    pub fn write(&mut self, count: usize) {
        for _ in 0..count {
            self.console.say("w");
            self.console.await_text("w");
            let at = (FIRST_SECTOR + self.written * SECTORS_APART) * SECTOR;
            self.written += 1;
            self.subject.image[at..at + SECTOR].fill(self.written as u8);
        }
    }

    pub fn await_served(&self) -> strongroom_host::protocol::ObservedVm {
        self.subject.host.await_vm(&self.subject.spec, |vm| {
            let is_served = vm.volumes.iter().all(|volume| volume.state == VolumeState::Serving);
            vm.power == PowerState::Running && vm.qemu_pid.is_some() && is_served
        })
    }

    pub fn now(&self) -> strongroom_host::protocol::ObservedVm {
        self.subject.host.await_vm(&self.subject.spec, |_| true)
    }

    /// Kills the worker of its first disk, which may just have been replaced.
    pub fn kill_worker(&self) {
        until("a worker is killed", || {
            let worker = self.now().volumes[0].worker_pid?;
            ProcessIdentity::of(worker)?.kill().ok()
        });
    }

    /// Workers are killed while its guest writes.
    pub fn write_while_workers_are_killed(&mut self) {
        for _ in 0..3 {
            self.write(5);
            self.kill_worker();
        }
        self.write(5);
    }

    pub fn disk(&self) -> PathBuf {
        self.subject.spec.volume_path(&self.subject.spec.disks[0].name)
    }

    /// Every data key of its first disk, which is half done, is under one of the two keys.
    fn assert_between(&self) {
        let descriptor = describe(&self.disk()).unwrap().descriptor;
        let records = descriptor.layers.iter().flat_map(|layer| &layer.epochs);
        assert!(records.clone().all(|record| record.envelopes.len() == 1), "{descriptor:?}");
    }

    fn end(mut self, first: &ProviderKey) {
        self.write(10);
        self.subject.stop();
        self.subject.assert_not_found(first);
        self.subject.assert_whole();
        self.subject.host.assert_nobody_left();
    }
}

pub fn killed() {
    let mut vm = Running::new();
    let first = vm.subject.site.key.clone();
    vm.write(20);
    let qemu = vm.now().qemu_pid;

    // Workers are killed: their successors read what the descriptor says.
    let second = vm.subject.site.another_key();
    let operation = vm.subject.begin_only(&second);
    vm.assert_between();
    vm.write_while_workers_are_killed();
    let done = vm.subject.host.await_operation(operation);
    assert_eq!(done.error, None, "{done:?}");
    vm.subject.finish(&second);
    vm.write(10);

    // The supervisor is killed: the next one has both keys, and the repeated request goes on.
    let third = vm.subject.site.another_key();
    let operation = vm.subject.begin_only(&third);
    let before = vm.now().supervisor_pid.unwrap();
    kill(before);
    vm.subject.host.await_operation(operation);
    vm.subject.host.await_vm(&vm.subject.spec, |vm| vm.supervisor_pid.is_some_and(|pid| pid != before));
    assert_eq!(vm.await_served().qemu_pid, qemu);
    vm.console = Running::attach(&vm.subject);
    assert!(vm.subject.is_half_done());
    vm.assert_between();
    vm.write(10);
    vm.subject.finish(&third);

    // hostd is killed: the job goes on, and the next hostd's request waits for it.
    let fourth = vm.subject.site.another_key();
    vm.subject.begin_only(&fourth);
    vm.subject.host.kill_hostd();
    vm.write(10);
    vm.subject.host.start_hostd();
    vm.await_served();
    vm.subject.finish(&fourth);
    assert_eq!(vm.now().qemu_pid, qemu);

    // QEMU is killed: the job is continued when the VM is off.
    let fifth = vm.subject.site.another_key();
    let operation = vm.subject.begin_only(&fifth);
    kill(qemu.unwrap());
    vm.subject.host.await_vm(&vm.subject.spec, |vm| vm.power == PowerState::Crashed);
    vm.subject.host.await_operation(operation);
    vm.subject.finish(&fifth);
    vm.subject.assert_not_found(&first);
    vm.subject.assert_whole();
    vm.subject.host.assert_nobody_left();
}

pub fn cancelled() {
    let mut vm = Running::new();
    let (first, second) = (vm.subject.site.key.clone(), vm.subject.site.another_key());
    vm.write(10);
    let operation = vm.subject.begin_only(&second);
    vm.write(10);
    vm.subject.host.cancel(operation);
    let ended = vm.subject.host.await_operation(operation).state;
    assert_eq!(ended, OperationState::Cancelled);
    assert!(!vm.subject.is_half_done());
    vm.write(10);

    // A snapshot waits for it, and for the last layer that it has put on.
    let operation = vm.subject.begin_only(&second);
    until("there is a snapshot", || {
        let snapshot = NewVmSnapshot::of_disks(SnapshotId::random(), "meanwhile".parse().unwrap());
        let change = SnapshotChange::Create { snapshot };
        let mut spec = vm.subject.spec.clone();
        spec.move_to(&second);
        let change = OperationKind::ChangeSnapshots { spec: Box::new(spec), change };
        let request = vm.subject.host.request(vm.subject.generation, change);
        vm.subject.host.operate(&vm.subject.spec, &request).unwrap();
        let refused = vm.subject.host.await_operation(request.operation).error;
        assert_eq!(vm.subject.host.operation(operation).error, None);
        assert!(vm.subject.host.operation(operation).state == OperationState::Done);
        assert!(refused.as_ref().is_none_or(|refused| refused.code == "busy"), "{refused:?}");
        refused.is_none().then_some(())
    });
    vm.subject.finish(&second);
    vm.end(&first);
}

/// An owner of the datastore puts back what was there before, while a disk is half done.
pub fn attacked() {
    let mut vm = Running::new();
    let (first, second) = (vm.subject.site.key.clone(), vm.subject.site.another_key());
    vm.write(10);
    let (disk, copies) = (vm.disk(), vm.subject.host.path("copies"));
    std::fs::create_dir(&copies).unwrap();
    let old: Vec<_> = std::fs::read_dir(&disk).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in old.iter().filter(|path| path.is_file()) {
        std::fs::copy(path, copies.join(path.file_name().unwrap())).unwrap();
    }
    let operation = vm.subject.begin_only(&second);
    // The descriptor without the mark, and all files that it names.
    for entry in std::fs::read_dir(&copies).unwrap() {
        let path = entry.unwrap().path();
        let place = disk.join(path.file_name().unwrap());
        if path.file_name().unwrap() == "descriptor" || !place.exists() {
            std::fs::copy(&path, disk.join("put-back")).unwrap();
            std::fs::rename(disk.join("put-back"), place).unwrap();
        }
    }
    // Whoever reads it refuses it, or replaces it by what the owner knows.
    let ended = vm.subject.host.await_operation(operation);
    vm.write(10);
    let found = describe(&disk).unwrap().descriptor;
    if let Some(problem) = &ended.error {
        assert!(
            problem.message.contains("descriptor") || problem.message.contains("generation"),
            "{problem}"
        );
    } else {
        assert_eq!(found.reencrypting, None);
    }
    vm.subject.finish(&second);
    vm.end(&first);
}
