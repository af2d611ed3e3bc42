//! A site: hosts and their key providers, which survive the control plane.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use strongroom_api::Name;
use strongroom_api::access::AccessLogHead;
use strongroom_api::key::{KeyProvider, KeyStanding, KeyState};
use strongroom_api::vm::{CloneVm, CreateVm};
use strongroom_control::engine::{Caller, Control, Next, RequestKey};
use strongroom_control::host::{Host, HostError};
use strongroom_control::keys::{GrantFor, KeyProblem, LiveMoveOf, MovedVm, VmKeys};
use strongroom_datastore::file::storage::{CLUSTERS, cluster_path};
use strongroom_host::migration::{Place, Stay};
use strongroom_host::protocol::{
    Accelerator, Capabilities, Change, ChangedObject, Changes, ChunksReport, Contents, CryptoSafe,
    CryptoSafeState, Datastore, DatastoreRequest, DatastoreState, DiskChange, DiskKey, DiskMove, DiskName,
    Dump, Epoch, ExtentReport, FIRST_FORMATS, FORMATS, Fencing, FencingRequest, Grant, GroupMember,
    GuestPort, HandoverId, Host as HostState, JudgeRequest, Judgement, MapReport, MemberVolumes,
    MigrationPermit, MoveStep, NewVmSnapshot, Nic, ObservedVm, ObservedVms, OffReason, Operation,
    OperationId, OperationKind, OperationOutcome, OperationRequest, OperationState, PowerState, Problem,
    Programs, Progress, ProgressUnit, READINGS_MAX, Reading, ReadingRequest, Readings, ReadingsRequest,
    SavedMemory, SnapshotChange, SpaceReport, Term, Ticket, TicketId, TicketRequest, Topology, VmGeneration,
    VmReason, VmSnapshots, VmSpec, VmStatistics, VolumeFacts, VolumeQuestion, WaitingFor,
};
use strongroom_store::{Engine, Store};
use strongroom_types::{
    Bandwidth, CephMount, CephName, CephUser, DatastoreId, KeyRequestId, ProviderKey, ProviderName,
    Redundancy, Secrecy, SnapshotId, VmId, VolumeId, VolumeSize,
};
use uuid::Uuid;

use super::fuse::{Fuse, FusedStore};
use super::identity::Vouching;
use super::live::Passing;

/// A site that has not come to rest after this many rounds never will.
const ROUNDS_MAX: usize = 300;
/// Why a host that was fenced cannot use a datastore, until it looks at it once more.
pub const REFUSED: &str = "the cluster refuses this host";

/// Everything except the control plane.
pub struct Site {
    pub fuse: Arc<Fuse>,
    pub store: Arc<dyn Store>,
    pub host: Arc<FakeHost>,
    /// `host2` and so on.
    pub others: Vec<Arc<FakeHost>>,
    pub keys: Arc<FakeKeys>,
    pub vouching: Arc<Vouching>,
    clock_ms: Arc<AtomicU64>,
}

impl Site {
    pub fn new() -> Self {
        let fuse = Arc::new(Fuse::default());
        fuse.set(i64::MAX);
        let memory = redb::backends::InMemoryBackend::new();
        let keys = Arc::new(FakeKeys { fuse: Arc::clone(&fuse), state: Mutex::default() });
        let host = FakeHost::new(&fuse);
        Self {
            store: Arc::new(Engine::with_backend(memory, "inventory").unwrap()),
            fuse,
            host,
            others: Vec::new(),
            keys,
            vouching: Arc::default(),
            clock_ms: Arc::new(AtomicU64::new(1_700_000_000_000)),
        }
    }

    /// A site with more hosts, all of which have the same storage.
    pub fn with_others(count: usize) -> Self {
        let mut site = Self::new();
        for _ in 0..count {
            let host = FakeHost::new(&site.fuse);
            host.lock().storage = Arc::clone(&site.host.lock().storage);
            site.others.push(host);
        }
        site
    }

    /// All hosts, with their names.
    pub fn hosts(&self) -> Vec<(Name, Arc<FakeHost>)> {
        let all = std::iter::once(&self.host).chain(&self.others);
        let named = |(at, host): (usize, &Arc<FakeHost>)| {
            (format!("host{}", at + 1).parse().unwrap(), Arc::clone(host))
        };
        all.enumerate().map(named).collect()
    }

    /// Lets all hosts carry out what they were asked for. Returns whether there was anything.
    pub fn work(&self) -> bool {
        self.hosts().iter().fold(false, |worked, (_, host)| host.work() || worked)
    }

    /// Checks that no VM runs on two hosts.
    pub fn nothing_runs_twice(&self) {
        let mut running = BTreeMap::new();
        for (name, host) in self.hosts() {
            let inside = host.lock();
            for (id, vm) in &inside.vms {
                if inside.works(*id)
                    && let Some(other) = running.insert(*id, name.clone())
                {
                    panic!("VM {} runs on {other} and on {name}", vm.spec.name);
                }
            }
        }
    }

    /// Starts a control plane; the previous one is dead.
    pub fn control(&self) -> Option<Control> {
        let store = Arc::new(FusedStore { store: Arc::clone(&self.store), fuse: Arc::clone(&self.fuse) });
        let clock = Arc::clone(&self.clock_ms);
        let hosts = self.hosts().into_iter().map(|(name, host)| (name, host as Arc<dyn Host>)).collect();
        let now = Arc::new(move || clock.load(Ordering::SeqCst));
        let control = Control::open(store, hosts, Arc::clone(&self.keys) as _, now).ok()?;
        control.ask_providers();
        Some(control)
    }

    /// Puts unregistered VMs into the host's datastore: another control plane has made them.
    pub fn fill(&self, vms: usize) {
        let control = self.control().unwrap();
        let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
        control.add_datastore(&caller(0), &datastore).unwrap();
        for number in 0..vms {
            let wish = create(&format!("vm{number}"), true);
            control.create_vm(&caller(number as u64 + 1), &wish).unwrap();
        }
        let open: Vec<_> = control.inventory.read().open_tasks().map(|task| task.task.id).collect();
        for task in open {
            while matches!(control.advance(task), Ok(Next::Again | Next::Wait(_))) {}
        }
        assert_eq!(self.host.lock().vms.len(), vms);
    }

    /// Sets the clock back.
    pub fn go_back(&self, time: Duration) {
        self.clock_ms.fetch_sub(time.as_millis() as u64, Ordering::SeqCst);
    }

    pub fn pass(&self, time: Duration) {
        self.clock_ms.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}

pub fn caller(request: u64) -> Caller {
    let key = format!("{request:064x}");
    Caller { request: Some(RequestKey { fingerprint: key.clone(), key }), ..Caller::machine("test") }
}

pub fn create(name: &str, encrypted: bool) -> CreateVm {
    let wish = serde_json::json!({ "name": name, "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }],
        "encryption": { "encrypted": encrypted } });
    serde_json::from_value(wish).unwrap()
}

/// A site with a datastore and VMs that are encrypted and off.
pub fn with_vms(names: &[&str]) -> (Site, Control) {
    let site = Site::new();
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(900), &datastore).unwrap();
    for (number, name) in names.iter().enumerate() {
        control.create_vm(&caller(1000 + number as u64), &create(name, true)).unwrap();
    }
    assert!(settle_down(&site, &control));
    (site, control)
}

pub fn copy(name: &str) -> CloneVm {
    serde_json::from_value(serde_json::json!({ "name": name })).unwrap()
}

/// Lets all parts work; after so many commits the control plane is killed, and another one begins,
/// with hosts that were restarted. Returns the one that runs then, and whether one was killed.
pub fn killed_after(site: &Site, control: Control, moments: i64) -> (Control, bool) {
    site.fuse.set(moments);
    let was_killed = !settle_down(site, &control);
    site.fuse.set(i64::MAX);
    if !was_killed {
        return (control, false);
    }
    drop(control);
    site.hosts().iter().for_each(|(_, host)| host.restart());
    (site.control().unwrap(), true)
}

/// Kills at one moment after the other, until nothing is left to kill. Returns how many there were,
/// and what it came to.
pub fn killed_at_each<End: Ord>(killed_at: impl Fn(i64) -> Option<End>) -> (i64, BTreeSet<End>) {
    let mut ends = BTreeSet::new();
    let mut moments = 1_i64;
    while let Some(end) = killed_at(moments) {
        ends.insert(end);
        moments += 1;
    }
    (moments, ends)
}

/// Lets all parts work until nothing is left to do. Returns `false` if the control plane died.
pub fn settle_down(site: &Site, control: &Control) -> bool {
    for _ in 0..ROUNDS_MAX {
        let before = site.store.snapshot().unwrap().revision();
        for host in control.hosts() {
            let _ = control.observe(host, Duration::ZERO);
        }
        let open: Vec<Uuid> = control.inventory.read().open_tasks().map(|task| task.task.id).collect();
        for task in &open {
            for _ in 0..20 {
                if !matches!(control.advance(*task), Ok(Next::Again)) {
                    break;
                }
            }
        }
        let worked = site.work();
        site.nothing_runs_twice();
        let _ = control.settle();
        control.make_due_snapshots(usize::MAX);
        let _ = control.review();
        if site.fuse.is_burnt() {
            return false;
        }
        site.pass(Duration::from_secs(2));
        let after = site.store.snapshot().unwrap().revision();
        if open.is_empty() && !worked && before == after {
            return true;
        }
        let is_waited_for = {
            let keys = site.keys.lock();
            keys.unavailable || keys.log_is_full
        };
        if !open.is_empty() && !worked && before == after && is_waited_for {
            return true;
        }
    }
    let index = control.inventory.read();
    let open: Vec<_> = index.open_tasks().map(|task| (*task.record).clone()).collect();
    panic!("no rest after {ROUNDS_MAX} rounds; open: {open:#?}");
}

