//! What the threads of one end share: whether and why it has ended, the sockets that an end closes,
//! and how far it is.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use strongroom_memory::Padded;

use super::pace::Pace;
use crate::error::MigrateError;
use crate::keys::Direction;
use crate::line::Speaker;

/// How long a channel that broke off waits for the line to say why.
const REASON_WITHIN: Duration = Duration::from_secs(2);

/// How far one end of a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whether the two hosts have admitted each other.
    pub is_established: bool,
    /// QEMU's channels so far.
    pub channels: u16,
    /// Bytes of QEMU's that have passed from the source to the target.
    pub to_target_bytes: u64,
    /// Bytes that have passed back.
    pub to_source_bytes: u64,
}

/// A socket that an end closes.
#[derive(Debug)]
pub(super) enum Socket {
    Wire(Weak<TcpStream>),
    Qemu(Weak<UnixStream>),
    WireDoor(Weak<TcpListener>),
    QemuDoor(Weak<UnixListener>),
}

impl Socket {
    fn is_open(&self) -> bool {
        match self {
            Self::Wire(socket) => socket.strong_count() > 0,
            Self::Qemu(socket) => socket.strong_count() > 0,
            Self::WireDoor(socket) => socket.strong_count() > 0,
            Self::QemuDoor(socket) => socket.strong_count() > 0,
        }
    }

    fn shut(&self) {
        // It fails for what is shut already.
        let _ = match self {
            Self::Wire(socket) => socket.upgrade().map(|socket| socket.shutdown(Shutdown::Both)),
            Self::Qemu(socket) => socket.upgrade().map(|socket| socket.shutdown(Shutdown::Both)),
            Self::WireDoor(socket) => socket.upgrade().map(|socket| shut_door(&*socket)),
            Self::QemuDoor(socket) => socket.upgrade().map(|socket| shut_door(&*socket)),
        };
    }
}

/// Ends the wait of whoever accepts connections at a listener.
pub(super) fn shut_door(door: impl std::os::fd::AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(door, rustix::net::Shutdown::Both)?)
}

#[derive(Debug)]
struct Line {
    wire: Arc<TcpStream>,
    speaker: Speaker,
}

#[derive(Debug, Default)]
struct State {
    /// It is over, with or without a failure.
    has_ended: bool,
    failure: Option<MigrateError>,
    is_established: bool,
    /// Everything was sent over so many channels, and this side has said so.
    said_channels: Option<u16>,
    /// This side has said that it is complete.
    has_said_complete: bool,
    line: Option<Line>,
    sockets: Vec<Socket>,
    /// Channels that were opened: channel `n` if bit `n` is set.
    opened: u128,
    /// Of these, the number over which QEMU of this side sends nothing more.
    sent: u16,
    /// The number that have ended in both directions.
    ended: u16,
    /// QEMU has channel 0.
    has_main: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    pace: Mutex<Pace>,
    to_target_bytes: Padded<AtomicU64>,
    to_source_bytes: Padded<AtomicU64>,
}

