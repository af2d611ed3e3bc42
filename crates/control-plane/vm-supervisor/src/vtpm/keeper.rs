//! A thread that records each new state of a TPM, until swtpm has ended.
//!
//! The gate holds back the answer to the guest's command that has changed the state, so a state is
//! recorded as soon as the gate tells of it, and again soon if that fails.
//!
//! While another host may have the VM's volumes, nothing is recorded, and the record is closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use strongroom_host::protocol::Problem;
use strongroom_hypervisor::Swtpm;
use strongroom_hypervisor::swtpm::Notice;

use super::{Changes, OpenRecord, TpmError, TpmPlace};

/// Writes of a swtpm without a gate are recorded as one state if they are within this time.
const SETTLES_AFTER: Duration = Duration::from_millis(20);
/// After a failure, the state is recorded again after this time; usually the VM's key is
/// unavailable.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// The same while the guest waits. A guest of Linux gives its TPM two seconds for such a command.
const AGAIN_FOR_GUEST_AFTER: Duration = Duration::from_secs(1);
/// How long the record stays open for the next state: a guest that boots writes many, and opening
/// the record takes longer than writing it.
const OPEN_FOR: Duration = Duration::from_secs(2);
/// How long the start of the guest waits for the first record. Firmware follows at once, and takes
/// a TPM that is slow for one that has failed: SeaBIOS after 0.75 s.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// Timeout from QEMU's end to swtpm's.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The thread that records a TPM's states.
#[derive(Debug)]
pub struct Keeper {
    orders: KeeperOrders,
    thread: JoinHandle<()>,
}

/// Tells that thread what to do.
#[derive(Clone, Debug)]
pub struct KeeperOrders {
    orders: Sender<Order>,
    /// Readable when there is one.
    told: Arc<OwnedFd>,
}

#[derive(Debug)]
enum Order {
    /// Another host may have the volumes from now on.
    Release(SyncSender<Result<(), Problem>>),
    /// They are here again.
    GoOn,
    /// The guest goes on, and no saved memory may bring a state of its TPM any more.
    NameNoMemory(SyncSender<Result<(), Problem>>),
    /// QEMU has ended.
    End,
}

impl KeeperOrders {
    /// Records what is to be recorded, and closes the record, until [`go_on`](Self::go_on). The
    /// guest stands still, and QEMU has all answers of its TPM.
    ///
    /// # Errors
    /// If a state cannot be recorded; it goes on then.
    pub fn release(&self) -> Result<(), Problem> {
        self.ask(Order::Release)
    }

    /// Records states again.
    pub fn go_on(&self) {
        self.tell(Order::GoOn);
    }

    /// As [`go_on_with`](super::go_on_with) with no memory, in the record that is open already: it
    /// cannot be opened again meanwhile.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn name_no_memory(&self) -> Result<(), Problem> {
        self.ask(Order::NameNoMemory)
    }

    fn ask(&self, order: impl FnOnce(SyncSender<Result<(), Problem>>) -> Order) -> Result<(), Problem> {
        let (done, is_done) = sync_channel(1);
        self.tell(order(done));
        let gone = |_| Problem::new("tpm", "the TPM's states are not recorded any more");
        is_done.recv().map_err(gone).flatten()
    }

    fn tell(&self, order: Order) {
        // A thread that has ended needs no orders.
        if self.orders.send(order).is_ok() {
            let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
        }
    }
}

struct Kept {
    place: TpmPlace,
    swtpm: Swtpm,
    /// `None` once the gate has ended.
    changes: Option<Changes>,
    orders: Receiver<Order>,
    told: Arc<OwnedFd>,
    /// Whether another host may have the volumes.
    is_released: bool,
    /// When the state is to be recorded next.
    due: Option<Instant>,
    /// Whether the gate waits until it is.
    guest_waits: bool,
    /// The record, if it is open.
    open: Option<OpenRecord>,
    /// When it is to be closed.
    closes: Option<Instant>,
    /// When a failure was logged last.
    complained: Option<Instant>,
}

