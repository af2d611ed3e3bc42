//! Speed of AES-256-XTS for the calls that the data path makes: one unit, and many at once; every kernel of this machine
//! beside the others and beside what the processor's AES units can do at all.
//!
//! `cargo bench -p strongroom-crypto --bench xts`. Criterion's figures are means and suffer from whoever else uses the machine;
//! the table at the end is of the least times.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

#[path = "xts/bound.rs"]
mod bound;
#[path = "xts/table.rs"]
mod table;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use strongroom_crypto::xts::{UnitSize, Xts, XtsSession, kernel};
use strongroom_memory::secret::SecretBytes;
use table::{Least, Table};

/// Units of one call, and their size.
const CALLS: [(usize, UnitSize); 6] = [
    (1, UnitSize::Bytes4096),
    (16, UnitSize::Bytes4096),
    (128, UnitSize::Bytes4096),
    (1, UnitSize::Bytes512),
    (128, UnitSize::Bytes512),
    (1024, UnitSize::Bytes512),
];

/// Twice the third-level cache of the processors at hand, for each of source and destination.
const COLD_BYTES: usize = 64 << 20;

const PAGE_BYTES: usize = 4096;

/// Whole pages of a buffer, as guests' memory and our own buffers are.
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

/// Where the data lies when a call begins.
#[derive(Clone, Copy)]
enum Data {
    /// In the caches: the call before had the same.
    Cached,
    /// In memory: each call goes on through [`COLD_BYTES`].
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
                group.throughput(Throughput::Bytes(call_bytes as u64));
                let mut memory = [vec![0x5a; data.bytes(call_bytes) + PAGE_BYTES], Vec::new()];
                memory[1] = memory[0].clone();
                let [source, destination] = memory.each_mut().map(|buffer| pages(buffer));
                for kernel in kernel::available() {
                    let xts = Xts::with_kernel(&key, unit, kernel).expect("valid key");
                    let mut session = xts.session().expect("session");
                    let mut least = Least::of_calls(call_bytes);
                    let mut at = 0;
                    group.bench_function(BenchmarkId::from_parameter(kernel.name()), |bencher| {
                        bencher.iter_custom(|calls| {
                            least.time(calls, || {
                                let call = at..at + call_bytes;
                                direction.run(&mut session, &source[call.clone()], &mut destination[call]);
                                at = (at + call_bytes) % source.len();
                            })
                        });
                    });
                    table.add(&row, kernel.name(), least);
                }
                group.finish();
            }
        }
    }
    println!("{}", table.beside(&bound::measure()));
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
    targets = kernels, key_set_up
}
criterion_main!(benches);
