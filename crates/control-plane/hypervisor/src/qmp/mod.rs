//! The QMP connection to a running QEMU. Only the process of a [monitor](crate::monitor) uses it,
//! and tests.
//!
//! The types of commands are those of `qapi-qmp`. Messages are parsed here, because that crate
//! refuses events and words that are newer than it. An attacker who has captured QEMU can send
//! anything, so the length of a line and the number of queued events are bounded.

mod event;
mod hot_plug;
mod memory;
mod message;
mod migration;
mod reader;
mod shared;
mod sizes;

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::net::SendFlags;
use serde_json::{Value, json};
use thiserror::Error;

pub use qapi_qmp as commands;
pub use qapi_spec::Command;

pub use self::event::PowerEvent;
pub use self::memory::Transfer;
pub use self::message::Refusal;
pub use self::migration::{MigrationPhase, MigrationProgress, MigrationSettings};
use self::reader::Answer;
pub use self::reader::LINE_BYTES_MAX;
pub use self::shared::EVENTS_MAX;
pub(crate) use self::shared::Shared;
use crate::version::Version;

/// Timeout of QEMU, which answers at once unless its main loop is blocked by a disk's flush.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Why a QMP command failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QmpError {
    /// The connection failed.
    #[error("cannot connect to QEMU at {path}: {reason}")]
    Connect {
        /// The path of the socket.
        path: String,
        /// The error.
        reason: String,
    },
    /// QEMU refused the command.
    #[error("QEMU refuses {command}: {}", .refusal.desc)]
    Refused {
        /// The command.
        command: String,
        /// QEMU's refusal.
        refusal: Refusal,
    },
    /// The answer does not have the command's form.
    #[error("QEMU's answer to {command} cannot be read: {reason}")]
    Answer {
        /// The command.
        command: String,
        /// The error in the answer.
        reason: String,
    },
    /// QEMU did not answer in time.
    #[error("QEMU has not answered {command} within {within:?}")]
    Silent {
        /// The command.
        command: String,
        /// The timeout.
        within: Duration,
    },
    /// There is no free port for another device.
    #[error("all ports of the machine are taken; take a device out first, or stop the machine")]
    NoPort,
    /// The connection has ended.
    #[error("the connection to QEMU is over: {0}")]
    Over(String),
}

/// A connection to a running QEMU. Threads may share it.
#[derive(Debug)]
pub struct Qmp {
    socket: Arc<UnixStream>,
    version: Version,
    shared: Arc<Shared<Answer>>,
    /// Serialises the commands on the socket.
    sending: Mutex<()>,
    reader: Option<JoinHandle<()>>,
}

/// Whether a machine runs, as reported by QEMU (`query-status`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStatus {
    /// Whether its processors run.
    pub running: bool,
    /// QEMU's word, such as `prelaunch`, `paused`, `guest-panicked` or one of a newer QEMU.
    pub word: String,
}

impl Qmp {
    /// Connects, and enters command mode.
    pub fn connect(path: &Path, within: Duration) -> Result<Self, QmpError> {
        let failed = |reason: String| QmpError::Connect { path: path.display().to_string(), reason };
        let socket = UnixStream::connect(path).map_err(|error| failed(error.to_string()))?;
        Self::greet(socket, within)
    }

    /// Enters command mode on a connection to QEMU.
    pub fn greet(socket: UnixStream, within: Duration) -> Result<Self, QmpError> {
        QuietQmp::new(socket)?.greet(within)
    }

    /// QEMU's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Executes a command of [`commands`].
    pub fn execute<C: Command>(&self, command: &C) -> Result<C::Ok, QmpError> {
        let malformed = |error: serde_json::Error| QmpError::Answer {
            command: C::NAME.to_owned(),
            reason: error.to_string(),
        };
        let arguments = serde_json::to_value(command).map_err(malformed)?;
        let answer = self.execute_value(C::NAME, &arguments)?;
        serde_json::from_value(answer).map_err(malformed)
    }

    /// Executes a command by its name, where the types do not fit all versions.
    pub fn execute_value(&self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        self.execute_within(arguments, command, &[], Instant::now() + ANSWERS_WITHIN, ANSWERS_WITHIN)
    }

    /// Passes QEMU an open file under a name that later commands can use (`getfd`).
    pub fn give_file(&self, name: &str, file: BorrowedFd<'_>) -> Result<(), QmpError> {
        let until = Instant::now() + ANSWERS_WITHIN;
        let arguments = json!({ "fdname": name });
        self.execute_within(&arguments, "getfd", &[file], until, ANSWERS_WITHIN).map(drop)
    }

    /// Waits for the next event; `Ok(None)` after the timeout.
    ///
    /// # Errors
    /// [`QmpError::Over`] once the connection has ended and all earlier events were returned.
    pub fn next_event(&self, within: Duration) -> Result<Option<PowerEvent>, QmpError> {
        self.shared.next_event(Instant::now() + within)
    }