impl Shared {
    pub(super) fn new(bytes_per_second: Option<NonZeroU64>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            pace: Mutex::new(Pace::new(bytes_per_second, Instant::now())),
            to_target_bytes: Padded::default(),
            to_source_bytes: Padded::default(),
        }
    }

    /// Has an end close this socket, too.
    pub(super) fn keep(&self, socket: Socket) {
        let mut state = self.state.lock();
        if state.has_ended {
            return socket.shut();
        }
        state.sockets.retain(Socket::is_open);
        state.sockets.push(socket);
    }

    /// The two hosts have admitted each other. Returns `false` if that is so already, or it has
    /// ended.
    pub(super) fn establish(&self, wire: &Arc<TcpStream>, speaker: Speaker) -> bool {
        let mut state = self.state.lock();
        if state.is_established || state.has_ended {
            return false;
        }
        state.is_established = true;
        state.line = Some(Line { wire: Arc::clone(wire), speaker });
        self.changed.notify_all();
        true
    }

    pub(super) fn await_establishment(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.is_established && !state.has_ended);
        state.is_established
    }

    pub(super) fn is_established(&self) -> bool {
        self.state.lock().is_established
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    /// Ends it early, for the first reason that is given: tells the other side, then closes
    /// everything.
    pub(super) fn fail(&self, error: MigrateError) {
        let mut state = self.state.lock();
        if state.has_ended {
            return;
        }
        state.has_ended = true;
        let reason = error.reason();
        tracing::info!(%error, "a migration has ended early");
        state.failure = Some(error);
        let (line, sockets) = (state.line.take(), std::mem::take(&mut state.sockets));
        self.changed.notify_all();
        drop(state);
        if let Some(Line { wire, mut speaker }) = line {
            // The other side may be what has failed; then it hears of it from its own sockets.
            let _ = speaker.fail(&wire, reason);
        }
        sockets.iter().for_each(Socket::shut);
    }

    /// A channel broke off. The line knows why if the other side has failed; if it does not say so
    /// soon, the channel itself is the reason.
    pub(super) fn broke_off(&self, error: MigrateError) {
        let until = Instant::now() + REASON_WITHIN;
        let mut state = self.state.lock();
        while !state.has_ended && !self.changed.wait_until(&mut state, until).timed_out() {}
        drop(state);
        self.fail(error);
    }

    /// Says that there were so many channels, and that everything was sent over them.
    pub(super) fn say_channels(&self, count: u16) -> Result<(), MigrateError> {
        let mut state = self.state.lock();
        state.said_channels = Some(count);
        match state.line.as_mut() {
            Some(Line { wire, speaker }) => speaker.channels(wire, count),
            None => Ok(()),
        }
    }

    pub(super) fn said_channels(&self) -> Option<u16> {
        self.state.lock().said_channels
    }

    /// This side is complete, and says so.
    pub(super) fn say_complete(&self) -> Result<(), MigrateError> {
        let mut state = self.state.lock();
        state.has_said_complete = true;
        match state.line.as_mut() {
            Some(Line { wire, speaker }) => speaker.complete(wire),
            None => Ok(()),
        }
    }

    pub(super) fn has_said_complete(&self) -> bool {
        self.state.lock().has_said_complete
    }

    /// It has ended as it should, unless it has ended already.
    pub(super) fn complete(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.line = None;
        let sockets = std::mem::take(&mut state.sockets);
        self.changed.notify_all();
        drop(state);
        sockets.iter().for_each(Socket::shut);
    }

    /// Takes the reason for an early end.
    pub(super) fn failure(&self) -> Option<MigrateError> {
        self.state.lock().failure.take()
    }

    /// Opens a channel. Returns `false` if it is open already.
    pub(super) fn open_channel(&self, number: u16) -> bool {
        let mut state = self.state.lock();
        let bit = 1_u128 << number;
        let is_new = state.opened & bit == 0;
        state.opened |= bit;
        is_new
    }

    /// QEMU has channel 0.
    pub(super) fn has_main(&self) {
        self.state.lock().has_main = true;
        self.changed.notify_all();
    }

    /// Waits until QEMU has channel 0. Returns `false` if it ends before.
    pub(super) fn await_main(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.has_main && !state.has_ended);
        !state.has_ended
    }

    /// QEMU of this side sends nothing more over a channel, and all of it was sent.
    pub(super) fn end_sending(&self) {
        self.state.lock().sent += 1;
        self.changed.notify_all();
    }

    /// Waits until everything was sent over so many channels. Returns `false` if it ends before.
    pub(super) fn await_sent(&self, count: u16) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.sent < count && !state.has_ended);
        !state.has_ended
    }

    /// A channel has ended in both directions.
    pub(super) fn end_channel(&self) {
        self.state.lock().ended += 1;
        self.changed.notify_all();
    }

    /// Waits until so many channels have ended. Returns `false` if the whole ends before.
    pub(super) fn await_channels(&self, count: u16) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.ended < count && !state.has_ended);
        !state.has_ended
    }

    /// Waits until bytes may pass, and returns `false` if it ends meanwhile.
    pub(super) fn pace(&self, bytes: usize) -> bool {
        let Some(until) = self.pace.lock().pass(bytes, Instant::now()) else {
            return true;
        };
        let mut state = self.state.lock();
        while !state.has_ended && !self.changed.wait_until(&mut state, until).timed_out() {}
        !state.has_ended
    }

    pub(super) fn set_limit(&self, bytes_per_second: Option<NonZeroU64>) {
        self.pace.lock().set(bytes_per_second, Instant::now());
    }

    /// Bytes have passed.
    pub(super) fn passed(&self, direction: Direction, bytes: usize) {
        let counter = match direction {
            Direction::ToTarget => &self.to_target_bytes,
            Direction::ToSource => &self.to_source_bytes,
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn progress(&self) -> Progress {
        let state = self.state.lock();
        Progress {
            is_established: state.is_established,
            channels: state.opened.count_ones() as u16,
            to_target_bytes: self.to_target_bytes.load(Ordering::Relaxed),
            to_source_bytes: self.to_source_bytes.load(Ordering::Relaxed),
        }
    }
}