/// A host in memory.
pub struct FakeHost {
    fuse: Arc<Fuse>,
    state: Mutex<HostInside>,
    changed: Condvar,
}

/// What several hosts find in the directories of VMs.
#[derive(Default)]
pub struct Storage {
    /// The ids of datastores, by their paths.
    pub datastores: BTreeMap<PathBuf, DatastoreId>,
    /// The ids of datastores in pools of a cluster, by pool and namespace.
    pub pools: BTreeMap<(CephName, CephName), DatastoreId>,
    /// The users that are shut out from datastores.
    pub fenced: BTreeSet<(DatastoreId, CephUser)>,
    /// What hosts that are lost have left, by their users.
    lost: BTreeMap<VmId, (CephUser, FakeVm)>,
    given_up: BTreeMap<VmId, GivenUp>,
    /// The VMs whose volumes a host gives to one that has the ticket.
    given: BTreeMap<VmId, FakeVm>,
    /// What passes between hosts.
    pub passing: Arc<Passing>,
}

struct GivenUp {
    vm: FakeVm,
    handover: Option<HandoverId>,
}

pub struct HostInside {
    /// The storage that it shares with other hosts.
    pub storage: Arc<Mutex<Storage>>,
    /// The VMs that have left it, or come to it.
    pub residences: BTreeMap<VmId, Stay>,
    /// The error codes of departures and arrivals that fail; the last comes first.
    pub moves_that_fail: Vec<&'static str>,
    /// The same for volumes that are fetched, and for what is removed.
    pub fetches_that_fail: Vec<&'static str>,
    pub removals_that_fail: Vec<&'static str>,
    /// By which attempt a VM was fetched.
    fetched: BTreeMap<VmId, HandoverId>,
    /// Volumes that it has of VMs which are elsewhere, after moves while they ran.
    pub copies: BTreeSet<VmId>,
    /// The names of orders of live moves that fail, with their error codes; the last comes first.
    pub live_orders_that_fail: Vec<(&'static str, &'static str)>,
    /// Whether it is of a version in which no VM moves.
    pub is_old: bool,
    /// Whether it is of a version in which no VM on a cluster has a TPM.
    pub keeps_no_tpms_on_clusters: bool,
    /// Whether it is of a version in which VMs with a TPM move while they run. Usually it is not,
    /// so that a VM with a TPM is one that stays.
    pub moves_live_tpms: bool,
    pub consoles_change_hands: bool,
    /// What tickets were asked for.
    pub tickets: Vec<TicketRequest>,
    /// The term of the control plane that directs it.
    pub term: Term,
    epoch: Epoch,
    changes: Vec<ChangedObject>,
    pub vms: BTreeMap<VmId, FakeVm>,
    operations: HashMap<OperationId, (Operation, Option<OperationRequest>)>,
    order: Vec<OperationId>,
    used_grants: BTreeSet<Vec<u8>>,
    pub datastores: BTreeMap<PathBuf, DatastoreId>,
    /// How it reaches datastores on clusters.
    pub clusters: BTreeMap<DatastoreId, CephMount>,
    /// The number of orders about other hosts that fail.
    pub fencings_that_fail: u32,
    /// The id of its last start.
    pub boot_id: Option<String>,
    /// Why datastores cannot be used at present, by their paths.
    pub missing: BTreeMap<PathBuf, String>,
    pub free_bytes: u64,
    /// The orders that had a limit, or could have had one, and the limit, in bytes per second.
    pub limits: Vec<(&'static str, Option<u64>)>,
    /// What the pools of all its datastores on clusters outlive.
    pub redundancy: Option<Redundancy>,
    pub memory_bytes: u64,
    pub crypto_safe: CryptoSafe,
    pub topology: Topology,
    pub capabilities: Option<Capabilities>,
    /// Its clock, if it reports that.
    pub now_unix_ms: Option<u64>,
    /// The guests' disk counters.
    pub statistics: BTreeMap<VmId, VmStatistics>,
    pub programs: Option<Programs>,
    /// The socket at which it takes tickets; without one it has a port alone.
    pub guest_socket: Option<PathBuf>,
    /// The tickets that were ended before they were presented.
    pub void_tickets: Vec<TicketId>,
    /// Requests that it should never have received.
    pub violations: Vec<String>,
    /// The number of moves to another key that fail.
    pub rekeys_that_fail: u32,
    /// Whether each move that was done renewed the data keys.
    pub rekeys_of_data: Vec<bool>,
    /// The error codes of failing disk changes other than removals; the last comes first.
    pub disk_changes_that_fail: Vec<&'static str>,
    /// The error codes of changes of network cards that fail when the guest has the new ones; the
    /// last comes first.
    pub nic_changes_that_fail: Vec<&'static str>,
    /// The error codes of changes of sizes that fail when the guest has the memory; the last comes
    /// first.
    pub size_changes_that_fail: Vec<&'static str>,
    /// The error codes of failing changes of snapshots; the last comes first.
    pub snapshot_changes_that_fail: Vec<&'static str>,
    /// The error codes of failing creations; the last comes first.
    pub creations_that_fail: Vec<&'static str>,
    /// The error codes of failing snapshots of several VMs; the last comes first. All VMs but the
    /// last have a part then.
    pub groups_that_fail: Vec<&'static str>,
    /// The snapshots of several VMs of which each VM has had a part at one time.
    pub groups_made: BTreeSet<SnapshotId>,
    /// The error code with which it refuses to check a VM.
    pub refuses: Option<&'static str>,
    /// The number of readings of volumes so far.
    pub readings: usize,
    /// The error codes of failing imports; the last comes first.
    pub imports_that_fail: Vec<&'static str>,
    /// Whether the client of an import is away.
    pub client_is_away: bool,
    pub down: bool,
    /// Whether it carries out requests at once, and blocks requests for changes until there are
    /// some.
    pub by_itself: bool,
    /// Whether changes are no longer waited for.
    pub ended: bool,
}

#[derive(Clone)]
pub struct FakeVm {
    pub spec: VmSpec,
    pub generation: u64,
    pub power: PowerState,
    pub reason: Option<OffReason>,
    pub volumes: BTreeMap<String, VolumeId>,
    pub waiting_for: Vec<WaitingFor>,
    pub supervisor_deaths: u64,
    pub tpm_lost: bool,
    pub network_lost: bool,
    pub dumps: Vec<Dump>,
    pub snapshots: VmSnapshots,
    /// The configuration that its supervisor has attested.
    pub attested: Option<VmSpec>,
    /// The datastores with a complete volume of a disk; the VM's own for a disk that is not listed.
    pub lies_in: BTreeMap<String, BTreeSet<PathBuf>>,
    /// The disk that was copied beside its guest.
    pub copied: Option<DiskMove>,
    /// The disk that was switched, and not taken yet.
    pub switched: Option<DiskMove>,
}

/// The directory of a disk's datastore.
fn datastore_of(spec: &VmSpec, disk: &DiskName) -> PathBuf {
    let place = spec.disk(disk).and_then(|disk| disk.place.as_ref());
    place.map_or(&spec.datastore, |place| &place.path).clone()
}

impl FakeVm {
    /// Does a step of a disk's move. Returns what was done that should not have been.
    fn move_disk(&mut self, asked: &VmSpec, moved: &DiskMove) -> Option<String> {
        let (from, to) =
            (datastore_of(&moved.before(asked), &moved.disk), datastore_of(&moved.after(asked), &moved.disk));
        let own = BTreeSet::from([asked.datastore.clone()]);
        let there = self.lies_in.entry(moved.disk.to_string()).or_insert(own);
        match moved.step {
            MoveStep::Copy | MoveStep::CopyServed if !there.contains(&from) => {
                return Some("copies nothing".to_owned());
            }
            MoveStep::Copy | MoveStep::CopyServed | MoveStep::Switch => drop(there.insert(to)),
            MoveStep::Take if !there.contains(&to) => return Some("takes no copy".to_owned()),
            MoveStep::Take => {
                self.switched = None;
                there.remove(&from);
            }
            MoveStep::Abandon if self.switched.is_some() => return Some("removes what has moved".to_owned()),
            MoveStep::Abandon if !there.contains(&from) => return Some("removes the volume".to_owned()),
            MoveStep::Abandon => drop(there.remove(&to)),
        }
        None
    }

