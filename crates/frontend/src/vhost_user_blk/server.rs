//! The server: a thread that listens, speaks with one front end at a time, and ends its queues.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use strongroom_io::{Disk, Io, IoError, Plain, Request, Thread, Waker};
use strongroom_memory::BufferPool;
use strongroom_ring::Ring;
use thiserror::Error;

use super::channel::{Channel, ChannelError, Received, await_readable};
use super::device::Device;
use super::protocol::{DRAIN_TIMEOUT, QUEUES_MAX, STAGE_MEMORY_BYTES};
use super::session::{Refusal, Session};
use crate::listen::{Address, ListenError, Listener};

/// How long the server sleeps after the system had no descriptor for a connection.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// What a server serves, and how.
#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// Where to listen: a unix socket, created with mode 0600, in a directory that only trusted users can write.
    pub socket: PathBuf,
    /// The most queues of the device, 1 to 16.
    pub queues_max: u16,
    /// The serial number that the guest reads, of which the first 20 bytes count.
    pub serial: String,
    /// How long stopping waits for what is in flight.
    pub drain_timeout: Duration,
}

impl VhostUserConfig {
    /// The usual limits.
    pub fn new(socket: PathBuf, serial: &str) -> Self {
        Self { socket, queues_max: QUEUES_MAX, serial: serial.to_owned(), drain_timeout: DRAIN_TIMEOUT }
    }
}

/// Why a server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nowhere to listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A number of queues that no device has.
    #[error("{0} queues; 1 to {QUEUES_MAX} are served")]
    Queues(u16),
    /// No event to wake the thread by.
    #[error("cannot make an event: {0}")]
    Waker(#[source] IoError),
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// What went wrong while a server stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// The disk did not finish in time. The threads end when it does.
    #[error("the guest still had requests in the disk after {0:?}")]
    Busy(Duration),
    /// The last flush failed: what the guest wrote and did not flush may be lost in a power cut.
    #[error("the last flush failed: {0}")]
    Flush(#[source] IoError),
    /// A thread ended by a bug.
    #[error("a thread of the server panicked")]
    Panicked,
}

/// Why a session ended.
#[derive(Debug, Error)]
enum End {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the server stops")]
    Stopped,
}

/// A running server. Dropping it stops it.
pub struct VhostUserServer {
    socket: PathBuf,
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<Result<(), IoError>>,
    drain_timeout: Duration,
}

/// What the server's owner asks of its thread.
struct Orders {
    stopping: AtomicBool,
    config_changed: AtomicBool,
    waker: Waker,
}

impl fmt::Debug for VhostUserServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VhostUserServer({})", self.socket.display())
    }
}

impl VhostUserServer {
    /// Starts to serve `disk`. When it returns, a front end can connect.
    pub fn start(config: VhostUserConfig, disk: Arc<dyn Disk<Plain>>) -> Result<Self, StartError> {
        if !(1..=QUEUES_MAX).contains(&config.queues_max) {
            return Err(StartError::Queues(config.queues_max));
        }
        let listener = Listener::bind(&Address::Unix(config.socket.clone()))?;
        let orders = Arc::new(Orders {
            stopping: AtomicBool::new(false),
            config_changed: AtomicBool::new(false),
            waker: Waker::new().map_err(StartError::Waker)?,
        });
        let device = Arc::new(Device::new(disk, &config.serial, config.queues_max));
        let (end, ended) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("vhost-user".to_owned())
            .spawn({
                let orders = Arc::clone(&orders);
                move || {
                    serve(&listener, &device, &orders);
                    drop(listener);
                    let _ = end.send(flush(&**device.disk()));
                }
            })
            .map_err(StartError::Thread)?;
        let VhostUserConfig { socket, drain_timeout, .. } = config;
        Ok(Self { socket, orders, thread: Some(thread), ended, drain_timeout })
    }

    /// Tells the guest that the disk's size, or another limit, is not as it was.
    pub fn announce_config(&self) {
        self.orders.config_changed.store(true, Ordering::SeqCst);
        self.orders.waker.wake();
    }

    /// Stops: takes nothing more from the guest's rings, answers what is in flight, ends the session and flushes the
    /// disk.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.stop_and_join()
    }

    fn stop_and_join(&mut self) -> Result<(), StopError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.orders.stopping.store(true, Ordering::SeqCst);
        self.orders.waker.wake();
        let flushed = match self.ended.recv_timeout(self.drain_timeout) {
            Ok(flushed) => flushed,
            Err(RecvTimeoutError::Timeout) => return Err(StopError::Busy(self.drain_timeout)),
            Err(RecvTimeoutError::Disconnected) => return Err(StopError::Panicked),
        };
        thread.join().map_err(|_| StopError::Panicked)?;
        flushed.map_err(StopError::Flush)
    }
}

impl Drop for VhostUserServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop_and_join() {
            tracing::error!(server = ?self, %error, "the vhost-user server did not stop cleanly");
        }
    }
}

/// Serves one front end after another. The next one's session begins when everything of the last one's has ended.
fn serve(listener: &Listener, device: &Arc<Device>, orders: &Orders) {
    while !orders.stopping.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok(Some(socket)) => {
                let channel = Channel::new(socket);
                tracing::info!("front end connected");
                match serve_session(&channel, device, orders) {
                    Ok(()) | Err(End::Stopped | End::Channel(ChannelError::Gone)) => {
                        tracing::info!("front end disconnected")
                    }
                    Err(end) => tracing::warn!(reason = %end, "the session with a front end ended"),
                }
            }
            Ok(None) => {
                if let Err(errno) = await_readable(listener, &orders.waker) {
                    tracing::error!(%errno, "cannot wait for front ends any more");
                    return;
                }
            }
            Err(errno) => {
                tracing::error!(%errno, "cannot accept a front end");
                std::thread::sleep(OUT_OF_DESCRIPTORS_PAUSE);
            }
        }
    }
}

fn serve_session(channel: &Channel, device: &Arc<Device>, orders: &Orders) -> Result<(), End> {
    let mut session = Session::new(Arc::clone(device)).map_err(Refusal::from)?;
    loop {
        match channel.receive(&orders.waker)? {
            Received::Message(header, body, files) => {
                if let Some(answer) = session.handle(header, &body, files)? {
                    channel.send(&answer)?;
                }
            }
            Received::Woken if orders.stopping.load(Ordering::SeqCst) => return Err(End::Stopped),
            Received::Woken => {
                if orders.config_changed.swap(false, Ordering::SeqCst) {
                    session.announce_config()?;
                }
            }
        }
    }
}

/// Makes everything durable that was written.
fn flush(disk: &dyn Disk<Plain>) -> Result<(), IoError> {
    if disk.limits().read_only {
        return Ok(());
    }
    let no_memory = || IoError::from(Errno::NOMEM);
    let ring = Ring::new(1).map_err(|_| no_memory())?;
    let pool = BufferPool::new(STAGE_MEMORY_BYTES).map_err(|_| no_memory())?;
    let mut channel = disk.open(&Thread { pool, reactor: Rc::new(ring.clone()) }, 1)?;
    channel.submit(Io { tag: 0, request: Request::Flush });
    channel.kick();
    let mut done = Vec::new();
    loop {
        channel.poll(&mut done);
        if let Some(end) = done.pop() {
            return end.result;
        }
        ring.wait(None)?;
    }
}
