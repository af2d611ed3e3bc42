//! One worker process, from its supervisor's side.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;
use strongroom_datastore::file::{Deks, OpenLayer};
use strongroom_filters::qos::LimitPage;
use strongroom_memory::secret::SecretBytes;
use strongroom_remote::adopt;
use strongroom_statistics::Page;
use thiserror::Error;

use super::kek::{VolumeKek, VolumeSeal};
use super::starter::{Born, StartsWorkers, Workers};
use crate::birth::{BirthError, BirthSocket, Frontend, Keys, Order, Report};
use crate::condition::{Completion, Condition};
use crate::merging::MergeOrder;
use crate::placement::Placement;

/// The deadline from a worker's start to its report that it is confined. It takes tens of
/// milliseconds, and more if many start at once.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// The deadline for orders that a worker follows at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How much longer than its lease a freeze may take: then the worker hangs.
const FREEZE_MARGIN: Duration = Duration::from_secs(5);
/// The deadline from SIGKILL to its end: the kernel finishes its I/O first.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// The deadline from its last report to its end, and from SIGKILL to its end after a drain that
/// took too long: a worker that still does not end waits for a disk that does not respond.
const LINGERS: Duration = Duration::from_secs(5);
/// The parameters that every worker of a volume is started with.
#[derive(Debug)]
pub struct Birthright {
    /// What clients speak.
    pub frontend: Frontend,
    /// The private key of TLS.
    pub tls_key: Option<SecretBytes>,
    /// A name for the worker's cgroup.
    pub name: String,
    /// Its placement, on a machine with several NUMA nodes.
    pub placement: Option<Placement>,
    /// The pages of its limits, the volume's own first.
    pub limits: Vec<Arc<LimitPage>>,
}

/// The reasons why a worker did not follow an order.
#[derive(Debug, Error)]
pub enum ChildError {
    /// It was not started.
    #[error("cannot start a worker from {error}")]
    Spawn {
        /// Why not.
        error: io::Error,
    },
    /// It refused.
    #[error("{0}")]
    Refused(String),
    /// It ended.
    #[error("worker {pid} {how}")]
    Died {
        /// Its process id.
        pid: u32,
        /// How it ended.
        how: End,
    },
    /// It does not answer.
    #[error("worker {pid} has not answered within {within:?}")]
    Silent {
        /// Its process id.
        pid: u32,
        /// The time given.
        within: Duration,
    },
    /// It cannot even be killed.
    #[error(
        "worker {pid} cannot end: its disk does not answer. What the guest had flushed is safe, and what was in flight is done \
         when the volume is exposed again, once the disk answers"
    )]
    Hangs {
        /// Its process id.
        pid: u32,
    },
    /// The communication with it failed.
    #[error(transparent)]
    Birth(#[from] BirthError),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End(pub ExitStatus);

impl End {
    /// Whether the worker caused this itself. SIGKILL comes from outside: from a person, or from
    /// the kernel when memory is short.
    pub fn is_own_doing(&self) -> bool {
        const SIGKILL: i32 = 9;
        self.0.signal() != Some(SIGKILL)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.signal(), self.0.code()) {
            (Some(signal), _) => write!(f, "was killed by signal {signal}"),
            (None, Some(code)) => write!(f, "ended with status {code}"),
            (None, None) => write!(f, "ended ({})", self.0),
        }
    }
}

/// A worker process. It is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct WorkerProcess {
    starter: Arc<dyn StartsWorkers>,
    pid: u32,
    /// Refers to exactly this process, which a process id does not.
    pidfd: OwnedFd,
    ended: Option<End>,
    socket: BirthSocket,
    /// The version of its program.
    program: String,
    /// The volume's condition, as last reported.
    condition: Condition,
    /// Whether that report is new.
    news: bool,
    /// Whether its reports are no longer read: it is ending, or sends invalid messages.
    silent: bool,
    /// Whether it was killed and does not end.
    hangs: bool,
    /// A layer was opened for it to be merged into.
    can_merge: bool,
    /// Whether the worker before it has completed the layer below the top, perhaps without time to
    /// report that.
    took_over_complete: bool,
    /// It can put a new top on the volume while it serves.
    changes_top: bool,
}