    /// Does a step of a disk's move beside a guest, or answers how a switch has ended. `None` if
    /// that is a step as of a VM that is off.
    fn move_disk_beside(
        &mut self,
        asked: &VmSpec,
        moved: &DiskMove,
    ) -> Result<Option<OperationOutcome>, Option<String>> {
        let is_this =
            |known: &Option<DiskMove>| known.as_ref().is_some_and(|known| known.is_of_same_move(moved));
        let stays = || OperationOutcome::Stays(Problem::new("stays", "it was not copied"));
        match moved.step {
            MoveStep::CopyServed if self.runs() => {
                self.copied = Some(moved.clone());
                Ok(Some(OperationOutcome::Copied))
            }
            MoveStep::Switch if is_this(&self.switched) => Ok(None),
            MoveStep::Switch if self.runs() && is_this(&self.copied) => {
                (self.copied, self.switched) = (None, Some(moved.clone()));
                self.move_disk(asked, moved).map_or(Ok(None), |violation| Err(Some(violation)))
            }
            MoveStep::Switch => Ok(Some(stays())),
            MoveStep::Copy if self.runs() => Err(None),
            MoveStep::Copy | MoveStep::CopyServed | MoveStep::Take | MoveStep::Abandon => {
                self.copied = None;
                self.move_disk(asked, moved).map_or(Ok(None), |violation| Err(Some(violation)))
            }
        }
    }

    fn runs(&self) -> bool {
        !matches!(self.power, PowerState::Stopped | PowerState::Crashed)
    }

    /// A disk whose volume is not where the configuration says, or not there alone.
    fn lost_disk(&self, spec: &VmSpec) -> Option<DiskName> {
        let own = BTreeSet::from([spec.datastore.clone()]);
        let is_lost = |disk: &&strongroom_host::protocol::Disk| {
            let there = self.lies_in.get(disk.name.as_str()).unwrap_or(&own);
            *there != BTreeSet::from([datastore_of(spec, &disk.name)])
        };
        spec.disks.iter().find(is_lost).map(|disk| disk.name.clone())
    }

    /// One that was never started.
    pub fn new(spec: &VmSpec, volumes: BTreeMap<String, VolumeId>) -> Self {
        Self {
            volumes,
            spec: spec.clone(),
            attested: Some(spec.clone()),
            generation: 0,
            power: PowerState::Stopped,
            reason: Some(OffReason::NeverStarted),
            waiting_for: Vec::new(),
            supervisor_deaths: 0,
            tpm_lost: false,
            network_lost: false,
            dumps: Vec::new(),
            snapshots: VmSnapshots::default(),
            lies_in: BTreeMap::new(),
            copied: None,
            switched: None,
        }
    }
}

impl HostInside {
    /// Space grows with each reading; a map has the first chunk of what was asked for.
    fn reading(&self, asked: &ReadingRequest) -> Reading {
        let found = self.vms.get(&asked.vm).and_then(|vm| vm.volumes.get(asked.disk.as_str()));
        let Some(volume) = found else {
            return Reading::Problem(Problem::new("not_a_volume", "it has no descriptor"));
        };
        let size = VolumeSize::new(1 << 30).unwrap();
        let expected = match asked.question {
            VolumeQuestion::Space { volume } => volume,
            VolumeQuestion::Map(request) => request.volume,
            VolumeQuestion::Identity => None,
        };
        if expected.is_some_and(|expected| expected != *volume) {
            return Reading::Problem(Problem::new("other_volume", "it is another volume"));
        }
        match asked.question {
            VolumeQuestion::Space { .. } => Reading::Space(SpaceReport {
                logical: size,
                provisioning: serde_json::from_str("\"thin\"").unwrap(),
                committed_bytes: 8192 + self.readings as u64,
                shared_bytes: 0,
                common_bytes: 0,
                other_bytes: 8192,
                views: Vec::new(),
            }),
            VolumeQuestion::Identity => Reading::Identity(*volume),
            VolumeQuestion::Map(request) => {
                if request.start_bytes > size.bytes() {
                    return Reading::Problem(Problem::new("bad_range", "it is beyond the end"));
                }
                let end = request.length_bytes.map_or(size.bytes(), |length| request.start_bytes + length);
                let covers = ExtentReport {
                    start_bytes: request.start_bytes,
                    length_bytes: end - request.start_bytes,
                };
                let first = ExtentReport { length_bytes: request.chunk.bytes(), ..covers };
                Reading::Map(MapReport {
                    generation: 1,
                    size,
                    chunk: request.chunk,
                    covers,
                    chunks: ChunksReport::Extents(vec![first]),
                    next_bytes: request.seeks_next.then_some(end),
                })
            }
        }
    }

    fn add_pools(&mut self, ceph: &CephMount, request: &DatastoreRequest) -> Result<Datastore, HostError> {
        if request.path != Path::new(CLUSTERS) {
            self.violations.push(format!("pools at {}", request.path.display()));
        }
        let place = (ceph.pools.pool.clone(), ceph.pools.namespace.clone());
        let id = {
            let mut storage = self.storage.lock();
            let found = storage.pools.get(&place).copied();
            if request.expected.is_some() && found != request.expected {
                return Err(HostError::Refused(Problem::new("other_datastore", "it bears another mark")));
            }
            *storage.pools.entry(place).or_insert_with(DatastoreId::random)
        };
        self.clusters.insert(id, ceph.clone());
        self.datastores.insert(cluster_path(id), id);
        Ok(self.datastore(&cluster_path(id), id))
    }

    /// Notices whether a cluster refuses it.
    fn look_at(&mut self, path: &Path, id: DatastoreId) {
        let Some(mount) = self.clusters.get(&id) else { return };
        let place = (id, mount.client.user.clone());
        if self.storage.lock().fenced.contains(&place) {
            self.missing.insert(path.to_owned(), REFUSED.to_owned());
        } else if self.missing.get(path).is_some_and(|reason| reason == REFUSED) {
            self.missing.remove(path);
        }
    }

    fn datastore(&self, path: &Path, id: DatastoreId) -> Datastore {
        if let Some(reason) = self.missing.get(path) {
            return Datastore {
                path: path.to_owned(),
                id: None,
                total_bytes: 0,
                free_bytes: 0,
                state: DatastoreState::Missing,
                reason: Some(reason.clone()),
                redundancy: None,
            };
        }
        Datastore {
            path: path.to_owned(),
            id: Some(id),
            total_bytes: 1 << 40,
            free_bytes: self.free_bytes,
            state: DatastoreState::Ready,
            reason: None,
            redundancy: self.clusters.get(&id).and(self.redundancy),
        }
    }

    fn new() -> Self {
        Self {
            storage: Arc::default(),
            residences: BTreeMap::new(),
            moves_that_fail: Vec::new(),
            live_orders_that_fail: Vec::new(),
            is_old: false,
            keeps_no_tpms_on_clusters: false,
            moves_live_tpms: false,
            consoles_change_hands: true,
            tickets: Vec::new(),
            term: Term::default(),
            epoch: Epoch(Uuid::new_v4()),
            changes: Vec::new(),
            vms: BTreeMap::new(),
            operations: HashMap::new(),
            order: Vec::new(),
            used_grants: BTreeSet::new(),
            clusters: BTreeMap::new(),
            fencings_that_fail: 0,
            boot_id: None,
            missing: BTreeMap::new(),
            redundancy: None,
            datastores: BTreeMap::new(),
            free_bytes: 900 << 30,
            limits: Vec::new(),
            memory_bytes: 64 << 30,
            crypto_safe: CryptoSafe { state: CryptoSafeState::Safe, reasons: Vec::new(), required: true },
            topology: Topology::default(),
            capabilities: None,
            now_unix_ms: None,
            statistics: BTreeMap::new(),
            programs: Some(Programs { passt: Some("/usr/bin/passt".into()), ..Programs::default() }),
            guest_socket: None,
            void_tickets: Vec::new(),
            violations: Vec::new(),
            rekeys_that_fail: 0,
            rekeys_of_data: Vec::new(),
            disk_changes_that_fail: Vec::new(),
            nic_changes_that_fail: Vec::new(),
            size_changes_that_fail: Vec::new(),
            snapshot_changes_that_fail: Vec::new(),
            creations_that_fail: Vec::new(),
            groups_that_fail: Vec::new(),
            groups_made: BTreeSet::new(),
            fetches_that_fail: Vec::new(),
            removals_that_fail: Vec::new(),
            fetched: BTreeMap::new(),
            copies: BTreeSet::new(),
            refuses: None,
            readings: 0,
            imports_that_fail: Vec::new(),
            client_is_away: false,
            down: false,
            by_itself: false,
            ended: false,
        }
    }

    fn observed(&self, id: VmId) -> Option<ObservedVm> {
        let vm = self.vms.get(&id)?;
        let reason = vm.reason.map(|reason| VmReason {
            code: reason.code().to_owned(),
            message: format!("because of {}", reason.code()),
        });
        Some(ObservedVm {
            vm: id,
            name: vm.spec.name.clone(),
            directory: vm.spec.directory(),
            generation: VmGeneration(vm.generation),
            power: vm.power,
            since_unix_seconds: 0,
            supervisor_pid: None,
            supervisor_deaths: vm.supervisor_deaths,
            qemu_pid: None,
            tpm_lost: vm.tpm_lost,
            network_lost: vm.network_lost,
            volumes: Vec::new(),
            reason,
            waiting_for: vm.waiting_for.clone(),
            suspended: None,
            dumps: Some(vm.dumps.clone()),
            snapshots: Some(vm.snapshots.clone()),
            spec: Some(Box::new(vm.spec.clone())),
        })
    }

