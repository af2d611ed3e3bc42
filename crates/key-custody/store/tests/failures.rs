//! A store on failing storage: no room, a failed sync, damage.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::panic::AssertUnwindSafe;

use strongroom_store::{
    Engine, Entry, Is, KeyRange, LeaseId, Outcome, Revision, Store, StoreError, Transaction,
};
use support::{Memory, Room};

fn engine(memory: &Memory) -> Engine {
    Engine::with_backend(memory.clone(), "memory").unwrap()
}

/// Large enough that a commit takes several writes, and at times a longer file.
fn large(n: u64) -> Transaction {
    Transaction::new()
        .put(format!("k/{n:04}"), vec![n as u8; 40_000])
        .put(format!("k/{:04}", n / 2), vec![n as u8; 3000])
}

fn all(store: &dyn Store) -> Vec<Entry> {
    store.snapshot().unwrap().all(&KeyRange::all()).unwrap()
}

#[test]
fn without_room_a_transaction_is_refused_whole_and_the_store_goes_on_when_there_is_some() {
    let count = fill_up(Room::Blocks);
    assert!(count.refused > 20 && count.came_through > 20 && count.uncertain == 0, "{count:?}");
}

#[test]
fn where_overwriting_takes_room_too_the_store_waits_for_it() {
    let count = fill_up(Room::Writes);
    assert!(count.uncertain > 20 && count.came_through > 20, "{count:?}");
}

#[test]
fn where_one_write_finds_no_room_what_is_refused_is_undone_and_what_is_durable_is_answered() {
    let count = fill_up(Room::AllButOne);
    assert!(count.refused > 20 && count.came_through > 20 && count.uncertain == 0, "{count:?}");
}

#[derive(Debug, Default)]
struct Count {
    refused: u32,
    uncertain: u32,
    came_through: u32,
}

/// Runs transactions with ever more room, and counts their outcomes.
fn fill_up(room: fn(u64) -> Room) -> Count {
    let mut count = Count::default();
    let memory = Memory::default();
    let store = engine(&memory);
    let mut reached = 0;
    for n in 0..400_u64 {
        let before = all(&store);
        memory.set_room(room(n % 40));
        let outcome = store.commit(large(reached + 1));
        memory.set_room(Room::Any);
        // Once there is room again, any request makes the store continue.
        store.commit(Transaction::new()).unwrap();
        let found = store.snapshot().unwrap().revision();
        match outcome {
            Ok(outcome) => {
                count.came_through += 1;
                assert_eq!(outcome, Outcome::Committed(Revision(reached + 1)));
                assert_eq!(found, Revision(reached + 1));
            }
            Err(StoreError::Full { .. }) => {
                count.refused += 1;
                assert_eq!((found, all(&store)), (Revision(reached), before));
            }
            Err(StoreError::Uncertain { .. }) => {
                count.uncertain += 1;
                assert!(found > Revision(reached) || all(&store) == before);
            }
            Err(other) => panic!("{other}"),
        }
        reached = found.0;
    }
    assert_eq!(store.counters().refused, u64::from(count.refused + count.uncertain));
    let expected = all(&store);
    drop(store);
    assert_eq!(all(&engine(&memory)), expected);
    count
}

#[test]
fn after_a_failed_sync_nothing_is_taken_until_it_is_opened_again() {
    for syncs in 0..3 {
        let memory = Memory::default();
        let store = engine(&memory);
        store.commit(large(1)).unwrap();
        memory.fail_sync_after(syncs);
        match store.commit(large(2)) {
            Ok(_) => assert_eq!(syncs, 2, "a commit takes two syncs"),
            Err(StoreError::Uncertain { .. }) => {
                let later = store.commit(Transaction::new().put("later", "x"));
                assert!(matches!(later, Err(StoreError::Unavailable { .. })), "{later:?}");
                let kept = store.keep_alive(LeaseId(1));
                assert!(matches!(kept, Err(StoreError::Unavailable { .. })), "{kept:?}");
            }
            Err(other) => panic!("{other}"),
        }
        drop(store);
        let store = engine(&memory.copy());
        let revision = store.snapshot().unwrap().revision();
        assert!(revision == Revision(1) || revision == Revision(2), "{revision:?}");
        assert_eq!(all(&store).len(), revision.0 as usize + 1);
    }
}

