//! A worker's regular duties, which must still work inside the sandbox.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{
    MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fcntl_setfl, fstat,
    ftruncate, memfd_create, seek,
};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::thread::{ClockId, NanosleepRelativeResult, Timespec, clock_nanosleep_relative};
use strongroom_confine::{Confinement, Measure, SandboxError, Shortfall, confine};
use strongroom_io::{FileIo, FileOperation, Reactor};
use strongroom_memory::secret::SecretBytes;
use strongroom_memory::{BufferPool, GuestAddress, GuestMemory, GuestRegion};
use strongroom_ring::{Ring, RingFile};

use super::deeds::Deed;
use super::probe::{Before, answer_as_an_old_kernel, say_ready};

const AREA_BYTES: u64 = 1 << 20;

/// The duty of a name.
pub fn find(name: &str) -> Option<Deed> {
    ALL.iter().chain(INSPECTIONS).find(|(known, _)| *known == name).map(|(_, duty)| *duty)
}

/// The names of all duties that end.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name).filter(|name| !ENDLESS.contains(name))
}

/// Those that only end from outside, or end the process.
const ENDLESS: [&str; 2] = ["serve", "abort"];

/// Inspections of the sandbox itself.
const INSPECTIONS: &[(&str, Deed)] = &[
    ("have every wall", |before| has_all_but(before, &[Measure::OwnUser])),
    ("have every wall but Landlock", |before| has_all_but(before, &[Measure::OwnUser, Measure::Landlock])),
    ("know which walls are missing", |before| {
        let mut missing: Vec<_> =
            before.report.shortfalls.iter().map(|shortfall| shortfall.measure).collect();
        missing.retain(|measure| *measure != Measure::OwnUser);
        assert_eq!(missing, [Measure::Namespaces, Measure::EmptyRoot, Measure::Landlock]);
        assert!(before.report.shortfalls.iter().all(|shortfall| !shortfall.reason.is_empty()));
        Ok(())
    }),
    ("refuse to run without a wall that it must have", |_| {
        answer_as_an_old_kernel();
        let must = vec![Measure::Landlock];
        let refused = confine(&Confinement { user: None, must });
        assert!(
            matches!(refused, Err(SandboxError::Lacks(Shortfall { measure: Measure::Landlock, .. }))),
            "{refused:?}"
        );
        Ok(())
    }),
    ("hear and answer", |before| {
        // Everything that a monitor does: it receives files with packets and passes them on, and
        // copies bytes.
        drop(passed_on(before, before.beneath.as_fd())?);
        (&before.pair.0).write_all(b"hello").unwrap();
        (&before.pair.1).read_exact(&mut [0; 5]).unwrap();
        before.pair.0.shutdown(std::net::Shutdown::Both).unwrap();
        Ok(())
    }),
    ("refuse to be confined with a second thread", |_| {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv());
        assert!(matches!(confine(&Confinement::default()), Err(SandboxError::Threads(2))));
        drop(end);
        assert!(thread.join().unwrap().is_err());
        Ok(())
    }),
];