    /// Moves a volume between a VM and a holder, unless it has moved before.
    fn moves(&mut self, from: (VmId, &DiskName), to: (VmId, &DiskName)) -> Result<(), Problem> {
        let no_vm = || Problem::new("not_found", "there is no such VM");
        let target = self.vms.get(&to.0).ok_or_else(no_vm)?.volumes.contains_key(to.1.as_str());
        let source = self.vms.get_mut(&from.0).ok_or_else(no_vm)?.volumes.remove(from.1.as_str());
        match (source, target) {
            (Some(volume), false) => {
                self.vms.get_mut(&to.0).unwrap().volumes.insert(to.1.to_string(), volume);
                Ok(())
            }
            (None, true) => Ok(()),
            (None, false) => Err(Problem::new("not_a_volume", "it is in neither place")),
            (Some(_), true) => Err(Problem::new("exists", "something has its name")),
        }
    }

    /// Makes a snapshot of several VMs, or a part of it.
    fn make_group(
        &mut self,
        snapshot: &NewVmSnapshot,
        members: &[GroupMember],
    ) -> Result<Option<OperationOutcome>, Problem> {
        for member in members {
            self.take_grants(&member.grants, &member.spec)?;
        }
        let failure = self.groups_that_fail.pop();
        let mut volumes = Vec::new();
        let made = if failure.is_some() { members.len() - 1 } else { members.len() };
        for member in &members[..made] {
            let vm = self.vms.get_mut(&member.spec.id);
            let vm = vm.ok_or_else(|| Problem::new("not_found", "there is no such VM"))?;
            vm.snapshots.check_new(snapshot)?;
            vm.snapshots.changing = Some(SnapshotChange::Prepare { snapshot: snapshot.clone() });
            let facts = member.spec.disks.iter().map(|disk| VolumeFacts {
                disk: disk.name.clone(),
                volume: vm.volumes[disk.name.as_str()],
                kek: None,
                generation: disk.least_generation + 1,
                size_bytes: None,
            });
            volumes.push(MemberVolumes { vm: member.spec.id, volumes: facts.collect() });
            self.changes.push(ChangedObject::Vm(member.spec.id));
        }
        match failure {
            Some(code) => Err(Problem::new(code, "it does not")),
            None => {
                self.groups_made.insert(snapshot.id);
                Ok(Some(OperationOutcome::Group(volumes)))
            }
        }
    }

    fn reside(&mut self, vm: VmId, stay: Stay) -> Result<(), Problem> {
        if self.residences.get(&vm).is_some_and(|known| known.generation >= stay.generation) {
            return Err(Problem::new("other_generation", "it has moved since"));
        }
        self.residences.insert(vm, stay);
        Ok(())
    }

    fn leave(&mut self, id: VmId, generation: u64, handover: HandoverId) -> Result<(), Problem> {
        let stay = Stay { generation: VmGeneration(generation), place: Place::Left };
        if self.residences.get(&id) == Some(&stay) {
            return Ok(());
        }
        if let Some(code) = self.moves_that_fail.pop() {
            return Err(Problem::new(code, "it does not leave"));
        }
        if let Some(vm) = self.vms.get(&id) {
            if !vm.power.is_off() {
                return Err(Problem::new("running", "it runs"));
            }
            let given_up = GivenUp { vm: vm.clone(), handover: Some(handover) };
            self.storage.lock().given_up.insert(id, given_up);
        } else if let Some(given_up) = self.storage.lock().given_up.get_mut(&id) {
            given_up.handover = Some(handover);
        } else {
            return Err(Problem::new("no_such_vm", "there is no such VM"));
        }
        self.reside(id, stay)?;
        self.vms.remove(&id);
        Ok(())
    }

    fn arrive(
        &mut self,
        id: VmId,
        generation: u64,
        spec: &VmSpec,
        handover: Option<HandoverId>,
    ) -> Result<(), Problem> {
        let stay = Stay { generation: VmGeneration(generation), place: Place::Here };
        if self.residences.get(&id) == Some(&stay) {
            return Ok(());
        }
        if let Some(code) = self.moves_that_fail.pop() {
            return Err(Problem::new(code, "it does not arrive"));
        }
        if self.vms.get(&id).is_some_and(|vm| !vm.power.is_off()) {
            return Err(Problem::new("running", "it runs"));
        }
        let storage = Arc::clone(&self.storage);
        let mut storage = storage.lock();
        if let Some(given_up) = storage.given_up.get_mut(&id) {
            let is_carried = given_up.vm.spec.datastore != spec.datastore;
            if is_carried && (!self.vms.contains_key(&id) || self.fetched.get(&id).copied() != handover) {
                return Err(Problem::new("other_datastore", "nobody has fetched it"));
            }
            if handover.is_some() && given_up.handover != handover {
                return Err(Problem::new("other_datastore", "it is a copy"));
            }
            if given_up.vm.generation >= generation {
                return Err(Problem::new("generation_used", "it has started since"));
            }
            given_up.handover = None;
            let vm = FakeVm { reason: None, ..given_up.vm.clone() };
            self.vms.entry(id).or_insert(vm).spec = spec.clone();
        } else if let Some((user, vm)) = storage.lost.remove(&id) {
            let is_fenced = |(datastore, fenced): &(DatastoreId, CephUser)| {
                cluster_path(*datastore) == vm.spec.datastore && *fenced == user
            };
            if handover.is_some() || !storage.fenced.iter().any(is_fenced) {
                self.violations.push(format!("{} was taken from {user}, who can still write", vm.spec.name));
            }
            if vm.generation >= generation {
                return Err(Problem::new("generation_used", "it has started since"));
            }
            let power = if vm.power.is_off() { vm.power } else { PowerState::Crashed };
            self.vms.insert(id, FakeVm { spec: spec.clone(), power, reason: None, ..vm });
        } else if !self.vms.contains_key(&id) {
            return Err(Problem::new("no_such_vm", "there is no such VM"));
        }
        self.reside(id, stay)
    }

    /// Fetches what the host with the ticket gives.
    fn fetch_off(
        &mut self,
        id: VmId,
        request: &OperationRequest,
        spec: &VmSpec,
        handover: HandoverId,
    ) -> Result<Option<OperationOutcome>, Problem> {
        self.must_be_elsewhere(id, request.generation)?;
        self.fetch(id, request, spec, handover)
    }

    /// The same of a VM that may run there.
    pub fn fetch(
        &mut self,
        id: VmId,
        request: &OperationRequest,
        spec: &VmSpec,
        handover: HandoverId,
    ) -> Result<Option<OperationOutcome>, Problem> {
        let given = self.storage.lock().given.remove(&id);
        if let Some(code) = self.fetches_that_fail.pop() {
            return Err(Problem::new(code, "the connection broke off"));
        }
        if self.fetched.get(&id) != Some(&handover) || !self.vms.contains_key(&id) {
            self.take_grants(&request.grants, spec)?;
            let given = given.ok_or_else(|| Problem::new("bad_ticket", "the ticket is not good"))?;
            let lies_in = BTreeMap::new();
            self.vms.insert(id, FakeVm { spec: spec.clone(), lies_in, ..given });
            self.fetched.insert(id, handover);
        }
        Ok(Some(OperationOutcome::Volumes(self.arrived(id))))
    }

    /// The volumes of a VM that was fetched.
    pub fn arrived(&self, id: VmId) -> Vec<VolumeFacts> {
        let vm = &self.vms[&id];
        let facts = vm.spec.disks.iter().map(|disk| VolumeFacts {
            disk: disk.name.clone(),
            volume: vm.volumes[disk.name.as_str()],
            kek: None,
            generation: disk.least_generation + 1,
            size_bytes: None,
        });
        facts.collect()
    }

    fn must_be_elsewhere(&mut self, id: VmId, generation: VmGeneration) -> Result<(), Problem> {
        let is_here = |known: &Stay| known.place == Place::Here && known.generation >= generation;
        if self.residences.get(&id).is_some_and(is_here) {
            self.violations.push(format!("{id} was to be removed from its host"));
            return Err(Problem::new("is_here", "it is here"));
        }
        if self.residences.get(&id).is_some_and(|known| known.place.is_between()) {
            return Err(Problem::new("moving", "it is moving"));
        }
        Ok(())
    }

    /// Deletes what it has of a VM of another host.
    fn remove_copy(&mut self, id: VmId, generation: VmGeneration, spec: &VmSpec) -> Result<(), Problem> {
        self.must_be_elsewhere(id, generation)?;
        if self.vms.get(&id).is_some_and(|vm| !vm.power.is_off()) {
            return Err(Problem::new("running", "it runs"));
        }
        if let Some(code) = self.removals_that_fail.pop() {
            return Err(Problem::new(code, "it stays"));
        }
        if self.residences.contains_key(&id) {
            self.residences.insert(id, Stay { generation, place: Place::Left });
        }
        self.vms.remove(&id);
        self.copies.remove(&id);
        self.storage.lock().given_up.retain(|vm, left| *vm != id || left.vm.spec.datastore != spec.datastore);
        Ok(())
    }

