//! The queue of operations: at most sixteen at once, one at a time for each VM, and VMs take turns.
//! Fewer VMs are re-encrypted at once, and their other operations go on meanwhile. An operation on
//! several VMs is the one of each of them.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use strongroom_host::protocol::{
    ChangedObject, Changes, DiskChange, Operation, OperationId, OperationKind, OperationOutcome,
    OperationRequest, OperationState, Problem, Progress, ProgressUnit,
};
use strongroom_types::VmId;
use tokio::sync::watch;

use super::changes::ChangeLog;

/// The most operations in progress.
pub const RUNNING_MAX: usize = 16;
/// The most queued operations of one VM: more than a control plane requests before the first is
/// done.
const WAITING_PER_VM_MAX: usize = 16;
/// The most queued operations of all VMs.
const WAITING_MAX: usize = 16_384;
/// The most operations whose ends are told with the change: some kilobytes each, well within an
/// answer.
const ENDED_TOLD_MAX: usize = 32;
/// The most finished operations that are kept.
const FINISHED_MAX: usize = 4096;

/// An operation, and its observers.
#[derive(Debug)]
pub struct Job {
    /// The VM.
    pub vm: VmId,
    /// The request.
    pub request: OperationRequest,
    now: watch::Sender<Operation>,
    cancelled: watch::Sender<bool>,
}

impl Job {
    fn new(vm: VmId, request: OperationRequest) -> Self {
        let now = Operation {
            operation: request.operation,
            vm,
            kind: request.kind.name().to_owned(),
            state: OperationState::Queued,
            progress: None,
            error: None,
            outcome: None,
        };
        Self { vm, request, now: watch::Sender::new(now), cancelled: watch::Sender::new(false) }
    }

    /// A part of this operation, on one of its VMs, which is cancelled with it.
    pub fn part(&self, vm: VmId, request: OperationRequest) -> Self {
        Self { cancelled: self.cancelled.clone(), ..Self::new(vm, request) }
    }

    /// Whether it rewrites data of its VM.
    fn reencrypts(&self) -> bool {
        matches!(
            self.request.kind,
            OperationKind::Rekey { data: true, .. }
                | OperationKind::ChangeDisk { change: DiskChange::Seal { .. }, .. }
        )
    }

    /// All VMs that it is an operation on.
    fn vms(&self) -> impl Iterator<Item = VmId> {
        let members = self.request.kind.members().iter().map(|member| member.spec.id);
        std::iter::once(self.vm).chain(members)
    }

    /// Returns its present state.
    pub fn now(&self) -> Operation {
        self.now.borrow().clone()
    }

    /// Whether its cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Waits until its cancellation is requested.
    pub async fn cancelled(&self) {
        let mut cancelled = self.cancelled.subscribe();
        // This cannot fail, since the job holds the sender.
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
    }

    fn is_forced_stop(&self) -> bool {
        matches!(self.request.kind, OperationKind::Stop { force: true, .. })
    }
}

/// How an operation ended without success.
#[derive(Debug)]
pub enum Failure {
    /// It failed.
    Problem(Problem),
    /// It was cancelled.
    Cancelled,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    lanes: Mutex<Lanes>,
    changes: Arc<ChangeLog>,
    /// The most VMs whose data is re-encrypted at once.
    reencryptions_max: NonZeroUsize,
}

#[derive(Debug, Default)]
struct Lanes {
    known: HashMap<OperationId, Arc<Job>>,
    finished: VecDeque<OperationId>,
    waiting: HashMap<VmId, VecDeque<Arc<Job>>>,
    waiting_count: usize,
    /// VMs with queued operations and none in progress, in turn.
    turns: VecDeque<VmId>,
    running: HashMap<VmId, Arc<Job>>,
    closed: bool,
}

impl Queue {
    /// An empty queue.
    pub fn new(changes: Arc<ChangeLog>, reencryptions_max: NonZeroUsize) -> Self {
        Self { lanes: Mutex::default(), changes, reencryptions_max }
    }

