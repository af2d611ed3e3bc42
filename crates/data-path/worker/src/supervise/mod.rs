//! Keeps a volume served: starts a worker, starts another when that one dies, exchanges it for that
//! of a newer program, and ends it in order.
//!
//! The supervisor owns the volume. It has the volume's directory, its lock and the listening
//! socket, and fetches the KEK from its holder when it needs it. The worker has the layer and its
//! keys, and the clients. So whatever happens to a worker, no other process can take the volume
//! before its successor has it:
//!
//! ```text
//! worker dies -> another is started and confined, while the layer's lock is waited for: it is free when the last of the
//! dead one's I/O has ended -> descriptor read and authenticated anew -> keys -> layer -> clients connect again
//! ```
//!
//! All of it runs on the caller's thread, which sleeps in poll(2) and never waits for a key: a
//! worker that dies while the KEK is not available is replaced as soon as it is.

mod child;
mod control_socket;
mod hand_over;
mod herald;
mod kek;
mod memory;
mod merge;
mod new_top;
mod program;
mod quarters;
mod reencrypt;
mod restart;
mod rewrap;
mod said;
mod snapshot;
mod standby;
mod starter;
mod starter_process;
mod upgrade;

use std::fs::DirBuilder;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use strongroom_confine::SandboxError;
use strongroom_datastore::file::{Access, DatastoreError, Deks, NewSnapshot, OpenLayer, VolumeHead};
use strongroom_filters::qos::Throttled;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_keys::{Keyring, RevokedHow};
use strongroom_statistics::{Page, Snapshot};
use strongroom_types::{IoLimits, VolumeSize};
use thiserror::Error;

use self::child::{ChildError, WorkerProcess};
use self::control_socket::ControlSocket;
use self::herald::Herald;
use self::merge::LayerMerge;
use self::restart::{Crashes, Outage};
use self::rewrap::PendingRewrap;
use self::snapshot::PendingSnapshot;
use crate::birth::Frontend;
use crate::control::{Answer, Request, Status, directory_of_socket};

pub(crate) use self::child::timespec;
pub use self::child::{Birthright, End};
pub use self::kek::{SealChange, ServedSeal, VolumeKek, VolumeSeal};
pub use self::memory::MemoryExposure;
pub use self::program::Program;
pub use self::quarters::Quarters;
pub use self::standby::{AwaitedVolume, Standby};
pub use self::starter::{Born, NewWorker, ProgramNumber, StartsWorkers, WorkerStarter, Workers};
pub use self::starter_process::{StarterBirth, StarterProcess, confine, serve as serve_starter};
pub use strongroom_filters::qos::LimitPage;

/// The time that a worker may take to drain and flush, beyond twice the time that its frontend
/// gives its clients.
const DRAIN_MARGIN: Duration = Duration::from_secs(10);

/// The parameters of the exposure.
#[derive(Debug)]
pub struct Exposure {
    /// The owner's side of the volume.
    pub head: VolumeHead,
    /// Its KEK.
    pub kek: VolumeKek,
    /// The access to key providers.
    pub keyring: Arc<dyn Keyring>,
    /// Where clients connect.
    pub listener: Listener,
    /// The parameters that a worker is started with.
    pub birthright: Birthright,
    /// The starter of workers.
    pub workers: Workers,
}

/// A callback for each change of a volume's status.
type Observer = Box<dyn FnMut(&Status) + Send>;

/// The reasons why a volume is not, or no longer, exposed.
#[derive(Debug, Error)]
pub enum SuperviseError {
    /// The supervisor cannot be confined, so it must not have the volume's key.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The first worker does not serve.
    #[error("the volume cannot be served: {0}")]
    Start(String),
    /// After the death of a worker the volume cannot be reopened as it was.
    #[error("the volume is not served any more: {0}")]
    Lost(#[source] DatastoreError),
    /// The volume's key was revoked, and its provider is configured to end the exposure then. The
    /// volume was closed in order.
    #[error(
        "the volume's key was {how}, and its key provider is set up to end the exposure then (on_revocation: stop); what was \
         in flight is done and flushed"
    )]
    Revoked {
        /// How it was revoked.
        how: RevokedHow,
    },
    /// The volume was not closed in order.
    #[error("the volume was not closed in order: {0}")]
    Stop(String),
    /// Waiting for events failed.
    #[error("cannot wait for events: {0}")]
    Wait(#[from] Errno),
}

