//! A VM with a TPM on a cluster: each state that its guest was told of is there for any host, and
//! no other one is accepted.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use strongroom_datastore::file::storage::{BY_PATH, mount as mount_here, read_file, replace_file, unmount};
use strongroom_hypervisor::swtpm::STATE_FILE;
use strongroom_rbd::process::{StorageProcess, StorageProgram};
use strongroom_remote::RemoteStorage;

use super::*;
use crate::support::SOON;
use crate::tpm::{MARKER as TPM_MARKER, TpmGuest, tpm_guest, tpm_processes};

/// The most bytes of a file that are searched at once.
const CHUNK_BYTES: usize = 4 << 20;

/// Lets this process look into the datastore, as a host does.
struct Looks {
    datastore: DatastoreId,
    /// Ends after the cluster has heard of it, so before the cluster does.
    process: StorageProcess,
}

impl Looks {
    fn into(datastore: &Datastore, wanted: &CephMount) -> Self {
        let path = std::env::current_exe().unwrap();
        let program = StorageProgram { path, arguments: vec!["storage".into()] };
        let (process, socket) = program.start(wanted, None).unwrap();
        let (socket, datastore) = (Mutex::new(Some(socket)), datastore.id.unwrap());
        let dial = move || socket.lock().take().ok_or(Errno::CONNRESET);
        mount_here(datastore, Arc::new(RemoteStorage::new(dial)));
        Self { datastore, process }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        unmount(self.datastore);
        if !self.process.wait(SOON) {
            self.process.kill();
        }
    }
}

fn stored(spec: &VmSpec) -> Option<Vec<u8>> {
    let directory = BY_PATH.open_volume(&spec.tpm_state_path()).unwrap();
    read_file(&*directory, STATE_FILE, 4 << 20).unwrap()
}

fn put_back(spec: &VmSpec, state: &[u8]) {
    let directory = BY_PATH.open_volume(&spec.tpm_state_path()).unwrap();
    replace_file(&*directory, STATE_FILE, state).unwrap();
}

/// Whether a file below the directory, such as a device of the cluster, has these bytes.
fn is_below(directory: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(directory).unwrap().flatten().any(|entry| {
        let kind = entry.file_type().unwrap();
        (kind.is_dir() && is_below(&entry.path(), bytes)) || (kind.is_file() && is_in(&entry.path(), bytes))
    })
}

fn is_in(path: &Path, bytes: &[u8]) -> bool {
    // Some are gone by now.
    let Ok(file) = std::fs::File::open(path) else { return false };
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        let count = file.read_at(&mut buffer, data).unwrap();
        if buffer[..count].windows(bytes.len()).any(|window| window == bytes) {
            return true;
        }
        if count < bytes.len() {
            return false;
        }
        // What begins in the last bytes may go on.
        at = data + (count - bytes.len() + 1) as u64;
    }
    false
}

