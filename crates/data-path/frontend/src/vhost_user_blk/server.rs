//! The server: a lane for each front end that may be connected at once. All of them listen.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use strongroom_filters::park::TroubleBook;
use strongroom_filters::qos::Limits;
use strongroom_io::{Disk, IoError, Plain, Waker};
use strongroom_ring::{Job, Lanes};
use strongroom_statistics::Recorders;
use thiserror::Error;

use super::activity::Activity;
use super::channel::{Channel, ChannelError, Received, await_readable};
use super::device::Device;
use super::guest_memory::RegionError;
use super::protocol::{DRAIN_TIMEOUT, QUEUES_MAX, SESSIONS_MAX, STAGE_MEMORY_BYTES};
use super::seats::Seats;
use super::session::{Place, Refusal, Session};
use super::suspended::{Incoming, Outgoing, SessionState, Suspended, SuspendedError, SuspendedState};
use crate::last_flush::flush;
use crate::listen::Listener;

/// How long a thread sleeps when the system has no descriptor for a connection.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// How long a front end may take to set up its connection to a retiring server. A front end whose
/// guest does not use the disk yet takes all of this time.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);

/// A front end whose queues run has finished its setup when it has sent nothing for this long.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// The most queues of the device, 1 to 16.
    pub queues_max: u16,
    /// The serial number that the guest reads; only the first 20 bytes are used.
    pub serial: String,
    /// How long stopping waits for requests in flight.
    pub drain_timeout: Duration,
    /// The book in which trouble is recorded for the disk's owner.
    pub book: Arc<TroubleBook>,
    /// The recorders of queues' requests.
    pub recorders: Recorders,
    /// The limits of queues' requests.
    pub limits: Limits,
}

impl VhostUserConfig {
    /// A configuration with the usual limits.
    pub fn new(serial: &str) -> Self {
        Self {
            queues_max: QUEUES_MAX,
            serial: serial.to_owned(),
            drain_timeout: DRAIN_TIMEOUT,
            book: Arc::default(),
            recorders: Recorders::none(),
            limits: Limits::none(),
        }
    }

    /// How many lanes the server needs: one for each queue, and one for each session. It makes no
    /// threads itself.
    pub fn lanes(&self) -> usize {
        usize::from(self.queues_max) + SESSIONS_MAX
    }
}

/// The reasons why a server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An unsupported count of queues.
    #[error("{0} queues; 1 to {QUEUES_MAX} are served")]
    Queues(u16),
    /// There is no event to wake a thread.
    #[error("cannot make an event: {0}")]
    Waker(#[source] IoError),
    /// Fewer idle lanes than [`VhostUserConfig::lanes`].
    #[error("the server takes {needed} threads, and {idle} are free")]
    Lanes {
        /// How many it needs.
        needed: usize,
        /// How many are idle.
        idle: usize,
    },
}

/// The reasons why a server cannot resume where another was suspended.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// It cannot start at all.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The state cannot be read by this program.
    #[error(transparent)]
    State(#[from] SuspendedError),
    /// A session cannot be resumed.
    #[error("a front end's session cannot go on: {0}")]
    Session(String),
}

/// The errors of stopping a server.
#[derive(Debug, Error)]
pub enum StopError {
    /// The disk did not finish in time. The threads end when it does.
    #[error("the guest still had requests in the disk after {0:?}")]
    Busy(Duration),
    /// The last flush failed: writes that the guest did not flush may be lost in a power cut.
    #[error("the last flush failed: {0}")]
    Flush(#[source] IoError),
    /// The sessions cannot be handed over. They have ended, and their front ends reconnect.
    #[error(transparent)]
    Suspend(#[from] SuspendedError),
    /// A thread ended by a bug.
    #[error("a thread of the server panicked")]
    Panicked,
}

/// The reasons why a session ended.
#[derive(Debug, Error)]
enum End {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the server is asked to end")]
    Asked,
}

/// A running server. Dropping it stops it.
pub struct VhostUserServer {
    orders: Arc<Orders>,
    listener: Arc<Listener>,
    activity: Arc<Activity>,
    device: Arc<Device>,
    lanes: Lanes,
    /// The seats of the sessions, while they are served.
    jobs: Vec<Job<()>>,
    /// The state that each of them leaves when it ends.
    ended: Receiver<Result<Option<Parked>, SuspendedError>>,
    drain_timeout: Duration,
}

/// A suspended session, with its files.
type Parked = (SessionState, Outgoing);

/// The owner's orders to the server's threads.
struct Orders {
    stopping: AtomicBool,
    /// No new front end can connect, and one that is setting up its connection may finish that.
    retiring: AtomicBool,
    suspending: AtomicBool,
    /// Counts changes of the configuration space.
    config_changes: AtomicU64,
    wakers: Vec<Waker>,
    seats: Seats,
}

impl Orders {
    fn is_ending(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) || self.suspending.load(Ordering::SeqCst)
    }

    fn is_retiring(&self) -> bool {
        self.retiring.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        self.wakers.iter().for_each(Waker::wake);
        self.seats.wake();
    }
}

impl fmt::Debug for VhostUserServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VhostUserServer({} queues)", self.device.queues())
    }
}

