//! The monitor, which speaks QMP with QEMU for the process that holds a VM's keys.
//!
//! QMP is JSON, and a captured QEMU can send anything. So a process of its own, the *monitor*,
//! parses it. It has no key, file, privilege or network, a user of its own, and two sockets: QEMU's
//! QMP, and one of the VM's supervisor.
//!
//! ```text
//! supervisor                        monitor                     QEMU
//!   a request, its files   -->        commands of QMP    -->
//!                                     JSON               <--
//!   packets of fixed form  <--
//! ```
//!
//! - [`said`]: those packets. The decoder bounds everything that a captured QEMU or monitor can
//!   send to the supervisor. It does not recurse, and an unknown packet ends the monitor.
//! - [`request`]: the requests. They are JSON: a monitor may trust the supervisor, which could do
//!   worse.
//! - [`process`]: the monitor. [`start`]: starts it, so that it dies with the process that started
//!   it.
//! - [`Monitor`]: the supervisor's side.
//!
//! A monitor whose QEMU closes the connection or sends invalid data reports that and exits. A
//! monitor that dies, sends invalid data itself or does not answer is lost, and can be replaced
//! while the machine runs ([`Monitor::replace`]).

pub(crate) mod process;
mod request;
mod said;
mod start;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};
use thiserror::Error;
use uuid::Uuid;

use self::request::{Asked, Request};
use self::said::{Answer, Nonsense, Outcome, SAID_BYTES_MAX, Said};
pub use self::start::MonitorProcess;
use crate::machine::{DiskAttachment, Nic};
use crate::network::NetworkState;
use crate::packet;
use crate::qmp::{ANSWERS_WITHIN, PowerEvent, QmpError, RunStatus, Shared, Transfer};
use crate::version::Version;

/// Timeout of a monitor, which itself waits for QEMU for [`ANSWERS_WITHIN`]. It is longer, so that
/// the monitor can report a silent QEMU.
const WAITS_FOR: Duration = Duration::from_secs(ANSWERS_WITHIN.as_secs() + 5);

/// The supervisor's connection to a machine's monitor. Threads may share it; a monitor answers
/// requests one after the other.
#[derive(Debug)]
pub struct Monitor(Mutex<Arc<Connection>>);

/// Why a monitor was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// QEMU closed the connection, or sent invalid QMP.
    Qemu,
    /// The monitor ended, does not answer, or sent an invalid packet.
    Monitor,
}

/// A monitor was not greeted by QEMU.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotGreeted {
    /// Why the monitor was lost; `None` if it is still waiting for QEMU's greeting.
    pub loss: Option<Loss>,
    /// The error for people.
    pub error: QmpError,
}

#[derive(Debug)]
struct Connection {
    socket: Arc<OwnedFd>,
    version: Version,
    heard: Arc<Heard>,
    reader: Option<JoinHandle<()>>,
}

/// The state that a connection's reader shares with other threads.
#[derive(Debug, Default)]
struct Heard {
    shared: Shared<Outcome>,
    lost: OnceLock<Loss>,
    /// The number of packets received.
    packets: AtomicU64,
}

impl Monitor {
    /// Waits until QEMU has greeted the monitor at the other end.
    ///
    /// # Errors
    /// If the greeting does not come within that time.
    pub fn greet(socket: OwnedFd, within: Duration) -> Result<Self, NotGreeted> {
        Ok(Self(Mutex::new(Arc::new(Connection::greet(socket, within)?))))
    }

    /// Switches to another monitor of the same machine. Unanswered requests to the former one get
    /// an error, and events may have been missed.
    ///
    /// # Errors
    /// As [`Self::greet`]. The former monitor then stays.
    pub fn replace(&self, socket: OwnedFd, within: Duration) -> Result<(), NotGreeted> {
        let other = Arc::new(Connection::greet(socket, within)?);
        *self.0.lock() = other;
        Ok(())
    }

    /// Returns why the monitor was lost, if it was.
    pub fn lost(&self) -> Option<Loss> {
        self.connection().heard.lost.get().copied()
    }

    /// QEMU's version.
    pub fn version(&self) -> Version {
        self.connection().version
    }

    /// Waits for the next event; `Ok(None)` after the timeout.
    ///
    /// # Errors
    /// [`QmpError::Over`] once the connection has ended and all earlier events were returned.
    pub fn next_event(&self, within: Duration) -> Result<Option<PowerEvent>, QmpError> {
        self.connection().heard.shared.next_event(Instant::now() + within)
    }

    /// Returns whether the machine runs.
    pub fn status(&self) -> Result<RunStatus, QmpError> {
        self.ask(Request::Status, &[], |answer| match answer {
            Answer::Status(status) => Some(status),
            _ => None,
        })
    }

