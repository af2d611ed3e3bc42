//! The socket of a supervisor that runs a VM, for hostd only.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use strongroom_host::orders::{Report, Request, RequestKind};
use strongroom_host::proof::{PeerSecret, check_peer, prove_as_supervisor};
use strongroom_host::protocol::{DiskName, Problem};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::wire::Wire;
use strongroom_types::VmId;

use crate::pages::Pages;
use crate::vm::Event;

/// The listen backlog.
const BACKLOG: i32 = 8;
/// The most connections: one of the present hostd, and those of its predecessors until they are
/// closed.
const CONNECTIONS_MAX: usize = 8;

/// A connected hostd.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The connection's number.
    pub id: u64,
    /// The connection.
    pub wire: Arc<Wire>,
}

impl Connection {
    /// Sends a report. A connection that takes none is closed: its thread notices, and removes it.
    /// A hostd that is still running reconnects, and receives the whole state.
    pub fn send(&self, report: &Report) {
        if self.wire.send(report, &[]).is_err() {
            self.wire.hang_up();
        }
    }
}

/// A request whose kind may be unknown here.
#[derive(Deserialize)]
struct AnyRequest {
    id: u64,
    kind: serde_json::Value,
}

/// Accepts connections.
#[derive(Debug)]
pub struct Door {
    events: Sender<Event>,
    pages: Pages,
    next: AtomicU64,
    open: Arc<AtomicUsize>,
}

impl Door {
    /// A door without connections. Requests become events, except those that `pages` can answer.
    pub fn new(events: Sender<Event>, pages: Pages) -> Arc<Self> {
        Arc::new(Self { events, pages, next: AtomicU64::new(1), open: Arc::default() })
    }

    /// Adds a connection that is already trusted.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn admit(self: &Arc<Self>, wire: Wire) -> io::Result<()> {
        let connection = Connection { id: self.next.fetch_add(1, Ordering::Relaxed), wire: Arc::new(wire) };
        let door = Arc::clone(self);
        self.open.fetch_add(1, Ordering::Relaxed);
        thread::Builder::new().name("hostd".to_owned()).spawn(move || {
            door.hear(&connection);
            door.open.fetch_sub(1, Ordering::Relaxed);
        })?;
        Ok(())
    }

    fn hear(&self, connection: &Connection) {
        let _ = self.events.send(Event::Connected(connection.clone()));
        loop {
            match connection.wire.receive::<AnyRequest>() {
                Ok((AnyRequest { id, kind }, files)) => {
                    let Ok(kind) = serde_json::from_value(kind) else {
                        // A request of a newer hostd.
                        let message =
                            "the VM's supervisor is of an older program, which does not know how to do that";
                        let next = "restart the VM when it suits: it is started by the installed program";
                        let problem = Some(Problem::new("supervisor_too_old", message).with_next_step(next));
                        let _ = connection.wire.send(&Report::answer(id, problem), &[]);
                        continue;
                    };
                    if let RequestKind::Statistics { disk } = kind {
                        self.tell_statistics(connection, id, &disk);
                        continue;
                    }
                    let request = Request { id, kind };
                    let event = Event::Request { connection: connection.clone(), request, files };
                    if self.events.send(event).is_err() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::debug!("hostd is gone: {error}");
                    break;
                }
            }
        }
        let _ = self.events.send(Event::Gone(connection.id));
    }

    /// Answers on this thread: the VM's own may be busy for as long as QEMU is.
    fn tell_statistics(&self, connection: &Connection, id: u64, disk: &DiskName) {
        let told = self.pages.read(disk).map(Box::new);
        let problem = match &told {
            Some(_) => None,
            None => Some(Problem::new("not_counted", format!("nothing is counted for {disk} now"))),
        };
        // A peer that does not read this is detected at its next answer.
        let told =
            told.map_or(Ok(()), |snapshot| connection.wire.send(&Report::Statistics { id, snapshot }, &[]));
        let _ = told.and_then(|()| connection.wire.send(&Report::answer(id, problem), &[]));
    }

    /// Listens in the VM's run directory, and admits every peer that proves to be hostd.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn open(self: &Arc<Self>, run: &VmRunDirectory, secret: PeerSecret, vm: VmId) -> io::Result<()> {
        let listener = listen(run)?;
        let door = Arc::clone(self);
        thread::Builder::new().name("door".to_owned()).spawn(move || {
            let secret = Arc::new(secret);
            loop {
                match rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
                    Ok(socket) => door.knock(socket, &secret, vm),
                    Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                    Err(errno) => {
                        tracing::error!("hostd cannot be heard any more: {errno}");
                        return;
                    }
                }
            }
        })?;
        Ok(())
    }

    /// A peer that fails the proof, or is too slow, is dropped. It does not delay others.
    fn knock(self: &Arc<Self>, socket: OwnedFd, secret: &Arc<PeerSecret>, vm: VmId) {
        if self.open.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            return;
        }
        if let Err(error) = check_peer(&socket) {
            tracing::warn!("{error}");
            return;
        }
        let Some(wire) = Wire::adopt(socket) else { return };
        let (door, secret, place) = (Arc::clone(self), Arc::clone(secret), Arc::clone(&self.open));
        place.fetch_add(1, Ordering::Relaxed);
        let proving = thread::Builder::new().name("proof".to_owned()).spawn(move || {
            match prove_as_supervisor(&secret, &wire, vm) {
                Ok(()) => drop(door.admit(wire)),
                Err(error) => tracing::warn!("somebody who is not hostd: {error}"),
            }
            door.open.fetch_sub(1, Ordering::Relaxed);
        });
        if proving.is_err() {
            place.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn listen(run: &VmRunDirectory) -> io::Result<OwnedFd> {
    let path = run.supervisor_socket();
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The socket file has this mode, less the umask, from its creation on.
    fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_request_of_a_newer_hostd_is_answered_and_the_next_one_heard() {
        let (events, inbox) = channel();
        let (ours, theirs) = Wire::pair().unwrap();
        Door::new(events, Pages::default()).admit(Wire::adopt(theirs).unwrap()).unwrap();
        ours.send(&serde_json::json!({ "id": 7, "kind": { "Levitate": { "metres": 2 } } }), &[]).unwrap();
        let (answer, _) = ours.receive::<Report>().unwrap();
        let Report::Answer { id: 7, problem: Some(problem), .. } = answer else { panic!("{answer:?}") };
        assert_eq!(problem.code, "supervisor_too_old");
        ours.send(&Request { id: 8, kind: RequestKind::Pause }, &[]).unwrap();
        let heard = inbox.iter().find_map(|event| match event {
            Event::Request { request, .. } => Some(request.id),
            _ => None,
        });
        assert_eq!(heard, Some(8));
    }
}
