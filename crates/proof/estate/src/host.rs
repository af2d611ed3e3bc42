//! A simulated host: hostd's server, terms, queue and changes, over VMs that are states alone.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_datastore::file::Provisioning;
use strongroom_host::protocol::{
    Accelerator, ChangedObject, Changes, CryptoSafe, CryptoSafeState, Datastore, DatastoreRequest,
    DatastoreState, DiskStatistics, FORMATS, FencingRequest, Host, JudgeRequest, Judgement, ObservedVm,
    ObservedVms, Operation, OperationId, OperationKind, OperationOutcome, OperationRequest, Problem,
    Programs, Reading, ReadingRequest, Readings, ReadingsRequest, SpaceReport, Ticket, TicketId,
    TicketRequest, Topology, VmSpec, VmStatistics, VolumeQuestion,
};
use strongroom_hostd::daemon::{ChangeLog, HostService, Job, OperationFailure, Queue, Terms, no_such_vm};
use strongroom_statistics::Snapshot;
use strongroom_types::{DatastoreId, VmId, unix_milliseconds_now};
use tokio::sync::Notify;

use crate::vm::{SimulatedVm, not_simulated};

/// The memory of a simulated host: enough for all VMs that it has.
const MEMORY_BYTES: u64 = 1 << 40;
/// The size of its datastores, and what is free there.
const DATASTORE_BYTES: u64 = 1 << 46;

/// The requests that a host has answered, by their kinds.
#[derive(Debug, Default)]
pub struct Requests {
    changes: AtomicU64,
    others: AtomicU64,
}

impl Requests {
    /// Requests for changes, most of which wait.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// All other requests.
    pub fn others(&self) -> u64 {
        self.others.load(Ordering::Relaxed)
    }
}

/// A host whose VMs have no guests.
#[derive(Debug)]
pub struct SimulatedHost {
    name: String,
    terms: Terms,
    changes: Arc<ChangeLog>,
    queue: Queue,
    work: Notify,
    /// How long an operation takes.
    operation_takes: Duration,
    inside: Mutex<Inside>,
    requests: Requests,
}

#[derive(Debug, Default)]
struct Inside {
    vms: BTreeMap<VmId, SimulatedVm>,
    datastores: BTreeMap<PathBuf, DatastoreId>,
}

impl SimulatedHost {
    /// A host with no VMs, which keeps its control planes' terms in `home`.
    ///
    /// # Errors
    /// If the terms in `home` cannot be read.
    pub fn new(name: &str, home: &Path, operation_takes: Duration) -> io::Result<Arc<Self>> {
        let changes = Arc::new(ChangeLog::default());
        Ok(Arc::new(Self {
            name: name.to_owned(),
            terms: Terms::of_home(home)?,
            queue: Queue::new(Arc::clone(&changes), NonZeroUsize::MIN),
            changes,
            work: Notify::new(),
            operation_takes,
            inside: Mutex::default(),
            requests: Requests::default(),
        }))
    }

    /// The requests that it has answered.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// The states of its VMs.
    pub fn vms(&self) -> Vec<ObservedVm> {
        self.inside.lock().vms.values().map(SimulatedVm::observed).collect()
    }

    /// Carries out operations, as hostd does, until it is dropped.
    pub async fn work_off(self: Arc<Self>) {
        loop {
            while let Some(job) = self.queue.next() {
                let host = Arc::clone(&self);
                tokio::spawn(async move {
                    tokio::time::sleep(host.operation_takes).await;
                    let ended = host.carry_out(&job);
                    host.queue.finish(&job, ended);
                    host.work.notify_one();
                });
            }
            self.work.notified().await;
        }
    }

    fn carry_out(&self, job: &Job) -> Result<Option<OperationOutcome>, OperationFailure> {
        if job.is_cancelled() {
            return Err(OperationFailure::Cancelled);
        }
        let carried_out = self.inside.lock().carry_out(job.vm, &job.request);
        self.changes.add(ChangedObject::Vm(job.vm));
        Ok(carried_out?)
    }

    fn counted(&self) {
        self.requests.others.fetch_add(1, Ordering::Relaxed);
    }