impl VhostUserServer {
    /// Starts to serve `disk`. When it returns, front ends can connect.
    pub fn start(
        config: VhostUserConfig,
        listener: Listener,
        disk: Arc<dyn Disk<Plain>>,
        lanes: Lanes,
    ) -> Result<Self, StartError> {
        let server = Foundation::new(&config, disk, lanes, Activity::default())?;
        server.start(config, listener, Vec::new())
    }

    /// Resumes where a predecessor was suspended.
    pub fn resume(
        config: VhostUserConfig,
        listener: Listener,
        disk: Arc<dyn Disk<Plain>>,
        lanes: Lanes,
        suspended: Suspended,
    ) -> Result<Self, ResumeError> {
        let Suspended { state, files } = suspended;
        state.check(SESSIONS_MAX)?;
        let server = Foundation::new(&config, disk, lanes, Activity::after(state.last_run))?;
        let mut files = Incoming::new(files);
        let mut sessions = Vec::new();
        for (seat, session) in state.sessions.iter().enumerate() {
            let socket = files.take(session.socket)?;
            let session = Session::take_over(server.place(seat), session, &mut files)
                .map_err(|refusal| ResumeError::Session(refusal.to_string()))?;
            sessions.push((Channel::new(socket), session));
        }
        Ok(server.start(config, listener, sessions)?)
    }

    /// Tells the guest that the disk's size or another limit has changed.
    pub fn announce_config(&self) {
        self.orders.config_changes.fetch_add(1, Ordering::SeqCst);
        self.orders.wake();
    }

    /// Stops: takes no more requests from the guest's rings, answers those in flight, ends the
    /// sessions and flushes the disk.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.stop_and_flush()
    }

    /// Stops as [`Self::stop`] does, when no other server follows on this listening socket. QEMU
    /// before 9.1 never retries when it is cut off while it sets up a connection, and its guest
    /// waits for the disk forever. So new connections are refused, before any front end learns that
    /// this server ends. A front end that has just connected is cut off only when it has finished
    /// its setup, or after [`SETTLES_WITHIN`].
    pub fn retire(mut self) -> Result<(), StopError> {
        self.orders.retiring.store(true, Ordering::SeqCst);
        self.listener.refuse();
        self.orders.stopping.store(true, Ordering::SeqCst);
        self.stop_and_flush()
    }

    /// Stops as [`Self::stop`] does, but keeps the sessions for a successor, and does not flush.
    pub fn suspend(mut self) -> Result<Suspended, StopError> {
        self.orders.suspending.store(true, Ordering::SeqCst);
        let parked = self.join(Instant::now() + self.drain_timeout)?;
        let mut sessions = Vec::new();
        let mut files = Vec::new();
        for (mut session, outgoing) in parked {
            session.shift_files(files.len());
            files.extend(outgoing.into_files());
            sessions.push(session);
        }
        if files.len() > super::SUSPENDED_FILES_MAX {
            return Err(SuspendedError::TooManyFiles.into());
        }
        Ok(Suspended { state: SuspendedState::new(self.activity.last(), sessions), files })
    }

    /// Ends all threads. Returns the sessions that they parked.
    fn join(&mut self, deadline: Instant) -> Result<Vec<Parked>, StopError> {
        self.activity.close();
        self.orders.wake();
        let mut parked = Vec::new();
        for _ in 0..self.jobs.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.ended.recv_timeout(left) {
                Ok(session) => parked.extend(session?),
                Err(RecvTimeoutError::Timeout) => {
                    // They end when the disk has finished; do not wait a second time.
                    self.jobs.clear();
                    return Err(StopError::Busy(self.drain_timeout));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(StopError::Panicked),
            }
        }
        for job in self.jobs.drain(..) {
            job.join().map_err(|_| StopError::Panicked)?;
        }
        Ok(parked)
    }

    fn stop_and_flush(&mut self) -> Result<(), StopError> {
        if self.jobs.is_empty() {
            return Ok(());
        }
        self.orders.stopping.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + self.drain_timeout;
        self.join(deadline)?;
        let (end, ended) = sync_channel(1);
        let device = Arc::clone(&self.device);
        // All queues have ended, so a lane is free.
        let job = self.lanes.run(move |ring| {
            let _ = end.send(flush(device.disk(), ring, STAGE_MEMORY_BYTES));
        });
        job.map_err(|_| StopError::Panicked)?;
        match ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(flushed) => flushed.map_err(StopError::Flush),
            Err(RecvTimeoutError::Timeout) => Err(StopError::Busy(self.drain_timeout)),
            Err(RecvTimeoutError::Disconnected) => Err(StopError::Panicked),
        }
    }
}

