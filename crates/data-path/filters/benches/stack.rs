//! What the stages cost above a disk in memory: one thread, random requests, 32 at a time.
//!
//! Nothing here waits, so the thread's processor time is what they cost, also on a machine that
//! others use.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use strongroom_crypto::xts::{KEY_BYTES, UnitSize, Xts};
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys};
use strongroom_io::conformance::{EventLoop, IdleLoop};
use strongroom_io::{Channel, Disk, Io, Plain, RangeLocks, Request, Thread};
use strongroom_memory::secret::SecretBytes;
use strongroom_memory::{BufferPool, GuestSlice};
use strongroom_types::{Extent, KeyEpoch, VolumeSize};

const SIZE_BYTES: u64 = 256 << 20;
const DEPTH: usize = 32;
const POOL_BYTES: usize = 64 << 20;

fn stack(encrypted: bool) -> BlocksizeDisk {
    let epoch = if encrypted { KeyEpoch::FIRST } else { KeyEpoch::CLEAR };
    let memory = Arc::new(MemoryDisk::new(VolumeSize::new(SIZE_BYTES).unwrap(), epoch));
    let lower: Arc<dyn Disk<Plain>> = if encrypted {
        let key = Xts::new(&SecretBytes::random(KEY_BYTES).unwrap(), UnitSize::Bytes4096).unwrap();
        Arc::new(CryptDisk::new(memory, Arc::new(EpochKeys::new(KeyEpoch::FIRST, Arc::new(key)).unwrap())))
    } else {
        Arc::new(CleartextDisk::new(memory))
    };
    BlocksizeDisk::new(lower, SIZE_BYTES, 512, RangeLocks::new()).unwrap()
}

#[derive(Clone, Copy)]
struct Load {
    reads: bool,
    length: u64,
    /// What offsets are multiples of.
    align: u64,
}

/// Processor time of this thread.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `count` requests and says how much processor time they took.
fn run(disk: &dyn Disk<Plain>, load: Load, count: u64) -> Duration {
    let event_loop = IdleLoop::new().unwrap();
    let thread = Thread { pool: BufferPool::new(POOL_BYTES).unwrap(), reactor: event_loop.reactor() };
    let guest = BufferPool::new(POOL_BYTES).unwrap();
    let mut channel = disk.open(&thread, DEPTH).unwrap();
    let mut state = 1_u64;
    let mut submit = |channel: &mut dyn Channel<Plain>, memory: GuestSlice, tag: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (state >> 20) % (SIZE_BYTES - load.length) / load.align * load.align;
        let extent = Extent::between(offset, offset + load.length);
        let request = match load.reads {
            true => Request::Read { extent, into: memory },
            false => Request::Write { extent, from: memory, durable: false },
        };
        channel.submit(Io { tag, request });
    };
    let started = now();
    let (mut submitted, mut ended) = (0, 0);
    while submitted < count.min(DEPTH as u64) {
        let mut memory = guest.take(load.length as usize).unwrap();
        // Untouched memory would all be the kernel's one page of zeroes.
        memory.bytes_mut().fill(submitted as u8 | 1);
        let memory = GuestSlice::from_buffer(memory);
        submit(&mut *channel, memory, submitted);
        submitted += 1;
    }
    let mut done = Vec::with_capacity(DEPTH);
    while ended < count {
        channel.kick();
        channel.poll(&mut done);
        for done in done.drain(..) {
            assert_eq!(done.result, Ok(()));
            ended += 1;
            if let Some(memory) = done.memory.filter(|_| submitted < count) {
                submit(&mut *channel, memory, done.tag);
                submitted += 1;
            }
        }
    }
    now() - started
}

fn benches(criterion: &mut Criterion) {
    for (name, encrypted) in [("blocksize, crypt", true), ("blocksize, cleartext", false)] {
        let disk = stack(encrypted);
        // So that reads find data and writes find memory.
        run(&disk, Load { reads: false, length: 4096, align: 4096 }, 4 * SIZE_BYTES / 4096);
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(1));
        for (what, load) in [
            ("write 4 KiB", Load { reads: false, length: 4096, align: 4096 }),
            ("read 4 KiB", Load { reads: true, length: 4096, align: 4096 }),
            ("write 512 bytes", Load { reads: false, length: 512, align: 512 }),
        ] {
            group.bench_function(what, |bencher| bencher.iter_custom(|count| run(&disk, load, count)));
        }
        group.finish();
    }
}

criterion_group!(stack_benches, benches);
criterion_main!(stack_benches);
