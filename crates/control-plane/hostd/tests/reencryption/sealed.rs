//! A disk of a VM that is off is encrypted, and decrypted: a kill leaves a disk that nobody uses,
//! and that either request completes.

use strongroom_host::protocol::{DiskBecomes, DiskChange};

use super::*;

impl Subject {
    /// The request to encrypt or decrypt a disk, as the control plane makes it.
    pub fn seal(&self, disk: usize, becomes: DiskBecomes) -> (VmSpec, OperationKind) {
        let (key, mut spec) = (self.site.key.clone(), self.spec.clone());
        spec.disks[disk].key = DiskKey::HalfClear { key, kek: None, becomes };
        let change = DiskChange::Seal { disk: spec.disks[disk].name.clone() };
        let kind = OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change };
        (spec, kind)
    }

    /// Begins with a disk, which is half clear then, for hostd and for `vm.json`. Returns the
    /// process that works on it.
    fn begin_sealing(&self, disk: usize, becomes: DiskBecomes) -> (OperationId, u32) {
        let (half, kind) = self.seal(disk, becomes);
        let operation = self.half_done(kind);
        let job = *processes_below(self.host.hostd_pid()).first().unwrap();
        assert_eq!(self.host.read(&self.spec).disks[disk].key, half.disks[disk].key);
        (operation, job)
    }

    fn kill_half_clear(&self, disk: usize, becomes: DiskBecomes) {
        let (operation, job) = self.begin_sealing(disk, becomes);
        kill(job);
        let died = self.host.await_operation(operation);
        assert_eq!(died.error.as_ref().unwrap().code, "job_died", "{died:?}");
        assert!(self.is_half_done());
    }

    /// Completes the request, and keeps its outcome as the control plane does.
    pub fn finish_sealing(&mut self, disk: usize, becomes: DiskBecomes) {
        let (half, kind) = self.seal(disk, becomes);
        let told = self.host.done(&self.spec, self.generation, kind);
        self.spec = DiskChange::Seal { disk: half.disks[disk].name.clone() }.applied_to(&half).unwrap();
        self.keep(told);
        // While the VM runs, a merge may have followed.
        let mut recorded = self.host.read(&self.spec);
        recorded.learn(&self.spec.known_volumes()).unwrap();
        assert_eq!(recorded, self.spec, "vm.json says what the control plane does");
        assert!(!self.is_half_done());
    }

    /// No start succeeds, whatever the request says of the disk.
    fn assert_not_started(&mut self, half: &VmSpec) {
        for (spec, code) in [(half, "half_clear"), (&self.spec, "start_failed")] {
            self.generation += 1;
            let start = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
            let refused = self.host.refused(spec, self.generation, start);
            assert_eq!(refused.code, code, "{refused:?}");
        }
    }

    fn is_clear(&self) -> Vec<bool> {
        self.descriptors().iter().map(|descriptor| descriptor.encryption.is_none()).collect()
    }
}

pub fn killed() {
    let mut subject = Subject::under(|_, _| DiskKey::Unencrypted, boot_sector());
    assert!(subject.is_clear().iter().all(|is_clear| *is_clear));

    // The process that does it is killed, and then hostd.
    subject.kill_half_clear(0, DiskBecomes::Encrypted);
    let (half, kind) = subject.seal(0, DiskBecomes::Encrypted);
    subject.assert_not_started(&half);
    let configure = OperationKind::Configure { spec: Box::new(half.clone()) };
    assert_eq!(subject.host.refused(&half, 0, configure).code, "half_clear");
    let request = subject.host.request(0, kind);
    subject.host.operate(&subject.spec, &request).unwrap();
    subject.host.kill_hostd();
    subject.host.start_hostd();
    subject.finish_sealing(0, DiskBecomes::Encrypted);
    assert_eq!(subject.host.judged(&subject.spec), [""; 0], "its key vouches for the configuration");
    let second = subject.spec.volume_path(&subject.spec.disks[1].name);
    assert!(describe(&second).unwrap().descriptor.encryption.is_none(), "the other disk stays as it is");
    assert_eq!(subject.is_clear().iter().filter(|is_clear| **is_clear).count(), 1);
    subject.assert_whole();
    subject.finish_sealing(1, DiskBecomes::Encrypted);
    subject.host.assert_sealed(&subject.spec, MARKER.as_bytes());

    // What was begun is taken back, and then done, with an older volume refused.
    subject.kill_half_clear(0, DiskBecomes::Clear);
    subject.finish_sealing(0, DiskBecomes::Encrypted);
    subject.host.assert_sealed(&subject.spec, MARKER.as_bytes());
    subject.assert_whole();
    let (mut newer, _) = subject.seal(0, DiskBecomes::Clear);
    newer.disks[0].least_generation += 100;
    let change = DiskChange::Seal { disk: newer.disks[0].name.clone() };
    let older = OperationKind::ChangeDisk { spec: Box::new(newer.clone()), change };
    let refused = subject.host.refused(&newer, 0, older);
    assert!(refused.message.contains("generation"), "{refused:?}");
    subject.finish_sealing(0, DiskBecomes::Clear);
    assert_eq!(subject.is_clear().iter().filter(|is_clear| **is_clear).count(), 1);

    // With the last encrypted disk, the VM's own volumes are decrypted: not what lies there beside.
    let planted = subject.spec.directory().join("dump-7");
    let copied = Command::new("cp").arg("-a").arg(&second).arg(&planted).status().unwrap();
    assert!(copied.success());
    let (half, kind) = subject.seal(1, DiskBecomes::Clear);
    let refused = subject.host.refused(&half, 0, kind);
    assert_eq!(refused.code, "other_volume", "{refused:?}");
    std::fs::remove_dir_all(planted).unwrap();
    subject.finish_sealing(1, DiskBecomes::Clear);
    assert!(subject.is_clear().iter().all(|is_clear| *is_clear));
    subject.assert_whole();
    subject.host.assert_nobody_left();
}