    /// Resumes the processors.
    pub fn cont(&self) -> Result<(), QmpError> {
        self.done(Request::Continue, &[])
    }

    /// Pauses the processors, after all disk requests in flight are completed.
    pub fn stop(&self) -> Result<(), QmpError> {
        self.done(Request::Stop, &[])
    }

    /// Presses the power button (ACPI). The guest decides what to do.
    pub fn press_power_button(&self) -> Result<(), QmpError> {
        self.done(Request::PressPowerButton, &[])
    }

    /// Presses the reset button.
    pub fn reset(&self) -> Result<(), QmpError> {
        self.done(Request::Reset, &[])
    }

    /// Cuts the machine's power. QEMU exits in an orderly way.
    pub fn quit(&self) -> Result<(), QmpError> {
        match self.done(Request::Quit, &[]) {
            // QEMU may exit before it answers.
            Err(QmpError::Over(_)) if self.lost() == Some(Loss::Qemu) => Ok(()),
            answered => answered,
        }
    }

    /// Begins to save the memory, as [`Qmp::save_memory`](crate::Qmp::save_memory).
    ///
    /// # Errors
    /// QEMU's error, also if a device's state cannot be saved.
    pub fn save_memory(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.done(Request::SaveMemory, &[into])
    }

    /// Cancels saving. A machine that is paused stays so.
    ///
    /// # Errors
    /// QEMU's error. Succeeds if nothing is being saved.
    pub fn end_saving(&self) -> Result<(), QmpError> {
        self.done(Request::EndSaving, &[])
    }

    /// Loads the memory, as [`Qmp::load_memory`](crate::Qmp::load_memory).
    ///
    /// # Errors
    /// QEMU's error.
    pub fn load_memory(&self, from: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.done(Request::LoadMemory, &[from])
    }

    /// Returns the progress of saving or loading.
    ///
    /// # Errors
    /// QEMU's error; [`QmpError::Over`] if QEMU rejected the memory that it was to load.
    pub fn transfer(&self) -> Result<Transfer, QmpError> {
        self.ask(Request::Transfer, &[], transfer)
    }

    /// Begins to dump the memory, as [`Qmp::begin_dump`](crate::Qmp::begin_dump).
    ///
    /// # Errors
    /// QEMU's error, also while another dump is in progress.
    pub fn begin_dump(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.done(Request::BeginDump, &[into])
    }