/// A volume that is served.
pub struct Supervisor {
    /// Dropped before the head: its file is removed while the volume is still ours.
    control: Option<ControlSocket>,
    phase: Phase,
    exposure: Exposure,
    /// The statistics page of its workers, one after the other.
    page: Option<Arc<Page>>,
    restarts: u64,
    /// How the last worker that died ended.
    last_end: Option<String>,
    crashes: Crashes,
    herald: Herald,
    /// A move to another KEK that waits for keys, and whose client waits.
    rewrap: Option<PendingRewrap>,
    /// A snapshot that does not exist yet, and whose client may wait.
    snapshot: Option<PendingSnapshot>,
    /// The merge of layers in the background.
    merge: LayerMerge,
    /// Whether the worker may read a layer that a re-encryption has replaced.
    reads_replaced: bool,
    observer: Option<(Observer, Option<Status>)>,
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor")
            .field("phase", &self.phase)
            .field("exposure", &self.exposure)
            .finish_non_exhaustive()
    }
}

/// Makes the page of the limits of a volume, or of a VM.
///
/// # Errors
/// If there is no memory for it. A volume is never served without its limits.
pub fn limit_page(limits: IoLimits) -> Result<Arc<LimitPage>, SuperviseError> {
    let page = LimitPage::make(limits);
    Ok(Arc::new(page.map_err(|error| SuperviseError::Start(format!("its limits cannot be kept: {error}")))?))
}

/// What the workers of a volume count; it can be read at any time.
#[derive(Clone, Debug)]
pub struct Counters {
    page: Arc<Page>,
    limits: Option<Arc<LimitPage>>,
}

impl Counters {
    /// Reads the counters.
    pub fn read(&self) -> Snapshot {
        let throttled = self.limits.as_ref().map(|limits| limits.throttled()).unwrap_or_default();
        let Throttled { requests: throttled_requests, time_ns: throttled_ns } = throttled;
        Snapshot { throttled_requests, throttled_ns, ..self.page.read() }
    }
}

#[derive(Debug)]
enum Phase {
    Serving(WorkerProcess),
    Down(Outage),
}

impl Supervisor {
    /// Starts the first worker over the layer, which came with the head. When it returns, clients
    /// are served.
    pub fn start(exposure: Exposure, layer: OpenLayer, deks: Deks) -> Result<Self, SuperviseError> {
        let control = Self::control_directory(&exposure)?;
        Self::start_in(exposure, layer, deks, control.as_fd())
    }

