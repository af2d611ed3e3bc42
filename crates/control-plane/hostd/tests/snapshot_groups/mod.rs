//! Snapshots of several VMs at one instant. The test is the control plane: it decides that a group
//! is made, or not.

mod nbd;
mod writer;

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use strongroom_datastore::file::{Access, DatastoreError, OpenOptions, Protection, describe, open_snapshot};
use strongroom_host::protocol::{
    DiskFrontend, DiskName, GroupMember, NewVmSnapshot, Operation, OperationKind, OperationOutcome,
    OperationRequest, OperationState, PowerState, SnapshotChange, StartOptions, VmGeneration, VmSpec,
    VolumeState,
};
use strongroom_types::SnapshotId;
use strongroom_worker::{Progress, assemble, export_file};

use self::writer::{MARK_AT, Place, Writer};
use super::FORCED;
use super::support::{Host, boot_sector, kill, until};

/// The rounds of the long test without `GROUP_ROUNDS`.
const ROUNDS: usize = 8;

/// Two VMs that run, and one that is off, on a host.
struct Site {
    host: Host,
    running: [VmSpec; 2],
    off: VmSpec,
}

fn new(name: &str) -> NewVmSnapshot {
    NewVmSnapshot::of_disks(SnapshotId::random(), name.parse().unwrap())
}

impl Site {
    /// Each VM that runs has so many disks that the test can write to.
    fn start(disks: usize) -> Self {
        let host = Host::start();
        let spec = |name: &str, disks: usize| {
            let mut spec = host.spec(name, disks + 1);
            spec.disks.iter_mut().skip(1).for_each(|disk| disk.frontend = DiskFrontend::Nbd);
            host.done(&spec, 0, host.create(&spec));
            spec
        };
        let site = Self { running: [spec("web1", disks), spec("db1", disks)], off: spec("data1", 0), host };
        for spec in &site.running {
            site.host.import(spec, &boot_sector());
            let how = StartOptions::default();
            site.host.done(spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how });
        }
        site.settled();
        site
    }

    fn all(&self) -> [&VmSpec; 3] {
        [&self.running[0], &self.running[1], &self.off]
    }

    /// Where the test writes: a disk of one VM, then one of the other.
    fn places(&self) -> Vec<Place> {
        let disks = self.running[0].disks.len();
        let place = |disk: usize, spec: &VmSpec| Place {
            socket: self.host.path(&format!("run/vms/{}/disks/{disk}.sock", spec.id)),
            volume: spec.volume_path(&spec.disks[disk].name),
        };
        (1..disks).flat_map(|disk| self.running.iter().map(move |spec| place(disk, spec))).collect()
    }

    fn group(&self, snapshot: &NewVmSnapshot, members: &[&VmSpec]) -> OperationRequest {
        let generation = |spec: &VmSpec| VmGeneration(u64::from(spec.id != self.off.id));
        let member = |spec: &&VmSpec| GroupMember {
            spec: (*spec).clone(),
            generation: generation(spec),
            grants: Vec::new(),
        };
        let members = members.iter().map(member).collect();
        self.host.request(1, OperationKind::SnapshotGroup { snapshot: snapshot.clone(), members })
    }

    /// Waits until the VMs run, with all of their disks.
    fn settled(&self) {
        for spec in &self.running {
            self.host.await_vm(spec, |vm| {
                vm.power == PowerState::Running
                    && vm.volumes.iter().all(|volume| volume.state == VolumeState::Serving)
            });
        }
    }

    /// Has a VM change its snapshots, again and again while it is busy or somebody is being
    /// replaced.
    fn change(&self, spec: &VmSpec, change: &SnapshotChange) {
        let generation = u64::from(spec.id != self.off.id);
        until("the VM's snapshots are changed", || {
            let kind =
                OperationKind::ChangeSnapshots { spec: Box::new(spec.clone()), change: change.clone() };
            let request = self.host.request(generation, kind);
            self.host.operate(spec, &request).unwrap();
            let ended = self.host.await_operation(request.operation);
            if ended.state != OperationState::Done {
                std::thread::sleep(Duration::from_millis(200));
            }
            (ended.state == OperationState::Done).then_some(())
        });
    }

    /// The names of the snapshots that a VM lists.
    fn listed(&self, spec: &VmSpec) -> Vec<String> {
        let snapshots = self.host.await_vm(spec, |_| true).snapshots.unwrap();
        snapshots.list.iter().map(|snapshot| snapshot.name.to_string()).collect()
    }

    /// Whether every data volume of a VM has a snapshot, or none has.
    fn have(&self, spec: &VmSpec, snapshot: SnapshotId) -> BTreeSet<bool> {
        let has = |name: &DiskName| {
            describe(&spec.volume_path(name)).unwrap().descriptor.snapshot(snapshot).is_some()
        };
        spec.disks.iter().map(|disk| has(&disk.name)).collect()
    }

    fn end(self) {
        for spec in &self.running {
            self.host.done(spec, 1, FORCED);
        }
        self.host.assert_nobody_left();
    }
}

