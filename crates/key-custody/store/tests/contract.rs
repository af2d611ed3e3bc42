//! The promises of a store, tested on the embedded engine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use strongroom_store::limits::{
    HISTORY_MAX_REVISIONS, LEASE_MAX_TTL, LEASE_MIN_TTL, PAGE_MAX_ENTRIES, QUEUE_MAX_BYTES,
    QUEUE_MAX_TRANSACTIONS, VALUE_MAX_BYTES,
};
use strongroom_store::{
    Change, Conflict, Engine, Entries, Event, Is, KeyRange, LeaseId, Outcome, Revision, Store, StoreError,
    Transaction,
};
use support::Memory;

/// Longer than any step of a passing test.
const DEADLINE: Duration = Duration::from_secs(60);

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    Place { _directory: directory, path }
}

fn put(store: &dyn Store, key: &str, value: &str) -> Revision {
    store.commit(Transaction::new().put(key, value)).unwrap().committed().unwrap()
}

fn value(store: &dyn Store, key: &str) -> Option<String> {
    store.get(key.as_bytes()).unwrap().map(|entry| String::from_utf8(entry.value).unwrap())
}

#[test]
fn what_was_committed_is_there_after_opening_again() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    assert_eq!(put(&engine, "a", "1"), Revision(1));
    assert_eq!(put(&engine, "a", "2"), Revision(2));
    drop(engine);
    let engine = Engine::open(&place.path).unwrap();
    let entry = engine.get(b"a").unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), entry.version), (b"2".as_slice(), 2));
    assert_eq!((entry.create_revision, entry.mod_revision), (Revision(1), Revision(2)));
    assert_eq!(put(&engine, "b", "3"), Revision(3));
}

#[test]
fn a_transaction_is_done_whole_or_not_at_all() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    put(&engine, "there", "1");
    let refused = engine.commit(
        Transaction::new()
            .when("there", Is::Present)
            .when("gone", Is::Present)
            .put("new", "x")
            .delete("there"),
    );
    assert_eq!(refused, Ok(Outcome::Conflict(Conflict { condition: 1, found: None })));
    assert_eq!((value(&engine, "there").as_deref(), value(&engine, "new")), (Some("1"), None));
    let done = engine.commit(Transaction::new().when("gone", Is::Absent).put("new", "x").delete("there"));
    assert_eq!(done, Ok(Outcome::Committed(Revision(2))));
    assert_eq!((value(&engine, "there"), value(&engine, "new").as_deref()), (None, Some("x")));
}

#[test]
fn each_condition_tells_what_holds_from_what_does_not() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    put(&engine, "k", "1");
    put(&engine, "k", "2");
    let asks = [
        (Is::Present, true),
        (Is::Absent, false),
        (Is::ModifiedAt(Revision(2)), true),
        (Is::ModifiedAt(Revision(1)), false),
        (Is::Version(2), true),
        (Is::Version(1), false),
    ];
    for (is, holds) in asks {
        let outcome = engine.commit(Transaction::new().when("k", is)).unwrap();
        let expected = if holds {
            Outcome::Committed(Revision(2))
        } else {
            Outcome::Conflict(Conflict { condition: 0, found: Some(Revision(2)) })
        };
        assert_eq!(outcome, expected, "{is:?}");
    }
}

#[test]
fn what_changes_nothing_makes_no_revision() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    put(&engine, "k", "1");
    assert_eq!(engine.commit(Transaction::new().delete("other")), Ok(Outcome::Committed(Revision(1))));
    assert_eq!(engine.commit(Transaction::new()), Ok(Outcome::Committed(Revision(1))));
    assert_eq!(engine.snapshot().unwrap().revision(), Revision(1));
}

#[test]
fn a_key_that_was_deleted_begins_anew() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    put(&engine, "k", "1");
    engine.commit(Transaction::new().delete("k")).unwrap();
    put(&engine, "k", "2");
    let entry = engine.get(b"k").unwrap().unwrap();
    assert_eq!((entry.version, entry.create_revision), (1, Revision(3)));
}