impl Drop for VhostUserServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop_and_flush() {
            tracing::error!(server = ?self, %error, "the vhost-user server did not stop cleanly");
        }
    }
}

/// A server without threads.
struct Foundation {
    device: Arc<Device>,
    activity: Arc<Activity>,
    lanes: Lanes,
}

impl Foundation {
    fn new(
        config: &VhostUserConfig,
        disk: Arc<dyn Disk<Plain>>,
        lanes: Lanes,
        activity: Activity,
    ) -> Result<Self, StartError> {
        if !(1..=QUEUES_MAX).contains(&config.queues_max) {
            return Err(StartError::Queues(config.queues_max));
        }
        let (needed, idle) = (config.lanes(), lanes.idle());
        if idle < needed {
            return Err(StartError::Lanes { needed, idle });
        }
        let (book, recorders) = (Arc::clone(&config.book), config.recorders.clone());
        let (serial, queues, limits) = (&config.serial, config.queues_max, config.limits.clone());
        let device = Arc::new(Device::new(disk, serial, queues, book, recorders, limits));
        Ok(Self { device, activity: Arc::new(activity), lanes })
    }

    fn place(&self, seat: usize) -> Place {
        Place {
            seat,
            device: Arc::clone(&self.device),
            activity: Arc::clone(&self.activity),
            lanes: self.lanes.clone(),
        }
    }

    fn start(
        self,
        config: VhostUserConfig,
        listener: Listener,
        sessions: Vec<(Channel, Session)>,
    ) -> Result<VhostUserServer, StartError> {
        let wakers: Result<_, _> = (0..SESSIONS_MAX).map(|_| Waker::new()).collect();
        let orders = Arc::new(Orders {
            stopping: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            suspending: AtomicBool::new(false),
            config_changes: AtomicU64::new(0),
            wakers: wakers.map_err(StartError::Waker)?,
            seats: Seats::new(SESSIONS_MAX),
        });
        let listener = Arc::new(listener);
        let (end, ended) = sync_channel(SESSIONS_MAX);
        let mut sessions = sessions.into_iter();
        let mut jobs = Vec::new();
        for seat in 0..SESSIONS_MAX {
            let (orders, listener) = (Arc::clone(&orders), Arc::clone(&listener));
            let (place, first, end) = (self.place(seat), sessions.next(), end.clone());
            let job = self.lanes.run(move |_| sit(&listener, &place, &orders, first, &end));
            // Another user of the lanes took one meanwhile.
            jobs.push(job.map_err(|_| StartError::Lanes { needed: SESSIONS_MAX, idle: seat })?);
        }
        let Self { device, activity, lanes } = self;
        Ok(VhostUserServer {
            orders,
            listener,
            activity,
            device,
            lanes,
            jobs,
            ended,
            drain_timeout: config.drain_timeout,
        })
    }
}