    /// The directory of a volume's control socket.
    fn control_directory(exposure: &Exposure) -> Result<OwnedFd, SuperviseError> {
        if let Some(directory) = exposure.head.as_fd() {
            return Ok(rustix::io::fcntl_dupfd_cloexec(directory, 0)?);
        }
        let directory = directory_of_socket(exposure.head.path());
        let failed = |error: std::io::Error| {
            SuperviseError::Start(format!("cannot make {}: {error}", directory.display()))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        Ok(rustix::fs::open(&directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// As [`Self::start`], of a volume whose own directory is not the kernel's: its control socket
    /// is in the directory `control`.
    pub fn start_in(
        exposure: Exposure,
        layer: OpenLayer,
        deks: Deks,
        control: BorrowedFd<'_>,
    ) -> Result<Self, SuperviseError> {
        let control = Self::control_of(&exposure, control)?;
        let page = make_page().map(Arc::new);
        let serve = || {
            let mut worker = start_worker(&exposure, page.as_deref(), &exposure.workers)?;
            worker.give_keys(deks, &exposure.kek)?;
            worker.serve(layer)?;
            Ok(worker)
        };
        let worker = serve().map_err(|error: ChildError| SuperviseError::Start(error.to_string()))?;
        Ok(Self::over(exposure, control, page, worker))
    }

    fn control_of(
        exposure: &Exposure,
        control: BorrowedFd<'_>,
    ) -> Result<Option<ControlSocket>, SuperviseError> {
        let control = match exposure.head.access() {
            Access::ReadWrite => Some(ControlSocket::bind(control)),
            // Several processes can read a volume, and its datastore may be read-only: so there is
            // no control socket.
            Access::ReadOnly => None,
        };
        control.transpose().map_err(|errno| {
            SuperviseError::Start(format!("cannot listen for {}: {errno}", exposure.head.path().display()))
        })
    }

    /// A supervisor of a volume that this worker serves.
    fn over(
        exposure: Exposure,
        control: Option<ControlSocket>,
        page: Option<Arc<Page>>,
        worker: WorkerProcess,
    ) -> Self {
        let crashes = Crashes::none();
        let herald = Herald::new(exposure.head.path());
        if let Err(error) = exposure.head.fill_reserve() {
            tracing::info!("no space is kept for the volume's next descriptor: {error}");
        }
        let phase = Phase::Serving(worker);
        Self {
            control,
            phase,
            exposure,
            page,
            restarts: 0,
            last_end: None,
            crashes,
            herald,
            rewrap: None,
            snapshot: None,
            merge: LayerMerge::new(),
            reads_replaced: false,
            observer: None,
        }
    }

    /// Calls `observer` with the volume's status now and after each change. `observer` runs on the
    /// supervisor's thread, and must not block.
    #[must_use]
    pub fn observed_by(mut self, observer: impl FnMut(&Status) + Send + 'static) -> Self {
        self.observer = Some((Box::new(observer), None));
        self.tell_observer();
        self
    }

    fn tell_observer(&mut self) {
        let Some((mut observer, told)) = self.observer.take() else { return };
        let status = self.status();
        if told.as_ref() != Some(&status) {
            observer(&status);
        }
        self.observer = Some((observer, Some(status)));
    }

    /// The process that serves, if there is one now.
    pub fn worker_id(&self) -> Option<u32> {
        match &self.phase {
            Phase::Serving(worker) => Some(worker.id()),
            Phase::Down(_) => None,
        }
    }

    /// What all workers count of client requests. `None` if there was no memory for it.
    pub fn counters(&self) -> Option<Counters> {
        let page = Arc::clone(self.page.as_ref()?);
        Some(Counters { page, limits: self.limits() })
    }

    /// The page of the volume's own limits, in which they can be changed at any time.
    pub fn limits(&self) -> Option<Arc<LimitPage>> {
        self.exposure.birthright.limits.first().cloned()
    }

    /// The volume's seal, for the supervisor of the VM that it belongs to.
    pub fn seal(&self) -> ServedSeal {
        self.exposure.kek.served_seal().clone()
    }

    /// Where clients connect.
    pub fn address(&self) -> &Address {
        self.exposure.listener.address()
    }

    /// Keeps the volume served until `stop` is readable. Then it drains and flushes, and releases
    /// the volume.
    pub fn run(self, stop: &impl AsFd) -> Result<(), SuperviseError> {
        self.run_until(stop, &AtomicBool::new(false)).map(drop)
    }

    /// As [`run`](Self::run). If `keeps_sessions` is set by then, the volume is closed, and its
    /// clients are kept by the worker that is returned.
    pub fn run_until(
        mut self,
        stop: &impl AsFd,
        keeps_sessions: &AtomicBool,
    ) -> Result<Option<Standby>, SuperviseError> {
        loop {
            if self.wait(stop.as_fd())? {
                return match keeps_sessions.load(Ordering::Relaxed) {
                    true => self.release().map(Some),
                    false => self.end().map(|()| None),
                };
            }
            if let Phase::Serving(worker) = &mut self.phase
                && let Some(how) = worker.ended()
            {
                tracing::error!("worker {} {how}; another one is started", worker.id());
                self.last_end = Some(how.to_string());
                self.phase = Phase::Down(self.crashes.died(&how));
            }
            if self.exposure.kek.take_changes() {
                self.key_may_be_back();
            }
            if let Some(how) = self.exposure.kek.ends_the_exposure() {
                tracing::error!(
                    "the volume's key was {how}: the exposure ends, as its key provider is set up"
                );
                return self.end().and(Err(SuperviseError::Revoked { how }));
            }
            self.end_overdue_snapshot();
            self.restart()?;
            self.answer_requests();
            self.hear();
            self.go_on_with_snapshot();
            self.go_on_with_merge();
            self.tell_observer();
        }
    }

    /// Sleeps until there is something to do. Returns `true` if that is to end.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<bool, Errno> {
        let mut watched = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        let mut deadline = match &self.phase {
            Phase::Serving(worker) => {
                watched.push(PollFd::from_borrowed_fd(worker.pidfd(), PollFlags::IN));
                watched.extend(worker.voice().map(|voice| PollFd::from_borrowed_fd(voice, PollFlags::IN)));
                self.herald.deadline()
            }
            Phase::Down(outage) => Some(outage.next_attempt()),
        };
        if let Some(control) = &self.control {
            control.watch(&mut watched);
            deadline = [deadline, control.deadline()].into_iter().flatten().min();
        }
        deadline = [deadline, self.snapshot_deadline(), self.merge_deadline()].into_iter().flatten().min();
        watched.extend(
            self.exposure.kek.changed().map(|changed| PollFd::from_borrowed_fd(changed, PollFlags::IN)),
        );
        if let Some(pending) = &self.rewrap {
            watched.push(PollFd::from_borrowed_fd(pending.done(), PollFlags::IN));
        }
        let left = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        match poll(&mut watched, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!watched[0].revents().is_empty()),
            Err(errno) => Err(errno),
        }
    }

    /// Reads the volume's condition, and logs what a person should know.
    fn hear(&mut self) {
        let Phase::Serving(worker) = &mut self.phase else { return };
        let head = &mut self.exposure.head;
        if worker.hear() {
            self.herald.hear(worker.condition(), head);
            if worker.condition().parked.is_none() {
                // Refill the reserve that was used while there was no room, as far as possible.
                let _ = head.fill_reserve();
            }
        }
        self.herald.remind(head);
    }

    /// Answers requests from the control socket.
    fn answer_requests(&mut self) {
        let Some(mut control) = self.control.take() else { return };
        if let Some(answer) = self.go_on_with_rewrap() {
            control.answer_late(answer);
        }
        control.serve(&mut |request, file| match request {
            Request::Status => Some(Answer::Status(Box::new(self.status()))),
            Request::Resize { .. }
            | Request::Upgrade
            | Request::DeleteSnapshot { .. }
            | Request::DecideSnapshot { .. }
            | Request::EndSnapshotGroup { .. }
            | Request::Merge { .. }
            | Request::Reencrypt { .. }
            | Request::NewTop { .. }
            | Request::Rewrap { .. }
                if self.is_changing_layers() =>
            {
                Some(Answer::Refused {
                    code: "busy".to_owned(),
                    message: "a snapshot of the volume is being made; ask again in a minute".to_owned(),
                })
            }
            Request::Resize { size_bytes, least_generation } => {
                Some(self.resize(size_bytes, least_generation))
            }
            Request::Statistics => Some(match self.counters() {
                Some(counters) => Answer::Statistics(Box::new(counters.read())),
                None => Answer::Refused {
                    code: "not_counted".to_owned(),
                    message: "its requests are not counted".to_owned(),
                },
            }),
            Request::Upgrade => Some(self.upgrade()),
            Request::Snapshot { id, name, least_generation } => {
                self.snapshot(NewSnapshot { id, name }, least_generation)
            }
            Request::PrepareSnapshot { id, name, least_generation } => {
                Some(self.prepare_snapshot(NewSnapshot { id, name }, least_generation))
            }
            Request::PreparePart { id, name, least_generation, terms } => {
                Some(self.prepare_part(NewSnapshot { id, name }, least_generation, terms))
            }
            Request::FreezeForSnapshot { id, lease_ms } => {
                Some(self.freeze_for_snapshot(id, Duration::from_millis(lease_ms)))
            }
            Request::CommitSnapshot { id } => self.commit_snapshot(id),
            Request::DecideSnapshot { id, decision } => Some(self.decide_snapshot(id, decision)),
            Request::EndSnapshotGroup { id } => Some(self.end_snapshot_group(id)),
            Request::AbandonSnapshot { id } => Some(self.abandon_snapshot(id)),
            Request::DeleteSnapshot { name, least_generation } => {
                Some(self.delete_snapshot(&name, least_generation))
            }
            Request::Merge { act, least_generation } => Some(self.merge(act, least_generation)),
            Request::Reencrypt { act, least_generation } => Some(self.reencrypt(act, least_generation, file)),
            Request::NewTop { over, least_generation } => Some(self.put_new_top(over, least_generation)),
            Request::Rewrap { to, least_generation } => self.rewrap(to, least_generation, file),
        });
        self.control = Some(control);
    }

    fn status(&self) -> Status {
        let (worker_pid, program, condition) = match &self.phase {
            Phase::Serving(worker) => {
                (Some(worker.id()), Some(worker.program().to_owned()), worker.condition().clone())
            }
            Phase::Down(outage) => (None, None, outage.condition()),
        };
        Status {
            supervisor_pid: std::process::id(),
            worker_pid,
            program,
            frontend: match self.exposure.birthright.frontend {
                Frontend::Nbd { .. } => "nbd".to_owned(),
                Frontend::VhostUser { .. } => "vhost_user".to_owned(),
            },
            address: match self.address() {
                Address::Unix(path) => path.display().to_string(),
                Address::Tcp(address) => address.to_string(),
            },
            restarts: self.restarts,
            last_end: self.last_end.clone(),
            condition,
            key: self.exposure.kek.status(),
            merge: self.merge_status().map(Box::new),
        }
    }

    /// Durably grows the volume, and then informs the worker. A worker that dies meanwhile is
    /// replaced by one with the new size.
    fn resize(&mut self, size: VolumeSize, least_generation: u64) -> Answer {
        let head = &mut self.exposure.head;
        let old_size_bytes = head.descriptor().size_bytes;
        if let Err(error) = head.descriptor().expect_generation(head.path(), least_generation) {
            return refuse(&error);
        }
        let grown = match self.exposure.kek.now() {
            Ok(kek) => head.grow(size, kek.protection()),
            Err(error) => Err(DatastoreError::Key { path: PathBuf::from(head.path()), error }),
        };
        if let Err(error) = grown {
            return refuse(&error);
        }
        let generation = head.descriptor().generation;
        if let Phase::Serving(worker) = &mut self.phase
            && size > old_size_bytes
            && let Err(error) = worker.grow(size)
            && !matches!(error, ChildError::Died { .. })
        {
            let message = format!("the volume has its new size, and the guest was not told: {error}");
            return Answer::Refused { code: "worker".to_owned(), message };
        }
        Answer::Resized { old_size_bytes, size_bytes: size, generation }
    }

    fn end(mut self) -> Result<(), SuperviseError> {
        self.leave_snapshot();
        tracing::info!("ending: what is in flight is done and flushed first");
        let Self { control, phase, exposure, .. } = self;
        let failure = match phase {
            Phase::Serving(worker) => {
                worker.end(drain_deadline(&exposure)).unwrap_or_else(|error| Some(error.to_string()))
            }
            Phase::Down(_) => Some("its worker had died, and no other one was back yet".to_owned()),
        };
        match failure {
            // The sockets' files are removed, and then the volume is released, when this returns.
            None => {
                let are_gone = exposure.head.are_files_gone();
                drop((control, exposure));
                match are_gone {
                    true => Err(SuperviseError::Stop(
                        "its files had been removed while it was served, and what was in them is lost"
                            .to_owned(),
                    )),
                    false => Ok(()),
                }
            }
            // The disk may have stopped responding, so removing a file on it might block. The next
            // supervisor replaces the sockets' files, as after a kill.
            Some(failure) => {
                std::mem::forget((control, exposure.listener));
                Err(SuperviseError::Stop(failure))
            }
        }
    }
}

/// How long draining may take: a frontend waits for its clients, and then for its disk.
fn drain_deadline(exposure: &Exposure) -> Duration {
    drain_deadline_of(&exposure.birthright.frontend)
}

fn drain_deadline_of(frontend: &Frontend) -> Duration {
    let given = match frontend {
        Frontend::Nbd { .. } => strongroom_frontend::nbd::DRAIN_TIMEOUT,
        Frontend::VhostUser { .. } => strongroom_frontend::vhost_user_blk::DRAIN_TIMEOUT,
    };
    2 * given + DRAIN_MARGIN
}

/// Starts a worker.
fn start_worker(
    exposure: &Exposure,
    page: Option<&Page>,
    workers: &Workers,
) -> Result<WorkerProcess, ChildError> {
    WorkerProcess::start(workers, &exposure.birthright, exposure.listener.as_fd(), page)
}

/// A statistics page. Without one the volume is served nevertheless.
fn make_page() -> Option<Page> {
    Page::make().inspect_err(|error| tracing::warn!("requests are not counted: {error}")).ok()
}

fn refuse(error: &DatastoreError) -> Answer {
    Answer::Refused { code: error.code().to_owned(), message: error.to_string() }
}

/// A pause of clients, as answers give it.
fn microseconds(stall: Duration) -> u64 {
    u64::try_from(stall.as_micros()).unwrap_or(u64::MAX)
}