#[test]
fn pages_of_a_range_are_all_of_it_in_order() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    for group in 0..12_u32 {
        let all = (0..100).fold(Transaction::new(), |all, n| all.put(format!("p/{group:02}/{n:02}"), "v"));
        engine.commit(all.put(format!("q/{group}"), "v")).unwrap();
    }
    let snapshot = engine.snapshot().unwrap();
    let mut keys = Vec::new();
    let mut rest = Some(KeyRange::prefix(*b"p/"));
    while let Some(range) = rest {
        let page = snapshot.range(&range, 37).unwrap();
        assert!(page.entries.len() == 37 || page.rest.is_none());
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        rest = page.rest;
    }
    assert_eq!(keys.len(), 1200);
    assert!(keys.is_sorted());
    assert_eq!(snapshot.range(&KeyRange::all(), usize::MAX).unwrap().entries.len(), PAGE_MAX_ENTRIES);
    assert_eq!(snapshot.all(&KeyRange::all()).unwrap().len(), 1212);
    let one_by_one: Vec<_> =
        Entries::new(snapshot, KeyRange::prefix(*b"p/")).map(|entry| entry.unwrap().key).collect();
    assert_eq!(one_by_one, keys);
    let none = engine.range(&KeyRange::between(*b"z", *b"a"), 10).unwrap();
    assert_eq!((none.entries.len(), none.rest), (0, None));
}

#[test]
fn a_page_of_large_values_ends_early() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    for n in 0..6 {
        engine.commit(Transaction::new().put(format!("large/{n}"), vec![n; VALUE_MAX_BYTES])).unwrap();
    }
    let page = engine.range(&KeyRange::all(), 100).unwrap();
    assert_eq!(page.entries.len(), 4);
    assert_eq!(engine.snapshot().unwrap().all(&KeyRange::all()).unwrap().len(), 6);
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    put(&engine, "k", "old");
    let snapshot = engine.snapshot().unwrap();
    put(&engine, "k", "new");
    put(&engine, "l", "new");
    assert_eq!(snapshot.get(b"k").unwrap().unwrap().value, b"old");
    assert_eq!(snapshot.all(&KeyRange::all()).unwrap().len(), 1);
    assert_eq!(snapshot.revision(), Revision(1));
}

#[test]
fn readers_between_two_commits_see_the_same_and_one_after_a_commit_sees_it() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    for revision in 1..50 {
        put(&engine, "k", &revision.to_string());
        let readers: Vec<_> = (0..3).map(|_| engine.snapshot().unwrap()).collect();
        for reader in &readers {
            assert_eq!(reader.revision(), Revision(revision));
            assert_eq!(reader.get(b"k").unwrap().unwrap().value, revision.to_string().into_bytes());
        }
    }
}

#[test]
fn a_reader_that_has_gone_keeps_no_space_from_later_commits() {
    const VALUE_BYTES: usize = 64 << 10;
    const COMMITS: usize = 200;
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    put(&engine, "k", "read");
    assert_eq!(value(&engine, "k").as_deref(), Some("read"));
    for _ in 0..COMMITS {
        put(&engine, "k", &"v".repeat(VALUE_BYTES));
    }
    let length_bytes = std::fs::metadata(&place.path).unwrap().len();
    assert!(length_bytes < (COMMITS * VALUE_BYTES / 2) as u64, "{length_bytes} bytes");
}

#[test]
fn a_watch_tells_of_its_range_in_order_from_its_revision_on() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    put(&engine, "w/a", "before");
    let from = engine.snapshot().unwrap().revision().next();
    let mut watch = engine.watch(KeyRange::prefix(*b"w/"), from).unwrap();
    assert_eq!(watch.next(Duration::ZERO), Ok(Vec::new()));
    put(&engine, "other", "x");
    engine.commit(Transaction::new().put("w/b", "1").delete("w/a").put("x", "y")).unwrap();
    let event = |key: &str, change| Event { revision: Revision(3), key: key.into(), change };
    assert_eq!(watch.next(DEADLINE), Ok(vec![event("w/b", Change::Put), event("w/a", Change::Delete)]));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| watch.next(DEADLINE));
        put(&engine, "w/c", "2");
        let event = Event { revision: Revision(4), key: b"w/c".to_vec(), change: Change::Put };
        assert_eq!(waiting.join().unwrap(), Ok(vec![event]));
    });
    let mut again = engine.watch(KeyRange::prefix(*b"w/"), Revision::ZERO).unwrap();
    assert_eq!(again.next(Duration::ZERO).unwrap().len(), 4);
    drop(engine);
    assert_eq!(watch.next(DEADLINE), Err(StoreError::Closed));
}

