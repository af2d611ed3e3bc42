//! Attacks of a hostile guest on its own disk: its rings, and the buffers that they point to.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strongroom_lab::vhost_user::front_end::FrontEnd;
use strongroom_lab::vhost_user::guest::GuestAddress;
use strongroom_lab::vhost_user::protocol::descriptor_flag as flag;
use strongroom_lab::vhost_user::queue::{Extent, Operation, Queue, Shape};

use super::{DEADLINE, ROUNDS, connect};

/// The fields of a descriptor in a chain: its index in the table, address, length, flags, next
/// index.
type Raw = (u16, u64, u32, u16, u16);

/// Invalid chains, each in a session of its own; the other queue keeps working.
pub fn break_rings(socket: &Path) {
    let chains: [(&str, &[Raw], u16); 11] = [
        ("a circle of one", &[(0, 4096, 16, flag::NEXT, 0)], 0),
        ("a circle of two", &[(0, 4096, 16, flag::NEXT, 1), (1, 4096, 16, flag::NEXT, 0)], 0),
        ("a head outside of the table", &[], 4711),
        ("a next outside of the table", &[(0, 4096, 16, flag::NEXT, 128)], 0),
        ("memory of no region", &[(0, 1 << 60, 16, 0, 0)], 0),
        ("memory that wraps around", &[(0, u64::MAX - 7, 16, 0, 0)], 0),
        ("a length beyond its region", &[(0, 4096, u32::MAX, flag::WRITE, 0)], 0),
        ("a table of a broken length", &[(0, 4096, 17, flag::INDIRECT, 0)], 0),
        ("a table as long as can be", &[(0, 4096, !15, flag::INDIRECT, 0)], 0),
        (
            "a table in a chain",
            &[(0, 4096, 16, flag::INDIRECT | flag::NEXT, 1), (1, 4096, 1, flag::WRITE, 0)],
            0,
        ),
        ("no place for a status", &[(0, 4096, 16, 0, 0)], 0),
    ];
    for (what, chain, head) in chains {
        let mut front_end = connect(socket);
        let queue = &mut front_end.queues()[0];
        let table = queue.ring().place().descriptors;
        for (place, address, length, flags, next) in chain {
            let run = (GuestAddress(*address), *length);
            queue.ring_mut().write_descriptor(table, *place, run, *flags, *next).expect("the ring is there");
        }
        queue.ring_mut().make_available(head).expect("the ring is there");
        queue.ring_mut().publish().expect("the ring is there");
        queue.kick().expect("an eventfd");
        await_error(queue, what);
        read_once(&mut front_end, 1);
    }
}

/// One read through a queue, which must succeed.
fn read_once(front_end: &mut FrontEnd, index: usize) {
    let queue = &mut front_end.queues()[index];
    let read = Operation::Read(Extent::between(0, 4096));
    queue.submit(0, &read, &Shape::default(), &[0; 4096]).expect("room");
    queue.publish().expect("the ring is there");
    loop {
        if let Some(answered) = queue.take_answered().expect("a ring") {
            return assert_eq!(answered.status, 0);
        }
        if !queue.listen().expect("the ring is there") {
            let timeout = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(queue.call_file(), PollFlags::IN)], Some(&timeout));
            assert_eq!(ready, Ok(1), "the other queue of a hostile guest is not served");
        }
    }
}

/// Random words in descriptors, rings, headers and tables, while the server reads them.
pub fn noise_in_rings(socket: &Path) {
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..ROUNDS {
        let mut front_end = connect(socket);
        let memory = front_end.guest().memory().clone();
        let queue = &mut front_end.queues()[0];
        for slot in 0..16 {
            let start = slot as u64 * 8192;
            let operation = match slot % 2 {
                0 => Operation::Read(Extent::between(start, start + 8192)),
                _ => Operation::Write(Extent::between(start, start + 8192)),
            };
            let shape = Shape { indirect: slot % 4 < 2, content_cuts: vec![1000, 5000], ..Shape::default() };
            queue.submit(slot, &operation, &shape, &[7; 8192]).expect("room");
        }
        queue.ring_mut().publish().expect("the ring is there");
        queue.kick().expect("an eventfd");
        for _ in 0..500 {
            let at = GuestAddress(random.random_range(0..60_000) & !1);
            let word = if random.random() { random.random() } else { random.random_range(0..64) };
            memory.store_u16(at, word).expect("the memory is there");
            queue.kick().expect("an eventfd");
        }
        // The other queue's ring is beyond the noise.
        read_once(&mut front_end, 1);
    }
}

/// Requests that transfer the guest's memory many times over, and beyond the end of the disk.
pub fn absurd_requests(socket: &Path) {
    let mut front_end = connect(socket);
    let (content, ..) = front_end.guest().regions()[1];
    let queue = &mut front_end.queues()[0];
    let table = queue.ring().place().descriptors;
    // 126 times about 8 MiB of memory, from the beginning of the disk: more than its size.
    let header = GuestAddress(60_000);
    let length = content.bytes as u32;
    let ring = queue.ring_mut();
    ring.write_descriptor(table, 0, (header, 16), flag::NEXT, 1).expect("the ring is there");
    for place in 1..127 {
        let run = (GuestAddress(content.guest), length);
        ring.write_descriptor(table, place, run, flag::NEXT | flag::WRITE, place + 1)
            .expect("the ring is there");
    }
    ring.write_descriptor(table, 127, (header, 1), flag::WRITE, 0).expect("the ring is there");
    for _ in 0..64 {
        ring.make_available(0).expect("the ring is there");
    }
    ring.publish().expect("the ring is there");
    queue.kick().expect("an eventfd");
    read_once(&mut front_end, 1);
}

fn await_error(queue: &Queue, what: &str) {
    let timeout = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(queue.error_file(), PollFlags::IN)], Some(&timeout));
    assert_eq!(ready, Ok(1), "{what}: the server did not say that the queue is broken");
}