impl WorkerProcess {
    /// Starts a worker, with its statistics in `page`, and waits until it is confined and has its
    /// threads.
    pub fn start(
        workers: &Workers,
        birthright: &Birthright,
        listener: BorrowedFd<'_>,
        page: Option<&Page>,
    ) -> Result<Self, ChildError> {
        let Born { pid, pidfd, socket } =
            workers.start(birthright, listener, page).map_err(|error| ChildError::Spawn { error })?;
        let mut worker = Self {
            starter: Arc::clone(&workers.starter),
            pid,
            pidfd,
            ended: None,
            socket: BirthSocket::adopt(socket)?,
            program: String::new(),
            condition: Condition::default(),
            news: false,
            silent: false,
            hangs: false,
            can_merge: false,
            took_over_complete: false,
            changes_top: false,
        };
        if let Some(key) = &birthright.tls_key {
            worker.socket.send_secret(key).map_err(|error| worker.explained(error))?;
        }
        match worker.await_report(READY_WITHIN)? {
            (Report::Ready { program, changes_top, keeps_limits }, _) => {
                if !keeps_limits && birthright.limits.iter().any(|page| !page.limits().is_none()) {
                    tracing::warn!(
                        "the program {program} is too old for limits, and {} has none",
                        birthright.name
                    );
                }
                (worker.program, worker.changes_top) = (program, changes_top);
            }
            (other, _) => return Err(unexpected(other)),
        }
        Ok(worker)
    }

    /// Gives it the keys, which are wiped here. `kek` tells whether the volume, or a part of it, is
    /// clear; that is never concluded from missing keys, and a worker without them refuses to
    /// serve.
    pub fn give_keys(&mut self, deks: Deks, kek: &VolumeKek) -> Result<(), ChildError> {
        self.give(deks, kek.seal())
    }

    /// As [`Self::give_keys`], for a disk without a KEK.
    pub fn give(&mut self, deks: Deks, seal: VolumeSeal) -> Result<(), ChildError> {
        self.order(&Order::Keys(keys_of(&deks, seal)), &[])?;
        self.send_secrets(deks)?;
        self.expect(Report::Keyed, ANSWERS_WITHIN)
    }

    fn send_secrets(&mut self, deks: Deks) -> Result<(), ChildError> {
        let sent = deks.iter().try_for_each(|(_, dek)| self.socket.send_secret(dek));
        drop(deks);
        sent.map_err(|error| self.explained(error))
    }

    /// Makes it serve a layer and those below it, without earlier sessions.
    pub fn serve(&mut self, layer: OpenLayer) -> Result<(), ChildError> {
        let order = Order::Serve {
            layer: layer.facts,
            lower: layer.lower_facts(),
            sessions: None,
            completes_after_ms: 0,
        };
        self.can_merge = layer.lower.iter().any(takes_merge);
        self.order_with(&order, &layer.files().map_err(BirthError::from)?)?;
        // From here on only the worker holds the locks.
        drop(layer);
        self.expect(Report::Serving, ANSWERS_WITHIN)
    }

    /// Makes it serve an empty disk in memory.
    pub fn serve_memory(&mut self, size_bytes: strongroom_types::VolumeSize) -> Result<(), ChildError> {
        self.order(&Order::ServeMemory { size_bytes }, &[])?;
        self.expect(Report::Serving, ANSWERS_WITHIN)
    }

    /// Makes it serve a volume that is not open yet. [`give_keys`](Self::give_keys) and
    /// [`serve`](Self::serve) follow.
    pub fn await_volume(
        &mut self,
        size_bytes: strongroom_types::VolumeSize,
        discards: bool,
    ) -> Result<(), ChildError> {
        self.order(&Order::AwaitVolume { size_bytes, discards }, &[])?;
        self.expect(Report::Serving, ANSWERS_WITHIN)
    }