    fn datastore(path: &Path, id: DatastoreId) -> Datastore {
        Datastore {
            path: path.to_owned(),
            id: Some(id),
            total_bytes: DATASTORE_BYTES,
            free_bytes: DATASTORE_BYTES / 2,
            state: DatastoreState::Ready,
            reason: None,
            redundancy: None,
        }
    }
}

impl Inside {
    fn carry_out(
        &mut self,
        vm: VmId,
        request: &OperationRequest,
    ) -> Result<Option<OperationOutcome>, Problem> {
        if let OperationKind::Create { spec, from } = &request.kind {
            if from.is_some() {
                return Err(not_simulated("clone"));
            }
            let made = self.vms.entry(vm).or_insert_with(|| SimulatedVm::new((**spec).clone()));
            return Ok(Some(OperationOutcome::Volumes(made.facts())));
        }
        let Some(there) = self.vms.get_mut(&vm) else {
            // A deletion that was asked for again.
            return if request.kind == OperationKind::Delete { Ok(None) } else { Err(no_such_vm(vm)) };
        };
        if request.kind == OperationKind::Delete {
            if !there.is_off() {
                return Err(Problem::new("running", "the VM runs"));
            }
            self.vms.remove(&vm);
            return Ok(None);
        }
        there.carry_out(request)
    }

    fn read(&self, asked: &ReadingRequest) -> Result<Reading, Problem> {
        let vm = self.vms.get(&asked.vm).ok_or_else(|| no_such_vm(asked.vm))?;
        let disk = vm.spec().disk(&asked.disk);
        let disk = disk.ok_or_else(|| Problem::new("no_such_disk", "the VM has no such disk"))?;
        match asked.question {
            VolumeQuestion::Space { .. } => Ok(Reading::Space(SpaceReport {
                logical: disk.size_bytes,
                provisioning: Provisioning::Thin,
                committed_bytes: disk.size_bytes.bytes() / 2,
                shared_bytes: 0,
                common_bytes: 0,
                other_bytes: 0,
                views: Vec::new(),
            })),
            VolumeQuestion::Identity => {
                let none = || Problem::new("volume_unreadable", "the disk has no volume");
                disk.volume.map(Reading::Identity).ok_or_else(none)
            }
            VolumeQuestion::Map(_) => Err(not_simulated("map of a volume")),
        }
    }
}

fn statistics_of(vm: VmId, spec: &VmSpec) -> VmStatistics {
    let disks = spec.disks.iter();
    let disks = disks.map(|disk| DiskStatistics { disk: disk.name.clone(), snapshot: Snapshot::default() });
    VmStatistics { vm, disks: disks.collect(), processors: None }
}

impl HostService for SimulatedHost {
    fn terms(&self) -> &Terms {
        &self.terms
    }

    async fn changes_after(self: Arc<Self>, after: u64, wait: Duration) -> Changes {
        self.requests.changes.fetch_add(1, Ordering::Relaxed);
        self.queue.with_ended(self.changes.after(after, wait).await)
    }

    async fn host(self: Arc<Self>) -> Result<Host, Problem> {
        self.counted();
        let inside = self.inside.lock();
        let (running, queued) = self.queue.counts();
        let count = |found: usize| u32::try_from(found).unwrap_or(u32::MAX);
        Ok(Host {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            formats: FORMATS,
            epoch: self.changes.epoch(),
            boot_id: None,
            now_unix_ms: Some(unix_milliseconds_now()),
            cpus: 64,
            cpu_model: None,
            capabilities: None,
            memory_bytes: MEMORY_BYTES,
            memory_available_bytes: MEMORY_BYTES / 2,
            topology: Topology::default(),
            accelerator: Accelerator::Tcg,
            programs: Some(Programs::default()),
            tpms_on_clusters: true,
            live_tpms: true,
            consoles_change_hands: false,
            boot_directories: Vec::new(),
            datastores: inside.datastores.iter().map(|(path, id)| Self::datastore(path, *id)).collect(),
            crypto_safe: CryptoSafe { state: CryptoSafeState::Safe, reasons: Vec::new(), required: false },
            vms_running: count(inside.vms.values().filter(|vm| !vm.is_off()).count()),
            operations_running: count(running),
            operations_queued: count(queued),
        })
    }