    pub fn take_grants(&mut self, grants: &[Grant], spec: &VmSpec) -> Result<(), Problem> {
        let needed = spec.disks.iter().any(|disk| disk.key.provider_key().is_some());
        if needed && grants.is_empty() {
            return Err(Problem::new("key_unavailable", "no grant came with it"));
        }
        for grant in grants {
            if !self.used_grants.insert(grant.bytes.to_vec()) {
                self.violations.push(format!("a grant was used twice for {}", spec.name));
            }
        }
        Ok(())
    }

    fn work(&mut self) -> bool {
        let inside = self;
        let waiting: Vec<OperationId> = std::mem::take(&mut inside.order);
        for operation in &waiting {
            let Some((_, request)) = inside.operations.get(operation) else { continue };
            let Some(request) = request.clone() else { continue };
            let vm = inside.operations[operation].0.vm;
            let is_import = matches!(request.kind, OperationKind::ImportDisk { .. });
            if is_import && let Some((state, _)) = inside.operations.get_mut(operation) {
                let away = inside.client_is_away;
                let progress = Progress::new(1, 2, ProgressUnit::Bytes);
                state.progress = Some(Progress { client_is_away: away, ..progress });
                if away {
                    inside.order.push(*operation);
                    continue;
                }
            }
            let carried = inside.carry_out(vm, &request);
            let Some((state, request)) = inside.operations.get_mut(operation) else { continue };
            *request = None;
            match carried {
                Ok(outcome) => (state.state, state.outcome) = (OperationState::Done, outcome),
                Err(problem) => (state.state, state.error) = (OperationState::Failed, Some(problem)),
            }
            inside.changes.push(ChangedObject::Operation(*operation));
            inside.changes.push(ChangedObject::Vm(vm));
        }
        !waiting.is_empty()
    }

