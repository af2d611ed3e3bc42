//! VMs whose datastore is on a real Ceph cluster: their whole life, with the storage process, the
//! supervisor and hostd killed in it, and a cluster that stops.

pub mod tpm;

use std::path::PathBuf;

use strongroom_confine::cgroup_of;
use strongroom_datastore::file::storage::cluster_of;
use strongroom_host::protocol::{
    CloneSource, Datastore, DatastoreState, DiskChange, DiskFrontend, DiskKey, DiskMove, DiskPlace, Fencing,
    FencingRequest, MoveStep, NewVmSnapshot, OperationKind, OperationOutcome, PowerState, SnapshotChange,
    StartOptions, VmSpec,
};
use strongroom_test_peers::CephCluster;
use strongroom_types::{CephClient, CephMount, CephPools, CephUser, DatastoreId, SnapshotId, VolumeSize};

use super::FORCED;
use crate::support::{Console, Host, KeySite, kill, until};
use crate::suspend::{MARKER, counting_guest, counts};

/// The size of the first disk: more than one image's object.
const DISK_BYTES: u64 = 6 << 20;

fn mount(cluster: &CephCluster, namespace: &str) -> CephMount {
    mount_as(cluster, namespace, "client.admin")
}

pub fn mount_as(cluster: &CephCluster, namespace: &str, user: &str) -> CephMount {
    CephMount {
        pools: CephPools {
            pool: "rep2".parse().unwrap(),
            data_pool: Some("ec21".parse().unwrap()),
            namespace: namespace.parse().unwrap(),
        },
        client: CephClient {
            user: user.parse().unwrap(),
            conf: cluster.conf.clone(),
            keyring: cluster.conf.with_file_name("keyring"),
        },
    }
}

/// A host with a VM on a cluster, under a key of a key server.
struct Subject {
    host: Host,
    cluster: CephCluster,
    site: KeySite,
    datastore: Datastore,
    spec: VmSpec,
    generation: u64,
}

impl Subject {
    fn new() -> Self {
        let cluster = CephCluster::start(3);
        let wanted = mount(&cluster, "vms");
        Self::on(cluster, Host::start(), wanted)
    }

    fn on(cluster: CephCluster, host: Host, wanted: CephMount) -> Self {
        Self::with(cluster, host, wanted, counting_guest(), false)
    }

    fn with(cluster: CephCluster, host: Host, wanted: CephMount, mut guest: Vec<u8>, tpm: bool) -> Self {
        let site = KeySite::start(&host);
        let datastore = host.try_use_cluster(wanted, None).unwrap();
        let mut spec = host.spec("web1", 2);
        spec.tpm = tpm;
        spec.datastore.clone_from(&datastore.path);
        spec.disks[0].size_bytes = VolumeSize::new(DISK_BYTES).unwrap();
        spec.disks[1].frontend = DiskFrontend::Nbd;
        for disk in &mut spec.disks {
            (disk.key, disk.integrity) = (DiskKey::provider(site.key.clone(), None), true);
        }
        let mut subject = Self { host, cluster, site, datastore, spec, generation: 0 };
        let made = subject.host.create(&subject.spec);
        subject.done(made);
        guest.resize(DISK_BYTES as usize, 0);
        guest[DISK_BYTES as usize - 4096..].fill(7);
        let filled = subject.host.import_into(&subject.spec, "disk0", &guest);
        subject.keep(filled);
        subject
    }

    fn keep(&mut self, told: Option<OperationOutcome>) {
        if let Some(OperationOutcome::Volumes(volumes)) = told {
            self.spec = self.spec.clone().with_facts(&volumes);
        }
    }

    fn done(&mut self, kind: OperationKind) {
        let told = self.host.done(&self.spec, self.generation, kind);
        self.keep(told);
    }

    fn start(&mut self) -> Console {
        let start = self.next_start();
        self.done(start);
        self.host.console(&self.spec)
    }

    fn next_start(&mut self) -> OperationKind {
        self.generation += 1;
        OperationKind::Start { spec: Box::new(self.spec.clone()), how: StartOptions::default() }
    }

    fn change(&mut self, change: SnapshotChange) {
        self.done(OperationKind::ChangeSnapshots { spec: Box::new(self.spec.clone()), change });
    }