    /// Queues an operation, or finds the one with the same id. A forced stop goes to the front of
    /// its VM's queue, and cancels a graceful stop, a start, a suspension, a dump or a quiesced
    /// snapshot in progress.
    ///
    /// # Errors
    /// If the queue is full, or another operation has the same id.
    pub fn submit(&self, vm: VmId, request: OperationRequest) -> Result<Operation, Problem> {
        let mut lanes = self.lock();
        if let Some(known) = lanes.known.get(&request.operation) {
            if known.vm == vm && known.request.kind == request.kind {
                return Ok(known.now());
            }
            return Err(Problem::new(
                "operation_id_taken",
                "another operation has this id; choose a new one",
            ));
        }
        let waiting = lanes.waiting.get(&vm).map_or(0, VecDeque::len);
        if waiting >= WAITING_PER_VM_MAX || lanes.waiting_count >= WAITING_MAX {
            let message = "too many operations wait";
            return Err(Problem::new("busy", message).with_next_step("wait until some of them are done"));
        }
        let id = request.operation;
        let job = Arc::new(Job::new(vm, request));
        lanes.known.insert(id, Arc::clone(&job));
        lanes.waiting_count += 1;
        let running = lanes.running.get(&vm).cloned();
        let lane = lanes.waiting.entry(vm).or_default();
        if job.is_forced_stop() {
            lane.push_front(Arc::clone(&job));
            if let Some(running) = &running
                && gives_way(&running.request.kind)
            {
                running.cancelled.send_replace(true);
            }
        } else {
            lane.push_back(Arc::clone(&job));
        }
        if running.is_none() && !lanes.turns.contains(&vm) {
            lanes.turns.push_back(vm);
        }
        drop(lanes);
        self.changes.add(ChangedObject::Operation(id));
        Ok(job.now())
    }

    /// Returns the next operation if another may run, and marks it as running.
    pub fn next(&self) -> Option<Arc<Job>> {
        let mut lanes = self.lock();
        if lanes.closed || lanes.running.len() >= RUNNING_MAX {
            return None;
        }
        let may_reencrypt =
            lanes.running.values().filter(|job| job.reencrypts()).count() < self.reencryptions_max.get();
        let at = lanes.turns.iter().position(|vm| lanes.may_run_next(*vm, may_reencrypt))?;
        let vm = lanes.turns.remove(at)?;
        let lane = lanes.waiting.get_mut(&vm)?;
        let job = lane.pop_front()?;
        if lane.is_empty() {
            lanes.waiting.remove(&vm);
        }
        lanes.waiting_count -= 1;
        for vm in job.vms() {
            lanes.running.insert(vm, Arc::clone(&job));
        }
        drop(lanes);
        self.change(&job, |now| now.state = OperationState::Running);
        Some(job)
    }

    /// Ends a running operation.
    pub fn finish(&self, job: &Arc<Job>, ended: Result<Option<OperationOutcome>, Failure>) {
        let mut lanes = self.lock();
        for vm in job.vms() {
            lanes.running.remove(&vm);
            if lanes.waiting.contains_key(&vm) && !lanes.turns.contains(&vm) {
                // The VM goes to the end of the turns.
                lanes.turns.push_back(vm);
            }
        }
        lanes.forget_oldest(job.request.operation);
        drop(lanes);
        self.change(job, |now| match ended {
            Ok(outcome) => (now.state, now.outcome) = (OperationState::Done, outcome),
            Err(Failure::Problem(problem)) => {
                (now.state, now.error) = (OperationState::Failed, Some(problem))
            }
            Err(Failure::Cancelled) => now.state = OperationState::Cancelled,
        });
    }

    /// Sets the progress of an operation.
    pub fn progress(&self, job: &Job, progress: Progress) {
        self.change(job, |now| now.progress = Some(progress));
    }

    /// Notes that the client whose image an operation reads is away. What is done stays.
    pub fn client_is_away(&self, job: &Job) {
        self.change(job, |now| {
            let done = now.progress.unwrap_or_else(|| Progress::new(0, 0, ProgressUnit::Bytes));
            now.progress = Some(Progress { client_is_away: true, ..done });
        });
    }