    fn carry_out(
        &mut self,
        id: VmId,
        request: &OperationRequest,
    ) -> Result<Option<OperationOutcome>, Problem> {
        let running = |vm: &FakeVm| !matches!(vm.power, PowerState::Stopped | PowerState::Crashed);
        let moves = matches!(
            request.kind,
            OperationKind::Leave { .. }
                | OperationKind::Arrive { .. }
                | OperationKind::Fetch { .. }
                | OperationKind::RemoveCopy { .. }
        );
        if request.kind.is_of_live_move() {
            return self.live(id, request);
        }
        if !moves && self.residences.get(&id).is_some_and(|known| known.place != Place::Here) {
            self.violations.push(format!("{} of a VM that has left", request.kind.name()));
            return Err(Problem::new("left_host", "it has left"));
        }
        match &request.kind {
            OperationKind::Leave { handover, .. } => {
                self.leave(id, request.generation.0, *handover).map(|()| None)
            }
            OperationKind::Arrive { spec, handover } => {
                self.arrive(id, request.generation.0, spec, *handover).map(|()| None)
            }
            OperationKind::Fetch { spec, handover, bytes_per_second, .. } => {
                self.limits.push(("fetch", bytes_per_second.map(Bandwidth::get)));
                self.fetch_off(id, request, spec, *handover)
            }
            OperationKind::RemoveCopy { spec } => {
                self.remove_copy(id, request.generation, spec).map(|()| None)
            }
            OperationKind::Create { spec, from } => {
                if let Some(from) = from {
                    self.take_grants(&from.grants, &from.spec)?;
                    if let Some(code) = self.creations_that_fail.pop() {
                        return Err(Problem::new(code, "it cannot be read now"));
                    }
                    let has = |snapshot| {
                        self.vms.get(&from.spec.id).is_some_and(|vm| vm.snapshots.get(snapshot).is_some())
                    };
                    if from.linked && !from.snapshot.is_some_and(has) {
                        self.violations.push(format!("{} is linked to no snapshot", spec.name));
                    }
                }
                if !self.datastores.contains_key(&spec.datastore) {
                    return Err(Problem::new("datastore_unknown", "no such datastore"));
                }
                if !self.vms.contains_key(&id) {
                    self.take_grants(&request.grants, spec)?;
                    if self.vms.values().any(|vm| vm.spec.directory() == spec.directory()) {
                        return Err(Problem::new("conflict", "the directory is taken"));
                    }
                    let volume =
                        |disk: &strongroom_host::protocol::Disk| (disk.name.to_string(), VolumeId::random());
                    let volumes = spec.disks.iter().map(volume).collect();
                    self.vms.insert(id, FakeVm::new(spec, volumes));
                }
                let vm = &self.vms[&id];
                let facts = spec.disks.iter().map(|disk| VolumeFacts {
                    disk: disk.name.clone(),
                    volume: vm.volumes[disk.name.as_str()],
                    kek: None,
                    generation: 1,
                    size_bytes: None,
                });
                Ok(Some(OperationOutcome::Volumes(facts.collect())))
            }
            OperationKind::Delete => match self.vms.get(&id) {
                Some(vm) if running(vm) => Err(Problem::new("conflict", "it runs")),
                _ => {
                    self.vms.remove(&id);
                    Ok(None)
                }
            },
            OperationKind::Start { spec, .. } => {
                let Some(vm) = self.vms.get(&id).cloned() else {
                    return Err(Problem::new("not_found", "there is no such VM"));
                };
                let generation = request.generation.0;
                if vm.generation == generation && running(&vm) {
                    return Ok(None);
                }
                if generation <= vm.generation {
                    return Err(Problem::new("generation", "this start is over"));
                }
                if running(&vm) {
                    self.violations.push(format!("{} was started while it runs", spec.name));
                }
                if let Some(disk) = vm.lost_disk(spec) {
                    self.violations.push(format!("{} was started with {disk} elsewhere", spec.name));
                }
                if spec.check_whole().is_err() {
                    self.violations.push(format!("{} was started with a half-clear disk", spec.name));
                }
                let granted = self.take_grants(&request.grants, spec);
                let power = if granted.is_ok() { PowerState::Running } else { PowerState::KeyUnavailable };
                let started = FakeVm {
                    spec: (**spec).clone(),
                    attested: Some((**spec).clone()),
                    generation,
                    power,
                    reason: None,
                    ..vm
                };
                self.vms.insert(id, started);
                Ok(None)
            }
            OperationKind::ChangeDisk { spec: asked, change } => {
                let Some(vm) = self.vms.get(&id).cloned() else {
                    return Err(Problem::new("not_found", "there is no such VM"));
                };
                self.take_grants(&request.grants, asked)?;
                let is_removal = matches!(change, DiskChange::Remove { .. });
                let fails_later = matches!(change, DiskChange::Unbind { .. });
                if let DiskChange::Bind { disk, from } = change {
                    self.moves((from.holder, &from.disk), (id, &disk.name))?;
                }
                let fails = match !is_removal && !fails_later {
                    true => self.disk_changes_that_fail.pop(),
                    false => None,
                };
                // Its host does it, and cannot say so.
                if let Some(code) = fails.filter(|code| *code != "answer_lost") {
                    return Err(Problem::new(code, "it does not"));
                }
                if let DiskChange::Move(moved) = change {
                    let vm = self.vms.get_mut(&id).unwrap();
                    match vm.move_disk_beside(asked, moved) {
                        Ok(Some(outcome)) => return Ok(Some(outcome)),
                        Ok(None) => {}
                        Err(None) => return Err(Problem::new("running", "it runs")),
                        Err(Some(violation)) => {
                            self.violations.push(format!("{:?} of {} {violation}", moved.step, moved.disk));
                        }
                    }
                }
                if let Some(code) = fails {
                    return Err(Problem::new(code, "its answer is lost"));
                }
                let mut spec = change.applied_to(&vm.spec)?;
                if let DiskChange::Seal { disk } = change {
                    if asked.disk(disk).is_none_or(|disk| !matches!(disk.key, DiskKey::HalfClear { .. })) {
                        self.violations.push(format!("{disk} was rewritten before it was half clear"));
                    }
                    spec = change.applied_to(asked)?;
                }
                if let DiskChange::Unbind { disk, to } = change {
                    if let Some(code) = self.disk_changes_that_fail.pop() {
                        self.vms.get_mut(&id).unwrap().spec = spec;
                        return Err(Problem::new(code, "the volume does not move"));
                    }
                    self.moves((id, disk), (to.holder, &to.disk))?;
                }
                let vm = self.vms.get_mut(&id).unwrap();
                vm.volumes.retain(|name, _| spec.disks.iter().any(|disk| disk.name.as_str() == name));
                for disk in &spec.disks {
                    vm.volumes.entry(disk.name.to_string()).or_insert_with(VolumeId::random);
                }
                if let DiskChange::Bind { disk, .. } = change
                    && Some(vm.volumes[disk.name.as_str()]) != disk.volume
                {
                    self.violations.push(format!("{} became another volume", disk.name));
                    return Err(Problem::new("other_volume", "it is another volume"));
                }
                vm.attested = Some(spec.clone());
                vm.spec = spec;
                let facts = vm.spec.disks.iter().map(|disk| VolumeFacts {
                    disk: disk.name.clone(),
                    volume: vm.volumes[disk.name.as_str()],
                    kek: None,
                    generation: 1,
                    size_bytes: None,
                });
                Ok(Some(OperationOutcome::Volumes(facts.collect())))
            }
            OperationKind::ImportDisk { spec, disk, .. } => {
                self.take_grants(&request.grants, spec)?;
                if let Some(code) = self.imports_that_fail.pop() {
                    return Err(Problem::new(code, "it does not"));
                }
                let Some(vm) = self.vms.get_mut(&id) else {
                    return Err(Problem::new("not_found", "there is no such VM"));
                };
                let volume = VolumeId::random();
                vm.volumes.insert(disk.to_string(), volume);
                let facts =
                    VolumeFacts { disk: disk.clone(), volume, kek: None, generation: 1, size_bytes: None };
                Ok(Some(OperationOutcome::Volumes(vec![facts])))
            }
            OperationKind::Rekey { spec, data } => {
                self.take_grants(&request.grants, spec)?;
                if self.rekeys_that_fail > 0 {
                    self.rekeys_that_fail -= 1;
                    return Err(Problem::new("rekey", "the disk is full"));
                }
                let Some(vm) = self.vms.get_mut(&id) else {
                    return Err(Problem::new("not_found", "there is no such VM"));
                };
                if *data && vm.power == PowerState::Suspended {
                    return Err(Problem::new("suspended", "its memory fits its data"));
                }
                self.rekeys_of_data.push(*data);
                vm.spec = (**spec).clone();
                vm.attested = Some(vm.spec.clone());
                for disk in &mut vm.spec.disks {
                    if let DiskKey::Provider { key, next: next @ Some(_), .. } = &mut disk.key {
                        *key = next.take().unwrap();
                    }
                }
                let facts = spec.disks.iter().map(|disk| VolumeFacts {
                    disk: disk.name.clone(),
                    volume: vm.volumes[disk.name.as_str()],
                    kek: None,
                    generation: 3,
                    size_bytes: None,
                });
                Ok(Some(OperationOutcome::Volumes(facts.collect())))
            }
            OperationKind::Configure { spec } => match self.vms.get_mut(&id) {
                Some(vm) => {
                    vm.spec = (**spec).clone();
                    vm.attested = Some(vm.spec.clone());
                    Ok(None)
                }
                None => Err(Problem::new("not_found", "there is no such VM")),
            },
            OperationKind::SetNics { spec, open } => {
                self.take_grants(&request.grants, spec)?;
                let Some(vm) = self.vms.get_mut(&id) else {
                    return Err(Problem::new("not_found", "there is no such VM"));
                };
                let has = |nic: &Nic| {
                    vm.spec.nics.iter().any(|had| had.mac == nic.mac && had.network == nic.network)
                };
                if let Some(nic) = spec.nics.iter().find(|nic| !has(nic) && !open.contains(&nic.mac)) {
                    self.violations.push(format!("{} has no open network for {}", spec.name, nic.mac));
                }
                (vm.spec.nics, vm.spec.boot_order) = (spec.nics.clone(), spec.boot_order.clone());
                vm.attested = Some(vm.spec.clone());
                match self.nic_changes_that_fail.pop() {
                    Some(code) => Err(Problem::new(code, "it does not")),
                    None => Ok(None),
                }
            }
            OperationKind::SetSizes { spec } => {
                self.take_grants(&request.grants, spec)?;
                let Some(vm) = self.vms.get_mut(&id) else {
                    return Err(Problem::new("not_found", "there is no such VM"));
                };
                let is_on = running(vm);
                if is_on {
                    vm.spec.check_growth_to(spec.cpus, spec.memory_bytes)?;
                }
                // What fails is half done.
                vm.spec.memory_bytes = spec.memory_bytes;
                if let Some(code) = self.size_changes_that_fail.pop() {
                    return Err(Problem::new(code, "it does not"));
                }
                vm.spec.cpus = spec.cpus;
                vm.attested = Some(vm.spec.clone());
                Ok(None)
            }
            OperationKind::SnapshotGroup { snapshot, members } => self.make_group(snapshot, members),
            kind => {
                let groups_made = self.groups_made.clone();
                let Some(vm) = self.vms.get_mut(&id) else {
                    return Err(Problem::new("not_found", "there is no such VM"));
                };
                match kind {
                    OperationKind::ChangeSnapshots { .. } if !self.snapshot_changes_that_fail.is_empty() => {
                        let code = self.snapshot_changes_that_fail.pop().unwrap_or_default();
                        return Err(Problem::new(code, "it does not"));
                    }
                    OperationKind::Stop { .. } if running(vm) => {
                        (vm.power, vm.reason) = (PowerState::Stopped, Some(OffReason::Stopped));
                        vm.waiting_for.clear();
                    }
                    OperationKind::Stop { .. } => {}
                    OperationKind::Pause if running(vm) => vm.power = PowerState::Paused,
                    OperationKind::Resume if running(vm) => vm.power = PowerState::Running,
                    OperationKind::SupplyGrants if vm.power == PowerState::KeyUnavailable => {
                        vm.power = PowerState::Running;
                        vm.waiting_for.clear();
                    }
                    OperationKind::Dump { label } if running(vm) => {
                        let made = vm.dumps.iter().find(|dump| dump.operation == request.operation).cloned();
                        let dump = made.unwrap_or_else(|| Dump {
                            number: vm.dumps.len() as u32 + 1,
                            volume: VolumeId::random(),
                            bytes: 2 << 30,
                            sealed_bytes: 1 << 30,
                            at_unix_seconds: 1,
                            label: label.clone(),
                            operation: request.operation,
                        });
                        if !vm.dumps.contains(&dump) {
                            vm.dumps.push(dump.clone());
                        }
                        return Ok(Some(OperationOutcome::Dump(dump)));
                    }
                    OperationKind::DeleteDump { number, .. } => {
                        vm.dumps.retain(|dump| dump.number != *number)
                    }
                    OperationKind::ChangeSnapshots { spec, change } => {
                        let disks: Vec<_> = spec.disks.iter().map(|disk| disk.name.clone()).collect();
                        match change {
                            SnapshotChange::Create { snapshot: NewVmSnapshot { id, name, .. } }
                                if vm.snapshots.named(name.as_str()).is_some_and(|known| known.id != *id) =>
                            {
                                self.violations.push(format!("snapshot {name} was made twice"));
                            }
                            // It was asked for again.
                            SnapshotChange::Create { snapshot: NewVmSnapshot { id, .. } }
                            | SnapshotChange::Revert { keep: NewVmSnapshot { id, .. }, .. }
                                if vm.snapshots.get(*id).is_some() => {}
                            SnapshotChange::Create { snapshot } => {
                                let memory = snapshot.memory.then(|| SavedMemory {
                                    volume: VolumeId::random(),
                                    bytes: 1 << 20,
                                    at_unix_seconds: 1,
                                });
                                let quiesced = snapshot.quiesce_within_s.is_some();
                                vm.snapshots.add(snapshot, disks, Contents { memory, quiesced });
                            }
                            SnapshotChange::Revert { to, keep, .. } => {
                                vm.snapshots.add(keep, disks, Contents::default());
                                vm.snapshots.current = Some(*to);
                            }
                            SnapshotChange::Delete { snapshot } => {
                                vm.snapshots.remove(*snapshot);
                                vm.snapshots.changing = None;
                            }
                            SnapshotChange::Prepare { .. } => {
                                self.violations.push("a part without its group".to_owned());
                            }
                            SnapshotChange::Keep { snapshot } if vm.snapshots.get(snapshot.id).is_some() => {}
                            SnapshotChange::Keep { snapshot } => {
                                let prepared = SnapshotChange::Prepare { snapshot: snapshot.clone() };
                                if vm.snapshots.changing != Some(prepared)
                                    || !groups_made.contains(&snapshot.id)
                                {
                                    self.violations
                                        .push(format!("{} keeps what it does not have", spec.name));
                                    return Err(Problem::new("incomplete_snapshot", "it has no part"));
                                }
                                vm.snapshots.add(snapshot, disks, Contents::default());
                                vm.snapshots.changing = None;
                            }
                        }
                        let facts = spec.disks.iter().map(|disk| VolumeFacts {
                            disk: disk.name.clone(),
                            volume: vm.volumes[disk.name.as_str()],
                            kek: None,
                            generation: disk.least_generation + 1,
                            size_bytes: Some(VolumeSize::new(64 << 20).unwrap()),
                        });
                        return Ok(Some(OperationOutcome::Volumes(facts.collect())));
                    }
                    OperationKind::Reset if running(vm) => {}
                    other => return Err(Problem::new("conflict", format!("{} does not fit", other.name()))),
                }
                Ok(None)
            }
        }
    }
}

impl FakeHost {
    pub fn new(fuse: &Arc<Fuse>) -> Arc<Self> {
        let (state, changed) = (Mutex::new(HostInside::new()), Condvar::new());
        Arc::new(Self { fuse: Arc::clone(fuse), state, changed })
    }

    pub fn lock(&self) -> MutexGuard<'_, HostInside> {
        self.state.lock()
    }

    /// Carries out requests. Returns whether there were any.
    pub fn work(&self) -> bool {
        self.lock().work()
    }