    /// Moves a disk, as the control plane has it done.
    fn move_disk(&mut self, at: usize, to: Option<&DiskPlace>) {
        self.move_disk_in(at, to, &[MoveStep::Copy, MoveStep::Take]);
    }

    /// The same while the VM runs. Its supervisor may have been replaced then.
    fn move_disk_of_running(&mut self, at: usize, to: Option<&DiskPlace>) {
        self.move_disk_in(at, to, &[MoveStep::CopyServed, MoveStep::Switch, MoveStep::Take]);
    }

    fn move_disk_in(&mut self, at: usize, to: Option<&DiskPlace>, steps: &[MoveStep]) {
        let disk = &self.spec.disks[at];
        let (name, from) = (disk.name.clone(), disk.place.clone());
        for step in steps.iter().copied() {
            if step == MoveStep::Take {
                self.spec.put(&name, to);
            }
            let moved = DiskMove { disk: name.clone(), from: from.clone(), to: to.cloned(), step };
            let change = DiskChange::Move(moved);
            self.done(OperationKind::ChangeDisk { spec: Box::new(self.spec.clone()), change });
        }
    }

    /// The storage processes of the VM: children of the starter of its supervisor. Other tests have
    /// some at the same time.
    fn storage_processes(&self) -> Vec<u32> {
        let vm = self.host.vms().vms.into_iter().find(|vm| vm.vm == self.spec.id).unwrap();
        let supervisor = vm.supervisor_pid.unwrap();
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_one = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.ends_with(b"\0storage\0") && parent_of(*pid).and_then(parent_of) == Some(supervisor)
        };
        pids.filter(is_one).collect()
    }

    fn kill_storage(&self) {
        let processes = self.storage_processes();
        assert!(!processes.is_empty());
        processes.into_iter().for_each(kill);
    }

    /// The cgroup of the VM that runs, if the host gives it one.
    fn cgroup(&self) -> Option<PathBuf> {
        let [storage, ..] = self.storage_processes()[..] else { panic!("it has no storage process") };
        let cgroup = cgroup_of(storage)?;
        let name = cgroup.file_name()?.to_str()?.to_owned();
        name.ends_with(&format!("-vm-{}", self.spec.name)).then_some(cgroup)
    }
}

/// Waits until a cgroup, if there was one, is removed after all of its processes.
fn is_removed(cgroup: Option<PathBuf>) {
    if let Some(cgroup) = cgroup {
        until("the VM's cgroup is removed", || (!cgroup.exists()).then_some(()));
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn snapshot(name: &str) -> NewVmSnapshot {
    NewVmSnapshot::of_disks(SnapshotId::random(), name.parse().unwrap())
}

/// Its disks are on the cluster and in a directory, and move between the two.
pub fn has_disks_elsewhere() {
    let mut subject = Subject::new();
    let first = snapshot("first");
    subject.change(SnapshotChange::Create { snapshot: first });
    let path = subject.host.path("ds");
    let datastore = subject.host.try_look_at(&path).unwrap().id.unwrap();
    let files = DiskPlace { datastore, path };
    subject.move_disk(0, Some(&files));
    assert!(subject.spec.volume_path(&subject.spec.disks[0].name).join("descriptor").exists());
    let mut console = subject.start();
    console.await_line("ready");
    counts(&mut console, 1);
    subject.kill_storage();
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Running && vm.supervisor_deaths > 0);
    let mut console = subject.host.console(&subject.spec);
    counts(&mut console, 2);
    // While it runs, its first disk goes to the cluster and back, and its supervisor gets to know
    // the cluster's storage.
    subject.move_disk_of_running(0, None);
    counts(&mut console, 3);
    subject.kill_storage();
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Running && vm.supervisor_deaths > 1);
    let mut console = subject.host.console(&subject.spec);
    counts(&mut console, 4);
    drop(console);
    subject.move_disk_of_running(0, Some(&files));
    subject.move_disk_of_running(1, Some(&files));
    let mut console = subject.host.console(&subject.spec);
    counts(&mut console, 5);
    drop(console);
    subject.move_disk_of_running(1, None);
    subject.done(FORCED);

    // All of its disks leave the cluster, and one comes back.
    subject.move_disk(1, Some(&files));
    subject.start().await_line("ready");
    subject.done(FORCED);
    subject.move_disk(0, None);
    let mut console = subject.start();
    console.await_line("ready");
    counts(&mut console, 1);
    subject.done(FORCED);
    subject.host.assert_nowhere(MARKER);
    subject.done(OperationKind::Delete);
    assert!(!files.directory_of(subject.spec.id).exists());
    subject.host.assert_nobody_left();
}

