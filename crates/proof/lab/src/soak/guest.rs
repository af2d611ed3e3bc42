//! The load on one volume: verified, limited to a rate, and continued through all disturbances of
//! its server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;

use super::error::{SoakError, is_gone};
use super::gate::Gate;
use super::kind::Kind;
use super::tools::{COMMAND_TIMEOUT, LOOK_PERIOD, signal_worker};
use super::volume::BYTES_FIRST;
use crate::vhost_user::front_end::{FrontEnd, Settings};
use crate::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};

/// The duration of a slice of load.
const SLICE: Duration = Duration::from_millis(3);
/// The longest rest of a guest before it checks for a blow.
const REST_MAX: Duration = Duration::from_millis(10);
/// No answer for so long is a violation. A machine under load, a full disk and a frozen worker
/// together stay well below it.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
const QUEUES: u16 = 2;
const DEPTH: u16 = 8;

/// A disturbance by a guest, with requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// Kills a worker of a process.
    Kill {
        /// Its supervisor.
        supervisor: u32,
        /// The worker.
        worker: u32,
    },
    /// Cuts the connection.
    Disconnect,
    /// Stops the queues in order, and then cuts the connection.
    Requeue,
    /// Extends the used area to this many bytes.
    Extend(u64),
}

/// The shared state of a guest.
#[derive(Debug, Default)]
pub struct GuestState {
    operations: AtomicU64,
    stall_us: AtomicU64,
    ended: AtomicBool,
}

/// The conductor's handle of a guest.
pub struct GuestHandle {
    kind: Kind,
    state: Arc<GuestState>,
    blows: Sender<(Blow, SyncSender<()>)>,
}

impl GuestHandle {
    /// Requests that were answered so far.
    pub fn operations(&self) -> u64 {
        self.state.operations.load(Ordering::SeqCst)
    }

    /// The longest time without an answer since the last call.
    pub fn take_longest_stall(&self) -> Duration {
        Duration::from_micros(self.state.stall_us.swap(0, Ordering::SeqCst))
    }

    /// Whether it is still running.
    pub fn goes_on(&self) -> bool {
        !self.state.ended.load(Ordering::SeqCst)
    }

    /// Requests a blow, and waits until it is done.
    pub fn strike(&self, blow: Blow) -> Result<(), SoakError> {
        let (done, is_done) = sync_channel(1);
        let ended = || SoakError::NoLoad(self.kind.name().to_owned());
        self.blows.send((blow, done)).map_err(|_| ended())?;
        is_done.recv_timeout(COMMAND_TIMEOUT + STALL_TIMEOUT).map_err(|_| ended())
    }
}

/// A guest, on its own thread.
pub struct Guest<'soak> {
    kind: Kind,
    load: Load,
    rate: f64,
    gate: &'soak Gate,
    stop: &'soak AtomicBool,
    state: Arc<GuestState>,
    blows: Receiver<(Blow, SyncSender<()>)>,
}

impl<'soak> Guest<'soak> {
    /// Connects, and makes the disk zeroes. `rate` is in requests a second.
    pub fn connect(
        kind: Kind,
        socket: &Path,
        seed: u64,
        rate: f64,
        gate: &'soak Gate,
        stop: &'soak AtomicBool,
    ) -> Result<(Self, GuestHandle), SoakError> {
        let failed = |error: LoadError| SoakError::load(kind.name(), error);
        let front_end =
            FrontEnd::connect(socket, Settings::new(QUEUES, DEPTH)).map_err(|error| failed(error.into()))?;
        let config =
            LoadConfig { area_bytes: BYTES_FIRST, stall_timeout: STALL_TIMEOUT, ..LoadConfig::new(seed) };
        let load = Load::new(front_end, config).map_err(failed)?;
        let state = Arc::new(GuestState::default());
        let (sender, blows) = channel();
        let handle = GuestHandle { kind, state: Arc::clone(&state), blows: sender };
        Ok((Self { kind, load, rate, gate, stop, state, blows }, handle))
    }

    /// Makes load until it is stopped; then reads everything once more.
    pub fn run(mut self) -> Result<Report, SoakError> {
        let ended = self.make_load().and_then(|()| self.until_done(Load::read_all));
        self.tell();
        self.state.ended.store(true, Ordering::SeqCst);
        ended.map(|()| self.load.report()).map_err(|error| SoakError::load(self.kind.name(), error))
    }

    fn make_load(&mut self) -> Result<(), LoadError> {
        let mut due = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let before = self.load.report().operations();
            self.slice()?;
            if let Ok((blow, done)) = self.blows.try_recv() {
                // Fill the queues again first.
                self.slice()?;
                self.until_done(|load| strike(load, blow))?;
                // The requester may be gone.
                let _ = done.send(());
            }
            let answered = self.load.report().operations() - before;
            // Requests missed during a stall are not made up for.
            due = due.max(Instant::now() - REST_MAX) + Duration::from_secs_f64(answered as f64 / self.rate);
            while Instant::now() < due && !self.stop.load(Ordering::Relaxed) {
                let until = due.min(Instant::now() + REST_MAX);
                self.until_done(|load| load.rest(until))?;
                self.tell();
            }
        }
        Ok(())
    }

    /// Load for a moment, when it is this guest's turn.
    fn slice(&mut self) -> Result<(), LoadError> {
        let place = self.gate.enter();
        let made = self.load.run(Until::Time(Instant::now() + SLICE));
        drop(place);
        self.tell();
        match made {
            // Await the successor without blocking others' turns.
            Err(error) if is_gone(&error) => self.find_successor(),
            other => other,
        }
    }

    fn until_done(&mut self, step: impl Fn(&mut Load) -> Result<(), LoadError>) -> Result<(), LoadError> {
        while let Err(error) = step(&mut self.load) {
            if !is_gone(&error) {
                return Err(error);
            }
            self.find_successor()?;
        }
        Ok(())
    }

    fn find_successor(&mut self) -> Result<(), LoadError> {
        let until = Instant::now() + COMMAND_TIMEOUT;
        loop {
            match self.load.reconnect() {
                Ok(_) => return Ok(()),
                Err(error) if is_gone(&error) && Instant::now() < until => thread::sleep(LOOK_PERIOD),
                Err(error) => return Err(error),
            }
        }
    }

    fn tell(&mut self) {
        let stall = self.load.take_longest_stall().max(self.load.current_stall());
        self.state.stall_us.fetch_max(stall.as_micros() as u64, Ordering::SeqCst);
        self.state.operations.store(self.load.report().operations(), Ordering::SeqCst);
    }
}

fn strike(load: &mut Load, blow: Blow) -> Result<(), LoadError> {
    match blow {
        Blow::Kill { supervisor, worker } => {
            // If it has just died by itself, its supervisor reports that.
            let _ = signal_worker(supervisor, worker, Signal::KILL);
        }
        Blow::Disconnect => cut(load),
        Blow::Requeue => {
            load.front_end().stop()?;
            cut(load);
        }
        Blow::Extend(bytes) => load.extend(bytes),
    }
    Ok(())
}

fn cut(load: &mut Load) {
    // If the server has just gone, the connection is already cut.
    let _ = shutdown(load.front_end().connection().socket(), Shutdown::Both);
}