    /// Sets the progress of the operation that runs on the VM.
    pub fn progress_of(&self, vm: VmId, progress: Progress) {
        let running = self.lock().running.get(&vm).cloned();
        if let Some(job) = running {
            self.progress(&job, progress);
        }
    }

    /// Returns the state of an operation.
    pub fn get(&self, operation: OperationId) -> Option<Operation> {
        self.lock().known.get(&operation).map(|job| job.now())
    }

    /// Adds the operations that have ended to some changes, unless they are so many that their
    /// reader is far behind.
    pub fn with_ended(&self, mut changes: Changes) -> Changes {
        let operations = changes.changes.iter().filter_map(|change| match change.object {
            ChangedObject::Operation(operation) => Some(operation),
            ChangedObject::Vm(_) | ChangedObject::Host => None,
        });
        if operations.clone().count() <= ENDED_TOLD_MAX {
            let known = operations.filter_map(|operation| self.get(operation));
            changes.ended = known.filter(|operation| operation.state.is_final()).collect();
        }
        changes
    }

    /// Returns the state of an operation once it has ended, or after `within`.
    pub async fn ended(&self, operation: OperationId, within: Duration) -> Option<Operation> {
        let job = Arc::clone(self.lock().known.get(&operation)?);
        let mut now = job.now.subscribe();
        let _ = tokio::time::timeout(within, now.wait_for(|now| now.state.is_final())).await;
        Some(job.now())
    }

    /// Cancels an operation: at once if it is queued, otherwise as soon as it can stop.
    pub fn cancel(&self, operation: OperationId) -> Option<Operation> {
        let mut lanes = self.lock();
        let job = Arc::clone(lanes.known.get(&operation)?);
        let lane = lanes.waiting.get_mut(&job.vm);
        let waited = lane.and_then(|lane| {
            let place = lane.iter().position(|waiting| Arc::ptr_eq(waiting, &job))?;
            lane.remove(place)
        });
        if waited.is_none() {
            drop(lanes);
            job.cancelled.send_replace(true);
            return Some(job.now());
        }
        lanes.waiting_count -= 1;
        if lanes.waiting.get(&job.vm).is_some_and(VecDeque::is_empty) {
            lanes.waiting.remove(&job.vm);
            lanes.turns.retain(|vm| *vm != job.vm);
        }
        lanes.forget_oldest(operation);
        drop(lanes);
        self.change(&job, |now| now.state = OperationState::Cancelled);
        Some(job.now())
    }

    /// Returns the numbers of running and of queued operations.
    pub fn counts(&self) -> (usize, usize) {
        let lanes = self.lock();
        (lanes.running.len(), lanes.waiting_count)
    }

    /// Starts no more operations.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    fn change(&self, job: &Job, change: impl FnOnce(&mut Operation)) {
        job.now.send_modify(change);
        self.changes.add(ChangedObject::Operation(job.request.operation));
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock()
    }
}

impl Lanes {
    /// Whether no operation runs on any VM of the next one that waits for this VM.
    fn may_run_next(&self, vm: VmId, may_reencrypt: bool) -> bool {
        let next = self.waiting.get(&vm).and_then(VecDeque::front);
        next.filter(|job| may_reencrypt || !job.reencrypts())
            .is_some_and(|job| job.vms().all(|vm| !self.running.contains_key(&vm)))
    }