pub fn lives() {
    let mut subject = Subject::new();
    assert_eq!(cluster_of(&subject.spec.directory()), subject.datastore.id);
    let mut console = subject.start();
    console.await_line("ready");
    counts(&mut console, 1);

    // A running VM gets a snapshot with its memory, and is dumped.
    let first = NewVmSnapshot { memory: true, ..snapshot("first") };
    subject.change(SnapshotChange::Create { snapshot: first.clone() });
    counts(&mut console, 2);
    subject.done(OperationKind::Dump { label: None });

    // Each process of the VM is killed under its guest.
    subject.kill_storage();
    subject.host.kill_hostd();
    subject.host.start_hostd();
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Running);
    let mut console = subject.host.console(&subject.spec);
    counts(&mut console, 3);

    let cgroup = subject.cgroup();
    subject.done(OperationKind::Suspend);
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Suspended);
    is_removed(cgroup);
    subject.host.assert_nowhere(MARKER);
    let mut console = subject.start();
    counts(&mut console, 4);
    let cgroup = subject.cgroup();
    subject.done(FORCED);
    is_removed(cgroup);

    // Off: other keys, with and without the data, then a snapshot more, and a clone of each kind.
    for data in [false, true] {
        let to = subject.site.another_key();
        let mut moved = subject.spec.clone();
        moved.move_to(&to);
        let told = subject.host.done(&subject.spec, 0, OperationKind::Rekey { spec: Box::new(moved), data });
        for disk in &mut subject.spec.disks {
            disk.key = DiskKey::provider(to.clone(), None);
        }
        subject.keep(told);
    }
    let second = snapshot("second");
    subject.change(SnapshotChange::Create { snapshot: second.clone() });
    for linked in [true, false] {
        let name = if linked { "linked" } else { "copied" };
        let mut clone = subject.host.spec(name, 2);
        clone.datastore.clone_from(&subject.datastore.path);
        clone.disks.clone_from(&subject.spec.disks);
        for disk in &mut clone.disks {
            disk.volume = None;
            disk.least_generation = 0;
        }
        let from =
            CloneSource { spec: subject.spec.clone(), snapshot: Some(second.id), linked, grants: Vec::new() };
        let kind = OperationKind::Create { spec: Box::new(clone.clone()), from: Some(Box::new(from)) };
        let Some(OperationOutcome::Volumes(made)) = subject.host.done(&clone, 0, kind) else { panic!() };
        let clone = clone.with_facts(&made);
        let how = StartOptions::default();
        subject.host.done(&clone, 1, OperationKind::Start { spec: Box::new(clone.clone()), how });
        subject.host.console(&clone).await_line("ready");
        subject.host.done(&clone, 1, FORCED);
        subject.host.done(&clone, 1, OperationKind::Delete);
    }
    subject.change(SnapshotChange::Delete { snapshot: second.id });
    subject.change(SnapshotChange::Revert {
        to: first.id,
        keep: snapshot("kept"),
        discard: true,
        disks_only: false,
        tpm: false,
    });
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Suspended);
    let mut console = subject.start();
    counts(&mut console, 2);
    subject.done(FORCED);
    subject.done(OperationKind::Delete);
    subject.host.assert_nobody_left();
    subject.host.assert_nowhere(MARKER);
}

