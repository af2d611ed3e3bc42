//! Statistics outlive the workers that count, and a worker that writes false ones is not trusted.

use std::sync::atomic::Ordering;
use std::time::Instant;

use strongroom_memory::WordsWriter;
use strongroom_statistics::{Operation, PAGE_WORDS, Recorders, Snapshot};
use strongroom_worker::control::{Answer, Request};

use crate::stage::{Supervised, install, kill};

/// The played worker's use of its page when it begins to serve: one read is answered, and another
/// is not.
pub fn count(page: &std::os::fd::OwnedFd) {
    let recorders = Recorders::of_page(page).unwrap();
    recorders.begin();
    let mut lane = recorders.claim();
    let now = Instant::now();
    lane.taken(now);
    lane.taken(now);
    lane.answered(Operation::Read, Ok(4096), now, now);
    // The worker is killed, or ends, in this state.
    std::mem::forget(lane);
}

/// The behaviour of a worker that an attacker has taken over.
pub fn lie(page: &std::os::fd::OwnedFd) {
    let words = WordsWriter::map(page, PAGE_WORDS).unwrap();
    words.words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    // If the file could be truncated, its reader would crash.
    assert!(rustix::fs::ftruncate(page, 0).is_err());
    assert!(rustix::fs::ftruncate(page, 1 << 40).is_err());
}

fn statistics(supervised: &Supervised) -> Snapshot {
    match supervised.ask(Request::Statistics) {
        Answer::Statistics(snapshot) => *snapshot,
        other => panic!("{other:?}"),
    }
}

#[test]
fn counters_outlive_workers_that_die_and_workers_that_are_upgraded() {
    let supervised = Supervised::start();
    let first = statistics(&supervised);
    assert_eq!((first.read.requests(), first.read.bytes, first.in_flight), (1, 4096, 1));
    let worker = supervised.worker();
    kill(worker);
    crate::stage::wait_until("another worker", || {
        supervised.status().worker_pid.is_some_and(|pid| pid != worker)
    });
    let second = statistics(&supervised);
    assert_eq!((second.read.requests(), second.since_unix_ms), (2, first.since_unix_ms));
    assert_eq!(second.in_flight, 1, "what the dead one had in flight is the other's");
    install(supervised.directory.path(), "serves better");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    let third = statistics(&supervised);
    assert_eq!((third.read.requests(), third.read.bytes, third.in_flight), (3, 3 * 4096, 1));
    supervised.end();
}

#[test]
fn a_worker_that_lies_about_its_volume_changes_numbers_and_nothing_else() {
    let supervised = Supervised::start();
    install(supervised.directory.path(), "lies");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    let told = statistics(&supervised);
    assert_eq!((told.in_flight, told.write.bytes, told.write.requests()), (u64::MAX, u64::MAX, u64::MAX));
    let worker = supervised.worker();
    kill(worker);
    crate::stage::wait_until("another worker", || {
        supervised.status().worker_pid.is_some_and(|pid| pid != worker)
    });
    supervised.end();
}