/// What the thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Order,
    Change,
    End,
}

impl Keeper {
    /// Records the states of a running swtpm that is connected to QEMU. If swtpm ends before
    /// [`Self::end`] is called, `lost` is called with its last output.
    ///
    /// # Errors
    /// If the thread cannot be started, or changes cannot be watched. swtpm keeps running.
    pub fn start(
        place: TpmPlace,
        swtpm: Swtpm,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let changes = place.changes()?;
        let told = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, theirs) = channel();
        let orders = KeeperOrders { orders, told: Arc::clone(&told) };
        let (first, is_recorded) = sync_channel(1);
        let keep = move || {
            // An open record stays on its thread.
            let mut kept = Kept::of(place, swtpm, changes, (theirs, told));
            // A former supervisor may have left a state, or swtpm has made its first one.
            kept.record();
            let _ = first.send(());
            kept.run(lost);
        };
        let thread = thread::Builder::new().name("tpm".to_owned()).spawn(keep)?;
        // The record is open for the firmware's states now, unless that takes long.
        let _ = is_recorded.recv_timeout(FIRST_WITHIN);
        Ok(Self { orders, thread })
    }

    /// For what else decides when states are recorded.
    pub fn orders(&self) -> KeeperOrders {
        self.orders.clone()
    }

    /// Waits for the end of swtpm, whose QEMU has ended, and records its last state, unless another
    /// host may have the volumes.
    pub fn end(self) {
        self.orders.tell(Order::End);
        if self.thread.join().is_err() {
            tracing::error!("the TPM's record was not closed");
        }
    }
}

impl Kept {
    fn of(
        place: TpmPlace,
        swtpm: Swtpm,
        changes: Changes,
        (orders, told): (Receiver<Order>, Arc<OwnedFd>),
    ) -> Self {
        Self {
            place,
            swtpm,
            changes: Some(changes),
            orders,
            told,
            is_released: false,
            due: None,
            guest_waits: false,
            open: None,
            closes: None,
            complained: None,
        }
    }

