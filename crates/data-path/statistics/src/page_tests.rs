use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strongroom_memory::WordsWriter;

use super::*;
use crate::{Counters, Recorders};

#[test]
fn what_lanes_count_is_added_up() {
    let page = Page::make().unwrap();
    let recorders = Recorders::of_page(&page).unwrap();
    recorders.begin();
    let (mut first, mut second) = (recorders.claim(), recorders.claim());
    let now = Instant::now();
    for recorder in [&mut first, &mut second] {
        recorder.taken(now);
        recorder.taken(now);
        recorder.taken(now);
        recorder.answered(Operation::Read, Ok(4096), now, now + Duration::from_micros(100));
        recorder.answered(
            Operation::WriteZeroes,
            Err(ErrorKind::NoSpace),
            now,
            now + Duration::from_millis(2),
        );
        recorder.refused(Operation::Write);
    }
    let snapshot = page.read();
    assert_eq!((snapshot.in_flight, snapshot.read.bytes, snapshot.read.requests()), (2, 8192, 2));
    assert_eq!((snapshot.read.time_ns, snapshot.read.errors.total()), (200_000, 0));
    assert_eq!((snapshot.write_zeroes.errors.no_space, snapshot.write_zeroes.bytes), (2, 0));
    assert_eq!((snapshot.write.errors.refused, snapshot.write.requests()), (2, 0));
    assert_eq!((&snapshot.flush, &snapshot.discard), (&Counters::default(), &Counters::default()));
    first.left();
    assert_eq!(page.read().in_flight, 1);
    drop(second);
    let snapshot = page.read();
    assert_eq!((snapshot.in_flight, snapshot.stalled_ms), (0, 0));
    // The next lane in that block continues counting.
    let mut third = recorders.claim();
    third.taken(now);
    third.answered(Operation::Read, Ok(1), now, now);
    assert_eq!(page.read().read.bytes, 8193);
}

#[test]
fn a_successor_counts_on_and_forgets_what_a_dead_one_had_in_flight() {
    let page = Page::make().unwrap();
    let dead = Recorders::of_page(&page).unwrap();
    let mut lane = dead.claim();
    let now = Instant::now();
    lane.taken(now);
    lane.taken(now);
    lane.answered(Operation::Flush, Ok(0), now, now);
    // Killed: nothing is dropped.
    std::mem::forget(lane);
    assert_eq!(page.read().in_flight, 1);
    let successor = Recorders::of_page(&page).unwrap();
    // The successor is confined while the other one still serves.
    assert_eq!(page.read().in_flight, 1);
    successor.begin();
    assert_eq!((page.read().in_flight, page.read().flush.requests()), (0, 1));
}

#[test]
fn a_lane_without_a_completion_is_seen_beside_one_that_has_some() {
    let page = Page::make().unwrap();
    let recorders = Recorders::of_page(&page).unwrap();
    let (mut stuck, mut busy) = (recorders.claim(), recorders.claim());
    let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(40)) else { return };
    // A page's clock begins with the page, so the block is written directly.
    stuck.taken(long_ago);
    busy.taken(Instant::now());
    let words = WordsWriter::map(&page, PAGE_WORDS).unwrap();
    let now_ns = Clock::new().now_ns();
    words.words()[PROGRESS_NS].store(now_ns - 40_000_000_000, Ordering::Relaxed);
    let stalled_ms = page.read().stalled_ms;
    assert!((40_000..60_000).contains(&stalled_ms), "{stalled_ms}");
    drop(stuck);
    assert!(page.read().stalled_ms < 20_000);
}

#[test]
fn lanes_beyond_the_last_block_count_nothing() {
    let page = Page::make().unwrap();
    let recorders = Recorders::of_page(&page).unwrap();
    let lanes: Vec<_> = (0..LANES_MAX).map(|_| recorders.claim()).collect();
    let mut beyond = recorders.claim();
    let now = Instant::now();
    beyond.taken(now);
    beyond.answered(Operation::Read, Ok(1), now, now);
    assert_eq!((page.read().in_flight, page.read().read.bytes), (0, 0));
    drop(lanes);
    let mut none = Recorders::none().claim();
    none.taken(now);
    none.refused(Operation::Read);
}

/// A compromised worker writes arbitrary words anywhere.
#[test]
fn whatever_is_in_the_page_is_numbers() {
    let page = Page::make().unwrap();
    let words = WordsWriter::map(&page, PAGE_WORDS).unwrap();
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise
    };
    let written: [&mut dyn FnMut() -> u64; 3] = [&mut || u64::MAX, &mut || 1 << 63, &mut random];
    for value in written {
        words.words().iter().for_each(|word| word.store(value(), Ordering::Relaxed));
        let snapshot = page.read();
        // Sums saturate.
        assert_eq!((snapshot.in_flight, snapshot.read.latency.total()), (u64::MAX, u64::MAX));
        for operation in Operation::ALL {
            let counters = snapshot.of(operation);
            let _ = crate::Summary::from(counters);
            assert_eq!(counters.since(counters), Counters::default());
        }
        let text = serde_json::to_vec(&snapshot).unwrap();
        assert!(text.len() < 20_000, "{}", text.len());
        assert_eq!(serde_json::from_slice::<Snapshot>(&text).unwrap(), snapshot);
    }
    // Counters that go backwards give no interval below zero.
    words.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
    let before = page.read();
    words.words().iter().for_each(|word| word.store(3, Ordering::Relaxed));
    assert_eq!(page.read().since(&before).read, Counters::default());
    assert!(rustix::fs::ftruncate(page.as_fd(), 0).is_err());
}
