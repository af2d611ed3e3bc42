//! A disk is encrypted, and decrypted, while its guest writes to it.

use strongroom_datastore::file::NewTags;
use strongroom_host::protocol::{DiskBecomes, PowerState};
use strongroom_keys::DescriptorKey;
use strongroom_worker::control::{Answer, Becomes, Client, ReencryptAct, Request};

use super::running::{Running, writing_boot_sector};
use super::*;

/// A VM whose first disk is clear, and the second one encrypted.
fn with_a_clear_disk() -> Running {
    let clear_first = |site: &KeySite, at| match at {
        0 => DiskKey::Unencrypted,
        _ => DiskKey::provider(site.key.clone(), None),
    };
    Running::of(Subject::under(clear_first, writing_boot_sector()))
}

impl Running {
    fn descriptor(&self) -> Descriptor {
        describe(&self.disk()).unwrap().descriptor
    }

    /// Begins with the first disk. Returns the operation once a layer is done, while some are left.
    fn begin_sealing(&self, becomes: DiskBecomes) -> OperationId {
        let (half, kind) = self.subject.seal(0, becomes);
        let operation = self.subject.half_done(kind);
        assert_eq!(self.subject.host.read(&self.subject.spec).disks[0].key, half.disks[0].key);
        assert_eq!(
            self.descriptor().layer(self.descriptor().top).unwrap().is_clear(),
            becomes == DiskBecomes::Clear
        );
        operation
    }

    /// The file with the VM's state, for a later supervisor.
    fn state(&self) -> PathBuf {
        self.subject.host.path(&format!("run/vms/{}/state.json", self.subject.spec.id))
    }

    fn change_state(&self, change: impl FnOnce(&mut serde_json::Value)) {
        let mut state = serde_json::from_slice(&std::fs::read(self.state()).unwrap()).unwrap();
        change(&mut state);
        std::fs::write(self.state(), serde_json::to_vec(&state).unwrap()).unwrap();
    }

    /// Kills hostd and the supervisor. `then` happens before the next hostd starts, which starts
    /// the next supervisor.
    fn replace_supervisor(&mut self, then: impl FnOnce(&Self)) {
        let before = self.now().supervisor_pid.unwrap();
        self.subject.host.kill_hostd();
        kill(before);
        then(self);
        self.subject.host.start_hostd();
    }

    /// Waits for the next supervisor, which has the same guest.
    fn await_taken_over(&mut self, before: u32, qemu: Option<u32>) {
        self.subject
            .host
            .await_vm(&self.subject.spec, |vm| vm.supervisor_pid.is_some_and(|pid| pid != before));
        assert_eq!(self.await_served().qemu_pid, qemu);
        self.console = Self::attach(&self.subject);
    }
}

/// A clear descriptor of another generation, which takes no key to make.
fn of_generation(clear: &[u8], generation: u64) -> Vec<u8> {
    let length = u32::from_le_bytes(clear[12..16].try_into().unwrap()) as usize;
    let mut body: serde_json::Value = serde_json::from_slice(&clear[16..16 + length]).unwrap();
    body["generation"] = generation.into();
    let body = serde_json::to_vec(&body).unwrap();
    let mut made = clear[..12].to_vec();
    made.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    made.extend(body);
    made.extend(DescriptorKey::checksum(&made));
    made
}

pub fn killed() {
    let mut vm = with_a_clear_disk();
    vm.write(20);
    let qemu = vm.now().qemu_pid;

    // Workers are killed: their successors read and write as the supervisor was ordered.
    let operation = vm.begin_sealing(DiskBecomes::Encrypted);
    vm.write_while_workers_are_killed();
    let done = vm.subject.host.await_operation(operation);
    assert_eq!(done.error, None, "{done:?}");
    vm.subject.finish_sealing(0, DiskBecomes::Encrypted);
    vm.subject.host.assert_sealed(&vm.subject.spec, MARKER.as_bytes());
    vm.write(10);

    // The supervisor is killed: the next one serves the half-clear disk, and the repeated request
    // goes on.
    let operation = vm.begin_sealing(DiskBecomes::Clear);
    let before = vm.now().supervisor_pid.unwrap();
    kill(before);
    vm.subject.host.await_operation(operation);
    vm.await_taken_over(before, qemu);
    assert!(vm.subject.is_half_done());
    vm.write(10);
    vm.subject.finish_sealing(0, DiskBecomes::Clear);
    vm.write(10);

    // hostd is killed: the job goes on, and the next hostd's request waits for it.
    vm.begin_sealing(DiskBecomes::Encrypted);
    vm.subject.host.kill_hostd();
    vm.write(10);
    vm.subject.host.start_hostd();
    vm.await_served();
    vm.subject.finish_sealing(0, DiskBecomes::Encrypted);
    assert_eq!(vm.now().qemu_pid, qemu);
    vm.subject.host.assert_sealed(&vm.subject.spec, MARKER.as_bytes());

    // QEMU is killed: the job is continued when the VM is off.
    let operation = vm.begin_sealing(DiskBecomes::Clear);
    kill(qemu.unwrap());
    vm.subject.host.await_vm(&vm.subject.spec, |vm| vm.power == PowerState::Crashed);
    vm.subject.host.await_operation(operation);
    vm.subject.finish_sealing(0, DiskBecomes::Clear);
    vm.subject.assert_whole();
    vm.subject.host.assert_nobody_left();
}

