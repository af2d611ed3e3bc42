//! The supervisor's connection to a process that speaks for it: a monitor of QEMU, or one of the
//! guest agent.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};
use thiserror::Error;

use super::request::{Asked, Question};
use super::said::{Answer, Nonsense, Outcome, SAID_BYTES_MAX, Said};
use crate::packet;
use crate::qmp::{ANSWERS_WITHIN, PowerEvent, QmpError, Shared};
use crate::version::Version;

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

/// A connection. Threads may share it.
#[derive(Debug)]
pub(crate) struct Connection {
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

/// Whether the process first says that its peer has greeted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// It does.
    Awaited,
    /// It has no greeting, and waits for requests.
    None,
}

impl Connection {
    /// Waits until the peer of the process at the other end has greeted it.
    ///
    /// # Errors
    /// If the greeting does not come within that time.
    pub fn greet(socket: OwnedFd, within: Duration) -> Result<Self, NotGreeted> {
        let over = |error| NotGreeted { loss: Some(Loss::Monitor), error };
        let mut connection = Self::open(socket, Hello::Awaited).map_err(over)?;
        match connection.heard.shared.greeting(Instant::now() + within, within) {
            Ok(version) => connection.version = version,
            Err(error) => return Err(NotGreeted { loss: connection.lost(), error }),
        }
        Ok(connection)
    }

    /// Begins to listen to the process at the other end.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn open(socket: OwnedFd, hello: Hello) -> Result<Self, QmpError> {
        let over = |error: std::io::Error| QmpError::Over(error.to_string());
        set_socket_timeout(&socket, Timeout::Send, Some(ANSWERS_WITHIN))
            .map_err(|errno| over(errno.into()))?;
        let socket = Arc::new(socket);
        let heard = Arc::new(Heard::default());
        let thread = std::thread::Builder::new().name("monitor".to_owned());
        let (theirs, told) = (Arc::clone(&socket), Arc::clone(&heard));
        let reader = thread.spawn(move || {
            let (loss, reason) = hear(&theirs, &told, hello);
            // A peer that sent an invalid packet is disconnected, so that it notices.
            let _ = shutdown(&*theirs, Shutdown::Both);
            let _ = told.lost.set(loss);
            told.shared.end(reason);
        });
        let reader = Some(reader.map_err(over)?);
        Ok(Self { socket, version: Version { major: 0, minor: 0 }, heard, reader })
    }

    /// Returns why the process was lost, if it was.
    pub fn lost(&self) -> Option<Loss> {
        self.heard.lost.get().copied()
    }

    /// The version in the greeting.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Waits for the next event until a time.
    ///
    /// # Errors
    /// [`QmpError::Over`] once the connection has ended and all earlier events were returned.
    pub fn next_event(&self, until: Instant) -> Result<Option<PowerEvent>, QmpError> {
        self.heard.shared.next_event(until)
    }

    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// The process's error, or that of the connection. A process that sends nothing within that
    /// time is lost.
    pub fn ask<Q: Question>(
        &self,
        request: Q,
        files: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Result<Answer, QmpError> {
        let shared = &self.heard.shared;
        let command = request.command();
        let packets_before = self.heard.packets.load(Ordering::Relaxed);
        let id = shared.expect_answer()?;
        if let Err(error) = self.send(&Asked { id, request }, files) {
            shared.forget_answer(id);
            return Err(QmpError::Over(error.to_string()));
        }
        match shared.answer(id, Instant::now() + within)? {
            Some(outcome) => outcome,
            // The monitor is busy with other threads' requests, or with many commands.
            None if self.heard.packets.load(Ordering::Relaxed) != packets_before => {
                Err(QmpError::Silent { command: command.to_owned(), within })
            }
            None => Err(self.give_up("the monitor says nothing")),
        }
    }

    fn send<Q: Question>(&self, asked: &Asked<Q>, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(asked).map_err(|_| Errno::INVAL)?;
        packet::send(&*self.socket, &bytes, files)
    }

    /// Gives up a misbehaving process: it is lost.
    pub fn give_up(&self, reason: &str) -> QmpError {
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

/// Receives a process's packets until the connection ends. Returns the reason.
fn hear(socket: &OwnedFd, heard: &Heard, hello: Hello) -> (Loss, String) {
    let shared = &heard.shared;
    let mut bytes = [0; SAID_BYTES_MAX];
    let mut greeted = hello == Hello::None;
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
