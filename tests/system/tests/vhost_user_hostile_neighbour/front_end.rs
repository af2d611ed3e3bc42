//! Attacks of a hostile front end: its messages, its files, its memory.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use strongroom_lab::vhost_user::connection::{Connection, RegionDescription, RingAddresses, RingFile};
use strongroom_lab::vhost_user::inflight::{Entry, InflightDescription};
use strongroom_lab::vhost_user::protocol::{feature, protocol_feature, request};
use strongroom_lab::vhost_user::queue::{Extent, Operation, Shape};

use super::{DEADLINE, ROUNDS, connect};

/// A memory file of this size.
fn memory_file(bytes: u64) -> OwnedFd {
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&file, bytes).expect("a size");
    file
}

/// A connection with negotiated features.
fn greet(socket: &Path) -> Connection {
    let mut connection = Connection::open(socket).expect("a connection");
    let features = connection.features().expect("features") & !feature::LOG_ALL;
    let offered = connection.protocol_features().expect("protocol features");
    connection.set_protocol_features(offered).expect("agreement");
    connection.set_owner().expect("an owner");
    connection.set_features(features).expect("agreement");
    connection
}

pub fn regions(socket: &Path) {
    let mut connection = greet(socket);
    let file = memory_file(1 << 20);
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("a seal");
    let region = RegionDescription { guest: 0, bytes: 1 << 20, user: 1 << 40, file_offset: 0 };
    connection.add_region(region, file.as_fd()).expect("a region");
    let bad = [
        RegionDescription { user: 2 << 40, ..region },
        RegionDescription { guest: 4096, user: 3 << 40, ..region },
        RegionDescription { guest: 1 << 30, bytes: (1 << 20) + 1, ..region },
        RegionDescription { guest: 1 << 30, bytes: u64::MAX, ..region },
        RegionDescription { guest: u64::MAX - 4096, ..region },
        RegionDescription { guest: 1 << 30, file_offset: u64::MAX - 4095, ..region },
        RegionDescription { guest: 1 << 30, file_offset: 1, ..region },
        RegionDescription { guest: 1 << 30, bytes: 0, ..region },
    ];
    for region in bad {
        assert!(connection.add_region(region, file.as_fd()).is_err(), "{region:?}");
    }
    for index in 2..600_u64 {
        let guest = index << 30;
        let _ = connection.add_region(RegionDescription { guest, user: guest, ..region }, file.as_fd());
    }
    drop(connection);
    // The memory is removed while requests in it are in flight.
    let mut front_end = connect(socket);
    for slot in 0..16 {
        let read = Operation::Read(Extent::between(0, 1 << 20));
        front_end.queues()[0].submit(slot, &read, &Shape::default(), &vec![0; 1 << 20]).expect("room");
    }
    front_end.queues()[0].publish().expect("the ring is there");
    let regions: Vec<_> = front_end.guest().regions().into_iter().map(|(region, _)| region).collect();
    for region in regions.into_iter().rev() {
        let _ = front_end.connection().remove_region(region);
        let _ = front_end.queues()[0].kick();
    }
}

pub fn rings_outside(socket: &Path) {
    let mut front_end = connect(socket);
    let (region, _) = front_end.guest().regions()[0];
    let inside = RingAddresses {
        descriptors: region.user,
        available: region.user + 8192,
        used: region.user + 16_384,
        log: None,
    };
    let connection = front_end.connection();
    let end = region.user + region.bytes;
    for bad in [0, 8, end, end - 16, region.user - 16, u64::MAX - 15, region.user + 1] {
        for addresses in [
            RingAddresses { descriptors: bad, ..inside },
            RingAddresses { available: bad, ..inside },
            RingAddresses { used: bad, ..inside },
        ] {
            assert!(connection.set_ring_addresses(0, addresses).is_err(), "{addresses:?}");
        }
    }
    for (ring, size) in [(0, 0), (0, 3), (0, 1 << 31), (16, 128), (u32::MAX, 128)] {
        assert!(connection.set_ring_size(ring, size).is_err(), "{ring} {size}");
    }
    assert!(connection.enable_ring(77, true).is_err());
    let directory = File::open("/").expect("a directory");
    let _ = connection.set_ring_file(0, RingFile::Kick, directory.as_fd());
    let null = File::open("/dev/null").expect("a file");
    let _ = connection.set_ring_file(0, RingFile::Call, null.as_fd());
}

pub fn changing_features(socket: &Path) {
    let mut random = StdRng::seed_from_u64(5);
    let mut front_end = connect(socket);
    let features = front_end.features();
    for round in 0..ROUNDS as u64 {
        for slot in 0..16 {
            let write = Operation::Write(Extent::between(slot * 4096, (slot + 1) * 4096));
            let shape = Shape { indirect: true, ..Shape::default() };
            let queue = &mut front_end.queues()[0];
            if queue.has_room(&shape)
                && queue.submit(slot as usize, &write, &shape, &[round as u8; 4096]).is_err()
            {
                return;
            }
        }
        let _ = front_end.queues()[0].publish();
        let connection = front_end.connection();
        let without = 1_u64 << random.random_range(0..33);
        let kept = if random.random_bool(0.1) { random.random() } else { features & !without };
        let _ = connection.set_features(kept);
        let _ = connection.set_protocol_features(random.random());
        let _ = connection.set_protocol_features(protocol_feature::REPLY_ACK | protocol_feature::STATUS);
        let _ = connection.set_status(random.random());
        let _ = connection.set_features(features | feature::LOG_ALL);
        while let Ok(Some(_)) = front_end.queues()[0].take_answered() {}
    }
}

