//! A disk moves to another datastore with its snapshots, and back: a kill or a cancellation leaves
//! one volume, where the control plane says.

use strongroom_host::protocol::{
    DiskChange, DiskMove, DiskPlace, MoveStep, Reading, ReadingRequest, VolumeQuestion, disks_elsewhere,
};
use strongroom_host::vm_directory::VmRecord;
use strongroom_types::DatastoreId;

use super::*;

impl Subject {
    /// The VM with a second disk that has tags, and another datastore of its host.
    fn with_fast() -> (Self, DiskPlace) {
        Self::with_fast_and(|_, _| {}, boot_sector())
    }

    /// The same, with other disks.
    pub fn with_fast_and(other: impl Fn(usize, &mut Disk), boot_sector: Vec<u8>) -> (Self, DiskPlace) {
        let make = |site: &KeySite, at: usize, disk: &mut Disk| {
            (disk.key, disk.integrity) = (DiskKey::provider(site.key.clone(), None), at == 1);
            other(at, disk);
        };
        let subject = Self::with_disks(make, boot_sector);
        let path = subject.host.path("fast");
        std::fs::create_dir(&path).unwrap();
        let datastore = subject.host.try_use(&path, None).unwrap().id.unwrap();
        (subject, DiskPlace { datastore, path })
    }

    pub fn moved(&self, disk: usize, to: Option<&DiskPlace>, step: MoveStep) -> DiskMove {
        let from = self.spec.disks[disk].place.clone();
        DiskMove { disk: self.spec.disks[disk].name.clone(), from, to: to.cloned(), step }
    }

    pub fn change(&self, spec: &VmSpec, moved: DiskMove) -> OperationKind {
        OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change: DiskChange::Move(moved) }
    }

    fn copy(&self, disk: usize, to: Option<&DiskPlace>) -> OperationKind {
        self.change(&self.spec, self.moved(disk, to, MoveStep::Copy))
    }

    fn abandon(&self, disk: usize, to: Option<&DiskPlace>) {
        let abandon = self.change(&self.spec, self.moved(disk, to, MoveStep::Abandon));
        self.host.done(&self.spec, 0, abandon);
    }

    /// Has the copy taken, as after the control plane's decision, and asks for it once more.
    fn take(&mut self, disk: usize, to: Option<&DiskPlace>) {
        let moved = self.moved(disk, to, MoveStep::Take);
        self.spec = moved.after(&self.spec);
        for _ in 0..2 {
            let take = self.change(&self.spec, moved.clone());
            let told = self.host.done(&self.spec, 0, take);
            self.keep(told);
        }
        assert!(!moved.before(&self.spec).volume_path(&moved.disk).exists(), "the former volume is gone");
        assert_eq!(self.host.read(&self.spec), self.spec, "vm.json says what the control plane does");
        assert_eq!(self.host.judged(&self.spec), [""; 0], "its key vouches for the configuration");
    }

    /// Begins a copy. Returns it and its process once a part of it is there.
    fn begin_copy(&self, disk: usize, to: &DiskPlace) -> (OperationId, u32) {
        let request = self.host.request(0, self.copy(disk, Some(to)));
        self.host.operate(&self.spec, &request).unwrap();
        let there = to.directory_of(self.spec.id);
        until("a part of the copy is there", || {
            let arriving = std::fs::read_dir(&there).ok()?.next()?.ok()?.path();
            std::fs::read_dir(arriving).ok()?.next().map(drop)
        });
        (request.operation, *processes_below(self.host.hostd_pid()).first().unwrap())
    }
}

pub fn killed() {
    let (mut subject, fast) = Subject::with_fast();
    let there = fast.directory_of(subject.spec.id);

    // The process that copies is killed, and then hostd.
    let (operation, job) = subject.begin_copy(0, &fast);
    kill(job);
    let died = subject.host.await_operation(operation);
    assert!(died.state == OperationState::Done || died.error.unwrap().code == "job_died");
    subject.assert_whole();
    let request = subject.host.request(0, subject.copy(0, Some(&fast)));
    subject.host.operate(&subject.spec, &request).unwrap();
    subject.host.kill_hostd();
    subject.host.start_hostd();
    let kept = subject.host.done(&subject.spec, 0, subject.copy(0, Some(&fast)));
    subject.keep(kept);

    // What is complete there is nobody's until the control plane says so: the VM runs where it was,
    // and what it writes is in the next copy.
    subject.assert_whole();
    subject.host.done(&subject.spec, 0, subject.copy(0, Some(&fast)));
    subject.abandon(0, Some(&fast));
    assert!(!there.exists(), "nothing is left of it");
    subject.assert_whole();

    subject.host.done(&subject.spec, 0, subject.copy(0, Some(&fast)));
    subject.take(0, Some(&fast));
    subject.host.done(&subject.spec, 0, subject.copy(1, Some(&fast)));
    subject.take(1, Some(&fast));
    subject.assert_whole();
    let disk = subject.spec.disks[0].name.clone();
    let asked = ReadingRequest { vm: subject.spec.id, disk, question: VolumeQuestion::Identity };
    let read = subject.host.read_volumes(vec![asked]).unwrap();
    assert!(matches!(read[0], Reading::Identity(volume) if Some(volume) == subject.spec.disks[0].volume));

    // All of its volumes get new data keys, wherever they are.
    let second = subject.site.another_key();
    subject.finish(&second);
    assert_eq!(subject.descriptors().iter().filter(|found| found.snapshots.len() == 1).count(), 2);
    subject.assert_whole();

    // A hostd that was restarted finds them, and they move back.
    subject.host.kill_hostd();
    subject.host.start_hostd();
    subject.host.done(&subject.spec, 0, subject.copy(0, None));
    subject.take(0, None);
    assert!(there.join("disk1").exists() && !there.join("disk0").exists());
    subject.assert_whole();
    let spec = subject.spec.clone();
    subject.host.done(&spec, 0, OperationKind::Delete);
    assert!(!there.exists() && !spec.directory().exists());
    subject.host.assert_nobody_left();
}