    /// Returns whether the machine runs.
    pub fn status(&self) -> Result<RunStatus, QmpError> {
        // Untyped, since a word that the types do not know would be an error.
        let answer = self.execute_value("query-status", &json!({}))?;
        let (running, word) = (answer["running"].as_bool(), answer["status"].as_str());
        let (Some(running), Some(word)) = (running, word) else {
            return Err(QmpError::Answer {
                command: "query-status".to_owned(),
                reason: "it says neither running nor status".to_owned(),
            });
        };
        Ok(RunStatus { running, word: word.to_owned() })
    }

    /// Resumes the processors.
    pub fn cont(&self) -> Result<(), QmpError> {
        self.execute(&commands::cont {}).map(drop)
    }

    /// Pauses the processors, after all disk requests in flight are completed.
    pub fn stop(&self) -> Result<(), QmpError> {
        self.execute(&commands::stop {}).map(drop)
    }

    /// Presses the power button (ACPI). The guest decides what to do.
    pub fn press_power_button(&self) -> Result<(), QmpError> {
        self.execute(&commands::system_powerdown {}).map(drop)
    }

    /// Presses the reset button.
    pub fn reset(&self) -> Result<(), QmpError> {
        self.execute(&commands::system_reset {}).map(drop)
    }

    /// Cuts the machine's power. QEMU exits in an orderly way.
    pub fn quit(&self) -> Result<(), QmpError> {
        match self.execute(&commands::quit {}) {
            // QEMU may exit before it answers.
            Err(QmpError::Over(_)) => Ok(()),
            answered => answered.map(drop),
        }
    }

    fn execute_within(
        &self,
        arguments: &Value,
        command: &str,
        files: &[BorrowedFd<'_>],
        until: Instant,
        within: Duration,
    ) -> Result<Value, QmpError> {
        let id = self.shared.expect_answer()?;
        let mut line = json!({ "execute": command, "arguments": arguments, "id": id }).to_string();
        line.push('\n');
        if let Err(error) = self.send(line.as_bytes(), files) {
            self.shared.forget_answer(id);
            return Err(QmpError::Over(error.to_string()));
        }
        match self.shared.answer(id, until)? {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(refusal)) => Err(QmpError::Refused { command: command.to_owned(), refusal }),
            None => Err(QmpError::Silent { command: command.to_owned(), within }),
        }
    }

    fn send(&self, line: &[u8], files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let _sending: MutexGuard<'_, ()> = self.sending.lock();
        let mut socket = &*self.socket;
        if files.is_empty() {
            return socket.write_all(line);
        }
        // The file goes with the first bytes; the rest of the line follows.
        let sent = strongroom_wire::send(socket, line, files, SendFlags::empty())?;
        socket.write_all(&line[sent..])
    }
}

/// A connection that has not been read from. Its reader thread already exists, for a process that
/// confines itself before it reads.
#[derive(Debug)]
pub(crate) struct QuietQmp {
    /// Dropped first: the waiting thread then ends, and dropping `qmp` waits for the thread.
    may_read: SyncSender<()>,
    qmp: Qmp,
}

impl QuietQmp {
    /// Prepares a connection, for [`Self::greet`].
    pub fn new(socket: UnixStream) -> Result<Self, QmpError> {
        let over = |error: std::io::Error| QmpError::Over(error.to_string());
        socket.set_write_timeout(Some(ANSWERS_WITHIN)).map_err(over)?;
        let socket = Arc::new(socket);
        let shared = Arc::new(Shared::default());
        let ((is_there, began), (may_read, reads)) = (sync_channel(1), sync_channel(1));
        let thread = std::thread::Builder::new().name("qmp".to_owned());
        let (theirs, heard) = (Arc::clone(&socket), Arc::clone(&shared));
        let reader = thread.spawn(move || {
            let _ = is_there.send(());
            if reads.recv().is_ok() {
                reader::read(&theirs, &heard);
            }
        });
        let reader = Some(reader.map_err(over)?);
        // The thread has finished its start by now.
        let _ = began.recv();
        let (version, sending) = (Version { major: 0, minor: 0 }, Mutex::new(()));
        Ok(Self { may_read, qmp: Qmp { socket, version, shared, sending, reader } })
    }

    /// Starts to read, and enters command mode.
    pub fn greet(self, within: Duration) -> Result<Qmp, QmpError> {
        let Self { mut qmp, may_read } = self;
        let _ = may_read.send(());
        let until = Instant::now() + within;
        qmp.version = qmp.shared.greeting(until, within)?;
        qmp.execute_within(&json!({}), "qmp_capabilities", &[], until, within)?;
        Ok(qmp)
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        // Ends the reader, whatever it is waiting for.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