#[test]
fn a_watch_from_too_far_back_is_told_so() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    let mut watch = engine.watch(KeyRange::all(), Revision(1)).unwrap();
    let pending: Vec<_> = (0..HISTORY_MAX_REVISIONS + 10)
        .map(|n| {
            // No more than the queue takes.
            let pending = engine.submit(Transaction::new().put("k", n.to_be_bytes()));
            if n % 4096 == 0 { pending.wait().map(|_| None) } else { Ok(Some(pending)) }
        })
        .collect::<Result<_, _>>()
        .unwrap();
    for pending in pending.into_iter().flatten() {
        pending.wait().unwrap();
    }
    let oldest = Revision(11);
    assert_eq!(watch.next(Duration::ZERO), Err(StoreError::Compacted { oldest }));
    assert!(matches!(engine.watch(KeyRange::all(), Revision(10)), Err(StoreError::Compacted { .. })));
    assert!(engine.watch(KeyRange::all(), oldest).is_ok());
}

/// A store with two keys under one lease, the second of which was put again without it, and the
/// start of the lease. All happens before the lease ends, which a slow disk may need several tries
/// for.
fn leased() -> (Place, Engine, LeaseId, Instant) {
    let until = Instant::now() + DEADLINE;
    loop {
        let place = place();
        let engine = Engine::create(&place.path).unwrap();
        let began = Instant::now();
        let lease = engine.lease(LEASE_MIN_TTL).unwrap();
        let both = Transaction::new().put_leased("l/1", "x", lease).put_leased("l/2", "x", lease);
        let outcome = engine.commit(both).and_then(|_| engine.commit(Transaction::new().put("l/2", "stays")));
        if outcome.is_ok() && began.elapsed() < LEASE_MIN_TTL {
            return (place, engine, lease, began);
        }
        assert!(Instant::now() < until, "{outcome:?}");
    }
}

#[test]
fn keys_vanish_with_their_lease_and_no_earlier() {
    let (_place, engine, lease, began) = leased();
    let mut watch = engine.watch(KeyRange::prefix(*b"l/"), Revision(3)).unwrap();
    let event = Event { revision: Revision(3), key: b"l/1".to_vec(), change: Change::Delete };
    assert_eq!(watch.next(DEADLINE), Ok(vec![event]));
    assert!(began.elapsed() >= LEASE_MIN_TTL);
    assert_eq!(value(&engine, "l/2").as_deref(), Some("stays"));
    assert_eq!(engine.keep_alive(lease), Err(StoreError::UnknownLease { lease }));
    let late = engine.commit(Transaction::new().put_leased("l/3", "x", lease));
    assert_eq!(late, Err(StoreError::UnknownLease { lease }));
}

#[test]
fn a_lease_is_revoked_with_its_keys_and_survives_closing() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    let lease = engine.lease(Duration::from_secs(3600)).unwrap();
    let other = engine.lease(Duration::from_secs(3600)).unwrap();
    assert_ne!(lease, other);
    engine.commit(Transaction::new().put_leased("a", "x", lease).put_leased("b", "x", other)).unwrap();
    drop(engine);
    let engine = Engine::open(&place.path).unwrap();
    engine.keep_alive(lease).unwrap();
    engine.revoke(lease).unwrap();
    assert_eq!((value(&engine, "a"), value(&engine, "b").as_deref()), (None, Some("x")));
    assert_eq!(engine.revoke(lease), Err(StoreError::UnknownLease { lease }));
    assert_eq!(engine.keep_alive(lease), Err(StoreError::UnknownLease { lease }));
    assert!(engine.lease(LEASE_MIN_TTL).unwrap() > other);
    assert!(engine.lease(LEASE_MAX_TTL).is_ok());
    for ttl in [Duration::from_millis(1), LEASE_MAX_TTL + Duration::from_millis(1)] {
        assert!(matches!(engine.lease(ttl), Err(StoreError::LeaseTtl { .. })));
    }
    let unknown = engine.keep_alive(LeaseId(99));
    assert_eq!(unknown, Err(StoreError::UnknownLease { lease: LeaseId(99) }));
}

