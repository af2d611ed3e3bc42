//! The worker: a process that serves one volume and holds only its keys, its layers' open files and
//! its clients.
//!
//! It gives up every right before it receives anything worth stealing: not dumpable -> placed ->
//! confined -> threads -> system calls denied -> keys -> clients. It opens no file, and has no path
//! and no KEK. Its orders come over the socket that it was started with ([`crate::birth`]). When
//! that ends, its supervisor is gone: the worker drains, flushes and ends, so that the volume is
//! free.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_datastore::file::storage::StoredFile;
use strongroom_datastore::file::{Deks, End, OpenLayer};
use strongroom_filters::mixed::Writes;
use strongroom_filters::qos::{self, Limits};
use strongroom_remote::{OnEnd, adopt_with};
use strongroom_ring::points::{self, WorkerState};
use strongroom_statistics::{LAYOUT, Recorders};
use strongroom_types::{KeyEpoch, VolumeSize};
use thiserror::Error;

use crate::absent::{AbsentDisk, Early};
use crate::birth::{BirthError, BirthSocket, Keys, LimitPages, Order, Report, Start};
use crate::closing::Closing;
use crate::condition::{Awaited, Completion};
use crate::destaging::{Destaging, DestagingError};
use crate::layers::{Ciphers, StackError};
use crate::merging::{MergeOrder, Merging};
use crate::placement::SYSFS;
use crate::process::{ProcessError, prepare_for_keys};
use crate::service::{Service, ServiceError, Serving};
use crate::stack::{NewTop, Stack, memory_disk};
use strongroom_confine::{Confinement, SandboxError, close_inherited, confine};