    /// Returns the progress of the last dump; completed if there was none. Only the event has the
    /// reason of a failure.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn dumped(&self) -> Result<Transfer, QmpError> {
        self.ask(Request::Dumped, &[], transfer)
    }

    /// Returns the machine's generation id (vmgenid), if it has one.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn generation_id(&self) -> Result<Option<Uuid>, QmpError> {
        self.ask(Request::GenerationId, &[], |answer| match answer {
            Answer::GenerationId(id) => Some(id),
            _ => None,
        })
    }

    /// Returns whether KVM runs its processors.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn runs_on_kvm(&self) -> Result<bool, QmpError> {
        self.ask(Request::RunsOnKvm, &[], yes_or_no)
    }

    pub(crate) fn plug_disk(&self, name: String, disk: DiskAttachment) -> Result<(), QmpError> {
        self.done(Request::PlugDisk { name, disk }, &[])
    }

    pub(crate) fn plug_nic(
        &self,
        name: String,
        nic: Nic,
        network: NetworkState,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), QmpError> {
        self.done(Request::PlugNic { name, nic, network }, file.as_slice())
    }

    pub(crate) fn unplug(&self, name: String) -> Result<(), QmpError> {
        self.done(Request::Unplug { name }, &[])
    }

    pub(crate) fn unplugged(&self, name: String) -> Result<(), QmpError> {
        self.done(Request::Unplugged { name }, &[])
    }

    pub(crate) fn is_plugged(&self, name: String) -> Result<bool, QmpError> {
        self.ask(Request::IsPlugged { name }, &[], yes_or_no)
    }

    fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.0.lock())
    }

    fn done(&self, request: Request, files: &[BorrowedFd<'_>]) -> Result<(), QmpError> {
        self.ask(request, files, |answer| (answer == Answer::Done).then_some(()))
    }

    /// Sends a request, and extracts an answer of the matching kind.
    fn ask<T>(
        &self,
        request: Request,
        files: &[BorrowedFd<'_>],
        expected: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T, QmpError> {
        let connection = self.connection();
        let answer = connection.ask(request, files)?;
        expected(answer).ok_or_else(|| connection.give_up("the monitor answers another question"))
    }
}

fn transfer(answer: Answer) -> Option<Transfer> {
    match answer {
        Answer::Transfer(transfer) => Some(transfer),
        _ => None,
    }
}

fn yes_or_no(answer: Answer) -> Option<bool> {
    match answer {
        Answer::YesOrNo(answer) => Some(answer),
        _ => None,
    }
}

impl Connection {
    fn greet(socket: OwnedFd, within: Duration) -> Result<Self, NotGreeted> {
        let over = |error: std::io::Error| NotGreeted {
            loss: Some(Loss::Monitor),
            error: QmpError::Over(error.to_string()),
        };
        set_socket_timeout(&socket, Timeout::Send, Some(ANSWERS_WITHIN))
            .map_err(|errno| over(errno.into()))?;
        let socket = Arc::new(socket);
        let heard = Arc::new(Heard::default());
        let thread = std::thread::Builder::new().name("monitor".to_owned());
        let (theirs, told) = (Arc::clone(&socket), Arc::clone(&heard));
        let reader = thread.spawn(move || {
            let (loss, reason) = hear(&theirs, &told);
            // A peer that sent an invalid packet is disconnected, so that it notices.
            let _ = shutdown(&*theirs, Shutdown::Both);
            let _ = told.lost.set(loss);
            told.shared.end(reason);
        });
        let reader = Some(reader.map_err(over)?);
        let mut connection = Self { socket, version: Version { major: 0, minor: 0 }, heard, reader };
        match connection.heard.shared.greeting(Instant::now() + within, within) {
            Ok(version) => connection.version = version,
            Err(error) => return Err(NotGreeted { loss: connection.heard.lost.get().copied(), error }),
        }
        Ok(connection)
    }

    fn ask(&self, request: Request, files: &[BorrowedFd<'_>]) -> Result<Answer, QmpError> {
        let shared = &self.heard.shared;
        let command = request.command();
        let packets_before = self.heard.packets.load(Ordering::Relaxed);
        let id = shared.expect_answer()?;
        if let Err(error) = self.send(&Asked { id, request }, files) {
            shared.forget_answer(id);
            return Err(QmpError::Over(error.to_string()));
        }
        match shared.answer(id, Instant::now() + WAITS_FOR)? {
            Some(outcome) => outcome,
            // The monitor is busy with other threads' requests, or with many commands.
            None if self.heard.packets.load(Ordering::Relaxed) != packets_before => {
                Err(QmpError::Silent { command: command.to_owned(), within: WAITS_FOR })
            }
            None => Err(self.give_up("the monitor says nothing")),
        }
    }

    fn send(&self, asked: &Asked, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(asked).map_err(|_| Errno::INVAL)?;
        packet::send(&*self.socket, &bytes, files)
    }

    /// Gives up a misbehaving monitor: it is lost.
    fn give_up(&self, reason: &str) -> QmpError {
        let _ = self.heard.lost.set(Loss::Monitor);
        let _ = shutdown(&*self.socket, Shutdown::Both);
        QmpError::Over(reason.to_owned())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Ends the reader and the monitor.
        let _ = shutdown(&*self.socket, Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Receives a monitor's packets until the connection ends. Returns the reason.
fn hear(socket: &OwnedFd, heard: &Heard) -> (Loss, String) {
    let shared = &heard.shared;
    let mut bytes = [0; SAID_BYTES_MAX];
    let mut greeted = false;
    loop {
        let said = match packet::receive_without_files(socket, &mut bytes) {
            Ok(Some(length)) => Said::decode(&bytes[..length]),
            Ok(None) | Err(Errno::CONNRESET) => return (Loss::Monitor, "the monitor has ended".to_owned()),
            Err(errno) => return (Loss::Monitor, format!("the monitor cannot be heard: {errno}")),
        };
        let said = said.and_then(|said| match (&said, greeted) {
            (Said::Over(_), _) | (Said::Hello(_), false) | (Said::Answer { .. } | Said::Event(_), true) => {
                Ok(said)
            }
            (Said::Hello(_), true) => Err(Nonsense("a second hello")),
            (Said::Answer { .. } | Said::Event(_), false) => Err(Nonsense("something before its hello")),
        });
        heard.packets.fetch_add(1, Ordering::Relaxed);
        match said {
            Ok(Said::Hello(version)) => {
                greeted = true;
                shared.greeted(version);
            }
            Ok(Said::Answer { id, outcome }) => shared.answered(id, outcome),
            Ok(Said::Event(event)) => {
                tracing::debug!(?event, "QEMU's event");
                shared.happened(event);
            }
            Ok(Said::Over(reason)) => return (Loss::Qemu, reason),
            Err(nonsense) => return (Loss::Monitor, nonsense.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