    /// Kills and restarts hostd: VMs keep running, and operations are forgotten.
    pub fn restart(&self) {
        let mut inside = self.lock();
        inside.epoch = Epoch(Uuid::new_v4());
        inside.changes.clear();
        inside.operations.clear();
        inside.order.clear();
    }

    /// The machine loses power.
    pub fn lose_power(&self) {
        self.restart();
        let mut inside = self.lock();
        for vm in inside.vms.values_mut() {
            if !matches!(vm.power, PowerState::Stopped | PowerState::Crashed) {
                (vm.power, vm.reason) = (PowerState::Crashed, Some(OffReason::HostLost));
                vm.waiting_for.clear();
            }
        }
    }

    /// The machine loses its power for good. What it has on clusters stays there.
    pub fn lose(&self) {
        let mut inside = self.lock();
        inside.down = true;
        let clusters = inside.clusters.clone();
        let storage = Arc::clone(&inside.storage);
        for (id, CephMount { client, .. }) in clusters {
            let on_it: Vec<VmId> = inside
                .vms
                .iter()
                .filter(|(_, vm)| vm.spec.datastore == cluster_path(id))
                .map(|(id, _)| *id)
                .collect();
            for vm in on_it {
                let left = inside.vms.remove(&vm).unwrap();
                storage.lock().lost.insert(vm, (client.user.clone(), left));
            }
        }
    }

    /// Lets a guest do something by itself.
    pub fn guest(&self, name: &str, act: impl Fn(&mut FakeVm)) {
        let mut inside = self.lock();
        let found = inside.vms.iter_mut().find(|(_, vm)| vm.spec.name.as_str() == name);
        let Some((id, vm)) = found else { return };
        act(vm);
        let id = *id;
        inside.changes.push(ChangedObject::Vm(id));
        self.changed.notify_all();
    }

    /// One call. The control plane may die before and after it.
    fn call<T>(&self, act: impl FnOnce(&mut HostInside) -> Result<T, HostError>) -> Result<T, HostError> {
        let dead = || HostError::Unreachable("dead".to_owned());
        if !self.fuse.passes() {
            return Err(dead());
        }
        let mut inside = self.lock();
        if inside.down {
            return Err(HostError::Unreachable("hostd is down".to_owned()));
        }
        let done = act(&mut inside);
        if self.fuse.passes() { done } else { Err(dead()) }
    }
}

impl Host for FakeHost {
    fn set_term(&self, term: Term) {
        self.lock().term = term;
    }

    fn state(&self) -> Result<HostState, HostError> {
        self.call(|inside| {
            let datastores = inside.datastores.iter().map(|(path, id)| inside.datastore(path, *id));
            Ok(HostState {
                name: "host1".to_owned(),
                version: "0".to_owned(),
                formats: if inside.is_old { FIRST_FORMATS } else { FORMATS },
                epoch: inside.epoch,
                boot_id: inside.boot_id.clone(),
                now_unix_ms: inside.now_unix_ms,
                cpus: 8,
                cpu_model: None,
                capabilities: inside.capabilities.clone(),
                memory_bytes: inside.memory_bytes,
                memory_available_bytes: 32 << 30,
                topology: inside.topology.clone(),
                accelerator: Accelerator::Tcg,
                programs: inside.programs.clone(),
                tpms_on_clusters: !inside.is_old && !inside.keeps_no_tpms_on_clusters,
                live_tpms: inside.moves_live_tpms,
                consoles_change_hands: inside.consoles_change_hands,
                boot_directories: Vec::new(),
                datastores: datastores.collect(),
                crypto_safe: inside.crypto_safe.clone(),
                vms_running: 0,
                operations_running: 0,
                operations_queued: 0,
            })
        })
    }

    fn vms(&self) -> Result<ObservedVms, HostError> {
        self.call(|inside| {
            let vms = inside.vms.keys().filter_map(|id| inside.observed(*id)).collect();
            Ok(ObservedVms { epoch: inside.epoch, number: inside.changes.len() as u64, vms })
        })
    }

    fn vm(&self, vm: VmId) -> Result<Option<ObservedVm>, HostError> {
        self.call(|inside| Ok(inside.observed(vm)))
    }

    fn vms_of(&self, vms: &[VmId]) -> Result<Vec<ObservedVm>, HostError> {
        self.call(|inside| Ok(vms.iter().filter_map(|vm| inside.observed(*vm)).collect()))
    }

    fn statistics(&self, vm: VmId) -> Result<Option<VmStatistics>, HostError> {
        self.call(|inside| {
            let none = VmStatistics { vm, disks: Vec::new(), processors: None };
            Ok(inside.vms.contains_key(&vm).then(|| inside.statistics.get(&vm).cloned().unwrap_or(none)))
        })
    }

    fn all_statistics(&self) -> Result<Vec<VmStatistics>, HostError> {
        self.call(|inside| Ok(inside.statistics.values().cloned().collect()))
    }

    fn read_volumes(&self, request: &ReadingsRequest) -> Result<Readings, HostError> {
        assert!(request.readings.len() <= READINGS_MAX);
        self.call(|inside| {
            inside.readings += request.readings.len();
            let readings = request.readings.iter().map(|asked| inside.reading(asked)).collect();
            Ok(Readings { readings })
        })
    }

    fn check(&self, spec: &VmSpec) -> Result<(), HostError> {
        self.call(|inside| match (spec.memory_bytes.bytes() > inside.memory_bytes, inside.refuses) {
            (true, _) => Err(HostError::Refused(Problem::new("too_much_memory", "it has less memory"))),
            (_, Some(code)) => Err(HostError::Refused(Problem::new(code, "it does not fit"))),
            (false, None) => Ok(()),
        })
    }

    fn judge(&self, request: &JudgeRequest) -> Result<Judgement, HostError> {
        self.call(|inside| {
            let found = inside.vms.get(&request.spec.id).and_then(|vm| vm.attested.as_ref());
            let doubt = match found {
                None => Some("it bears no attestation"),
                Some(attested) if *attested != *request.spec => Some("it is not what was attested"),
                Some(_) => None,
            };
            Ok(Judgement { doubts: doubt.into_iter().map(str::to_owned).collect() })
        })
    }

    fn operate(&self, vm: VmId, request: &OperationRequest) -> Result<Operation, HostError> {
        self.call(|inside| {
            if let Some((known, _)) = inside.operations.get(&request.operation) {
                return Ok(known.clone());
            }
            let operation = Operation {
                operation: request.operation,
                vm,
                kind: request.kind.name().to_owned(),
                state: OperationState::Queued,
                progress: None,
                error: None,
                outcome: None,
            };
            inside.operations.insert(request.operation, (operation.clone(), Some(request.clone())));
            inside.order.push(request.operation);
            if inside.by_itself {
                inside.work();
                self.changed.notify_all();
            }
            Ok(operation)
        })
    }

    fn operation(&self, operation: OperationId) -> Result<Option<Operation>, HostError> {
        self.call(|inside| Ok(inside.operations.get(&operation).map(|(known, _)| known.clone())))
    }

    fn cancel(&self, operation: OperationId) -> Result<(), HostError> {
        self.call(|inside| {
            if let Some((known, request @ Some(_))) = inside.operations.get_mut(&operation) {
                (known.state, *request) = (OperationState::Cancelled, None);
            }
            Ok(())
        })
    }

    fn ticket(&self, vm: VmId, request: &TicketRequest) -> Result<Ticket, HostError> {
        self.call(|inside| {
            if let TicketRequest::Volumes { spec, grants } = request {
                // One that runs has its keys.
                if inside.vms.get(&vm).is_none_or(|vm| vm.power.is_off()) {
                    inside.take_grants(grants, spec).map_err(HostError::Refused)?;
                }
                let given = inside.vms.get(&vm).cloned();
                inside.storage.lock().given.extend(given.map(|given| (vm, given)));
            }
            inside.tickets.push(request.clone());
            let ticket = TicketId::from_bytes([7; 16]);
            let socket = inside.guest_socket.clone();
            let port = socket.is_none().then(|| GuestPort {
                listen: SocketAddr::from(([192, 0, 2, 1], 5691)),
                certificate_sha256: "ab".repeat(32),
            });
            let socket = socket.unwrap_or_else(|| PathBuf::from("/run/guest.sock"));
            // Later than any clock of a test.
            Ok(Ticket { ticket, expires_unix_seconds: 1 << 40, socket, port })
        })
    }

    fn void_ticket(&self, ticket: &TicketId) -> Result<(), HostError> {
        self.call(|inside| {
            inside.void_tickets.push(ticket.clone());
            Ok(())
        })
    }

    fn changes(&self, after: u64, wait: Duration) -> Result<Option<Changes>, HostError> {
        let mut inside = self.lock();
        if inside.by_itself {
            let quiet = |inside: &mut HostInside| inside.changes.len() as u64 <= after && !inside.ended;
            self.changed.wait_while_for(&mut inside, quiet, wait);
        }
        if inside.ended {
            return Ok(None);
        }
        drop(inside);
        self.call(|inside| {
            let changes = inside.changes.iter().enumerate().skip(after as usize);
            let changes = changes.map(|(at, object)| Change { number: at as u64 + 1, object: *object });
            let number = inside.changes.len() as u64;
            Ok(Some(Changes {
                epoch: inside.epoch,
                number,
                read_all: false,
                changes: changes.collect(),
                ended: Vec::new(),
            }))
        })
    }

