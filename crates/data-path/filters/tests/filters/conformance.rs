//! Every filter, and stacks of them in any order and under faults, through the suite.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{blocksize, clear_memory, crypt, memory, mixed};
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::delay::{Delay, DelayDisk, Delays};
use strongroom_filters::error::{ErrorDisk, Fault, Moment, Trigger};
use strongroom_filters::mixed::Writes;
use strongroom_filters::qos::{LimitPage, Limits, QosDisk};
use strongroom_io::conformance::reorder::ReorderDisk;
use strongroom_io::conformance::{Conformance, TestPayload};
use strongroom_io::{Disk, IoError, Plain, Sealed};
use strongroom_types::{Bandwidth, BandwidthLimit, IoLimits, Iops, IopsBurst, IopsLimit};

/// Not whole blocks, and not whole MiB.
const SIZE_BYTES: u64 = (5 << 20) + 1536;

#[track_caller]
fn passes<P: TestPayload, D: Disk<P> + 'static>(make: impl Fn() -> D + 'static) {
    if let Err(failure) = Conformance::<P>::new(make).run() {
        panic!("{failure}");
    }
}

#[track_caller]
fn passes_with_faults<P: TestPayload, D: Disk<P> + 'static>(make: impl Fn() -> D + 'static) {
    if let Err(failure) = Conformance::<P>::new(make).run_faulty(IoError::Injected) {
        panic!("{failure}");
    }
}

fn reordered<P: TestPayload>(below: Arc<dyn Disk<P>>) -> Arc<dyn Disk<P>> {
    Arc::new(ReorderDisk::new(below, 3))
}

/// Fails one request in twelve, as often after it was done as before.
fn faulty<P: TestPayload>(below: Arc<dyn Disk<P>>) -> Arc<dyn Disk<P>> {
    let fault = Fault::new(Trigger::Probability(0.04));
    Arc::new(ErrorDisk::new(below, &[fault, Fault { moment: Moment::After, ..fault }], 9))
}

fn delays() -> Delays {
    Delays::all(Delay::Uniform(Duration::ZERO, Duration::from_micros(300)))
}

#[test]
fn crypt_over_memory() {
    passes::<Plain, _>(|| crypt(memory(SIZE_BYTES)));
}

#[test]
fn cleartext_over_memory() {
    passes::<Plain, _>(|| CleartextDisk::new(clear_memory(SIZE_BYTES)));
}

#[test]
fn mixed_over_memory_of_either_sort() {
    passes::<Plain, _>(|| mixed(memory(SIZE_BYTES), Writes::Sealed));
    passes::<Plain, _>(|| mixed(clear_memory(SIZE_BYTES), Writes::Clear));
    passes_with_faults::<Plain, _>(|| mixed(faulty(memory(SIZE_BYTES)), Writes::Sealed));
}

#[test]
fn blocksize_over_crypt_over_memory() {
    for unit_bytes in [1, 512, 4096] {
        let size = SIZE_BYTES & !(u64::from(unit_bytes) - 1);
        passes::<Plain, _>(move || blocksize(Arc::new(crypt(memory(SIZE_BYTES))), size, unit_bytes));
    }
}

#[test]
fn blocksize_of_tiny_and_huge_disks() {
    passes::<Plain, _>(|| blocksize(Arc::new(crypt(memory(4096))), 4096, 1));
    passes::<Plain, _>(|| blocksize(Arc::new(crypt(memory(64 << 40))), (64 << 40) - 512, 512));
}

#[test]
fn blocksize_over_blocksize() {
    passes::<Plain, _>(|| {
        let lower = Arc::new(blocksize(Arc::new(crypt(memory(SIZE_BYTES))), 5 << 20, 4096));
        blocksize(lower, 5 << 20, 1)
    });
}

#[test]
fn delay_of_either_payload() {
    passes::<Sealed, _>(|| DelayDisk::new(memory(SIZE_BYTES), delays(), 1));
    passes::<Plain, _>(|| DelayDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), delays(), 1));
    passes::<Sealed, _>(|| DelayDisk::new(memory(SIZE_BYTES), Delays::default(), 1));
}

/// With limits that hold most requests back for a moment.
fn limited<P: TestPayload>(below: Arc<dyn Disk<P>>) -> QosDisk<P> {
    let iops = IopsLimit { per_second: Iops::new(20_000).unwrap(), burst: Some(IopsBurst::new(1).unwrap()) };
    let bandwidth = BandwidthLimit { bytes_per_second: Bandwidth::new(2 << 30).unwrap(), burst_bytes: None };
    let limits =
        [IoLimits { iops: Some(iops), bandwidth: None }, IoLimits { iops: None, bandwidth: Some(bandwidth) }];
    let pages = limits.map(|limits| LimitPage::make(limits).unwrap());
    QosDisk::new(below, Limits::of_pages(&pages).unwrap())
}

#[test]
fn qos_of_either_payload() {
    passes::<Sealed, _>(|| limited(memory(SIZE_BYTES)));
    passes::<Plain, _>(|| limited(Arc::new(crypt(memory(SIZE_BYTES)))));
    passes::<Sealed, _>(|| QosDisk::new(memory(SIZE_BYTES), Limits::none()));
    passes_with_faults::<Plain, _>(|| limited(faulty(Arc::new(crypt(memory(SIZE_BYTES))))));
}

#[test]
fn error_with_nothing_to_do() {
    let faults = [Fault::new(Trigger::Probability(0.0)), Fault::new(Trigger::Nth(u64::MAX))];
    passes::<Sealed, _>(move || ErrorDisk::new(memory(SIZE_BYTES), &faults, 1));
    passes::<Plain, _>(move || ErrorDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), &faults, 1));
}

#[test]
fn stacks_keep_their_promises_in_any_order() {
    passes::<Plain, _>(|| crypt(reordered(memory(SIZE_BYTES))));
    passes::<Plain, _>(|| {
        let crypt = reordered(Arc::new(crypt(reordered(memory(SIZE_BYTES)))));
        ReorderDisk::new(Arc::new(blocksize(crypt, SIZE_BYTES, 1)), 7)
    });
    passes::<Plain, _>(|| {
        let delayed = Arc::new(DelayDisk::new(clear_memory(SIZE_BYTES), delays(), 4));
        blocksize(Arc::new(CleartextDisk::new(delayed)), SIZE_BYTES, 512)
    });
    passes::<Plain, _>(|| {
        let crypt = reordered(Arc::new(crypt(reordered(memory(SIZE_BYTES)))));
        limited(Arc::new(blocksize(crypt, SIZE_BYTES, 1)))
    });
}

#[test]
fn stacks_keep_their_promises_under_faults() {
    passes_with_faults::<Sealed, _>(|| {
        ErrorDisk::new(memory(SIZE_BYTES), &[Fault::new(Trigger::Probability(0.1))], 2)
    });
    passes_with_faults::<Plain, _>(|| crypt(faulty(memory(SIZE_BYTES))));
    passes_with_faults::<Plain, _>(|| {
        let crypt = Arc::new(crypt(reordered(faulty(memory(SIZE_BYTES)))));
        blocksize(reordered(crypt), SIZE_BYTES, 1)
    });
    passes_with_faults::<Plain, _>(|| {
        blocksize(faulty(Arc::new(crypt(memory(SIZE_BYTES)))), SIZE_BYTES, 512)
    });
}