#[test]
fn after_a_failed_write_nothing_is_taken_until_it_is_opened_again() {
    let memory = Memory::default();
    let store = engine(&memory);
    store.commit(large(1)).unwrap();
    memory.fail_writes(true);
    let failed = store.commit(large(2));
    assert!(
        matches!(failed, Err(StoreError::Uncertain { .. } | StoreError::Unavailable { .. })),
        "{failed:?}"
    );
    memory.fail_writes(false);
    let later = store.commit(large(3));
    assert!(matches!(later, Err(StoreError::Unavailable { .. })), "{later:?}");
    drop(store);
    let store = engine(&memory.copy());
    assert_eq!((store.snapshot().unwrap().revision(), all(&store).len()), (Revision(1), 2));
}

#[test]
fn a_store_that_cannot_be_read_when_it_is_full_ends() {
    let memory = Memory::default();
    let store = engine(&memory);
    store.commit(large(1)).unwrap();
    memory.set_room(Room::Blocks(0));
    memory.fail_reads(true);
    store.commit(large(2)).unwrap_err();
    memory.set_room(Room::Any);
    memory.fail_reads(false);
    store.commit(large(3)).unwrap_err();
    assert!(store.snapshot().is_err());
    drop(store);
    assert_eq!(engine(&memory.copy()).snapshot().unwrap().revision(), Revision(1));
}

#[test]
fn a_device_that_fails_is_not_called_damage() {
    let memory = Memory::default();
    drop(engine(&memory));
    memory.fail_reads(true);
    let refused = Engine::with_backend(memory.clone(), "memory");
    assert!(matches!(refused, Err(StoreError::Open { .. })), "{refused:?}");
}

/// Opening a store reads every page, so a store that opens is unchanged.
#[test]
fn damage_is_refused_or_has_no_effect_and_nothing_is_ever_rolled_back() {
    let memory = Memory::default();
    let store = engine(&memory);
    for n in 1..=12 {
        store.commit(large(n)).unwrap();
    }
    store.commit(Transaction::new().when("k/0001", Is::Present).delete("k/0001")).unwrap();
    let expected = (store.snapshot().unwrap().revision(), all(&store));
    // The file as a killed process leaves it, and as an orderly close leaves it.
    let killed = memory.copy();
    drop(store);
    for bytes in [killed.bytes(), memory.bytes()] {
        let (mut refused, mut without_effect) = (0, 0);
        let places = (320..bytes.len()).step_by(4096 / 3);
        for place in places {
            let damaged = Memory::damaged(&bytes, place);
            match open(&damaged) {
                Err(StoreError::Damaged { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
                Ok(found) => {
                    without_effect += 1;
                    assert_eq!(found, expected, "damage at {place}");
                }
            }
        }
        println!("{refused} refused, {without_effect} without effect");
        assert!(refused > 100);
    }
}

/// A store's content, or why it is refused. A debug assertion of redb, for which release builds
/// return an error, counts as a refusal.
fn open(memory: &Memory) -> Result<(Revision, Vec<Entry>), StoreError> {
    let opened = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let store = Engine::with_backend(memory.clone(), "damaged")?;
        Ok((store.snapshot()?.revision(), store.snapshot()?.all(&KeyRange::all())?))
    }));
    opened.unwrap_or_else(|_| Err(StoreError::Damaged { store: "".into(), reason: "asserted".into() }))
}

#[test]
fn what_is_no_store_is_refused() {
    for bytes in [vec![0; 4096], vec![0xFF; 1 << 20], b"SQLite format 3\0".repeat(512)] {
        let refused = open(&Memory::of(bytes));
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
    }
    let memory = Memory::default();
    drop(engine(&memory));
    for length in [1, 100, 4096, memory.bytes().len() / 2] {
        let refused = open(&Memory::of(memory.bytes()[..length].to_vec()));
        assert!(matches!(refused, Err(StoreError::Damaged { .. } | StoreError::Open { .. })), "{refused:?}");
    }
}