    /// Makes it drain within `deadline`, and close the volume, with its sessions kept.
    pub fn release(&mut self, deadline: Duration) -> Result<(), ChildError> {
        self.order(&Order::Release, &[])?;
        self.expect(Report::Released, deadline)
    }

    /// Makes it serve the volume that another worker [suspended](Self::suspend).
    pub fn take_over(&mut self, suspended: &Handover) -> Result<(), ChildError> {
        let mut layers = suspended.layer.try_clone().map_err(BirthError::from)?;
        if !self.is_of_this_program() {
            layers.drop_log_indexes();
        }
        let order = Order::Serve {
            layer: layers.facts,
            lower: layers.lower_facts(),
            sessions: suspended.sessions.clone(),
            completes_after_ms: 0,
        };
        self.can_merge = suspended.layer.lower.iter().any(takes_merge);
        self.took_over_complete = suspended.layer.lower.first().is_some_and(|layer| layer.facts.read_only);
        let files = layers.files().map_err(BirthError::from)?;
        let files = files.iter().chain(&suspended.session_files);
        self.order(&order, &files.map(AsFd::as_fd).collect::<Vec<_>>())?;
        self.expect(Report::Serving, ANSWERS_WITHIN)
    }

    /// Whether it can put a new top on the volume while it serves. Workers of earlier releases
    /// cannot.
    pub fn changes_top(&self) -> bool {
        self.changes_top
    }

    /// Has it prepare a new, empty top beside the clients. `deks` are the keys of its own epochs.
    pub fn prepare_top(&mut self, mut top: OpenLayer, deks: Deks, kek: &VolumeKek) -> Result<(), ChildError> {
        if !self.is_of_this_program() {
            top.drop_log_indexes();
        }
        let order = Order::PrepareTop { layer: top.facts, keys: keys_of(&deks, kek.seal()) };
        self.order_with(&order, &top.files().map_err(BirthError::from)?)?;
        // From here on only the worker holds the lock.
        drop(top);
        self.send_secrets(deks)?;
        self.expect(Report::TopPrepared, ANSWERS_WITHIN)
    }

    /// Has it hold clients' requests, and waits until none is under way. They are held no longer
    /// than the lease.
    pub fn freeze(&mut self, lease: Duration) -> Result<(), ChildError> {
        self.order(&Order::Freeze { lease_ms: lease.as_millis() as u64 }, &[])?;
        self.expect(Report::Frozen, lease + FREEZE_MARGIN)
    }