#[test]
fn only_one_has_it_open() {
    let place = place();
    let engine = Engine::create(&place.path).unwrap();
    assert!(matches!(Engine::open(&place.path), Err(StoreError::InUse { .. })));
    assert!(matches!(Engine::create(&place.path), Err(StoreError::Open { doing: "made", .. })));
    let snapshot = engine.snapshot().unwrap();
    drop(engine);
    assert!(Engine::open(&place.path).is_ok(), "a snapshot that is still held keeps nobody out");
    drop(snapshot);
}

#[test]
fn what_is_missing_or_empty_is_not_made_anew() {
    let place = place();
    assert!(matches!(Engine::open(&place.path), Err(StoreError::Open { doing: "opened", .. })));
    std::fs::write(&place.path, b"").unwrap();
    assert!(matches!(Engine::open(&place.path), Err(StoreError::Damaged { .. })));
    assert!(matches!(Engine::create(&place.path), Err(StoreError::Open { .. })));
}

#[test]
fn many_at_once_share_commits_and_each_gets_its_own_answer() {
    let memory = Memory::default();
    let engine = Engine::with_backend(memory.clone(), "test").unwrap();
    // While the store cannot write, all of them wait.
    let held = memory.hold();
    let pending: Vec<_> = (0..1000)
        .map(|n: u32| engine.submit(Transaction::new().when("one", Is::Absent).put("one", n.to_be_bytes())))
        .collect();
    drop(held);
    let outcomes: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap()).collect();
    assert_eq!(outcomes[0], Outcome::Committed(Revision(1)));
    let conflict = Outcome::Conflict(Conflict { condition: 0, found: Some(Revision(1)) });
    assert!(outcomes[1..].iter().all(|outcome| *outcome == conflict));
    let counters = engine.counters();
    assert_eq!((counters.committed, counters.conflicts), (1, 999));
    assert!((1..20).contains(&counters.groups), "{counters:?}");
    assert!(counters.group_max > 50 && counters.syncs >= 2, "{counters:?}");
    assert!(counters.group_time >= counters.group_time_max && !counters.group_time_max.is_zero());
}

/// How many of these a store takes while it cannot write, the rest being refused. All that it took
/// are committed.
fn taken(memory: &Memory, engine: &Engine, transactions: impl Iterator<Item = Transaction>) -> usize {
    let before = engine.snapshot().unwrap().revision().0;
    let held = memory.hold();
    let pending: Vec<_> = transactions.map(|transaction| engine.submit(transaction)).collect();
    drop(held);
    let outcomes: Vec<_> = pending.into_iter().map(|pending| pending.wait()).collect();
    let taken = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(StoreError::Overloaded))));
    assert_eq!(engine.snapshot().unwrap().revision().0, before + taken as u64);
    taken
}

#[test]
fn more_than_the_queue_takes_is_refused_and_later_taken() {
    /// The writer has one group when it begins to wait.
    const GROUP: usize = 1024;
    const GROUP_BYTES: usize = 8 * 1024 * 1024;
    let memory = Memory::default();
    let engine = Engine::with_backend(memory.clone(), "test").unwrap();
    let small = (0..QUEUE_MAX_TRANSACTIONS + 2 * GROUP).map(|_| Transaction::new().put("k", "v"));
    let taken_small = taken(&memory, &engine, small);
    assert!(
        (QUEUE_MAX_TRANSACTIONS..=QUEUE_MAX_TRANSACTIONS + GROUP).contains(&taken_small),
        "{taken_small}"
    );
    assert_eq!(engine.counters().group_max, GROUP as u64);

    let large = (0..(QUEUE_MAX_BYTES + 2 * GROUP_BYTES) / VALUE_MAX_BYTES)
        .map(|_| Transaction::new().put("k", vec![0; VALUE_MAX_BYTES]));
    let taken_large = taken(&memory, &engine, large);
    // With their keys, one fewer than the values alone.
    let fit = QUEUE_MAX_BYTES / VALUE_MAX_BYTES - 1;
    assert!((fit..=fit + GROUP_BYTES / VALUE_MAX_BYTES).contains(&taken_large), "{taken_large}");
    assert!(engine.commit(Transaction::new().put("k", vec![0; VALUE_MAX_BYTES])).is_ok());
}
