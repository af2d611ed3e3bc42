//! The monitor's process. Before it reads a byte, it confines itself to its two sockets and memory.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use strongroom_confine::{SandboxError, deny_to_monitor};
use strongroom_wire::Received;
use thiserror::Error;

use super::request::{Asked, Question, Request};
use super::said::{Outcome, Said};
use crate::packet::{self, PACKET_BYTES_MAX};
use crate::qmp::{Qmp, QmpError, QuietQmp};

/// Timeout of QEMU's greeting. The supervisor gives up sooner, and then ends the monitor.
const GREETED_WITHIN: Duration = Duration::from_secs(3600);
/// The interval after which the wait for an event is repeated.
const EVENT_WAIT: Duration = Duration::from_secs(3600);

/// Why the monitor ended.
#[derive(Debug, Error)]
pub(crate) enum MonitorError {
    /// QEMU's connection failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// A thread could not be started.
    #[error("there is no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The sandbox could not be entered. Nothing has been read.
    #[error(transparent)]
    Confine(#[from] SandboxError),
    /// The supervisor's connection failed.
    #[error("the supervisor is not understood: {0}")]
    Supervisor(Errno),
}

/// Speaks with QEMU for the supervisor, until either closes its connection. The process has one
/// thread and these two sockets.
pub(crate) fn run(supervisor: OwnedFd, qemu: UnixStream) -> Result<(), MonitorError> {
    // The name in process lists.
    let _ = rustix::thread::set_name(c"strongroom-qmp");
    let supervisor = Arc::new(supervisor);
    let quiet = QuietQmp::new(qemu)?;
    let (is_there, began) = sync_channel(1);
    let (begin, begins) = sync_channel::<Arc<Qmp>>(1);
    let theirs = Arc::clone(&supervisor);
    thread::Builder::new().name("events".to_owned()).spawn(move || {
        let _ = is_there.send(());
        if let Ok(qmp) = begins.recv() {
            tell_events(&theirs, &qmp);
        }
    })?;
    let _ = began.recv();
    deny_to_monitor()?;
    let qmp = match quiet.greet(GREETED_WITHIN) {
        Ok(qmp) => Arc::new(qmp),
        // A slow QEMU is not an error of its own.
        Err(QmpError::Silent { .. }) => return Ok(()),
        Err(error) => {
            let _ = say(&supervisor, &Said::Over(why(error)));
            return Ok(());
        }
    };
    say(&supervisor, &Said::Hello(qmp.version())).map_err(MonitorError::Supervisor)?;
    let _ = begin.send(Arc::clone(&qmp));
    let answered = answer(&supervisor, |request: Request, files| request.run(&qmp, files));
    // Exits whatever the other thread is waiting for.
    match answered {
        Ok(()) => std::process::exit(0),
        Err(errno) => Err(MonitorError::Supervisor(errno)),
    }
}

/// Sends all events in order, and then the end of the connection.
fn tell_events(supervisor: &OwnedFd, qmp: &Qmp) {
    loop {
        let told = match qmp.next_event(EVENT_WAIT) {
            Ok(Some(event)) => say(supervisor, &Said::Event(event)),
            Ok(None) => Ok(()),
            Err(error) => {
                let _ = say(supervisor, &Said::Over(why(error)));
                std::process::exit(0);
            }
        };
        if told.is_err() {
            std::process::exit(0);
        }
    }
}

/// The reason for the end of QEMU's connection.
fn why(error: QmpError) -> String {
    match error {
        QmpError::Over(reason) => reason,
        other => other.to_string(),
    }
}

/// Answers one request after the other, until the supervisor closes its connection.
pub(crate) fn answer<Q: Question>(
    supervisor: &OwnedFd,
    mut run: impl FnMut(Q, Vec<OwnedFd>) -> Outcome,
) -> Result<(), Errno> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    loop {
        let Received { bytes: length, files } = match packet::receive(supervisor, &mut bytes) {
            Ok(Some(received)) => received,
            Ok(None) | Err(Errno::CONNRESET) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let Asked { id, request } = serde_json::from_slice(&bytes[..length]).map_err(|_| Errno::PROTO)?;
        let outcome = run(request, files);
        say(supervisor, &Said::Answer { id, outcome })?;
    }
}

fn say(supervisor: &OwnedFd, said: &Said) -> Result<(), Errno> {
    said.encode().map_or(Ok(()), |packet| packet::send(supervisor, &packet, &[]))
}
