//! The kernel refuses a ring's forbidden operations, whatever its thread asks.

use std::os::fd::AsFd;

use io_uring::types::{Fd, OpenHow};
use rustix::net::{AddressFamily, SocketType};

use super::*;

/// A ring, and the event in its waker's place.
fn uring() -> (Uring, rustix::fd::OwnedFd) {
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    (Uring::new(8, event.as_fd()).unwrap(), event)
}

/// The kernel's answer to an entry without a job.
fn answer(uring: &mut Uring, entry: squeue::Entry) -> Result<i32, Errno> {
    uring.push(entry.user_data(0));
    uring.sleep(None).unwrap();
    uring.drain();
    let (_, answer) = uring.completed.pop_front().unwrap();
    if answer < 0 { Err(Errno::from_raw_os_error(-answer)) } else { Ok(answer) }
}

/// The error of a call that uses another of the kernel's register operations.
fn refusal<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn operations_that_no_job_needs_are_refused() {
    let (mut uring, _event) = uring();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let socket = uring.place(socket.as_fd()).unwrap();
    let (there, root) = (Fd(rustix::fs::CWD.as_raw_fd()), c"/".as_ptr());
    let how = OpenHow::new();
    let entries = [
        ("nop", opcode::Nop::new().build()),
        ("openat", opcode::OpenAt::new(there, root).build()),
        ("openat2", opcode::OpenAt2::new(there, root, &how).build()),
        ("unlinkat", opcode::UnlinkAt::new(there, root).build()),
        ("socket", opcode::Socket::new(1, 1, 0).build()),
        ("connect", opcode::Connect::new(Fixed(socket.index()), std::ptr::null(), 0).build()),
        (
            "accept",
            opcode::Accept::new(Fixed(socket.index()), std::ptr::null_mut(), std::ptr::null_mut()).build(),
        ),
        ("sendmsg", opcode::SendMsg::new(Fixed(socket.index()), std::ptr::null()).build()),
        ("recvmsg", opcode::RecvMsg::new(Fixed(socket.index()), std::ptr::null_mut()).build()),
        ("readv", opcode::Readv::new(Fixed(WAKER_PLACE), std::ptr::null(), 0).build()),
        ("splice", opcode::Splice::new(Fixed(WAKER_PLACE), -1, Fixed(WAKER_PLACE), -1, 1).build()),
        ("command", opcode::UringCmd16::new(Fixed(WAKER_PLACE), 0).build()),
        ("files_update", opcode::FilesUpdate::new(&raw const *[-1].first().unwrap(), 1).build()),
        ("poll_remove", opcode::PollRemove::new(0).build()),
    ];
    for (name, entry) in entries {
        let entry = entry.flags(squeue::Flags::FIXED_FILE);
        assert_eq!(answer(&mut uring, entry), Err(Errno::ACCESS), "{name}");
    }
}

#[test]
fn descriptors_and_other_flags_are_refused() {
    let (mut uring, event) = uring();
    let mut bytes = [0_u8; 8];
    rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
    let by_descriptor = opcode::Read::new(Fd(event.as_raw_fd()), bytes.as_mut_ptr(), 8).build();
    assert_eq!(answer(&mut uring, by_descriptor), Err(Errno::ACCESS));
    let by_place = opcode::Read::new(Fixed(WAKER_PLACE), bytes.as_mut_ptr(), 8).build();
    for flag in
        [squeue::Flags::ASYNC, squeue::Flags::IO_DRAIN, squeue::Flags::IO_LINK, squeue::Flags::BUFFER_SELECT]
    {
        assert_eq!(answer(&mut uring, by_place.clone().flags(flag)), Err(Errno::ACCESS), "{flag:?}");
    }
    assert_eq!(answer(&mut uring, by_place), Ok(8));
    assert_eq!(bytes, 1_u64.to_ne_bytes());
}