/// The supervisor dies right before the change-over, and afterwards with the old descriptor put
/// back: what the guest writes is encrypted in either case, or nothing is written.
pub fn taken_over() {
    let mut vm = with_a_clear_disk();
    vm.write(10);
    let (qemu, before) = (vm.now().qemu_pid, vm.now().supervisor_pid.unwrap());
    let (half, _) = vm.subject.seal(0, DiskBecomes::Encrypted);
    let key = serde_json::to_value(&half.disks[0].key).unwrap();
    vm.replace_supervisor(|vm| vm.change_state(|state| state["spec"]["disks"][0]["key"] = key));
    vm.await_taken_over(before, qemu);
    let descriptor = vm.descriptor();
    assert!(descriptor.reencrypting.is_some(), "{descriptor:?}");
    assert!(!descriptor.layer(descriptor.top).unwrap().is_clear());
    vm.write(10);
    vm.subject.finish_sealing(0, DiskBecomes::Encrypted);
    vm.write(10);
    vm.subject.host.assert_sealed(&vm.subject.spec, MARKER.as_bytes());

    vm.subject.finish_sealing(0, DiskBecomes::Clear);
    vm.write(10);
    let clear = std::fs::read(vm.disk().join("descriptor")).unwrap();
    vm.begin_sealing(DiskBecomes::Encrypted);
    // Before that is recorded, a clear descriptor is what the next supervisor begins with.
    until("the change-over is recorded", || {
        let state = serde_json::from_slice::<serde_json::Value>(&std::fs::read(vm.state()).unwrap());
        state.ok().filter(|state| !state["changed_over"].is_null())
    });
    vm.replace_supervisor(|vm| {
        let put_back = vm.disk().join("put-back");
        std::fs::write(&put_back, of_generation(&clear, vm.descriptor().generation + 10)).unwrap();
        std::fs::rename(put_back, vm.disk().join("descriptor")).unwrap();
    });
    let ended = vm.subject.host.await_vm(&vm.subject.spec, |vm| vm.power == PowerState::Crashed);
    let why = ended.reason.unwrap().message;
    assert!(why.contains("is not encrypted, and should be being encrypted"), "{why}");
    vm.subject.host.assert_nobody_left();
}

pub fn cancelled() {
    let mut vm = with_a_clear_disk();
    vm.write(10);
    let operation = vm.begin_sealing(DiskBecomes::Encrypted);
    vm.write(5);
    vm.subject.host.cancel(operation);
    let ended = vm.subject.host.await_operation(operation).state;
    assert_eq!(ended, OperationState::Cancelled);
    assert!(vm.subject.is_half_done(), "its host takes nothing back unasked");
    vm.write(5);

    // No command on the volume changes it.
    let under = vm.descriptor().encryption.unwrap().kek.id;
    let act = ReencryptAct::BeginAs { becomes: Becomes::Clear { under }, tags: NewTags::None };
    let client = Client::connect(&vm.disk()).unwrap().unwrap();
    let asked = client.ask(Request::Reencrypt { act, least_generation: 0 }, Duration::from_secs(60));
    assert!(matches!(&asked, Ok(Answer::Refused { code, .. }) if code == "volume_of_vm"), "{asked:?}");

    // Neither is it suspended, nor does it get a snapshot.
    let refused = vm.subject.host.refused(&vm.subject.spec, vm.subject.generation, OperationKind::Suspend);
    assert_eq!(refused.code, "half_clear", "{refused:?}");
    let (half, _) = vm.subject.seal(0, DiskBecomes::Encrypted);
    let snapshot = NewVmSnapshot::of_disks(SnapshotId::random(), "meanwhile".parse().unwrap());
    let change = SnapshotChange::Create { snapshot };
    let change = OperationKind::ChangeSnapshots { spec: Box::new(half), change };
    let refused = vm.subject.host.refused(&vm.subject.spec, vm.subject.generation, change);
    assert_eq!(refused.code, "half_clear", "{refused:?}");

    vm.subject.finish_sealing(0, DiskBecomes::Clear);
    vm.write(10);
    // With the VM's own volumes it is refused, and nothing has changed.
    let (_, kind) = vm.subject.seal(1, DiskBecomes::Clear);
    let refused = vm.subject.host.refused(&vm.subject.spec, vm.subject.generation, kind);
    assert!(refused.message.contains("own volumes of VM web1"), "{refused:?}");
    assert!(!vm.subject.is_half_done());
    vm.subject.stop();
    vm.subject.assert_whole();
    vm.subject.host.assert_nobody_left();
}
