//! Guests with little processor time: their requests are as configured and counted, and they always
//! end.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_lab::datapath::guest_load::{GuestLoad, Guests, LoadError, Order, Pattern};
use strongroom_lab::vhost_user::guest::Pages;
use strongroom_lab::vhost_user::prepared::Lengths;

use support::{DISK_BYTES, Lie, Local, LyingDisk, Served};

const PATTERN: Pattern = Pattern { order: Order::Random, reads_percent: 100, block_bytes: 4096, depth: 32 };
const BLOCK: usize = 4096;

fn guests(queues: u16) -> Guests {
    Guests { queues, pages: Pages::Huge, spin: Duration::ZERO, lengths: Lengths::Same }
}

fn disk() -> (Arc<LyingDisk>, Local) {
    let disk = LyingDisk::new(Lie::None);
    let local = Local::start(Arc::new(Served(Arc::clone(&disk))));
    (disk, local)
}

fn load(locals: &[&Local], pattern: Pattern, guests: Guests, stop: &Arc<AtomicBool>) -> GuestLoad {
    let front_ends =
        locals.iter().map(|local| GuestLoad::connect(&local.socket, pattern, guests).unwrap()).collect();
    GuestLoad::new(front_ends, pattern, guests, Arc::clone(stop)).unwrap()
}

#[test]
fn every_answer_is_counted_once_on_several_disks_and_queues() {
    let ((first_disk, first), (second_disk, second)) = (disk(), disk());
    let pattern = Pattern { reads_percent: 70, ..PATTERN };
    let mut load = load(&[&first, &second], pattern, guests(2), &Arc::default());
    let requests = || first_disk.requests() + second_disk.requests();
    let no_time = Duration::ZERO;
    let (loaded, [before, after]) =
        load.run(no_time, Duration::from_millis(100), &mut || requests()).unwrap();
    // Only served requests are counted, and none after the end.
    assert!(before <= after && loaded.operations > 0 && loaded.operations <= requests());
    assert_eq!(loaded.bytes, loaded.operations * 4096);
    let quantile = |share| loaded.latencies.quantile(share);
    assert!(
        quantile(0.5) > no_time
            && quantile(0.5) <= quantile(0.99)
            && quantile(0.99) <= loaded.latencies.longest()
    );
    assert!(loaded.client_cpu > no_time && loaded.elapsed > no_time);
    // Both kinds of requests reached both disks.
    assert!([first_disk, second_disk].iter().all(|disk| disk.content().iter().any(|byte| *byte != 0)));
    // The run can be repeated.
    assert!(load.run(no_time, Duration::from_millis(20), &mut || ()).unwrap().0.operations > 0);
}

#[test]
fn a_disk_is_filled_all_over_or_in_part() {
    for (queues, stride) in [(1, 1), (4, 1), (1, 2)] {
        let (disk, local) = disk();
        let pattern = Pattern { order: Order::Sequential, depth: 8, ..PATTERN };
        load(&[&local], pattern, guests(queues), &Arc::default()).fill(stride).unwrap();
        let content = disk.content();
        for (index, block) in content.chunks(BLOCK).enumerate() {
            let is_written = block.iter().any(|byte| *byte != 0);
            assert_eq!(is_written, (index as u64).is_multiple_of(stride), "{queues} queues, block {index}");
        }
    }
}

#[test]
fn a_paced_load_sends_no_more_than_it_is_told_to() {
    const PER_SECOND: f64 = 1000.0;
    let (disk, local) = disk();
    let mut load = load(&[&local], PATTERN, guests(1), &Arc::default());
    load.pace(PER_SECOND);
    let begun = Instant::now();
    let (loaded, _) = load.run(Duration::ZERO, Duration::from_millis(300), &mut || ()).unwrap();
    let most = (begun.elapsed().as_secs_f64() * PER_SECOND) as u64 + u64::from(PATTERN.depth);
    assert!(loaded.operations > 0 && disk.requests() <= most, "{} of {most}", disk.requests());
}

#[test]
fn the_first_block_is_read_once() {
    let (disk, local) = disk();
    load(&[&local], PATTERN, guests(1), &Arc::default()).read_first().unwrap();
    assert_eq!(disk.requests(), 1);
}

#[test]
fn a_server_that_goes_away_is_told_of() {
    let (_disk, local) = disk();
    let mut load = load(&[&local], PATTERN, guests(1), &Arc::default());
    let mut server = Some(local);
    let mut stop = || drop(server.take().map(|local| local.server.stop()));
    let error = load.run(Duration::ZERO, Duration::from_secs(60), &mut stop).unwrap_err();
    assert!(matches!(error, LoadError::Gone), "{error}");
}

#[test]
fn a_signal_ends_a_run() {
    let (_disk, local) = disk();
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = load(&[&local], PATTERN, guests(1), &stop);
    let mut signal = || stop.store(true, Ordering::Relaxed);
    let error = load.run(Duration::ZERO, Duration::from_secs(60), &mut signal).unwrap_err();
    assert!(matches!(error, LoadError::Signal), "{error}");
}

#[test]
fn a_disk_that_is_too_small_is_refused() {
    let (_disk, local) = disk();
    let pattern = Pattern { block_bytes: 16 << 20, depth: 1, ..PATTERN };
    let front_end = GuestLoad::connect(&local.socket, pattern, guests(1)).unwrap();
    let refused = GuestLoad::new(vec![front_end], pattern, guests(1), Arc::default());
    assert!(matches!(refused, Err(LoadError::Small(DISK_BYTES))));
}