    /// Has it serve clients over the new top, and complete the former one after a delay. Returns
    /// the former top's open files.
    pub fn change_top(&mut self, completes_after: Duration) -> Result<OpenLayer, ChildError> {
        let completes_after_ms = completes_after.as_millis() as u64;
        self.order(&Order::ChangeTop { completes_after_ms }, &[])?;
        match self.await_report(ANSWERS_WITHIN)? {
            (Report::TopChanged { former }, files) => {
                // What it has reported is about an earlier change.
                self.condition.completion = None;
                self.took_over_complete = false;
                let former = OpenLayer::from_files(former, &[], &mut files.into_iter(), adopt);
                let missing = || BirthError::Unexpected("a former top without all its files".to_owned());
                former.ok_or_else(|| missing().into())
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Has it forget the new top, and serve clients as before.
    pub fn withdraw_top(&mut self) -> Result<(), ChildError> {
        self.order(&Order::WithdrawTop, &[])?;
        self.expect(Report::TopWithdrawn, ANSWERS_WITHIN)
    }

    /// Whether its program is this one, so that it knows messages that no other does.
    fn is_of_this_program(&self) -> bool {
        self.program == env!("CARGO_PKG_VERSION")
    }

    /// How far the layer below the top is, if it was not complete when it stopped being the top.
    pub fn completion(&self) -> Option<&Completion> {
        match &self.condition.completion {
            None if self.took_over_complete => Some(&Completion::Complete),
            completion => completion.as_ref(),
        }
    }

    /// Whether a layer was opened for it to be merged into.
    pub fn can_merge(&self) -> bool {
        self.can_merge
    }

    /// Has it merge, or go on with that in another way.
    pub fn merge(&mut self, order: MergeOrder) -> Result<(), ChildError> {
        self.order(&Order::Merge(order), &[])?;
        self.expect(Report::Merging, ANSWERS_WITHIN)
    }

    /// Has it bring nothing from the first-write log to the layer as long as the log has room, or
    /// do it again.
    pub fn hold_destaging(&mut self, is_held: bool) -> Result<(), ChildError> {
        if !self.is_of_this_program() {
            return Ok(());
        }
        self.order(&Order::HoldDestaging(is_held), &[])
    }

    /// Makes it drain within `deadline`, and hand over its layers and sessions.
    pub fn suspend(&mut self, deadline: Duration) -> Result<Handover, ChildError> {
        let order = if self.is_of_this_program() { Order::HandOver } else { Order::Suspend };
        self.order(&order, &[])?;
        match self.await_report(deadline)? {
            (Report::Suspended { layer, lower, sessions, merged_bytes }, files) => {
                let mut files = files.into_iter();
                let layer = OpenLayer::from_files(layer, &lower, &mut files, adopt).ok_or_else(|| {
                    BirthError::Unexpected("a handover without all files of the layers".to_owned())
                })?;
                Ok(Handover { layer, sessions, session_files: files.collect(), merged_bytes })
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Tells it that the layer has grown.
    pub fn grow(&mut self, size_bytes: strongroom_types::VolumeSize) -> Result<(), ChildError> {
        self.order(&Order::Grow { size_bytes }, &[])?;
        self.expect(Report::Grown, ANSWERS_WITHIN)
    }

    /// Makes it drain within `deadline`, flush and end. Returns when it has ended; `Ok(Some(..))`
    /// is its error.
    pub fn end(mut self, deadline: Duration) -> Result<Option<String>, ChildError> {
        self.order(&Order::End, &[])?;
        match self.await_report(deadline)? {
            (Report::Ended { failure }, _) => {
                self.await_end(LINGERS);
                if self.ended().is_none() && !self.kill(LINGERS) {
                    return Err(ChildError::Hangs { pid: self.id() });
                }
                Ok(failure)
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Kills it. Returns whether it has ended within that time. It does not wait a second time.
    fn kill(&mut self, within: Duration) -> bool {
        self.starter.kill(self.pid);
        self.await_end(within);
        self.hangs = self.ended().is_none();
        !self.hangs
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// The version of its program.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The volume's condition, as last reported.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Readable when there is an unsolicited report.
    pub fn voice(&self) -> Option<BorrowedFd<'_>> {
        (!self.silent).then(|| self.socket.as_fd())
    }

    /// Reads unsolicited reports. Returns whether the volume's condition was reported since the
    /// last call, even before an answer.
    pub fn hear(&mut self) -> bool {
        while !self.silent && matches!(poll_until(self.socket.as_fd(), Duration::ZERO), Ok(true)) {
            match self.socket.receive() {
                Ok((Report::Condition(condition), _)) => self.learn(condition),
                Ok((Report::Failed { reason }, _)) => {
                    tracing::error!("worker {} fails: {reason}", self.id());
                    self.silent = true;
                }
                // Its end is noticed elsewhere.
                Err(BirthError::Gone) => self.silent = true,
                Ok((other, _)) => {
                    tracing::warn!("worker {} said what was not asked for: {other:?}", self.id());
                }
                Err(error) => {
                    tracing::warn!("worker {} cannot be heard any more: {error}", self.id());
                    self.silent = true;
                }
            }
        }
        std::mem::take(&mut self.news)
    }

    fn learn(&mut self, condition: Condition) {
        (self.condition, self.news) = (condition, true);
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<End> {
        if self.ended.is_none() && matches!(poll_until(self.pidfd.as_fd(), Duration::ZERO), Ok(true)) {
            self.ended = self.starter.ended(self.pid).map(End);
        }
        self.ended
    }

    fn expect(&mut self, wanted: Report, within: Duration) -> Result<(), ChildError> {
        match self.await_report(within)? {
            (report, _) if report == wanted => Ok(()),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Waits for its next answer.
    fn await_report(&mut self, within: Duration) -> Result<(Report, Vec<OwnedFd>), ChildError> {
        let pid = self.id();
        let deadline = Instant::now() + within;
        loop {
            if !poll_until(self.socket.as_fd(), deadline.saturating_duration_since(Instant::now()))? {
                return Err(ChildError::Silent { pid, within });
            }
            match self.socket.receive() {
                Ok((Report::Condition(condition), _)) => self.learn(condition),
                Ok((Report::Failed { reason }, _)) => return Err(ChildError::Refused(reason)),
                Ok(received) => return Ok(received),
                Err(error) => return Err(self.explained(error)),
            }
        }
    }

    fn order_with(&mut self, order: &Order, files: &[OwnedFd]) -> Result<(), ChildError> {
        self.order(order, &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())
    }

    fn order(&mut self, order: &Order, files: &[BorrowedFd<'_>]) -> Result<(), ChildError> {
        self.socket.send(order, files).map_err(|error| self.explained(error))
    }

    /// Turns the loss of the connection into the way in which the worker has ended.
    fn explained(&mut self, error: BirthError) -> ChildError {
        let pid = self.id();
        if !matches!(error, BirthError::Gone) {
            return error.into();
        }
        self.await_end(ENDS_WITHIN);
        match self.ended() {
            Some(how) => ChildError::Died { pid, how },
            None => ChildError::Silent { pid, within: ENDS_WITHIN },
        }
    }

    fn await_end(&self, within: Duration) {
        // If the wait fails, the worker is killed when this is dropped.
        let _ = poll_until(self.pidfd.as_fd(), within);
    }
}

/// The state that a suspended worker leaves to its successor.
#[derive(Debug)]
pub struct Handover {
    /// The top layer, with those below it.
    pub layer: OpenLayer,
    sessions: Option<Value>,
    session_files: Vec<OwnedFd>,
    /// How much of a layer was merged into the one below it.
    pub merged_bytes: u64,
}

/// How the keys are announced that follow.
fn keys_of(deks: &Deks, seal: VolumeSeal) -> Keys {
    let epochs = deks.iter().map(|(epoch, _)| *epoch).collect();
    match seal {
        VolumeSeal::Clear => Keys::Unencrypted,
        VolumeSeal::Sealed => Keys::Epochs(epochs),
        VolumeSeal::Encrypting => Keys::Encrypting(epochs),
        VolumeSeal::Decrypting => Keys::Decrypting(epochs),
    }
}

fn takes_merge(layer: &OpenLayer) -> bool {
    layer.facts.is_merged_into && !layer.facts.read_only
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if self.ended().is_none() && !self.hangs && !self.kill(ENDS_WITHIN) {
            tracing::error!(pid = self.id(), "a worker that was killed does not end: its disk hangs");
        }
    }
}

fn unexpected(report: Report) -> ChildError {
    BirthError::Unexpected(format!("{report:?}")).into()
}

/// Waits until a descriptor is readable or the other side is gone. Returns `false` on a timeout.
fn poll_until(descriptor: BorrowedFd<'_>, within: Duration) -> Result<bool, BirthError> {
    let deadline = Instant::now() + within;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timespec(left))) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A duration as poll(2) takes it.
pub fn timespec(duration: Duration) -> Timespec {
    // Rounded up to a millisecond, so that a deadline is over when poll says so.
    let duration = duration + Duration::from_micros(999);
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}
