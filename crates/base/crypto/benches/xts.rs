//! Speed of AES-256-XTS for the calls of the data path: one unit, and many at once. Every kernel of
//! this machine is compared with the others and with the limit of the processor's AES units.
//!
//! `cargo bench -p strongroom-crypto --bench xts`. Criterion's figures are means, which other load
//! on the machine distorts; the tables show the least times.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

#[path = "xts/bound.rs"]
mod bound;
#[path = "xts/table.rs"]
mod table;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use strongroom_crypto::guest::GuestSession;
use strongroom_crypto::xts::{UnitSize, Xts, XtsSession, kernel};
use strongroom_memory::secret::SecretBytes;
use strongroom_memory::{GuestAddress, GuestMemory, GuestRegion, GuestSlice};
use table::Table;

/// The count of units of one call, and their size.
const CALLS: [(usize, UnitSize); 6] = [
    (1, UnitSize::Bytes4096),
    (16, UnitSize::Bytes4096),
    (128, UnitSize::Bytes4096),
    (1, UnitSize::Bytes512),
    (128, UnitSize::Bytes512),
    (1024, UnitSize::Bytes512),
];

/// The size of each of source and destination: twice the third-level cache of the processors in
/// use.
const COLD_BYTES: usize = 64 << 20;

const PAGE_BYTES: usize = 4096;

/// Bytes that take long compared with the clock's resolution.
const TOGETHER_BYTES: usize = 128 << 10;

/// The whole pages of a buffer, aligned as guest memory and our own buffers are.
fn pages(buffer: &mut [u8]) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(PAGE_BYTES);
    let length_bytes = buffer.len() - PAGE_BYTES;
    &mut buffer[start..start + length_bytes]
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
        }
    }

    fn run(self, session: &mut XtsSession, source: &[u8], destination: &mut [u8]) {
        let (source, destination) = (black_box(source), black_box(destination));
        match self {
            Self::Encrypt => session.encrypt(7, source, destination),
            Self::Decrypt => session.decrypt(7, source, destination),
        }
        .expect("whole units");
    }
}

/// Where the data is when a call begins.
#[derive(Clone, Copy)]
enum Data {
    /// In the caches: the previous call used the same data.
    Cached,
    /// In memory: each call uses the next part of [`COLD_BYTES`].
    Cold,
}

impl Data {
    fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Cold => "cold",
        }
    }

    fn bytes(self, call_bytes: usize) -> usize {
        match self {
            Self::Cached => call_bytes,
            Self::Cold => COLD_BYTES,
        }
    }

    /// The data for which calls are timed together: little for cached data, so that the least time
    /// is that of a quiet moment; all of it for cold data, so that parts that are cached
    /// nevertheless do not distort the result.
    fn together_bytes(self) -> usize {
        match self {
            Self::Cached => TOGETHER_BYTES,
            Self::Cold => COLD_BYTES,
        }
    }
}

fn kernels(criterion: &mut Criterion) {
    let key = SecretBytes::random(64).expect("random key");
    let mut table = Table::default();
    for data in [Data::Cached, Data::Cold] {
        for direction in [Direction::Encrypt, Direction::Decrypt] {
            for (units, unit) in CALLS {
                let call_bytes = units * unit.bytes();
                let row = format!("{}, {}, {units} x {}", data.name(), direction.name(), unit.bytes());
                let mut group = criterion.benchmark_group(&row);
                let mut memory = [vec![0x5a; data.bytes(call_bytes) + PAGE_BYTES], Vec::new()];
                memory[1] = memory[0].clone();
                let [source, destination] = memory.each_mut().map(|buffer| pages(buffer));
                for kernel in kernel::available() {
                    let xts = Xts::with_kernel(&key, unit, kernel).expect("valid key");
                    let mut session = xts.session().expect("session");
                    let mut at = 0;
                    table.measure(
                        &mut group,
                        &row,
                        kernel.name(),
                        (call_bytes, data.together_bytes()),
                        || {
                            let call = at..at + call_bytes;
                            direction.run(&mut session, &source[call.clone()], &mut destination[call]);
                            at = (at + call_bytes) % source.len();
                        },
                    );
                }
                table.measure_bound(&mut group, &row);
                group.finish();
            }
        }
    }
    println!("{table}");
}

/// The additional cost of a guest's transfer: its segments, and a unit that is split between two.
fn guest_memory(criterion: &mut Criterion) {
    const GUEST_BYTES: u64 = 1 << 20;
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, GUEST_BYTES).expect("memory");
    let region = GuestRegion::map(&file, 0, GuestAddress(0), GUEST_BYTES).expect("a mapping");
    let memory = Arc::new(GuestMemory::new(vec![region], None).expect("guest memory"));
    let key = SecretBytes::random(64).expect("random key");
    let xts = Xts::new(&key, UnitSize::Bytes4096).expect("valid key");
    let mut session = GuestSession::new(&xts).expect("session");
    let mut buffer = vec![0; (512 << 10) + PAGE_BYTES];
    let own = pages(&mut buffer);

    let kernel = kernel::fastest().name();
    let mut table = Table::default();
    for (name, lengths) in [
        ("4 KiB", &[4096][..]),
        ("4 KiB in two segments", &[1024, 3072]),
        ("64 KiB", &[64 << 10]),
        ("64 KiB in 16 segments", &[4096; 16]),
        ("512 KiB", &[512 << 10]),
    ] {
        let mut address = 0;
        let ranges = lengths.iter().map(|length| {
            let range = (GuestAddress(address), *length);
            // The segments are not adjacent, or they would be joined.
            address += u64::from(*length) + 4096;
            range
        });
        let ranges: Vec<_> = ranges.collect();
        let mut slice = GuestSlice::from_guest(&memory, ranges, Vec::new()).expect("in memory");
        let own = &mut own[..slice.len()];

        let row = format!("guest memory, encrypt, {name}");
        let mut group = criterion.benchmark_group(&row);
        table.measure(&mut group, &row, kernel, (own.len(), TOGETHER_BYTES), || {
            session.encrypt(7, black_box(&slice), 0, black_box(own)).expect("in range");
        });
        table.measure_bound(&mut group, &row);
        group.finish();

        let row = format!("guest memory, decrypt, {name}");
        let mut group = criterion.benchmark_group(&row);
        table.measure(&mut group, &row, kernel, (own.len(), TOGETHER_BYTES), || {
            session.decrypt(7, black_box(own), black_box(&mut slice), 0).expect("in range");
        });
        table.measure_bound(&mut group, &row);
        group.finish();
    }
    println!("{table}");
}

fn key_set_up(criterion: &mut Criterion) {
    let key = SecretBytes::random(64).expect("random key");
    for kernel in kernel::available() {
        let xts = Xts::with_kernel(&key, UnitSize::Bytes4096, kernel).expect("valid key");
        criterion.bench_function(&format!("session set-up/{}", kernel.name()), |bencher| {
            bencher.iter(|| xts.session());
        });
    }
    criterion.bench_function("self-test", |bencher| bencher.iter(strongroom_crypto::self_test::self_test));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20);
    targets = kernels, guest_memory, key_set_up
}
criterion_main!(benches);