/// What the block at the mark has in a snapshot of a volume.
fn number_in(volume: &Path, snapshot: SnapshotId) -> u64 {
    let options = OpenOptions {
        protection: Protection::Unencrypted,
        access: Access::ReadOnly,
        lock_wait: Duration::from_secs(10),
        least_generation: 0,
    };
    // A layer that the snapshot reads through may be merged at this moment, for an earlier round.
    let deadline = Instant::now() + Duration::from_secs(120);
    let opened = loop {
        match open_snapshot(volume, snapshot, &options) {
            Err(DatastoreError::Merging { .. }) if Instant::now() < deadline => thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let stage = assemble(opened).unwrap();
    let (file, stop) = (tempfile::tempfile().unwrap(), std::sync::atomic::AtomicBool::new(false));
    export_file(&*stage, &file, &mut Progress { stop: &stop, report: &mut |_| {} }).unwrap();
    let mut block = [0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut block, MARK_AT).unwrap();
    assert_eq!(block[..8].repeat(512), block, "a torn write");
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

/// With one writer, an instant has consecutive numbers: a later write without an earlier one would
/// leave a gap.
fn assert_one_instant(places: &[Place], snapshot: SnapshotId) {
    let mut numbers: Vec<_> = places.iter().map(|place| number_in(&place.volume, snapshot)).collect();
    numbers.sort_unstable();
    let consecutive: Vec<_> = (numbers[0]..).take(numbers.len()).collect();
    assert_eq!(numbers, consecutive, "a later write without an earlier one");
}

pub fn made_or_void() {
    let site = Site::start(1);
    let places = site.places();
    let writer = Writer::start(&places);
    let [web1, db1, data1] = site.all();
    let first = new("first");
    writer.await_more();
    let request = site.group(&first, &[web1, db1, data1]);
    site.host.operate(web1, &request).unwrap();
    // A client that did not get the answer repeats the request.
    site.host.operate(web1, &request).unwrap();
    let made = site.host.await_operation(request.operation);
    let Some(OperationOutcome::Group(volumes)) = &made.outcome else { panic!("{made:?}") };
    assert_eq!(volumes.iter().map(|part| part.vm).collect::<Vec<_>>(), site.all().map(|spec| spec.id));
    // Before the decision no VM lists it, and after that each does.
    for spec in site.all() {
        assert_eq!(site.have(spec, first.id), BTreeSet::from([true]));
        assert_eq!(site.listed(spec), Vec::<String>::new());
    }
    for spec in site.all() {
        let keep = SnapshotChange::Keep { snapshot: first.clone() };
        site.change(spec, &keep);
        site.change(spec, &keep);
        assert_eq!(site.listed(spec), ["first"]);
    }
    assert_one_instant(&places, first.id);

    // One that nobody decides is removed by the next change.
    let second = new("second");
    let request = site.group(&second, &[db1, data1]);
    site.host.done(db1, 1, request.kind);
    let third = new("third");
    for spec in [db1, data1] {
        assert_eq!(site.have(spec, second.id), BTreeSet::from([true]));
        site.change(spec, &SnapshotChange::Create { snapshot: third.clone() });
        assert_eq!(
            (site.have(spec, second.id), site.listed(spec)),
            (BTreeSet::from([false]), vec!["first".to_owned(), "third".to_owned()])
        );
    }
    // A part that is gone is not listed, whoever asks for it.
    let keep = SnapshotChange::Keep { snapshot: second.clone() };
    let kind =
        |spec: &VmSpec| OperationKind::ChangeSnapshots { spec: Box::new(spec.clone()), change: keep.clone() };
    assert_eq!(site.host.refused(data1, 0, kind(data1)).code, "incomplete_snapshot");

    // A VM that refuses: none has a part afterwards, and all go on.
    for (members, code) in [
        (vec![web1, db1, data1, web1], "bad_request"),
        // It has one of this name.
        (vec![web1, db1], "snapshot_exists"),
    ] {
        let refused = new("third");
        let request = site.group(&refused, &members);
        let refused_by = site.host.refused(web1, 1, request.kind);
        assert_eq!(refused_by.code, code, "{refused_by:?}");
        writer.await_more();
        for spec in site.all() {
            assert_eq!(site.have(spec, refused.id), BTreeSet::from([false]));
        }
    }
    writer.end();
    site.end();
}

/// The worker of a disk of one VM stands still for longer than the lease of the other VM lasts, or
/// until its supervisor replaces it because it has not even prepared.
pub fn lease_runs_out() {
    let site = Site::start(1);
    let places = site.places();
    let writer = Writer::start(&places);
    let [web1, db1, _] = site.all();
    writer.await_more();
    let layers = || describe(&places[0].volume).unwrap().descriptor.layers.len();
    let before = layers();
    let worker = site.host.await_vm(db1, |_| true).volumes[1].worker_pid.unwrap();
    let worker = Pid::from_raw(worker.cast_signed()).unwrap();
    kill_process(worker, Signal::STOP).unwrap();
    let late = new("late");
    let request = site.group(&late, &[web1, db1]);
    site.host.operate(web1, &request).unwrap();
    until("it is prepared", || (layers() == before + 1).then_some(()));
    until("it is given up, since its lease is over", || (layers() == before).then_some(()));
    match kill_process(worker, Signal::CONT) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => panic!("{errno}"),
    }
    let ended = site.host.await_operation(request.operation);
    assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
    let code = ended.error.unwrap().code;
    assert!(["not_frozen", "group_void", "snapshot"].contains(&code.as_str()), "{code}");
    for spec in [web1, db1] {
        assert_eq!(site.listed(spec), Vec::<String>::new());
        site.change(spec, &SnapshotChange::Delete { snapshot: late.id });
        assert_eq!(site.have(spec, late.id), BTreeSet::from([false]));
    }
    // The guests go on, and the next one is made.
    writer.await_more();
    let next = new("next");
    let request = site.group(&next, &[web1, db1]);
    site.host.done(web1, 1, request.kind);
    assert_one_instant(&places, next.id);
    writer.end();
    site.end();
}

/// What happens to a host while a group is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    Nothing,
    Hostd,
    Supervisor(usize),
    Worker(usize, usize),
    /// A worker stands still for longer than a lease.
    Late(usize, usize),
    /// hostd stands still for longer than a lease.
    LateHostd,
}

impl Blow {
    fn any(random: &mut StdRng, disks: usize) -> Self {
        let (vm, disk) = (random.random_range(0..2), random.random_range(0..=disks));
        match random.random_range(0..40) {
            0..14 => Self::Nothing,
            14..20 => Self::Hostd,
            20..28 => Self::Supervisor(vm),
            28..38 => Self::Worker(vm, disk),
            38 => Self::Late(vm, disk),
            _ => Self::LateHostd,
        }
    }

    fn fall(self, site: &mut Site) {
        let stand_still = |pid: Option<u32>| {
            let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) else { return };
            if kill_process(pid, Signal::STOP).is_ok() {
                std::thread::sleep(Duration::from_secs(6));
                let _ = kill_process(pid, Signal::CONT);
            }
        };
        let supervisor = |site: &Site, vm: usize| {
            let state = site.host.path(&format!("run/vms/{}/state.json", site.running[vm].id));
            let state: serde_json::Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
            u32::try_from(state["supervisor"]["pid"].as_u64().unwrap()).unwrap()
        };
        let worker = |site: &Site, vm: usize, disk: usize| {
            site.host
                .await_vm(&site.running[vm], |_| true)
                .volumes
                .get(disk)
                .and_then(|volume| volume.worker_pid)
        };
        match self {
            Self::Nothing => {}
            Self::Hostd => {
                site.host.kill_hostd();
                site.host.start_hostd();
            }
            Self::Supervisor(vm) => kill(supervisor(site, vm)),
            Self::Worker(vm, disk) => {
                let pid = worker(site, vm, disk).and_then(|pid| Pid::from_raw(pid.cast_signed()));
                let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            }
            Self::Late(vm, disk) => stand_still(worker(site, vm, disk)),
            Self::LateHostd => stand_still(Some(site.host.hostd_pid())),
        }
    }
}