pub fn lying_areas(socket: &Path) {
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..ROUNDS {
        let mut front_end = connect(socket);
        let used_index = front_end.queues()[0].ring().used_index().expect("the ring is there");
        let area = front_end.inflight().expect("an area").queue(0);
        area.set_used_index(used_index.wrapping_sub(random.random_range(0..200))).expect("the area is there");
        area.set_last_batch_head(random.random()).expect("the area is there");
        if random.random_bool(0.2) {
            area.set_version(random.random()).expect("the area is there");
            area.set_descriptor_count(random.random()).expect("the area is there");
        }
        for head in 0..128 {
            let (in_flight, next, counter) = (random.random(), random.random_range(0..200), random.random());
            area.set_entry(head, Entry { in_flight, next, counter }).expect("the area is there");
        }
        let _ = front_end.reconnect();
    }
    let mut connection = greet(socket);
    let file = memory_file(1 << 16);
    let honest = InflightDescription { mmap_size: 1 << 16, mmap_offset: 0, queues: 2, queue_size: 128 };
    for description in [
        honest,
        InflightDescription { mmap_size: u64::MAX, ..honest },
        InflightDescription { mmap_offset: u64::MAX, ..honest },
        InflightDescription { queues: u16::MAX, queue_size: u16::MAX, ..honest },
        InflightDescription { mmap_size: 16, ..honest },
        InflightDescription { queues: 0, ..honest },
    ] {
        assert!(connection.set_inflight_area(description, file.as_fd()).is_err(), "{description:?}");
    }
    for (queues, size) in [(0, 0), (u16::MAX, u16::MAX), (1, 0)] {
        let _ = Connection::open(socket).and_then(|mut other| other.inflight_area(queues, size));
    }
}

pub fn noise_in_messages(socket: &Path) {
    let mut random = StdRng::seed_from_u64(11);
    let file = memory_file(4096);
    for _ in 0..ROUNDS * 8 {
        let Ok(mut connection) = Connection::open(socket) else { continue };
        for _ in 0..random.random_range(1..20) {
            let mut body = vec![0; random.random_range(0..80)];
            random.fill_bytes(&mut body);
            if random.random() {
                body.iter_mut().skip(1).for_each(|byte| *byte = 0);
            }
            let flags =
                if random.random_bool(0.9) { 1 | random.random_range(0..2) << 3 } else { random.random() };
            let files =
                vec![file.as_fd(); if random.random_bool(0.8) { 0 } else { random.random_range(1..9) }];
            if connection.send(random.random_range(0..45), flags, &body, &files).is_err() {
                break;
            }
        }
    }
}

/// More front ends than there are places, each of which has sent a part of a message and waits.
pub fn stalling_sockets(socket: &Path) -> Vec<UnixStream> {
    let message = [[request::SET_FEATURES, 1, 8].map(u32::to_le_bytes).concat(), vec![0; 8]].concat();
    let stalled: Vec<UnixStream> = (0..8)
        .map(|index| {
            let mut stream = UnixStream::connect(socket).expect("a connection");
            stream.write_all(&message[..1 + 2 * index]).expect("a part of a message");
            stream
        })
        .collect();
    // The header of one of them promises more than the limit.
    let mut stream = &stalled[7];
    let _ = stream.write_all(&[0xff; 12]);
    stalled
}

/// The guest's memory shrinks under the worker: the worker ends, or reports a broken ring.
pub fn cut_memory_off(socket: &Path) {
    let mut connection = greet(socket);
    let file = memory_file(1 << 20);
    let user = 1 << 40;
    let region = RegionDescription { guest: 0, bytes: 1 << 20, user, file_offset: 0 };
    if connection.add_region(region, file.as_fd()).is_err() {
        // A server may insist on seals, which prevent truncation.
        return;
    }
    let addresses =
        RingAddresses { descriptors: user, available: user + 8192, used: user + 16_384, log: None };
    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let (kick, error) = (event(), event());
    connection
        .set_ring_size(0, 128)
        .and_then(|()| connection.set_ring_addresses(0, addresses))
        .and_then(|()| connection.set_ring_file(0, RingFile::Error, error.as_fd()))
        .and_then(|()| connection.set_ring_file(0, RingFile::Kick, kick.as_fd()))
        .and_then(|()| connection.enable_ring(0, true))
        .expect("a ring");
    ftruncate(&file, 0).expect("a size");
    rustix::io::write(&kick, &1_u64.to_ne_bytes()).expect("an eventfd");
    let (gone, told) =
        (PollFd::new(connection.socket(), PollFlags::RDHUP), PollFd::new(&error, PollFlags::IN));
    let timeout = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
    let happened = poll(&mut [gone, told], Some(&timeout)).expect("a poll");
    assert!(happened > 0, "a worker whose guest's memory is gone goes on");
}
