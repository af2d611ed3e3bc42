//! Many threads at once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::time::Duration;

use strongroom_store::{Engine, Is, KeyRange, Outcome, Revision, Store, Transaction};

const THREADS: u64 = 8;
const INCREMENTS: u64 = 60;
/// Longer than any step of a passing test.
const DEADLINE: Duration = Duration::from_secs(60);

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

/// Adds one to a number, retrying against concurrent increments.
fn increment(store: &dyn Store, key: &str) {
    loop {
        let found = store.get(key.as_bytes()).unwrap();
        let (is, next) = match found {
            None => (Is::Absent, 1),
            Some(entry) => (Is::ModifiedAt(entry.mod_revision), number(&entry.value) + 1),
        };
        let transaction = Transaction::new().when(key, is).put(key, next.to_le_bytes());
        if let Outcome::Committed(_) = store.commit(transaction).unwrap() {
            return;
        }
    }
}

#[test]
fn no_increment_is_lost_and_a_watch_sees_each() {
    let directory = tempfile::tempdir().unwrap();
    let store = Engine::create(&directory.path().join("store.redb")).unwrap();
    let total = THREADS * INCREMENTS;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for n in 0..INCREMENTS {
                    increment(store, ["a", "b"][(thread + n) as usize % 2]);
                }
            });
        }
        let mut watch = store.watch(KeyRange::all(), Revision::ZERO).unwrap();
        let mut seen = 0;
        while seen < total {
            for event in watch.next(DEADLINE).unwrap() {
                seen += 1;
                assert_eq!(event.revision, Revision(seen));
            }
        }
        // A reader sees both numbers at one revision.
        let snapshot = store.snapshot().unwrap();
        let sum: u64 = snapshot.all(&KeyRange::all()).unwrap().iter().map(|entry| number(&entry.value)).sum();
        assert_eq!(sum, snapshot.revision().0);
    });
    let counters = store.counters();
    assert_eq!(counters.committed, total);
    assert!(counters.sync_time > Duration::ZERO, "{counters:?}");
    println!("{counters:?}");
}

#[test]
fn what_waits_when_it_is_closed_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let store = Engine::create(&path).unwrap();
    let pending: Vec<_> =
        (0..500_u64).map(|n| store.submit(Transaction::new().put(format!("{n}"), n.to_le_bytes()))).collect();
    drop(store);
    let outcomes: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap()).collect();
    assert!(outcomes.iter().zip(1..).all(|(outcome, n)| *outcome == Outcome::Committed(Revision(n))));
    assert_eq!(Engine::open(&path).unwrap().snapshot().unwrap().revision(), Revision(500));
}