/// A host that is cut off from its control plane, and whose guest runs on, is shut out by another
/// one, which then runs the VM.
pub fn is_taken_over() {
    let mut cluster = CephCluster::start(3);
    for user in ["client.host1", "client.host2"] {
        cluster.add_user(user);
    }
    let (wanted, others) =
        (mount_as(&cluster, "vms", "client.host1"), mount_as(&cluster, "vms", "client.host2"));
    let mut subject = Subject::on(cluster, Host::start_elsewhere(), wanted);
    subject.start().await_line("ready");
    let second = Host::start();
    subject.site.serve(&second);
    let id = subject.datastore.id.unwrap();
    second.try_use_cluster(others, Some(id)).unwrap();
    let spec = subject.spec.clone();
    let start = |generation| {
        let spec = Box::new(spec.clone());
        (generation, OperationKind::Start { spec, how: StartOptions::default() })
    };
    // Nobody but the cluster keeps the first one from writing: as long as it may, it has the disks.
    let arrive = OperationKind::Arrive { spec: Box::new(spec.clone()), handover: None };
    second.done(&spec, 2, arrive);
    let (generation, kind) = start(3);
    let refused = second.refused(&spec, generation, kind);
    assert!(refused.message.contains("disk0"), "{refused}");
    let user: CephUser = "client.host1".parse().unwrap();
    let order = |fencing| second.fence(&FencingRequest { datastore: id, user: user.clone(), fencing });
    order(Fencing::Fence);
    // The first one finds out, and says what to do.
    let path = &subject.datastore.path;
    let look = || subject.host.try_look_at(path).unwrap();
    let found =
        until("it is refused", || Some(look()).filter(|found| found.state == DatastoreState::Missing));
    let reason = found.reason.unwrap();
    assert!(reason.contains("host host1 was declared lost"), "{reason}");
    assert!(reason.contains("`strongroom host admit host1`"), "{reason}");
    let (generation, kind) = start(4);
    second.done(&spec, generation, kind);
    second.console(&spec).await_line("ready");
    second.done(&spec, 4, FORCED);
    second.done(&spec, 4, OperationKind::Delete);
    second.assert_nobody_left();
    // It is let in again, and notices that as soon as it is told to look.
    order(Fencing::Admit);
    assert_eq!(look().state, DatastoreState::Ready);
    // What is left of the first one has no disk, and ends with it.
    subject.host.end_vms();
}

/// What hostd reports of its datastore on the cluster.
fn reported(subject: &Subject) -> Datastore {
    let found = subject.host.host().datastores.into_iter();
    found.into_iter().find(|datastore| datastore.path == subject.datastore.path).unwrap()
}

/// hostd reports the host, and runs what is elsewhere, while a cluster does not answer; the VM on
/// it goes on once the cluster does.
pub fn stands_still() {
    let mut subject = Subject::new();
    let mut console = subject.start();
    console.await_line("ready");
    assert_eq!(reported(&subject).state, DatastoreState::Ready);
    let other = DatastoreId::random();
    let refused = subject.host.try_use_cluster(mount(&subject.cluster, "vms"), Some(other)).unwrap_err();
    assert!(refused.to_string().contains("which is another one"), "{refused}");
    let mut nobody = mount(&subject.cluster, "vms");
    nobody.client.user = "client.nobody".parse().unwrap();
    let refused = subject.host.try_use_cluster(nobody, None).unwrap_err().to_string();
    assert!(refused.contains("has no key of client.nobody"), "{refused}");

    const OSDS: [&str; 3] = ["osd.0", "osd.1", "osd.2"];
    for osd in OSDS {
        subject.cluster.pause(osd);
    }
    // The console has one writer at a time.
    drop(console);
    subject.host.kill_hostd();
    subject.host.start_hostd();
    let missing = until("it is missing", || {
        Some(reported(&subject)).filter(|found| found.state == DatastoreState::Missing)
    });
    assert!(missing.reason.is_some(), "{missing:?}");
    subject.host.await_vm(&subject.spec, |vm| vm.power == PowerState::Running);
    let local = subject.host.spec("local1", 1);
    subject.host.done(&local, 0, subject.host.create(&local));
    subject.host.done(&local, 0, OperationKind::Delete);
    for osd in OSDS {
        subject.cluster.resume(osd);
    }
    until("it is there again", || {
        Some(reported(&subject)).filter(|found| found.state == DatastoreState::Ready)
    });
    let mut console = subject.host.console(&subject.spec);
    counts(&mut console, 1);
    subject.done(FORCED);
    subject.host.assert_nobody_left();
}