/// Serves one front end after another. The first may come from a predecessor. Front ends that
/// connected before a retiring server refused connections are served too.
fn sit(
    listener: &Arc<Listener>,
    place: &Place,
    orders: &Orders,
    first: Option<(Channel, Session)>,
    end: &SyncSender<Result<Option<Parked>, SuspendedError>>,
) {
    let mut parked = Ok(None);
    if let Some((channel, session)) = first {
        parked = attend(&channel, place.seat, orders, || Ok(session));
    }
    while !orders.is_ending() || orders.is_retiring() {
        match listener.accept() {
            Ok(Some(socket)) => {
                tracing::info!("front end connected");
                let begin = || Session::new(place.clone());
                parked = attend(&Channel::new(socket), place.seat, orders, begin);
            }
            // The listener refuses connections, and none is left.
            Ok(None) | Err(_) if orders.is_ending() => break,
            Ok(None) => {
                if let Err(errno) = await_readable(listener, &orders.wakers[place.seat], None) {
                    tracing::error!(%errno, "cannot wait for front ends any more");
                    break;
                }
            }
            Err(errno) => {
                tracing::error!(%errno, "cannot accept a front end");
                std::thread::sleep(OUT_OF_DESCRIPTORS_PAUSE);
            }
        }
    }
    let _ = end.send(parked);
}

/// Serves one front end to its end. Returns the session, if it is to be handed over.
fn attend(
    channel: &Channel,
    seat: usize,
    orders: &Orders,
    begin: impl FnOnce() -> Result<Session, RegionError>,
) -> Result<Option<Parked>, SuspendedError> {
    let gives_up = || orders.is_ending() && !orders.is_retiring();
    let Some(_seat) = orders.seats.take(seat, channel.socket(), gives_up) else {
        return Ok(None);
    };
    let mut session = match begin() {
        Ok(session) => session,
        Err(error) => {
            tracing::error!(%error, "a front end cannot be served");
            return Ok(None);
        }
    };
    match serve_session(channel, &mut session, &orders.wakers[seat], orders) {
        End::Asked if orders.suspending.load(Ordering::SeqCst) => return park(channel, &mut session),
        End::Asked | End::Channel(ChannelError::Gone) => tracing::info!("front end disconnected"),
        end => tracing::warn!(reason = %end, "the session with a front end ended"),
    }
    Ok(None)
}

fn park(channel: &Channel, session: &mut Session) -> Result<Option<Parked>, SuspendedError> {
    let mut files = Outgoing::default();
    let socket = files.add(channel.socket())?;
    Ok(Some((session.suspend(socket, &mut files)?, files)))
}

fn serve_session(channel: &Channel, session: &mut Session, waker: &Waker, orders: &Orders) -> End {
    let mut announced = orders.config_changes.load(Ordering::SeqCst);
    let mut setup = Setup::begun(Instant::now());
    let mut step = || -> Result<(), End> {
        let until = match (orders.is_ending(), orders.is_retiring()) {
            (false, _) => None,
            (true, false) => return Err(End::Asked),
            (true, true) => Some(setup.goes_on_until(session.runs()).ok_or(End::Asked)?),
        };
        let changes = orders.config_changes.load(Ordering::SeqCst);
        if changes != announced {
            announced = changes;
            session.announce_config()?;
        }
        if let Received::Message(header, body, files) = channel.receive(waker, until)? {
            setup.last_message = Instant::now();
            if let Some(answer) = session.handle(header, &body, files)? {
                channel.send(&answer)?;
            }
        }
        Ok(())
    };
    loop {
        if let Err(end) = step() {
            return end;
        }
    }
}

/// A front end's progress in setting up its connection.
struct Setup {
    begun: Instant,
    last_message: Instant,
}

impl Setup {
    fn begun(now: Instant) -> Self {
        Self { begun: now, last_message: now }
    }

    /// The deadline of the setup; `None` once it is done, or takes too long.
    fn goes_on_until(&self, runs: bool) -> Option<Instant> {
        let at_most = self.begun + SETTLES_WITHIN;
        let until = if runs { at_most.min(self.last_message + SETTLED_AFTER) } else { at_most };
        (until > Instant::now()).then_some(until)
    }
}