    fn run(mut self, lost: impl FnOnce(String)) {
        let mut lost = Some(lost);
        'kept: loop {
            let ready = match self.wait(lost.is_some()) {
                Ok(ready) => ready,
                Err(errno) => {
                    tracing::error!("the TPM's state is not watched any more: {errno}");
                    return;
                }
            };
            for ready in ready {
                match ready {
                    Ready::Order if self.is_to_end() => break 'kept,
                    Ready::Order => {}
                    // It was released by the order before.
                    Ready::Change if self.is_released => {}
                    Ready::Change => self.take_notice(),
                    Ready::End => {
                        if let Some(lost) = lost.take() {
                            lost(self.swtpm.said());
                        }
                    }
                }
            }
            if self.due.is_some_and(|due| due <= Instant::now()) {
                self.record();
            }
            if self.closes.is_some_and(|closes| closes <= Instant::now()) {
                self.close();
            }
        }
        if !self.swtpm.wait(ENDS_WITHIN) {
            self.swtpm.kill();
        }
        if self.is_released {
            return;
        }
        // If this fails, the next start takes an unrecorded state for one that was written just
        // before a crash.
        if let Err(error) = self.place.ended(self.open.take()) {
            self.complain(&error);
        }
    }

    /// Follows the orders. Returns whether that is to end.
    fn is_to_end(&mut self) -> bool {
        let _ = rustix::io::read(&*self.told, &mut [0; 8]);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::End => return true,
                Order::GoOn => self.is_released = false,
                Order::Release(done) => {
                    let _ = done.send(self.release().map_err(|error| error.problem()));
                }
                Order::NameNoMemory(done) => {
                    let _ = done.send(self.name_no_memory().map_err(|error| error.problem()));
                }
            }
        }
        false
    }

    fn release(&mut self) -> Result<(), TpmError> {
        if self.is_released {
            return Ok(());
        }
        // What QEMU has an answer to is recorded, unless an earlier program has started swtpm.
        self.take_notice();
        if self.due.is_some() {
            self.place.record(&mut self.open)?;
            self.is_recorded();
        }
        self.closes = None;
        self.open.take().map_or(Ok(()), OpenRecord::close)?;
        self.is_released = true;
        Ok(())
    }

    fn name_no_memory(&mut self) -> Result<(), TpmError> {
        let mut opened = self.place.record_of(&mut self.open)?;
        opened.record.go_on_with(&mut opened.volume, None)?;
        self.open = Some(opened);
        self.closes = Some(Instant::now() + OPEN_FOR);
        Ok(())
    }

    /// Waits until something is ready, or to be done.
    fn wait(&self, for_its_end: bool) -> Result<Vec<Ready>, Errno> {
        let changes = self.changes.as_ref().filter(|_| !self.is_released).map(|changes| match changes {
            Changes::Told(gate) => gate.as_fd(),
            Changes::Watched(watch) => watch.as_fd(),
        });
        let pidfd = for_its_end.then(|| self.swtpm.pidfd());
        let watched: Vec<(Ready, BorrowedFd<'_>)> =
            [(Ready::Order, Some(self.told.as_fd())), (Ready::Change, changes), (Ready::End, pidfd)]
                .into_iter()
                .filter_map(|(ready, file)| Some((ready, file?)))
                .collect();
        let mut polled: Vec<_> = watched.iter().map(|(_, file)| PollFd::new(file, PollFlags::IN)).collect();
        let next = self.due.into_iter().chain(self.closes).min();
        let wait = next.map(|next| timespec(next.saturating_duration_since(Instant::now())));
        match poll(&mut polled, wait.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        }
        let seen = watched.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(seen.map(|((ready, _), _)| *ready).collect())
    }

    fn take_notice(&mut self) {
        match &self.changes {
            Some(Changes::Told(gate)) => match gate.notice() {
                Ok(Notice::NewState) => {
                    self.guest_waits = true;
                    self.due = Some(Instant::now());
                }
                Ok(Notice::Nothing) => {}
                // swtpm ends with it.
                Ok(Notice::Gone) => self.changes = None,
                Err(error) => {
                    tracing::error!("VM {}: {error}", self.place.spec.name);
                    self.changes = None;
                }
            },
            Some(Changes::Watched(watch)) => {
                forget_changes(watch);
                self.due = Some(Instant::now() + SETTLES_AFTER);
            }
            None => {}
        }
    }

    fn record(&mut self) {
        if let Err(error) = self.place.record(&mut self.open) {
            let pause = if self.guest_waits { AGAIN_FOR_GUEST_AFTER } else { AGAIN_AFTER };
            self.due = Some(Instant::now() + pause);
            self.complain(&error);
            return;
        }
        self.is_recorded();
    }

    fn is_recorded(&mut self) {
        (self.due, self.complained) = (None, None);
        self.closes = self.open.is_some().then(|| Instant::now() + OPEN_FOR);
        if std::mem::take(&mut self.guest_waits)
            && let Some(Changes::Told(gate)) = &self.changes
            && let Err(error) = gate.recorded()
        {
            tracing::debug!("VM {}: its TPM's gate has ended: {error}", self.place.spec.name);
        }
    }

    fn close(&mut self) {
        self.closes = None;
        if let Some(Err(error)) = self.open.take().map(OpenRecord::close) {
            self.complain(&error);
        }
    }

    fn complain(&mut self, error: &TpmError) {
        if self.complained.is_some_and(|complained| complained.elapsed() < AGAIN_AFTER) {
            return;
        }
        self.complained = Some(Instant::now());
        tracing::warn!("VM {}: the state of its TPM is not recorded: {error}", self.place.spec.name);
    }
}

/// Reads away the events of a watch.
fn forget_changes(watch: &OwnedFd) {
    let mut events = [0; 4096];
    while matches!(rustix::io::read(watch, &mut events), Ok(count) if count > 0) {}
}

/// Rounded up, so that poll does not return before the deadline.
fn timespec(wait: Duration) -> Timespec {
    let wait = wait + Duration::from_micros(999);
    Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() }
}