    fn forget_oldest(&mut self, finished: OperationId) {
        self.finished.push_back(finished);
        if self.finished.len() > FINISHED_MAX
            && let Some(oldest) = self.finished.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// Whether an operation is cancelled by a forced stop of its VM.
fn gives_way(kind: &OperationKind) -> bool {
    match kind {
        OperationKind::Stop { .. }
        | OperationKind::Start { .. }
        | OperationKind::Suspend
        | OperationKind::Dump { .. } => true,
        OperationKind::ChangeSnapshots { change, .. } => change.freezes_guest(),
        OperationKind::SnapshotGroup { .. }
        | OperationKind::FetchLive(_)
        | OperationKind::Receive(_)
        | OperationKind::Send(_) => true,
        OperationKind::Offer
        | OperationKind::TakeUp
        | OperationKind::Settle { .. }
        | OperationKind::Create { .. }
        | OperationKind::Delete
        | OperationKind::DeleteDump { .. }
        | OperationKind::Pause
        | OperationKind::Resume
        | OperationKind::Reset
        | OperationKind::SupplyGrants
        | OperationKind::Configure { .. }
        | OperationKind::ImportDisk { .. }
        | OperationKind::Rekey { .. }
        | OperationKind::ChangeDisk { .. }
        | OperationKind::SetNics { .. }
        | OperationKind::SetSizes { .. }
        | OperationKind::Leave { .. }
        | OperationKind::Arrive { .. }
        | OperationKind::Fetch { .. }
        | OperationKind::RemoveCopy { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use strongroom_host::protocol::VmGeneration;

    use super::*;

    fn request(kind: OperationKind) -> OperationRequest {
        OperationRequest {
            operation: OperationId::random(),
            generation: VmGeneration(1),
            kind,
            grants: Vec::new(),
        }
    }

    fn queue() -> Queue {
        Queue::new(Arc::new(ChangeLog::default()), NonZeroUsize::new(2).unwrap())
    }

    #[test]
    fn sixteen_run_at_once_one_for_a_vm_and_every_vm_has_its_turn() {
        let queue = queue();
        let vms: Vec<VmId> = (0..20).map(|_| VmId::random()).collect();
        // The first VM requests many operations before the others come.
        for _ in 0..WAITING_PER_VM_MAX {
            queue.submit(vms[0], request(OperationKind::Pause)).unwrap();
        }
        assert_eq!(queue.submit(vms[0], request(OperationKind::Pause)).unwrap_err().code, "busy");
        for vm in &vms[1..] {
            queue.submit(*vm, request(OperationKind::Pause)).unwrap();
        }
        let running: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(running.iter().map(|job| job.vm).collect::<Vec<_>>(), vms[..RUNNING_MAX]);
        assert_eq!(queue.counts(), (RUNNING_MAX, WAITING_PER_VM_MAX - 1 + 4));
        queue.finish(&running[0], Ok(None));
        let order: Vec<VmId> = std::iter::from_fn(|| {
            let job = queue.next()?;
            queue.finish(&job, Ok(None));
            Some(job.vm)
        })
        .collect();
        assert_eq!(order[..4], vms[16..], "the others come before the first one's second");
        assert_eq!(order.len(), 4 + WAITING_PER_VM_MAX - 1);
        assert!(order[4..].iter().all(|vm| *vm == vms[0]));
    }

    #[test]
    fn few_vms_are_re_encrypted_at_once_and_others_do_not_wait_for_them() {
        let (queue, vms) = (queue(), (0..4).map(|_| VmId::random()).collect::<Vec<_>>());
        let rekey = |data| {
            let spec = serde_json::from_value(serde_json::json!({ "id": VmId::random(), "name": "web1",
                "datastore": "/srv/ds1", "memory_bytes": 256 << 20, "disks": [] }));
            request(OperationKind::Rekey { spec: Box::new(spec.unwrap()), data })
        };
        for vm in &vms[..3] {
            queue.submit(*vm, rekey(true)).unwrap();
        }
        queue.submit(vms[3], rekey(false)).unwrap();
        let running: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(running.iter().map(|job| job.vm).collect::<Vec<_>>(), [vms[0], vms[1], vms[3]]);
        queue.finish(&running[2], Ok(None));
        assert!(queue.next().is_none());
        queue.finish(&running[0], Ok(None));
        assert_eq!(queue.next().unwrap().vm, vms[2]);
    }

    #[test]
    fn an_operation_on_several_vms_waits_for_each_and_keeps_others_waiting() {
        let (queue, vms) = (queue(), [VmId::random(), VmId::random(), VmId::random()]);
        let member = |vm: &VmId| strongroom_host::protocol::GroupMember {
            spec: serde_json::from_value(serde_json::json!({ "id": vm, "name": "web1",
                "datastore": "/srv/ds1", "memory_bytes": 256 << 20, "disks": [] }))
            .unwrap(),
            generation: VmGeneration(1),
            grants: Vec::new(),
        };
        let snapshot = strongroom_host::protocol::NewVmSnapshot::of_disks(
            strongroom_types::SnapshotId::random(),
            "s".parse().unwrap(),
        );
        let members = vms[..2].iter().map(member).collect();
        queue.submit(vms[1], request(OperationKind::Pause)).unwrap();
        let pause = queue.next().unwrap();
        queue.submit(vms[0], request(OperationKind::SnapshotGroup { snapshot, members })).unwrap();
        queue.submit(vms[2], request(OperationKind::Pause)).unwrap();
        let other = queue.next().unwrap();
        assert_eq!(other.vm, vms[2], "it does not wait for the group");
        assert!(queue.next().is_none(), "a member is busy");
        queue.finish(&pause, Ok(None));
        let group = queue.next().unwrap();
        assert_eq!(group.vm, vms[0]);
        for vm in &vms[..2] {
            queue.submit(*vm, request(OperationKind::Resume)).unwrap();
        }
        assert!(queue.next().is_none(), "a member is not free before the group is done");
        queue.finish(&group, Ok(None));
        let mut after = [queue.next().unwrap().vm, queue.next().unwrap().vm];
        after.sort_unstable();
        let mut members = [vms[0], vms[1]];
        members.sort_unstable();
        assert_eq!(after, members);
    }

    #[test]
    fn an_operation_is_known_by_its_id() {
        let (queue, vm) = (queue(), VmId::random());
        let pause = request(OperationKind::Pause);
        queue.submit(vm, pause.clone()).unwrap();
        queue.submit(vm, pause.clone()).unwrap();
        let job = queue.next().unwrap();
        assert!(queue.next().is_none());
        queue.finish(&job, Err(Problem::new("no", "no").into()));
        let again = queue.submit(vm, pause.clone()).unwrap();
        assert_eq!((again.state, again.error.unwrap().code.as_str()), (OperationState::Failed, "no"));
        let other = OperationRequest { kind: OperationKind::Resume, ..pause };
        assert_eq!(queue.submit(vm, other).unwrap_err().code, "operation_id_taken");
    }

    #[tokio::test]
    async fn the_end_of_an_operation_is_awaited_but_not_for_ever() {
        let (queue, vm) = (queue(), VmId::random());
        let take_up = request(OperationKind::TakeUp);
        assert!(take_up.kind.is_awaited());
        queue.submit(vm, take_up.clone()).unwrap();
        let now = queue.ended(take_up.operation, Duration::ZERO).await.unwrap();
        assert_eq!(now.state, OperationState::Queued);
        let job = queue.next().unwrap();
        let long = Duration::from_secs(3600);
        let (ended, ()) = tokio::join!(queue.ended(take_up.operation, long), async {
            queue.finish(&job, Ok(None));
        });
        assert_eq!(ended.unwrap().state, OperationState::Done);
        let told = queue.with_ended(queue.changes.after(0, Duration::ZERO).await).ended;
        assert_eq!(told.iter().map(|told| told.operation).collect::<Vec<_>>(), [take_up.operation]);
        assert!(queue.ended(OperationId::random(), long).await.is_none());
    }

    #[test]
    fn what_waits_is_cancelled_at_once_and_a_forced_stop_goes_first() {
        let (queue, vm) = (queue(), VmId::random());
        let stop = |force| request(OperationKind::Stop { force, timeout_s: 60 });
        queue.submit(vm, stop(false)).unwrap();
        let graceful = queue.next().unwrap();
        let pause = queue.submit(vm, request(OperationKind::Pause)).unwrap();
        let waiting = queue.submit(vm, request(OperationKind::Resume)).unwrap();
        queue.submit(vm, stop(true)).unwrap();
        assert!(graceful.is_cancelled());
        assert_eq!(queue.cancel(pause.operation).unwrap().state, OperationState::Cancelled);
        queue.finish(&graceful, Err(Failure::Cancelled));
        let forced = queue.next().unwrap();
        assert!(forced.is_forced_stop());
        queue.finish(&forced, Ok(None));
        assert_eq!(queue.next().unwrap().request.operation, waiting.operation);
        assert!(queue.cancel(OperationId::random()).is_none());
    }
}