    fn end_changes(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, HostError> {
        self.call(|inside| {
            if request.path.starts_with("/proc") {
                return Err(HostError::Refused(Problem::new("invalid", "no file system for volumes")));
            }
            if let Some(ceph) = &request.ceph {
                return inside.add_pools(ceph, request);
            }
            let id = {
                let mut storage = inside.storage.lock();
                if request.expected.is_some()
                    && storage.datastores.get(&request.path) != request.expected.as_ref()
                {
                    return Err(HostError::Refused(Problem::new("other_datastore", "it bears another mark")));
                }
                *storage.datastores.entry(request.path.clone()).or_insert_with(DatastoreId::random)
            };
            inside.datastores.insert(request.path.clone(), id);
            Ok(inside.datastore(&request.path, id))
        })
    }

    fn look_through(&self, request: &DatastoreRequest) -> Result<Datastore, HostError> {
        self.call(|inside| match inside.datastores.get(&request.path).copied() {
            Some(id) => {
                inside.look_at(&request.path, id);
                Ok(inside.datastore(&request.path, id))
            }
            None => Err(HostError::Refused(Problem::new("no_such_datastore", "it is not one of this host"))),
        })
    }

    fn fence(&self, request: &FencingRequest) -> Result<(), HostError> {
        self.call(|inside| {
            let FencingRequest { datastore, user, fencing } = request;
            let Some(own) = inside.clusters.get(datastore) else {
                return Err(HostError::Refused(Problem::new(
                    "no_such_datastore",
                    "it is not one of this host",
                )));
            };
            if own.client.user == *user {
                inside.violations.push(format!("{user} is to fence itself"));
            }
            if inside.fencings_that_fail > 0 {
                inside.fencings_that_fail -= 1;
                return Err(HostError::Refused(Problem::new("cluster", "no monitor answers")));
            }
            let place = (*datastore, user.clone());
            let mut storage = inside.storage.lock();
            match fencing {
                Fencing::Fence => drop(storage.fenced.insert(place)),
                Fencing::Admit => drop(storage.fenced.remove(&place)),
            }
            Ok(())
        })
    }

    fn release(&self) -> Result<(), HostError> {
        self.call(|inside| {
            inside.term = Term::LAST;
            Ok(())
        })
    }

    fn volume(&self, vm: VmId, disk: &DiskName) -> Result<VolumeId, HostError> {
        self.call(|inside| {
            let vm = inside.vms.get(&vm);
            let volume = vm.and_then(|vm| vm.volumes.get(disk.as_str())).copied();
            volume.ok_or_else(|| HostError::Refused(Problem::new("volume_unreadable", "no such volume")))
        })
    }
}

/// Key providers in memory.
pub struct FakeKeys {
    fuse: Arc<Fuse>,
    state: Mutex<KeysInside>,
}

#[derive(Default)]
pub struct KeysInside {
    /// Keys by their requests.
    pub made: BTreeMap<KeyRequestId, (VmId, ProviderKey)>,
    grants: u64,
    /// The VMs and generations that grants were for.
    pub standings: Vec<(VmId, VmGeneration, GrantFor)>,
    /// The generations of VMs that are the lowest, and those that were prepared in vain.
    pub fenced: BTreeSet<(VmId, VmGeneration)>,
    pub voided: BTreeSet<(VmId, VmGeneration)>,
    /// The attempts to move VMs that were permitted, and how their memory passes.
    pub permitted: Vec<(VmId, Secrecy)>,
    pub unavailable: bool,
    /// The providers beside `embedded`.
    pub others: Vec<String>,
    pub expires_unix_seconds: Option<u64>,
    pub last_backup_unix_seconds: Option<u64>,
    /// Deactivated keys.
    pub retired: BTreeSet<String>,
    /// The audit log's entries about uses of guest data.
    pub uses: Vec<String>,
    /// Its entries about heads of the access log.
    pub heads: Vec<AccessLogHead>,
    /// Its entries about moves.
    pub moves: Vec<MovedVm>,
    /// Whether it takes no entries about moves.
    pub log_is_full: bool,
}

impl FakeKeys {
    pub fn lock(&self) -> MutexGuard<'_, KeysInside> {
        self.state.lock()
    }

    fn call<T>(&self, act: impl FnOnce(&mut KeysInside) -> T) -> Result<T, KeyProblem> {
        let dead = || KeyProblem::Unavailable("dead".to_owned());
        if !self.fuse.passes() {
            return Err(dead());
        }
        let mut inside = self.lock();
        if inside.unavailable {
            return Err(KeyProblem::Unavailable("nobody answers".to_owned()));
        }
        let done = act(&mut inside);
        if self.fuse.passes() { Ok(done) } else { Err(dead()) }
    }
}

impl VmKeys for FakeKeys {
    fn create_key(
        &self,
        provider: &ProviderName,
        request: KeyRequestId,
        vm: VmId,
    ) -> Result<ProviderKey, KeyProblem> {
        self.call(|inside| {
            let number = inside.made.len();
            let made = inside.made.entry(request).or_insert_with(|| {
                let key = format!("key-{number}").parse().unwrap();
                (vm, ProviderKey { provider: provider.clone(), key, wrapped: None })
            });
            made.1.clone()
        })
    }

    fn hand_over(&self, key: &ProviderKey, from: VmId, to: VmId) -> Result<(), KeyProblem> {
        self.call(|inside| {
            let made = inside.made.values_mut().find(|(_, made)| made == key);
            let (vm, _) = made.ok_or_else(|| KeyProblem::Refused("it made no such key".to_owned()))?;
            if *vm != to && *vm != from {
                return Err(KeyProblem::Refused("it is bound to another VM".to_owned()));
            }
            *vm = to;
            Ok(())
        })?
    }

    fn grant(
        &self,
        vm: VmId,
        generation: VmGeneration,
        standing: GrantFor,
        _: &str,
        keys: &[ProviderKey],
    ) -> Result<Vec<Grant>, KeyProblem> {
        let made_for_another = |made: &(VmId, ProviderKey)| made.0 != vm && keys.contains(&made.1);
        if self.lock().made.values().any(made_for_another) {
            return Err(KeyProblem::Refused("a key is bound to another VM".to_owned()));
        }
        self.call(|inside| {
            inside.grants += 1;
            inside.standings.push((vm, generation, standing));
            let bytes = inside.grants.to_be_bytes().to_vec().into();
            let keys = keys.iter().map(|key| key.key.clone()).collect();
            vec![Grant { bytes, keys, expires_unix_seconds: u64::MAX }]
        })
    }

    fn permit_move(&self, of: &LiveMoveOf<'_>) -> Result<MigrationPermit, KeyProblem> {
        let grant = format!("{} {} {} {} {}", of.vm, of.running, of.prepared, of.source, of.target);
        self.call(|inside| {
            inside.permitted.push((of.vm, of.secrecy));
            MigrationPermit { grant: grant.into_bytes(), signer: b"the control plane".to_vec() }
        })
    }

    fn fence(&self, vm: VmId, generation: VmGeneration) -> Result<(), KeyProblem> {
        self.call(|inside| {
            inside.fenced.insert((vm, generation));
        })
    }

    fn void_prepared(&self, vm: VmId, generation: VmGeneration) -> Result<(), KeyProblem> {
        self.call(|inside| {
            inside.voided.insert((vm, generation));
        })
    }

    fn retire(&self, key: &ProviderKey) -> Result<(), KeyProblem> {
        self.call(|inside| {
            inside.retired.insert(key.key.to_string());
        })
    }

    fn record_move(&self, moved: &MovedVm) -> Result<(), KeyProblem> {
        if self.lock().log_is_full {
            return Err(KeyProblem::Unavailable("the audit log has no room".to_owned()));
        }
        self.call(|inside| inside.moves.push(moved.clone()))
    }

    fn record_use(&self, _: VmId, what: &str, by: &str) -> Result<(), KeyProblem> {
        self.call(|inside| inside.uses.push(format!("{what}, by {by}")))
    }

    fn record_access_head(&self, head: &AccessLogHead) -> Result<(), KeyProblem> {
        self.call(|inside| inside.heads.push(head.clone()))
    }

    fn states(&self, keys: &[ProviderKey]) -> Vec<KeyStanding> {
        let expires_unix_seconds = self.lock().expires_unix_seconds;
        let standing = |key: &ProviderKey| KeyStanding {
            provider: key.provider.to_string(),
            key: key.key.to_string(),
            state: KeyState::Active,
            reason: None,
            expires_unix_seconds,
        };
        keys.iter().map(standing).collect()
    }

    fn providers(&self) -> Vec<KeyProvider> {
        let inside = self.lock();
        let all = std::iter::once("embedded").chain(inside.others.iter().map(String::as_str));
        let provider = |name: &str| KeyProvider {
            name: name.to_owned(),
            kind: "embedded".to_owned(),
            healthy: !inside.unavailable,
            reason: None,
            certificate_expires_unix_seconds: None,
            last_backup_unix_seconds: inside.last_backup_unix_seconds,
        };
        all.map(provider).collect()
    }
}