/// Asks for the operation until it has ended, again by a hostd that has forgotten it.
fn await_group(site: &Site, request: &OperationRequest) -> Operation {
    let spec = &site.running[0];
    loop {
        match site.host.known_operation(request.operation) {
            None => drop(site.host.operate(spec, request)),
            Some(now) if now.state.is_final() => return now,
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Groups are made one after the other, while everybody is killed and leases run out.
#[allow(clippy::print_stdout, reason = "the long test says how far it is")]
pub fn whoever_is_killed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("GROUP_ROUNDS").map_or(ROUNDS, |rounds| rounds as usize);
    let seed = number("GROUP_SEED").unwrap_or(1);
    let disks = if rounds > ROUNDS { 7 } else { 2 };
    let mut random = StdRng::seed_from_u64(seed);
    let mut site = Site::start(disks);
    let places = site.places();
    let writer = Writer::start(&places);
    let (mut made, mut void) = (0, 0);
    for round in 0..rounds {
        writer.await_more();
        let snapshot = new(&format!("round-{round}"));
        // The first one is made without a blow, so that something is made in any case.
        let blow = if round == 0 { Blow::Nothing } else { Blow::any(&mut random, disks) };
        let pause = Duration::from_millis(random.random_range(0..500));
        let request = {
            let [web1, db1, data1] = site.all();
            let request = site.group(&snapshot, &[web1, db1, data1]);
            site.host.operate(web1, &request).unwrap();
            request
        };
        std::thread::sleep(pause);
        blow.fall(&mut site);
        let ended = await_group(&site, &request);
        site.settled();
        let is_made = ended.state == OperationState::Done;
        for spec in site.all() {
            assert!(!site.listed(spec).contains(&snapshot.name.to_string()), "round {round}: not decided");
        }
        if is_made {
            made += 1;
            for spec in site.all() {
                assert_eq!(site.have(spec, snapshot.id), BTreeSet::from([true]), "round {round}, {blow:?}");
                site.change(spec, &SnapshotChange::Keep { snapshot: snapshot.clone() });
                assert_eq!(site.listed(spec), [snapshot.name.to_string()], "round {round}, {blow:?}");
            }
            assert_one_instant(&places, snapshot.id);
        } else {
            void += 1;
        }
        for spec in site.all() {
            site.change(spec, &SnapshotChange::Delete { snapshot: snapshot.id });
            assert_eq!(site.have(spec, snapshot.id), BTreeSet::from([false]), "round {round}, {blow:?}");
            assert!(site.listed(spec).is_empty(), "round {round}, {blow:?}");
        }
        if rounds > ROUNDS && round % 50 == 49 {
            println!("{} rounds: {made} groups made, {void} void", round + 1);
        }
    }
    assert!(made > 0);
    println!("seed {seed}: {made} groups of {} disks made, {void} void", places.len());
    writer.end();
    site.end();
}