    fn observed(&self) -> ObservedVms {
        self.counted();
        let number = self.changes.number();
        ObservedVms { epoch: self.changes.epoch(), number, vms: self.vms() }
    }

    fn vm(&self, vm: VmId) -> Option<ObservedVm> {
        self.counted();
        self.inside.lock().vms.get(&vm).map(SimulatedVm::observed)
    }

    fn vms_of(&self, vms: &[VmId]) -> Vec<ObservedVm> {
        self.counted();
        let inside = self.inside.lock();
        vms.iter().filter_map(|vm| inside.vms.get(vm)).map(SimulatedVm::observed).collect()
    }

    async fn all_statistics(self: Arc<Self>) -> Vec<VmStatistics> {
        self.counted();
        let inside = self.inside.lock();
        let running = inside.vms.iter().filter(|(_, vm)| !vm.is_off());
        running.map(|(id, vm)| statistics_of(*id, vm.spec())).collect()
    }

    async fn statistics(self: Arc<Self>, vm: VmId) -> Result<VmStatistics, Problem> {
        self.counted();
        let inside = self.inside.lock();
        inside.vms.get(&vm).map(|there| statistics_of(vm, there.spec())).ok_or_else(|| no_such_vm(vm))
    }

    async fn read_volumes(self: Arc<Self>, request: ReadingsRequest) -> Result<Readings, Problem> {
        self.counted();
        let inside = self.inside.lock();
        let readings = request.readings.iter();
        let readings = readings.map(|asked| inside.read(asked).unwrap_or_else(Reading::Problem));
        Ok(Readings { readings: readings.collect() })
    }

    async fn check(self: Arc<Self>, _: VmId, spec: VmSpec) -> Result<(), Problem> {
        self.counted();
        spec.check().map_err(|error| Problem::new("bad_spec", error.to_string()))
    }

    async fn judge(self: Arc<Self>, _: VmId, _: JudgeRequest) -> Result<Judgement, Problem> {
        self.counted();
        Ok(Judgement { doubts: Vec::new() })
    }

    fn submit(&self, vm: VmId, request: OperationRequest) -> Result<Operation, Problem> {
        self.counted();
        let operation = self.queue.submit(vm, request)?;
        self.work.notify_one();
        Ok(operation)
    }

    fn operation(&self, operation: OperationId) -> Option<Operation> {
        self.counted();
        self.queue.get(operation)
    }

    async fn ended(self: Arc<Self>, operation: OperationId, within: Duration) -> Option<Operation> {
        self.queue.ended(operation, within).await
    }

    fn cancel(&self, operation: OperationId) -> Option<Operation> {
        self.counted();
        self.queue.cancel(operation)
    }

    fn ticket(&self, _: VmId, _: TicketRequest) -> Result<Ticket, Problem> {
        self.counted();
        Err(not_simulated("ticket"))
    }

    fn void_ticket(&self, _: &TicketId) {
        self.counted();
    }

    async fn add_datastore(self: Arc<Self>, request: DatastoreRequest) -> Result<Datastore, Problem> {
        self.counted();
        let mut inside = self.inside.lock();
        let id = *inside.datastores.entry(request.path.clone()).or_insert_with(DatastoreId::random);
        drop(inside);
        self.changes.add(ChangedObject::Host);
        Ok(Self::datastore(&request.path, id))
    }

    async fn look_through(self: Arc<Self>, request: DatastoreRequest) -> Result<Datastore, Problem> {
        self.counted();
        let id = self.inside.lock().datastores.get(&request.path).copied();
        let id = id.ok_or_else(|| Problem::new("no_such_datastore", "it is none of this host"))?;
        Ok(Self::datastore(&request.path, id))
    }

    async fn fence(self: Arc<Self>, request: FencingRequest) -> Result<(), Problem> {
        self.counted();
        let message = format!("a simulated host has no datastore {} on a cluster", request.datastore);
        Err(Problem::new("no_such_datastore", message))
    }
}