#[test]
fn a_cancellation_passes_as_every_other_entry_does() {
    let (mut uring, _event) = uring();
    let poll = uring.send(Job::PollWaker);
    uring.submit().unwrap();
    uring.cancel(poll);
    uring.sleep(None).unwrap();
    uring.collect();
    let (_, answer) = uring.next_completed().unwrap();
    assert_eq!(answer, -Errno::CANCELED.raw_os_error());
}

#[test]
fn a_ring_stays_as_restricted_as_it_is() {
    let (uring, event) = uring();
    let submitter = uring.ring.submitter();
    let mut probe = io_uring::register::Probe::new();
    let refused = [
        ("restrictions", refusal(submitter.register_restrictions(&mut []))),
        ("enable", refusal(submitter.register_enable_rings())),
        ("files", refusal(submitter.register_files(&[event.as_raw_fd()]))),
        ("sparse files", refusal(submitter.register_files_sparse(8))),
        ("eventfd", refusal(submitter.register_eventfd(event.as_raw_fd()))),
        ("personality", refusal(submitter.register_personality())),
        ("probe", refusal(submitter.register_probe(&mut probe))),
        ("workers", refusal(submitter.register_iowq_max_workers(&mut [1, 1]))),
    ];
    for (name, errno) in refused {
        assert_eq!(errno, Some(Errno::ACCESS), "{name}");
    }
}

#[test]
fn a_full_table_is_said_to_be_and_has_room_again() {
    let (mut uring, event) = uring();
    let mut places = Vec::new();
    let full = loop {
        match uring.place(event.as_fd()) {
            Ok(place) => places.push(place),
            Err(error) => break error,
        }
    };
    assert_eq!(full, IoError::FilesFull { files_max: places.len() as u32 });
    places.pop();
    assert!(uring.place(event.as_fd()).is_ok());
}

#[test]
fn memory_is_registered_by_the_chunk_and_let_go_of_with_it() {
    use strongroom_memory::{BufferPool, CHUNK_BYTES};

    let (mut uring, _event) = uring();
    let pool = BufferPool::new(2 * CHUNK_BYTES).unwrap();
    let (first, second) = (pool.take(4096).unwrap(), pool.take(CHUNK_BYTES / 2).unwrap());
    let Uring { ring, chunks, .. } = &mut uring;
    let place = chunks.place_of(ring, &first);
    if place.is_none() {
        // An ordinary user's low limit is left to the rings.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        assert!(
            limit.is_some() && !rustix::process::geteuid().is_root(),
            "the kernel has such tables since 5.19"
        );
        return;
    }
    assert_eq!(chunks.place_of(ring, &second), place);
    let third = pool.take(CHUNK_BYTES).unwrap();
    assert_ne!(chunks.place_of(ring, &third), place);
    assert_eq!(chunks.count(), 2);
    drop((first, second, pool));
    chunks.release(ring);
    assert_eq!(chunks.count(), 2, "a buffer keeps its pool's chunks");
    drop(third);
    chunks.release(ring);
    assert_eq!(chunks.count(), 0);
    // The next chunk may have the address of one of them.
    let next = BufferPool::new(CHUNK_BYTES).unwrap().take(4096).unwrap();
    assert!(chunks.place_of(ring, &next).is_some());
}

#[test]
fn a_place_that_is_taken_is_nobody_elses() {
    use strongroom_memory::{BufferPool, CHUNK_BYTES};

    let (mut uring, _event) = uring();
    let Uring { ring, chunks, .. } = &mut uring;
    let pools: Vec<_> = (0..66).map(|_| BufferPool::new(CHUNK_BYTES).unwrap().take(4096).unwrap()).collect();
    let places: Vec<_> = pools.iter().map(|buffer| chunks.place_of(ring, buffer)).collect();
    // Two exceed the table, and are named by address. (Other tests make chunks too, so more may
    // share one place.)
    assert!(places.iter().filter(|place| place.is_none()).count() >= 2);
    let mut taken: Vec<_> = places.iter().flatten().collect();
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), places.iter().flatten().count());
}
