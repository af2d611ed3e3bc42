//! Shipping the log to a collector: syslog (RFC 5424) over TLS (RFC 5425).
//!
//! Each line of the log, heads included, is one message, in order; the collector receives the lines
//! byte by byte and can verify the chain itself. Syslog has no acknowledgement, so shipping builds
//! one from TLS: after some lines, or some time, it closes the connection in order, and the
//! collector must answer with its own close (RFC 5425, 4.4) after it has read everything before.
//! Then the cursor moves, durably. If anything fails before that, all lines since the cursor are
//! sent again: each line arrives at least once, and a repeated line is identical.
//!
//! - `message`: lines as messages. `connection`: one connection and its close. The log keeps a
//!   collector's progress (`log/cursor.rs`), because retention relies on it too.

mod connection;
mod message;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustls::ClientConfig;

use crate::error::AuditError;
use crate::log::{AuditLog, Cursor, Follower};

use self::connection::Connection;

/// How often a thread that waits for lines checks whether it must end.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes gathered into one write when several lines are ready.
const CHUNK_BYTES: usize = 32 * 1024;

/// A collector.
#[derive(Clone, Debug)]
pub struct Collector {
    /// Names its cursor in the log's directory: letters, digits and `-`, at most 32.
    pub name: String,
    /// Its host name or address, which its certificate must be for.
    pub host: String,
    /// Its port; 6514 is registered for this.
    pub port: u16,
    /// The trusted roots, and our client certificate.
    pub tls: Arc<ClientConfig>,
    /// This machine's name: the HOSTNAME of its messages.
    pub origin: String,
}

/// How lines are shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipOptions {
    /// Lines after which they are confirmed.
    pub confirm_lines: u64,
    /// Time after which lines are confirmed, however few there are.
    pub confirm_interval: Duration,
    /// Most time for connecting, for a write, and for the collector's end.
    pub timeout: Duration,
    /// The pause after a failure, doubled with each further one.
    pub retry_least: Duration,
    /// The longest pause.
    pub retry_most: Duration,
}

impl Default for ShipOptions {
    fn default() -> Self {
        Self {
            confirm_lines: 4096,
            confirm_interval: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
            retry_least: Duration::from_millis(500),
            retry_most: Duration::from_secs(30),
        }
    }
}

/// The state of shipping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShipStatus {
    /// The last line that the collector has confirmed, durably noted; 0 for none.
    pub confirmed: u64,
    /// Connections that were confirmed.
    pub connections: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// The last failure, until the next success.
    pub trouble: Option<String>,
}

/// Ships a log until it is dropped or the log is closed. Lines sent by then are confirmed, if the
/// collector answers in time.
#[derive(Debug)]
pub struct Shipper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    status: ShipStatus,
    ending: bool,
    /// The last line that `finish` waits for: once it is sent, all lines are confirmed at once.
    hurried: Option<u64>,
}