pub fn refused() {
    let (mut subject, fast) = Subject::with_fast();
    let unknown = DiskPlace { datastore: DatastoreId::random(), path: fast.path.clone() };
    let refused = subject.host.refused(&subject.spec, 0, subject.copy(1, Some(&unknown)));
    assert_eq!(refused.code, "no_such_datastore", "the path of another datastore: {refused:?}");
    subject.start();
    let runs = subject.host.refused(&subject.spec, subject.generation, subject.copy(1, Some(&fast)));
    assert_eq!(runs.code, "running");
    subject.stop();

    // Nothing is taken that is not a whole copy, and the volume stays.
    let moved = subject.moved(1, Some(&fast), MoveStep::Take);
    let after = moved.after(&subject.spec);
    let missing = subject.host.refused(&after, 0, subject.change(&after, moved));
    assert!(missing.message.contains("/disk1: No such file"), "{missing:?}");
    subject.assert_whole();

    // A host that has no record of a switch, as after another one was lost, goes by what has the
    // volume's name.
    let switch =
        |subject: &Subject| subject.change(&subject.spec, subject.moved(1, Some(&fast), MoveStep::Switch));
    let stays = subject.host.done(&subject.spec, 0, switch(&subject));
    assert!(matches!(&stays, Some(OperationOutcome::Stays(_))), "{stays:?}");
    let copy = subject.change(&subject.spec, subject.moved(1, Some(&fast), MoveStep::CopyServed));
    let copied = subject.host.done(&subject.spec, 0, copy);
    assert!(matches!(&copied, Some(OperationOutcome::Volumes(_))), "{copied:?}");
    let moved = subject.host.done(&subject.spec, 0, switch(&subject));
    assert!(matches!(&moved, Some(OperationOutcome::Volumes(_))), "{moved:?}");
    subject.abandon(1, Some(&fast));
    let stays = subject.host.done(&subject.spec, 0, switch(&subject));
    assert!(matches!(&stays, Some(OperationOutcome::Stays(_))), "{stays:?}");
    std::fs::remove_dir(disks_elsewhere(&fast.path, subject.spec.id)).unwrap();
    subject.assert_whole();

    // Another volume in the copy's place is left alone.
    let first = subject.spec.volume_path(&subject.spec.disks[0].name);
    let there = disks_elsewhere(&fast.path, subject.spec.id);
    std::fs::create_dir(&there).unwrap();
    let planted = there.join("disk1");
    assert!(Command::new("cp").arg("-a").arg(&first).arg(&planted).status().unwrap().success());
    let other = subject.host.refused(&subject.spec, 0, subject.copy(1, Some(&fast)));
    assert_eq!(other.code, "other_volume", "{other:?}");
    assert!(planted.join("descriptor").exists());
    subject.assert_whole();

    // Where vm.json says that a disk lies decides nothing.
    let disk = subject.spec.disks[1].name.clone();
    let (directory, forged) =
        (subject.spec.directory(), DiskPlace { path: subject.host.path("old"), ..unknown });
    let mut record = VmRecord::read_of(&directory, subject.spec.id).unwrap();
    record.spec.put(&disk, Some(&forged));
    record.write(&directory).unwrap();
    subject.host.kill_hostd();
    subject.host.start_hostd();
    let asked = ReadingRequest { vm: subject.spec.id, disk, question: VolumeQuestion::Identity };
    let Reading::Problem(nowhere) = &subject.host.read_volumes(vec![asked]).unwrap()[0] else {
        panic!("it was read from a place that the host does not have")
    };
    assert_eq!(nowhere.code, "no_such_datastore");
    subject.assert_whole();
    assert_eq!(subject.host.read(&subject.spec), subject.spec);
    subject.host.assert_nobody_left();
}
