//! Measures commits: `commit_rate FILE [WAITERS [SECONDS]]`, by default 32 waiters and 5 seconds.
//!
//! Each waiter puts a key that must be absent, with a value of 64 bytes, waits until that is
//! durable, and puts the next: the cost of a single-use grant. Prints the commits per second, their
//! latency, and how many shared a commit. The store is created, and left.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement says what it measured, or fails")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use strongroom_store::{Engine, Is, Store, Transaction};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().expect("commit_rate FILE [WAITERS [SECONDS]]"));
    let waiters: u64 = arguments.next().map_or(32, |text| text.parse().unwrap());
    let seconds: u64 = arguments.next().map_or(5, |text| text.parse().unwrap());
    let store = Engine::create(&path).unwrap();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut took: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..waiters)
            .map(|waiter| {
                let store = &store;
                scope.spawn(move || {
                    let mut took = Vec::new();
                    while Instant::now() < end {
                        // Spread over the whole range of keys, as random ids are.
                        let n = (took.len() as u64 * waiters + waiter).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                        let key = format!("grant/used/{n:016x}");
                        let began = Instant::now();
                        let put = Transaction::new().when(key.as_bytes(), Is::Absent).put(key, [7; 64]);
                        store.commit(put).unwrap().committed().unwrap();
                        took.push(began.elapsed());
                    }
                    took
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    let counters = store.counters();
    println!(
        "{waiters} waiters, {seconds} s: {} commits/s, p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}; {:.1} transactions and {:?} a group, {:?} a sync",
        took.len() as u64 / seconds,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        counters.committed as f64 / counters.groups as f64,
        counters.group_time / u32::try_from(counters.groups).unwrap(),
        counters.sync_time / u32::try_from(counters.syncs).unwrap(),
    );
}