impl Shipper {
    /// Begins to ship at the collector's cursor, or at the first line.
    ///
    /// # Errors
    /// [`AuditError::Io`] if the cursor cannot be read or the name is invalid,
    /// [`AuditError::Damaged`] if the collector has confirmed lines that the log does not have.
    pub fn start(log: &AuditLog, collector: Collector, options: ShipOptions) -> Result<Self, AuditError> {
        let mut cursor = Cursor::load(log.directory(), &collector.name, log)?;
        cursor.skip_what_has_gone()?;
        let shared = Arc::new(Shared::default());
        shared.state().status.confirmed = cursor.next - 1;
        let from = cursor.next;
        let ship =
            Ship { follower: log.follow(from), collector, options, cursor, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("audit-shipper".into()).spawn(move || ship.run());
        let thread = thread.map_err(|error| AuditError::opening(&error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The state of shipping.
    pub fn status(&self) -> ShipStatus {
        self.shared.state().status.clone()
    }

    /// Waits until the collector has confirmed a line, or `wait` is over. Returns whether it has.
    pub fn wait_for(&self, sequence: u64, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.state();
        while state.status.confirmed < sequence {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.shared.changed.wait_for(&mut state, left);
        }
        true
    }

    /// Ships all lines up to `sequence` without waiting for more, and ends. Returns whether the
    /// collector has confirmed it. Does not wait for a failing collector.
    pub fn finish(self, sequence: u64, wait: Duration) -> bool {
        self.shared.state().hurried = Some(sequence);
        self.shared.changed.notify_all();
        let wait = if self.status().trouble.is_some() { Duration::ZERO } else { wait };
        self.wait_for(sequence, wait)
    }
}

impl Drop for Shipper {
    fn drop(&mut self) {
        self.shared.state().ending = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic; the cursor has not moved.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Pauses. Returns whether the thread must end.
    fn pause(&self, pause: Duration) -> bool {
        let mut state = self.state();
        self.changed.wait_while_for(&mut state, |state| !state.ending, pause);
        state.ending
    }

    fn is_ending(&self) -> bool {
        self.state().ending
    }

    /// Whether the lines up to `sent` must be confirmed now.
    fn is_hurried(&self, sent: u64) -> bool {
        let state = self.state();
        state.ending || state.hurried.is_some_and(|hurried| sent >= hurried)
    }
}

/// The state of the shipping thread.
struct Ship {
    follower: Follower,
    collector: Collector,
    options: ShipOptions,
    cursor: Cursor,
    shared: Arc<Shared>,
}

/// Why a connection ended.
enum Stop {
    /// Its lines must be confirmed.
    Confirm,
    /// There will be no more lines.
    Closed,
}

impl Ship {
    fn run(mut self) {
        let mut pause = self.options.retry_least;
        loop {
            match self.ship_some() {
                Ok(Stop::Closed) => return,
                Ok(Stop::Confirm) => pause = self.options.retry_least,
                Err(trouble) => {
                    tracing::warn!(collector = %self.collector.name, %trouble, "the audit log could not be shipped");
                    let mut state = self.shared.state();
                    state.status.failures += 1;
                    state.status.trouble = Some(trouble);
                    drop(state);
                    if self.shared.pause(pause) {
                        return;
                    }
                    pause = (pause * 2).min(self.options.retry_most);
                    self.follower = self.follower.again_from(self.cursor.next);
                }
            }
            if self.shared.is_ending() {
                return;
            }
        }
    }

    /// Waits for a line, and ships it and those that follow on one connection.
    fn ship_some(&mut self) -> Result<Stop, String> {
        let first = loop {
            if self.shared.is_ending() {
                return Ok(Stop::Closed);
            }
            match self.follower.line(LOOK_INTERVAL) {
                Ok(Some(line)) => break line,
                Ok(None) => {}
                Err(AuditError::Closed) => return Ok(Stop::Closed),
                Err(error) => return Err(error.to_string()),
            }
        };
        let mut connection = Connection::open(&self.collector, self.options.timeout)?;
        let stop = self.send_lines(&mut connection, first)?;
        connection.confirm()?;
        self.cursor
            .advance(self.follower.next())
            .map_err(|error| format!("its cursor cannot be kept: {error}"))?;
        let mut state = self.shared.state();
        state.status.confirmed = self.cursor.next - 1;
        state.status.connections += 1;
        state.status.trouble = None;
        drop(state);
        self.shared.changed.notify_all();
        Ok(stop)
    }

    /// Sends lines until they must be confirmed.
    fn send_lines(&mut self, connection: &mut Connection, first: (u64, Vec<u8>)) -> Result<Stop, String> {
        let began = Instant::now();
        let mut chunk = Vec::new();
        let mut count = 0;
        let mut next = Some(first);
        loop {
            while let Some((sequence, line)) = next.take() {
                message::frame(sequence, &line, &self.collector.origin, &mut chunk);
                count += 1;
                if chunk.len() >= CHUNK_BYTES {
                    connection.send(&chunk)?;
                    chunk.clear();
                }
                if count >= self.options.confirm_lines {
                    break;
                }
                next =
                    self.follower.line(Duration::ZERO).or_else(no_more).map_err(|error| error.to_string())?;
            }
            connection.send(&chunk)?;
            chunk.clear();
            let left = self.options.confirm_interval.saturating_sub(began.elapsed());
            if count >= self.options.confirm_lines
                || left.is_zero()
                || self.shared.is_hurried(self.follower.next() - 1)
            {
                return Ok(Stop::Confirm);
            }
            next = match self.follower.line(left.min(LOOK_INTERVAL)) {
                Ok(next) => next,
                Err(AuditError::Closed) => return Ok(Stop::Closed),
                Err(error) => return Err(error.to_string()),
            };
        }
    }
}

/// Maps a closed log to `None`: it only shows after the last line.
fn no_more<T>(error: AuditError) -> Result<Option<T>, AuditError> {
    if error == AuditError::Closed { Ok(None) } else { Err(error) }
}
