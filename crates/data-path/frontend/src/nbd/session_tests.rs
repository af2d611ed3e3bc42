#![allow(clippy::unwrap_used)]

use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use strongroom_io::{Disk, IdleReactor, Thread};
use strongroom_memory::BufferPool;
use strongroom_statistics::Recorders;

use super::super::export::Geometry;
use super::super::outbox::PARTS_PER_SEND;
use super::super::protocol::{IOS_IN_FLIGHT_MAX, PAYLOAD_MEMORY_BYTES, REQUEST_MAGIC, command};
use super::*;

#[path = "../../tests/support/memory_disk.rs"]
#[allow(dead_code)]
mod memory_disk;

use memory_disk::{MemoryDisk, Served};

const SIZE: u64 = 4 << 20;

struct Bench {
    disk: Arc<MemoryDisk>,
    session: Session,
    inbox: Inbox,
    outbox: Outbox,
    pool: BufferPool,
}

impl Bench {
    fn new(size_bytes: u64) -> Self {
        let disk = MemoryDisk::new(size_bytes);
        let served = Arc::new(Served(Arc::clone(&disk)));
        let pool = BufferPool::new(PAYLOAD_MEMORY_BYTES).unwrap();
        let thread = Thread { pool: pool.clone(), reactor: Rc::new(IdleReactor::new().unwrap()) };
        let channel = served.open(&thread, IOS_IN_FLIGHT_MAX).unwrap();
        let agreement = Agreement {
            geometry: Geometry::new(&served.limits()),
            structured_replies: true,
            allocation_context: true,
        };
        let inbox = Inbox::new(&pool).unwrap();
        let recorder = Recorders::none().claim();
        let transfers = Transfers::new(agreement, served, channel, pool.clone(), recorder);
        let session = Session::new(agreement, transfers);
        Self { disk, session, inbox, outbox: Outbox::default(), pool }
    }

    /// Feeds bytes as a socket does, at most `step` at once. Returns the replies, or `Err` if the
    /// client is to be closed.
    fn feed(&mut self, mut input: &[u8], step: usize) -> Result<Vec<u8>, NotARequest> {
        let mut output = Vec::new();
        loop {
            let mut taken = 0;
            for space in &mut self.session.space(&mut self.inbox) {
                let count = space.len().min(input.len()).min(step - taken);
                space[..count].copy_from_slice(&input[..count]);
                input = &input[count..];
                taken += count;
                // A socket fills the second only after the first.
                if count < space.len() {
                    break;
                }
            }
            self.session.received(taken, &mut self.inbox);
            self.session.advance(&mut self.inbox, &mut self.outbox)?;
            let sent = self.drain(&mut output);
            assert!(self.outbox.replies() <= REQUESTS_IN_FLIGHT_MAX);
            if taken == 0 && sent == 0 {
                assert!(input.is_empty(), "stuck with {} bytes to come", input.len());
                return Ok(output);
            }
        }
    }

    fn drain(&mut self, output: &mut Vec<u8>) -> usize {
        let before = output.len();
        while !self.outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); PARTS_PER_SEND];
            let count = self.outbox.unsent(&mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            self.outbox.sent(bytes.len());
            output.extend(bytes);
        }
        output.len() - before
    }
}

fn request(kind: u16, flags: u16, offset: u64, length: u32, content: &[u8]) -> Vec<u8> {
    [
        &REQUEST_MAGIC.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &77_u64.to_be_bytes(),
        &offset.to_be_bytes(),
        &length.to_be_bytes(),
        content,
    ]
    .concat()
}

/// A random request, usually for bytes of `extent`.
fn random_request(random: &mut StdRng, extent: Extent) -> Vec<u8> {
    let kind = random.random_range(0..9_u16);
    if kind == command::DISCONNECT {
        return Vec::new();
    }
    let length = match random.random_range(0..4) {
        0 => random.random_range(1..100_000),
        1 => random.random_range(1..2 << 20),
        _ => 512 * random.random_range(1..64),
    };
    let offset = extent.offset() + random.random_range(0..extent.length() / 2);
    let flags = [0, 1, 2, 4, 8, 16][random.random_range(0..6)];
    let mut content = vec![0; if kind == command::WRITE { length as usize } else { 0 }];
    random.fill_bytes(&mut content);
    request(kind, flags, offset, length, &content)
}

#[test]
fn the_cut_of_the_stream_does_not_matter() {
    // Each request has its own part of the disk, because overlapping requests have no order.
    let part = 3 << 20;
    for seed in 0..8 {
        let mut random = StdRng::seed_from_u64(seed);
        let parts = (0..20).map(|index| Extent::new(index * part, part).unwrap());
        let requests: Vec<u8> = parts.flat_map(|part| random_request(&mut random, part)).collect();
        let mut outcomes = [usize::MAX, 1_000_003, 65_536, 997].map(|step| {
            let mut bench = Bench::new(20 * part);
            let answer = bench.feed(&requests, step).unwrap();
            assert!(bench.session.is_quiet() && bench.session.is_answered());
            (answer.len(), bench.disk.content())
        });
        let first = std::mem::take(&mut outcomes[0]);
        assert!(outcomes[1..].iter().all(|outcome| *outcome == first), "seed {seed}");
    }
}

#[test]
fn mutated_and_random_streams_never_panic_and_keep_to_their_memory() {
    let whole = Extent::new(0, 2 * SIZE).unwrap();
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bench = Bench::new(SIZE);
        let mut stream: Vec<u8> = (0..20).flat_map(|_| random_request(&mut random, whole)).collect();
        if seed % 8 == 0 {
            stream.truncate(1000);
            random.fill_bytes(&mut stream);
        }
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..stream.len());
            match random.random_range(0..3) {
                0 => stream[at] = random.random(),
                1 => drop(stream.remove(at)),
                _ => stream.insert(at, random.random()),
            }
        }
        let result = bench.feed(&stream, random.random_range(1000..100_000));
        assert!(bench.pool.resident_bytes() <= PAYLOAD_MEMORY_BYTES);
        bench.session.wind_down();
        assert!(bench.session.is_quiet());
        drop(result);
    }
}

#[test]
fn every_header_that_can_be_is_answered_or_closes() {
    let mut random = StdRng::seed_from_u64(1);
    let mut bench = Bench::new(SIZE);
    for _ in 0..20_000 {
        let kind = random.random_range(0..12_u16);
        if kind == command::WRITE || kind == command::DISCONNECT {
            continue;
        }
        let offset = random.random::<u64>() >> random.random_range(0..64);
        let length = random.random::<u32>() >> random.random_range(0..32);
        let header = request(kind, random.random::<u16>() >> 8, offset, length, &[]);
        let answer = bench.feed(&header, usize::MAX).unwrap();
        assert!(answer.len() >= 16, "{header:?}");
    }
    assert!(bench.session.is_answered());
}

#[test]
fn requests_are_refused_while_shutting_down_and_their_content_skipped() {
    let mut bench = Bench::new(SIZE);
    bench.session.shut_down();
    let stream =
        [request(command::WRITE, 0, 0, 512, &[1; 512]), request(command::READ, 0, 0, 512, &[])].concat();
    let answer = bench.feed(&stream, usize::MAX).unwrap();
    let errors = answer.windows(4).filter(|window| *window == 108_u32.to_be_bytes()).count();
    assert_eq!((errors, &bench.disk.content()[..512]), (2, &[0; 512][..]));
}