const ALL: &[(&str, Deed)] = &[
    ("map memory that came with a message", map_received_memory),
    ("make an in-flight area", |_| in_flight_area().map(drop)),
    ("use events", use_events),
    ("make a socket non-blocking", |before| {
        let flags = fcntl_getfl(&before.pair.0)?;
        fcntl_setfl(&before.pair.0, flags | rustix::fs::OFlags::NONBLOCK)?;
        before.pair.0.set_nonblocking(false).unwrap();
        rustix::io::fcntl_dupfd_cloexec(&before.pair.0, 3).map(drop)
    }),
    ("accept a client", |before| {
        before.listener.accept().unwrap();
        Ok(())
    }),
    ("talk to a client", |before| {
        (&before.pair.0).write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        (&before.pair.1).read_exact(&mut heard).unwrap();
        before.pair.0.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(&heard, b"hello");
        Ok(())
    }),
    ("do I/O on a file that came with a message", do_ring_io),
    ("look at a file", |_| {
        let file = in_flight_area()?;
        assert_eq!(fstat(&file)?.st_size as u64, AREA_BYTES);
        assert_eq!(seek(&file, SeekFrom::End(0))?, AREA_BYTES);
        assert_eq!(File::from(file).metadata().unwrap().len(), AREA_BYTES);
        Ok(())
    }),
    ("hold secrets and buffers", |_| {
        let mut secret = SecretBytes::random(32).unwrap();
        secret.expose_mut().fill(7);
        let pool = BufferPool::new(4 << 20).unwrap();
        pool.take(1 << 20).unwrap().bytes_mut().fill(7);
        let mut heap = vec![7_u8; 64 << 20];
        heap.truncate(1);
        heap.shrink_to_fit();
        Ok(())
    }),
    ("pause and tell the time", |_| {
        // The call is tested, however short its pause.
        let pause = clock_nanosleep_relative(ClockId::Monotonic, &Timespec { tv_sec: 0, tv_nsec: 1 });
        assert!(matches!(pause, NanosleepRelativeResult::Ok));
        assert!(std::time::SystemTime::now().elapsed().is_ok());
        assert!(std::thread::available_parallelism().is_ok());
        Ok(())
    }),
    ("outlive a panic", |before| {
        let job = before.lanes.as_ref().unwrap().run(|_| std::panic::resume_unwind(Box::new("a panic")));
        assert!(job.ok().unwrap().join().is_err());
        Ok(())
    }),
    ("log", |_| {
        eprintln!("a line");
        Ok(())
    }),
    ("serve", |_| {
        say_ready();
        // Until the other end is closed.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        Ok(())
    }),
    ("abort", |_| std::process::abort()),
];

fn has_all_but(before: &Before, expected: &[Measure]) -> Result<(), Errno> {
    let complete = before.report.shortfalls.iter().all(|shortfall| expected.contains(&shortfall.measure));
    if complete { Ok(()) } else { Err(Errno::NOTSUP) }
}

/// A sealed memory area that can neither grow nor shrink.
fn in_flight_area() -> Result<OwnedFd, Errno> {
    let file = memfd_create("area", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, AREA_BYTES)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    assert!(fcntl_get_seals(&file)?.contains(SealFlags::SHRINK));
    Ok(file)
}

/// Sends a file to itself, as a front end would.
fn received(before: &Before) -> Result<OwnedFd, Errno> {
    passed_on(before, in_flight_area()?.as_fd())
}

fn passed_on(before: &Before, file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&before.pair.0, &[IoSlice::new(b"file")], &mut control, SendFlags::NOSIGNAL)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&before.pair.1, &mut [IoSliceMut::new(&mut [0; 4])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(file.unwrap())
}

fn map_received_memory(before: &Before) -> Result<(), Errno> {
    let region = GuestRegion::map(received(before)?, 0, GuestAddress(0), AREA_BYTES).unwrap();
    let memory = Arc::new(GuestMemory::new(vec![region], None).unwrap());
    drop(memory);
    Ok(())
}

fn use_events(_: &Before) -> Result<(), Errno> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    rustix::io::write(&event, &1_u64.to_ne_bytes())?;
    let mut watched = [PollFd::new(&event, PollFlags::IN)];
    assert_eq!(poll(&mut watched, None)?, 1);
    rustix::io::read(&event, &mut [0; 8]).map(drop)
}

/// Uses a ring and a thread from before the sandbox was closed.
fn do_ring_io(before: &Before) -> Result<(), Errno> {
    let file = Arc::new(RingFile::new(File::from(received(before)?)));
    let job = before.lanes.as_ref().unwrap().run(move |ring: &Ring| {
        let mut queue = ring.file_queue().unwrap();
        let file = queue.register(file).unwrap();
        let mut from = BufferPool::new(4 << 20).unwrap().take(4096).unwrap();
        from.bytes_mut().fill(7);
        let operation = FileOperation::Write { offset: 4096, from, durable: true };
        queue.submit(FileIo { tag: 1, file, operation });
        queue.kick();
        let mut done = Vec::new();
        while done.is_empty() {
            ring.wait(None).unwrap();
            queue.poll(&mut done);
        }
        done.remove(0).result.unwrap();
    });
    job.ok().unwrap().join().unwrap();
    Ok(())
}