pub fn keeps_its_states() {
    let cluster = CephCluster::start(3);
    let wanted = mount(&cluster, "vms");
    let mut subject = Subject::with(cluster, Host::start(), wanted.clone(), tpm_guest(), true);
    let _looks = Looks::into(&subject.datastore, &wanted);
    subject.start();
    let mut guest = TpmGuest::booted(&subject.host, &subject.spec);
    guest.define();
    guest.write(1);
    let former = stored(&subject.spec).unwrap();

    // The storage process, and with it the supervisor.
    let before = subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Running);
    subject.kill_storage();
    subject.host.await_vm(&subject.spec, |vm| {
        vm.power == PowerState::Running && vm.supervisor_deaths > before.supervisor_deaths
    });
    let mut guest = TpmGuest::found(&subject.host, &subject.spec);
    guest.has(1);
    guest.write(2);
    // All at once.
    subject.host.kill_hostd();
    subject.host.end_vms();
    subject.host.start_hostd();
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Crashed);
    subject.start();
    let mut guest = TpmGuest::booted(&subject.host, &subject.spec);
    guest.has(2);
    // swtpm, and then the gate.
    for (number, victim) in [(3, 1), (4, 2)] {
        guest.write(number);
        kill(tpm_processes(&subject.host, &subject.spec)[victim]);
        subject.host.await_vm(&subject.spec, |vm| vm.tpm_lost);
        subject.done(FORCED);
        subject.start();
        guest = TpmGuest::booted(&subject.host, &subject.spec);
        guest.has(number);
    }

    // With its memory, to which a state of the TPM belongs.
    let first = NewVmSnapshot { memory: true, ..snapshot("first") };
    subject.change(SnapshotChange::Create { snapshot: first.clone() });
    guest.write(5);
    subject.done(OperationKind::Suspend);
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Suspended);
    subject.start();
    let mut guest = TpmGuest::found(&subject.host, &subject.spec);
    guest.has(5);
    guest.write(6);
    subject.done(FORCED);

    // An older state, and none.
    let last = stored(&subject.spec).unwrap();
    let state = subject.spec.tpm_state_path();
    let file = state.join(STATE_FILE).display().to_string();
    put_back(&subject.spec, &former);
    let start = subject.next_start();
    let refused = subject.host.refused(&subject.spec, subject.generation, start);
    assert_eq!(refused.code, "start_failed");
    assert!(refused.message.contains("an older state was put back"), "{refused}");
    assert!(refused.message.contains(&file), "{refused}");
    BY_PATH.open_volume(&state).unwrap().remove(STATE_FILE).unwrap();
    let start = subject.next_start();
    let refused = subject.host.refused(&subject.spec, subject.generation, start);
    assert!(refused.message.contains("the TPM's state is missing"), "{refused}");
    put_back(&subject.spec, &last);

    // Back to the snapshot, with its TPM when that is said.
    let revert = |tpm| SnapshotChange::Revert {
        to: first.id,
        keep: snapshot("kept"),
        discard: true,
        disks_only: false,
        tpm,
    };
    let spec = Box::new(subject.spec.clone());
    let change = OperationKind::ChangeSnapshots { spec, change: revert(false) };
    let refused = subject.host.refused(&subject.spec, subject.generation, change);
    assert_eq!(refused.code, "tpm_goes_back");
    subject.change(revert(true));
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Suspended);
    subject.start();
    let mut guest = TpmGuest::found(&subject.host, &subject.spec);
    guest.has(4);
    subject.done(FORCED);

    // A clone has a TPM of its own.
    let second = snapshot("second");
    subject.change(SnapshotChange::Create { snapshot: second.clone() });
    let mut clone = subject.host.spec("copied", 2);
    clone.tpm = true;
    clone.datastore.clone_from(&subject.datastore.path);
    clone.disks.clone_from(&subject.spec.disks);
    for disk in &mut clone.disks {
        (disk.volume, disk.least_generation) = (None, 0);
    }
    let from = CloneSource {
        spec: subject.spec.clone(),
        snapshot: Some(second.id),
        linked: false,
        grants: Vec::new(),
    };
    let kind = OperationKind::Create { spec: Box::new(clone.clone()), from: Some(Box::new(from)) };
    let Some(OperationOutcome::Volumes(made)) = subject.host.done(&clone, 0, kind) else { panic!() };
    let clone = clone.with_facts(&made);
    let how = StartOptions::default();
    subject.host.done(&clone, 1, OperationKind::Start { spec: Box::new(clone.clone()), how });
    // The index is not there yet: it can be made.
    TpmGuest::booted(&subject.host, &clone).define();
    subject.host.done(&clone, 1, FORCED);
    subject.host.done(&clone, 1, OperationKind::Delete);
    assert!(BY_PATH.open_directory(&clone.directory()).is_err());

    assert!(is_below(subject.cluster.conf.parent().unwrap(), b"web1"), "names are there");
    assert!(!is_below(subject.cluster.conf.parent().unwrap(), TPM_MARKER));
    subject.host.assert_nowhere(TPM_MARKER);
    subject.done(OperationKind::Delete);
    assert!(BY_PATH.open_directory(&state).is_err());
    subject.host.assert_nobody_left();
}

/// Its host is lost as soon as the TPM has acknowledged a text, and another one starts the VM.
pub fn is_taken_over() {
    let mut cluster = CephCluster::start(3);
    for user in ["client.host1", "client.host2"] {
        cluster.add_user(user);
    }
    let (wanted, others) =
        (mount_as(&cluster, "vms", "client.host1"), mount_as(&cluster, "vms", "client.host2"));
    let mut subject = Subject::with(cluster, Host::start_elsewhere(), wanted, tpm_guest(), true);
    let second = Host::start();
    subject.site.serve(&second);
    let id = subject.datastore.id.unwrap();
    second.try_use_cluster(others.clone(), Some(id)).unwrap();
    let _looks = Looks::into(&subject.datastore, &others);
    subject.start();
    let mut guest = TpmGuest::booted(&subject.host, &subject.spec);
    guest.define();
    guest.write(1);
    let user: CephUser = "client.host1".parse().unwrap();
    second.fence(&FencingRequest { datastore: id, user, fencing: Fencing::Fence });
    let acknowledged = stored(&subject.spec).unwrap();

    // The former host still has its guest, and its TPM writes nothing to the cluster any more.
    let spec = subject.spec.clone();
    second.done(&spec, 2, OperationKind::Arrive { spec: Box::new(spec.clone()), handover: None });
    let start = || OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    second.done(&spec, 3, start());
    let mut guest = TpmGuest::booted(&second, &spec);
    guest.has(1);
    guest.write(2);
    subject.host.end_vms();
    second.done(&spec, 3, FORCED);
    put_back(&spec, &acknowledged);
    let refused = second.refused(&spec, 4, start());
    assert!(refused.message.contains("an older state was put back"), "{refused}");
    second.done(&spec, 4, OperationKind::Delete);
    second.assert_nobody_left();
}