/// The reasons why a worker ends early.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The communication with the supervisor failed, or a person started the process.
    #[error(transparent)]
    Birth(#[from] BirthError),
    /// The process must not touch a key.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The stages cannot be assembled.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// First writes cannot be brought to the layer.
    #[error(transparent)]
    Destaging(#[from] DestagingError),
    /// Clients cannot be served.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Serves as the worker of the supervisor that started this process. The supervisor's socket is
/// standard input.
///
/// # Errors
/// [`BirthError::NotBorn`] if a person started it. Any other error is also reported to the
/// supervisor.
pub fn process_main() -> Result<(), WorkerError> {
    let mut socket = BirthSocket::adopt(io::stdin())?;
    close_inherited(None);
    // A name for lists of processes: the program may have been started through a descriptor.
    let _ = rustix::thread::set_name(c"strongroom");
    let served = prepare_for_keys().map_err(WorkerError::from).and_then(|()| live(&mut socket));
    if let Err(error) = &served {
        // If the supervisor is gone, the report cannot be delivered.
        let _ = socket.send(&Report::Failed { reason: error.to_string() }, &[]);
    }
    served
}

fn live(socket: &mut BirthSocket<io::Stdin>) -> Result<(), WorkerError> {
    let (order, files) = match socket.receive() {
        // A supervisor that ends before its first order needs no worker.
        Err(BirthError::Gone) => return Ok(()),
        received => received?,
    };
    let Order::Start(Start { frontend, user, placement, statistics, limits }) = order else {
        return Err(unexpected(&order));
    };
    let mut files = files.into_iter();
    let listener = files.next().ok_or_else(|| missing("the listening socket"))?;
    // The user id is reserved for us as long as this is open.
    let _lease = user.and_then(|_| files.next());
    let page = statistics.and_then(|layout| files.next().filter(|_| layout == LAYOUT));
    let limits = limits_of(limits, files)?;
    let service = Service::prepare(frontend, listener, recorders_of(page), limits, socket)?;
    // This must precede threads and buffers, and needs sysfs.
    if let Some(placement) = placement {
        placement.settle(SYSFS.as_ref());
    }
    confine(&Confinement { user, ..Confinement::default() })?;
    let service = service.start_threads()?;
    points::worker_state(WorkerState::Ready);
    let program = env!("CARGO_PKG_VERSION").to_owned();
    socket.send(&Report::Ready { program, changes_top: true, keeps_limits: true }, &[])?;
    Worker { service, ciphers: None, serving: None, in_memory: None, awaiting: None }.follow(socket)
}

/// The recorders of statistics. If they fail, the volume is served without them.
fn recorders_of(page: Option<OwnedFd>) -> Recorders {
    let recorders = page.map(Recorders::of_page).transpose().unwrap_or_else(|error| {
        tracing::warn!("the volume's requests are not counted: {error}");
        None
    });
    recorders.unwrap_or_default()
}

/// The limits of clients' requests. A worker that cannot keep them does not serve.
fn limits_of(pages: Option<LimitPages>, files: impl Iterator<Item = OwnedFd>) -> Result<Limits, WorkerError> {
    let Some(LimitPages { layout: qos::LAYOUT, count }) = pages else { return Ok(Limits::none()) };
    let files: Vec<OwnedFd> = files.collect();
    if files.len() != count || count > qos::PAGES_MAX {
        return Err(missing("the pages of its limits"));
    }
    Limits::of_pages(files).map_err(|_| missing("usable pages of its limits"))
}

struct Worker {
    service: Service,
    ciphers: Option<Ciphers>,
    serving: Option<Served>,
    /// The server of a disk in memory, instead of a volume.
    in_memory: Option<Serving>,
    /// The server of a volume that is not open yet.
    awaiting: Option<Awaiting>,
}

/// A volume that is not open yet, and is served.
struct Awaiting {
    serving: Serving,
    disk: Arc<AbsentDisk>,
}

/// A volume that is served.
struct Served {
    serving: Serving,
    stack: Stack,
    destaging: Destaging,
    /// The completion of the layer below the top, if it was not complete.
    closing: Option<Closing>,
    /// The merge of two layers below the top, if one was ordered.
    merging: Option<Merging>,
    /// The next top, until it is served.
    coming: Option<ComingTop>,
}

/// A new top that is not served yet.
struct ComingTop {
    top: NewTop,
    destaging: Destaging,
    /// Until when clients' requests are held for it, if they are.
    frozen_until: Option<Instant>,
}

impl Served {
    /// Forgets the next top, and serves held requests as before.
    fn withdraw_top(&mut self) {
        let Some(ComingTop { top, destaging, frozen_until: _ }) = self.coming.take() else { return };
        self.stack.abandon_top();
        self.stack.hold_destaging(false);
        if let Err(error) = destaging.end(End::Now) {
            tracing::warn!(%error, "the log of a layer that was not used is not left in order");
        }
        drop(top);
    }

    fn has_failed_flush(&self) -> bool {
        self.stack.has_failed_flush() || self.closing.as_ref().is_some_and(Closing::has_failed_flush)
    }
}

impl Worker {
    /// Follows orders until the last one.
    fn follow(mut self, socket: &mut BirthSocket<io::Stdin>) -> Result<(), WorkerError> {
        loop {
            let frozen_until = self.serving.as_ref().and_then(|served| served.coming.as_ref()?.frozen_until);
            let lifeline = self.serving.as_ref().and_then(|served| served.stack.lifeline());
            let received = match self.service.teller.await_order(socket, frozen_until, lifeline) {
                Ok(Awaited::Deadline) => {
                    tracing::warn!(
                        "the volume was frozen for too long, and clients go on without the snapshot"
                    );
                    self.serving.iter_mut().for_each(Served::withdraw_top);
                    continue;
                }
                Ok(Awaited::StorageEnd) => {
                    // Nothing that is under way will end, so nothing can be closed in order. The
                    // next worker repeats it, as after any death.
                    tracing::error!("the storage process is gone, and this worker ends");
                    std::process::exit(1);
                }
                Ok(Awaited::Order) => socket.receive(),
                Err(error) => Err(error),
            };
            let (order, files) = match received {
                Ok(received) => received,
                Err(BirthError::Gone) if self.awaiting.is_some() => {
                    // Requests that wait for the volume would do so until they fail. The next
                    // worker repeats them.
                    tracing::warn!("the supervisor is gone, and the volume does not come");
                    std::process::exit(1);
                }
                Err(BirthError::Gone) => {
                    tracing::warn!("the supervisor is gone: the volume is closed");
                    // The same as if this process were killed, but in order.
                    self.service.limits.hasten();
                    let closed = self.serving.map_or(Ok(()), |mut served| {
                        // Nobody is left who could commit.
                        served.withdraw_top();
                        let closed = served.serving.close();
                        empty_log(served.destaging);
                        closed
                    });
                    return closed.map_err(|failure| ServiceError::Stop(failure).into());
                }
                Err(error) => return Err(error.into()),
            };
            match order {
                Order::Keys(keys) => {
                    self.ciphers = Some(receive_keys(socket, keys)?);
                    socket.send(&Report::Keyed, &[])?;
                }
                Order::Serve { layer, lower, sessions, completes_after_ms } => {
                    let mut files = files.into_iter();
                    let layer = OpenLayer::from_files(layer, &lower, &mut files, adopt);
                    let layer = layer.ok_or_else(|| missing("all files of the layers"))?;
                    let completes_after = Duration::from_millis(completes_after_ms);
                    self.serve(layer, sessions, files.collect(), completes_after)?;
                    points::worker_state(WorkerState::Serving);
                    socket.send(&Report::Serving, &[])?;
                }
                Order::ServeMemory { size_bytes } => {
                    let disk = memory_disk(size_bytes, self.take_ciphers()?)?;
                    self.in_memory = Some(self.service.serve(disk, None, Vec::new())?);
                    points::worker_state(WorkerState::Serving);
                    socket.send(&Report::Serving, &[])?;
                }
                Order::AwaitVolume { size_bytes, discards } => {
                    self.await_volume(
                        AbsentDisk::new(size_bytes, discards, Early::ReadsZeroes)?,
                        None,
                        Vec::new(),
                    )?;
                    socket.send(&Report::Serving, &[])?;
                }
                Order::Release => {
                    let released = self.release();
                    socket.send(&answer(released, Report::Released), &[])?;
                }
                Order::Grow { size_bytes } => {
                    socket.send(&answer(self.grow(size_bytes), Report::Grown), &[])?;
                }
                Order::HoldDestaging(is_held) => {
                    if let Some(served) = &self.serving {
                        served.stack.hold_destaging(is_held);
                    }
                }
                Order::Merge(order) => {
                    socket.send(&answer(self.merge(order), Report::Merging), &[])?;
                }
                Order::PrepareTop { layer, keys } => {
                    // The secrets are received in any case.
                    let ciphers = receive_keys(socket, keys);
                    let top = OpenLayer::from_files(layer, &[], &mut files.into_iter(), adopt);
                    let prepared = ciphers.and_then(|ciphers| {
                        self.prepare_top(top.ok_or_else(|| missing("all files of the layer"))?, ciphers)
                    });
                    socket.send(&answer(prepared, Report::TopPrepared), &[])?;
                }
                Order::Freeze { lease_ms } => {
                    let frozen = self.freeze(Duration::from_millis(lease_ms));
                    socket.send(&answer(frozen, Report::Frozen), &[])?;
                }
                Order::ChangeTop { completes_after_ms } => {
                    self.change_top(socket, Duration::from_millis(completes_after_ms))?;
                }
                Order::WithdrawTop => {
                    self.serving.iter_mut().for_each(Served::withdraw_top);
                    socket.send(&Report::TopWithdrawn, &[])?;
                }
                Order::Suspend => self.suspend(socket, false)?,
                Order::HandOver => self.suspend(socket, true)?,
                Order::End => {
                    let failure = self.end().err();
                    points::worker_state(WorkerState::Ended);
                    return Ok(socket.send(&Report::Ended { failure }, &[])?);
                }
                Order::Start(_) => return Err(unexpected(&order)),
            }
        }
    }

    fn take_ciphers(&mut self) -> Result<Ciphers, WorkerError> {
        self.ciphers.take().ok_or_else(|| missing("the keys"))
    }

    fn serve(
        &mut self,
        layer: OpenLayer,
        sessions: Option<Value>,
        session_files: Vec<OwnedFd>,
        completes_after: Duration,
    ) -> Result<(), WorkerError> {
        let mut stack = Stack::new(layer, self.take_ciphers()?)?;
        let lanes = &self.service.destage_lanes;
        let destaging = stack.destage(lanes)?;
        let told = Arc::clone(self.service.teller.waker());
        let closing = stack.complete_lower(completes_after, lanes, told).map_err(DestagingError::Open)?;
        self.service.teller.watch(stack.tags(), closing.as_ref().map(Closing::watch));
        let (sessions, session_files) = match self.awaiting.take() {
            Some(Awaiting { serving, disk }) => {
                // What a guest has asked for meanwhile.
                disk.arrive(stack.disk());
                serving.suspend().map_err(ServiceError::Stop)?
            }
            None => (sessions, session_files),
        };
        let serving = self.service.serve(stack.disk(), sessions, session_files)?;
        self.service.teller.watch_merge(None);
        self.serving = Some(Served { serving, stack, destaging, closing, merging: None, coming: None });
        Ok(())
    }

    /// Begins a merge, or goes on with one in another way.
    fn merge(&mut self, order: MergeOrder) -> Result<(), WorkerError> {
        let served = self.serving.as_mut().ok_or_else(|| missing("something to merge"))?;
        if let Some(merging) = &served.merging {
            merging.adjust(order);
            return Ok(());
        }
        let stages = served.stack.merge_stages().ok_or_else(|| missing("a layer to merge into"))?;
        let Service { destage_lanes, teller, recorders, .. } = &mut self.service;
        let told = Arc::clone(teller.waker());
        let merging = Merging::begin(stages, order, recorders.clone(), destage_lanes, told);
        let merging = merging.map_err(DestagingError::Open)?;
        teller.watch_merge(Some(merging.watch()));
        served.merging = Some(merging);
        Ok(())
    }

    fn grow(&mut self, size: VolumeSize) -> Result<(), WorkerError> {
        if let Some(Served { serving, stack, .. }) = &mut self.serving {
            stack.grow(size)?;
            serving.announce_size();
        }
        Ok(())
    }

    /// Prepares a new top beside the one that is served.
    fn prepare_top(&mut self, layer: OpenLayer, ciphers: Ciphers) -> Result<(), WorkerError> {
        let served = self.serving.as_mut().ok_or_else(|| missing("something to put a top on"))?;
        served.withdraw_top();
        if let Some(closing) = &served.closing {
            if closing.watch().outcome() != Completion::Complete {
                return Err(StackError::Closing.into());
            }
            // A successor is told of it from now on as of any other lower layer.
            served.stack.end_closing(closing);
            served.closing = None;
        }
        let top = served.stack.prepare_top(layer, ciphers)?;
        match top.destage(&self.service.destage_lanes) {
            Ok(destaging) => served.coming = Some(ComingTop { top, destaging, frozen_until: None }),
            Err(error) => {
                served.stack.abandon_top();
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Holds clients' requests for the new top, and waits until none is under way.
    fn freeze(&mut self, lease: Duration) -> Result<(), WorkerError> {
        let until = Instant::now() + lease;
        let served = self.serving.as_mut().ok_or_else(|| missing("something to freeze"))?;
        served.stack.freeze(lease)?;
        if served.has_failed_flush() {
            served.withdraw_top();
            return Err(StackError::FailedFlush.into());
        }
        if let Some(coming) = &mut served.coming {
            coming.frozen_until = Some(until);
        }
        Ok(())
    }

    /// Serves the volume over the new top, and begins to complete the former one after a delay.
    fn change_top(
        &mut self,
        socket: &BirthSocket<io::Stdin>,
        completes_after: Duration,
    ) -> Result<(), WorkerError> {
        let served = self.serving.as_mut().ok_or_else(|| missing("something to put a top on"))?;
        let is_frozen = |coming: &ComingTop| coming.frozen_until.is_some_and(|until| Instant::now() < until);
        let Some(ComingTop { top, destaging, .. }) = served.coming.take_if(|coming| is_frozen(coming)) else {
            served.withdraw_top();
            let reason = "clients' requests are not held any more".to_owned();
            return Ok(socket.send(&Report::Failed { reason }, &[])?);
        };
        let former = served.stack.change_top(top)?;
        // Clients go on. The supervisor may be holding others up.
        let files = former.files().map_err(BirthError::from)?;
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        socket.send(&Report::TopChanged { former: former.facts }, &files)?;
        drop(former);
        let former_destaging = std::mem::replace(&mut served.destaging, destaging);
        if let Err(error) = former_destaging.end(End::Now) {
            tracing::warn!(%error, "the first-write log of the former top is emptied again from its beginning");
        }
        let Service { destage_lanes, teller, .. } = &mut self.service;
        let told = Arc::clone(teller.waker());
        let closing = served.stack.complete_lower(completes_after, destage_lanes, told);
        served.closing = closing.map_err(DestagingError::Open)?;
        teller.watch_new_top(served.stack.tags(), served.closing.as_ref().map(Closing::watch));
        Ok(())
    }

    /// Drains, and hands everything over. From then on the sessions belong to the successor, and
    /// this worker can only end. The successor gets the indexes of logs if it knows them.
    fn suspend(&mut self, socket: &BirthSocket<io::Stdin>, with_indexes: bool) -> Result<(), WorkerError> {
        let mut served = self.serving.take().ok_or_else(|| missing("something to suspend"))?;
        served.withdraw_top();
        if served.has_failed_flush() {
            self.serving = Some(served);
            let reason = StackError::FailedFlush.to_string();
            return Ok(socket.send(&Report::Failed { reason }, &[])?);
        }
        let Served { serving, mut stack, destaging, closing, merging, coming: _ } = served;
        // While clients are still served.
        let merged_bytes = merging.map_or(0, |merging| merging.end());
        // The successor makes up for it.
        self.service.limits.hasten();
        let (sessions, session_files) = serving.suspend().map_err(ServiceError::Stop)?;
        // The guest waits, so the records stay in the log for the successor.
        let ended = destaging.end(End::Now);
        if let Err(error) = ended {
            tracing::warn!(%error, "the first-write log was not left in order; the successor sees to it");
        }
        stack.close(ended.is_ok());
        if let Some(closing) = closing {
            stack.end_closing(&closing);
        }
        let layers = stack.layers(with_indexes);
        points::worker_state(WorkerState::Suspended);
        let (layer, lower) = (layers.facts, layers.lower_facts());
        let files = layers.files().map_err(BirthError::from)?;
        let files: Vec<_> = files.iter().chain(&session_files).map(AsFd::as_fd).collect();
        Ok(socket.send(&Report::Suspended { layer, lower, sessions, merged_bytes }, &files)?)
    }

    /// Drains, and closes the volume. The sessions go on without it.
    fn release(&mut self) -> Result<(), WorkerError> {
        let mut served = self.serving.take().ok_or_else(|| missing("something to release"))?;
        served.withdraw_top();
        if served.has_failed_flush() {
            self.serving = Some(served);
            return Err(StackError::FailedFlush.into());
        }
        let Served { serving, stack, destaging, closing, merging, coming: _ } = served;
        if let Some(merging) = merging {
            merging.end();
        }
        self.service.limits.hasten();
        let limits = stack.disk().limits();
        let (sessions, session_files) = serving.suspend().map_err(ServiceError::Stop)?;
        // What stays in the log is durable, and the next to open the volume finds it.
        empty_log(destaging);
        drop((closing, stack));
        let size = VolumeSize::new(limits.size_bytes).map_err(|_| missing("a size"))?;
        self.await_volume(AbsentDisk::new(size, limits.discards, Early::Waits)?, sessions, session_files)
    }

    /// Serves a volume that is not open yet.
    fn await_volume(
        &mut self,
        disk: Arc<AbsentDisk>,
        sessions: Option<Value>,
        session_files: Vec<OwnedFd>,
    ) -> Result<(), WorkerError> {
        let serving = self.service.serve(Arc::clone(&disk) as _, sessions, session_files)?;
        self.awaiting = Some(Awaiting { serving, disk });
        Ok(())
    }

    /// Drains, flushes, and releases the volume.
    fn end(mut self) -> Result<(), String> {
        self.serving.iter_mut().for_each(Served::withdraw_top);
        self.service.limits.hasten();
        if let Some(Awaiting { serving, disk }) = self.awaiting {
            disk.give_up();
            return serving.stop();
        }
        if let Some(serving) = self.in_memory {
            return serving.stop();
        }
        match self.serving {
            Some(Served { serving, stack: _stack, destaging, closing, merging, coming: _ }) => {
                let stopped = serving.stop();
                match stopped {
                    Ok(()) => empty_log(destaging),
                    // The disk may have stopped responding. Do not wait for it: the records in the
                    // log are durable.
                    Err(_) => {
                        std::mem::forget(destaging);
                        std::mem::forget(closing);
                        std::mem::forget(merging);
                    }
                }
                stopped
            }
            None => Ok(()),
        }
    }
}

/// Completes the layer. Records that cannot be brought to it stay durable in the log, where the
/// next process to open the volume finds them.
fn empty_log(destaging: Destaging) {
    if let Err(error) = destaging.end(End::Empty) {
        tracing::warn!(%error, "some of what was written last stays in the volume's first-write log");
    }
}

/// Makes a file of a descriptor of the supervisor's. When the storage process ends, this one ends,
/// too, and the next one repeats the operations under way.
fn adopt(file: OwnedFd) -> Arc<dyn StoredFile> {
    adopt_with(file, OnEnd::Exit)
}

/// Receives the key of each epoch, and sets up the ciphers; the received keys are wiped.
fn receive_keys(socket: &BirthSocket<io::Stdin>, keys: Keys) -> Result<Ciphers, WorkerError> {
    let receive = |epoch: KeyEpoch| Ok((epoch, socket.receive_secret()?));
    let receive =
        |epochs: Vec<KeyEpoch>| epochs.into_iter().map(receive).collect::<Result<Deks, BirthError>>();
    match keys {
        Keys::Epochs(epochs) => Ok(Ciphers::of(receive(epochs)?)?),
        Keys::Encrypting(epochs) => Ok(Ciphers::mixed(receive(epochs)?, Writes::Sealed)?),
        Keys::Decrypting(epochs) => Ok(Ciphers::mixed(receive(epochs)?, Writes::Clear)?),
        Keys::Unencrypted => Ok(Ciphers::Unencrypted),
    }
}

/// The report on an order that was followed, or not.
fn answer(followed: Result<(), WorkerError>, report: Report) -> Report {
    match followed {
        Ok(()) => report,
        Err(error) => Report::Failed { reason: error.to_string() },
    }
}

fn unexpected(order: &Order) -> WorkerError {
    BirthError::Unexpected(format!("{order:?}")).into()
}

fn missing(what: &str) -> WorkerError {
    BirthError::Unexpected(format!("an order without {what}")).into()
}
