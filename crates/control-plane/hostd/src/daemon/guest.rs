//! The guest socket: consoles, screens, dumps, disks and images, for clients that present a ticket.
//!
//! No guest data of a client on this machine passes through hostd: it hands the client's socket to
//! the supervisor of the VM. For a client on another machine it does, as `port` says, and what is
//! handed over is hostd's own end of a socket. Each connection has a thread until its line has been
//! read.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use strongroom_host::orders::{Brought, RequestKind, Task};
use strongroom_host::proof::check_peer;
use strongroom_host::protocol::{FORMAT, GuestHello, GuestWelcome, Problem, ProblemBody, TicketRequest};

use super::tickets::{Image, TicketFor, not_good};
use super::{Hostd, image_jobs, operations};

/// The longest line of a client, in bytes.
const LINE_BYTES_MAX: usize = 4096;
/// How long the line may take to arrive.
const LINE_WITHIN: Duration = Duration::from_secs(5);
/// The most connections that have not presented a ticket.
const WAITING_MAX: usize = 32;
/// How many supervisors of the VM may die while a client waits for one.
const SUPERVISORS_MAX: u32 = 3;

/// Accepts connections, on a thread of its own.
///
/// # Errors
/// If the thread cannot be started.
pub fn serve(hostd: &Arc<Hostd>, listener: UnixListener) -> io::Result<()> {
    let (hostd, waiting) = (Arc::clone(hostd), Arc::new(AtomicUsize::new(0)));
    thread::Builder::new().name("guest sockets".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            if hostd.is_ending() {
                return;
            }
            let Ok(stream) = stream else {
                // Too many open files; some will be closed soon.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
                waiting.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (hostd, place) = (Arc::clone(&hostd), Arc::clone(&waiting));
            let taken = thread::Builder::new().name("ticket".to_owned()).spawn(move || {
                match check_peer(&stream) {
                    Ok(()) => take_up(&hostd, stream, &|| {}),
                    Err(error) => tracing::warn!("{error}"),
                }
                place.fetch_sub(1, Ordering::Relaxed);
            });
            if taken.is_err() {
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(())
}

/// Serves the client at the other end of `stream`. `redeemed` is called when its ticket has been
/// taken.
pub fn take_up(hostd: &Arc<Hostd>, stream: UnixStream, redeemed: &dyn Fn()) {
    let kept = stream.try_clone();
    let (Err(problem), Ok(mut stream)) = (pass_on(hostd, stream, redeemed), kept) else { return };
    let mut line = serde_json::to_vec(&ProblemBody { error: problem }).unwrap_or_default();
    line.push(b'\n');
    let _ = stream.write_all(&line);
}

/// Redeems the ticket, and hands the socket to the process that serves it. That process sends the
/// welcome.
fn pass_on(hostd: &Arc<Hostd>, stream: UnixStream, redeemed: &dyn Fn()) -> Result<(), Problem> {
    let bad = |reason: String| Problem::new("bad_hello", reason);
    let (line, file) =
        read_line(&stream).map_err(|error| bad(format!("the line cannot be read: {error}")))?;
    let hello: GuestHello = serde_json::from_slice(&line).map_err(|error| bad(error.to_string()))?;
    if hello.format != FORMAT {
        return Err(bad(format!("format {} is not spoken here; {FORMAT} is", hello.format)));
    }
    let kept = |error: io::Error| bad(format!("what came cannot be kept: {error}"));
    let bring = || {
        let (brought, from) = match &file {
            Some(file) => (Brought::File, check_image(file.try_clone().map_err(kept)?)?),
            None => (Brought::Client, stream.try_clone().map_err(kept)?.into()),
        };
        Ok(Image { brought, from })
    };
    let is_still_for = |bearer| hostd.is_still_for(bearer);
    let (TicketFor { vm, .. }, request) = hostd.tickets.redeem(&hello.ticket, is_still_for, bring)?;
    redeemed();
    let is_for_one_off = matches!(
        request,
        TicketRequest::Upload { .. } | TicketRequest::Check { .. } | TicketRequest::Export { .. }
    );
    if !is_for_one_off {
        hostd.runtime.block_on(operations::await_supervisor(hostd, vm));
    }
    let give = |task, grants, to: &[OwnedFd], within| {
        operations::give_while_off(hostd, vm, task, grants, to, within)
    };
    let kind = match request {
        TicketRequest::Upload { disk } => {
            let waits = file.is_none().then(|| hostd.image_jobs.of(vm, &disk)).flatten();
            welcome(&stream, &GuestWelcome::Upload)?;
            let Some(job) = waits else { return Ok(()) };
            hostd.tickets.void(&hello.ticket);
            return image_jobs::hand_on(&job, stream);
        }
        TicketRequest::Console { read_only, taken_by } => RequestKind::Console { read_only, taken_by },
        TicketRequest::ConsoleLog { spec, grants } => match hostd.vms.link(vm) {
            Ok(_) => RequestKind::ConsoleLog,
            Err(problem) if problem.code == "not_running" => {
                return give(Task::ConsoleLog(spec), grants, &[stream.into()], Some(operations::LOG_WITHIN));
            }
            Err(problem) => return Err(problem),
        },
        TicketRequest::Dump { spec, number, grants } => match hostd.vms.link(vm) {
            Ok(_) => RequestKind::OpenDump { number },
            Err(problem) if problem.code == "not_running" => {
                return give(Task::Dump { spec, number }, grants, &[stream.into()], None);
            }
            Err(problem) => return Err(problem),
        },
        TicketRequest::Check { spec, disk, reads_blocks, grants } => {
            return give(Task::Check { spec, disk, reads_blocks }, grants, &[stream.into()], None);
        }
        TicketRequest::Export { spec, disk, format, grants } => {
            let file = file.map(check_destination).transpose()?;
            let to: Vec<OwnedFd> = std::iter::once(OwnedFd::from(stream)).chain(file).collect();
            return give(Task::Export { spec, disk, format }, grants, &to, None);
        }
        TicketRequest::Volumes { spec, grants } => match hostd.vms.link(vm) {
            Ok(_) => RequestKind::GiveVolumes { known: spec.known_volumes() },
            Err(problem) if problem.code == "not_running" => {
                return give(Task::GiveVolumes(spec), grants, &[stream.into()], None);
            }
            Err(problem) => return Err(problem),
        },
        TicketRequest::Vnc => {
            // The VNC protocol follows without a welcome of its own.
            welcome(&stream, &GuestWelcome::Vnc)?;
            RequestKind::Vnc
        }
        TicketRequest::VncToLook => {
            welcome(&stream, &GuestWelcome::Vnc)?;
            RequestKind::VncToLook
        }
    };
    let _ = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
    let client = [OwnedFd::from(stream)];
    let ask = || hostd.runtime.block_on(hostd.vms.link(vm)?.ask(kind.clone(), &client));
    for _ in 0..SUPERVISORS_MAX {
        match ask() {
            // The supervisor died after it was found, or before it could answer.
            Err(problem) if problem.code == "supervisor_away" => {
                hostd.runtime.block_on(operations::await_supervisor(hostd, vm));
            }
            told => return told,
        }
    }
    ask()
}

fn welcome(mut stream: &UnixStream, welcome: &GuestWelcome) -> Result<(), Problem> {
    let mut line = serde_json::to_vec(welcome).unwrap_or_default();
    line.push(b'\n');
    stream.write_all(&line).map_err(|error| Problem::new("gone", error.to_string()))
}

/// An image must be a regular file or a block device, open for reading: a read from anything else
/// could block for ever.
fn check_image(file: OwnedFd) -> Result<OwnedFd, Problem> {
    let bad = |reason: &str| Problem::new("bad_image", reason.to_owned());
    let kind = fstat(&file).map(|found| FileType::from_raw_mode(found.st_mode));
    if !matches!(kind, Ok(FileType::RegularFile | FileType::BlockDevice)) {
        return Err(bad("what came beside the ticket is neither a file nor a block device"));
    }
    match fcntl_getfl(&file) {
        Ok(flags) if flags & OFlags::RWMODE != OFlags::WRONLY && !flags.contains(OFlags::PATH) => Ok(file),
        _ => Err(bad("the image's file is not open to be read")),
    }
}

impl Hostd {
    /// Refuses a ticket that was made for another start of the VM, or before the VM left this host.
    fn is_still_for(&self, bearer: TicketFor) -> Result<(), Problem> {
        self.residences.must_be_here(bearer.vm)?;
        let now = self.vms.get(bearer.vm).map(|vm| vm.generation);
        if now == Some(bearer.generation) { Ok(()) } else { Err(not_good()) }
    }
}

/// A disk is copied into a new file of the client's. Some formats read it back while they write.
fn check_destination(file: OwnedFd) -> Result<OwnedFd, Problem> {
    let bad = |reason: &str| Problem::new("bad_image", reason.to_owned());
    match fstat(&file) {
        Ok(found)
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_size == 0 => {}
        _ => return Err(bad("what came beside the ticket is no empty file")),
    }
    match fcntl_getfl(&file) {
        Ok(flags) if flags & OFlags::RWMODE == OFlags::RDWR => Ok(file),
        _ => Err(bad("the file is not open to be read and written")),
    }
}

/// Reads one line, a byte at a time so that nothing after it is consumed, and keeps the first file
/// that comes with it.
fn read_line(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    stream.set_read_timeout(Some(LINE_WITHIN))?;
    stream.set_write_timeout(Some(LINE_WITHIN))?;
    let deadline = std::time::Instant::now() + LINE_WITHIN;
    let (mut line, mut file) = (Vec::new(), None);
    loop {
        let mut byte = [0];
        let received = strongroom_wire::receive(stream, &mut byte, 1)?;
        file = file.or(received.files.into_iter().next());
        match (received.bytes, byte[0]) {
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (_, b'\n') => return Ok((line, file)),
            (_, byte) => line.push(byte),
        }
        if line.len() > LINE_BYTES_MAX || std::time::Instant::now() > deadline {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}
