//! Speed of AES-256-XTS for the calls that the data path makes: one unit, and many at once.
//!
//! `cargo bench -p strongroom-crypto`

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use strongroom_crypto::xts::{UnitSize, Xts, kernel};
use strongroom_memory::secret::SecretBytes;

const UNITS_PER_CALL: [usize; 3] = [1, 8, 128];

fn xts(criterion: &mut Criterion) {
    let key = SecretBytes::random(64).expect("random key");
    for kernel in kernel::available() {
        for unit in [UnitSize::Bytes512, UnitSize::Bytes4096] {
            let xts = Xts::with_kernel(&key, unit, kernel).expect("valid key");
            let mut session = xts.session().expect("session");
            for units in UNITS_PER_CALL {
                let source = vec![0x5a; units * unit.bytes()];
                let mut destination = vec![0; source.len()];
                let mut group =
                    criterion.benchmark_group(format!("{}/{} bytes", kernel.name(), unit.bytes()));
                group.throughput(Throughput::Bytes(source.len() as u64));
                group.bench_function(BenchmarkId::new("encrypt", units), |bencher| {
                    bencher.iter(|| session.encrypt(7, black_box(&source), black_box(&mut destination)));
                });
                group.bench_function(BenchmarkId::new("decrypt", units), |bencher| {
                    bencher.iter(|| session.decrypt(7, black_box(&source), black_box(&mut destination)));
                });
                group.finish();
            }
        }
    }
}

fn key_set_up(criterion: &mut Criterion) {
    let key = SecretBytes::random(64).expect("random key");
    let xts = Xts::new(&key, UnitSize::Bytes4096).expect("valid key");
    criterion.bench_function("session set-up", |bencher| bencher.iter(|| xts.session()));
    criterion.bench_function("self-test", |bencher| bencher.iter(strongroom_crypto::self_test::self_test));
}

criterion_group!(benches, xts, key_set_up);
criterion_main!(benches);
