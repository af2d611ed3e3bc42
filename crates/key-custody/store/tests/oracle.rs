//! The engine against a slow and obvious oracle: a `BTreeMap` for every revision.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use strongroom_store::{
    Change, Condition, Conflict, Engine, Entry, Event, Is, KeyRange, Operation, Outcome, Revision, Snapshot,
    Store, Transaction,
};
use support::Memory;

/// A whole store, implemented the slow way.
#[derive(Clone, Debug, Default)]
struct Oracle {
    revision: Revision,
    entries: BTreeMap<Vec<u8>, Entry>,
    events: Vec<Event>,
}

impl Oracle {
    fn commit(&mut self, transaction: &Transaction) -> Outcome {
        for (index, Condition { key, is }) in transaction.conditions.iter().enumerate() {
            let found = self.entries.get(key);
            let holds = match is {
                Is::Absent => found.is_none(),
                Is::Present => found.is_some(),
                Is::ModifiedAt(revision) => found.is_some_and(|entry| entry.mod_revision == *revision),
                Is::Version(version) => found.is_some_and(|entry| entry.version == *version),
            };
            if !holds {
                let found = found.map(|entry| entry.mod_revision);
                return Outcome::Conflict(Conflict { condition: index, found });
            }
        }
        let revision = self.revision.next();
        let before = self.events.len();
        for operation in &transaction.operations {
            let key = operation.key().to_vec();
            let change = match operation {
                Operation::Put { value, lease, .. } => {
                    let found = self.entries.get(&key);
                    let entry = Entry {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: found.map_or(revision, |entry| entry.create_revision),
                        mod_revision: revision,
                        version: found.map_or(1, |entry| entry.version + 1),
                        lease: *lease,
                    };
                    self.entries.insert(key.clone(), entry);
                    Change::Put
                }
                Operation::Delete { .. } if self.entries.remove(&key).is_none() => continue,
                Operation::Delete { .. } => Change::Delete,
            };
            self.events.push(Event { revision, key, change });
        }
        if self.events.len() > before {
            self.revision = revision;
        }
        Outcome::Committed(self.revision)
    }

    fn range(&self, range: &KeyRange) -> Vec<Entry> {
        self.entries.values().filter(|entry| range.contains(&entry.key)).cloned().collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Transactions that are submitted together.
    Commit(Vec<Transaction>),
    Read(KeyRange, usize),
    Reopen,
    TakeSnapshot,
}

/// Few keys, some of them prefixes of others, so that operations collide.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0..12_u8).prop_map(|n| format!("k/{n}").into_bytes()),
        1 => proptest::collection::vec(prop_oneof![Just(0_u8), Just(255), Just(b'k')], 0..4),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let is = prop_oneof![
        Just(Is::Absent),
        Just(Is::Present),
        (0..20_u64).prop_map(|n| Is::ModifiedAt(Revision(n))),
        (1..4_u64).prop_map(Is::Version),
    ];
    (key(), is).prop_map(|(key, is)| Condition { key, is })
}

fn transaction() -> impl Strategy<Value = Transaction> {
    let value = prop_oneof![4 => 0..40_usize, 1 => 3000..9000_usize];
    let put = (key(), value, any::<u8>()).prop_map(|(key, length, fill)| Operation::Put {
        key,
        value: vec![fill; length],
        lease: None,
    });
    let operation = prop_oneof![3 => put, 1 => key().prop_map(|key| Operation::Delete { key })];
    let conditions = prop_oneof![2 => Just(0), 1 => Just(1), 1 => Just(2)]
        .prop_flat_map(|count| proptest::collection::vec(condition(), count));
    (conditions, proptest::collection::vec(operation, 0..5)).prop_map(|(conditions, mut operations)| {
        operations.sort_by(|one, other| one.key().cmp(other.key()));
        operations.dedup_by(|one, other| one.key() == other.key());
        Transaction { conditions, operations }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => proptest::collection::vec(transaction(), 1..6).prop_map(Step::Commit),
        4 => (key(), key(), 1..6_usize).prop_map(|(start, end, limit)| Step::Read(KeyRange::between(start, end), limit)),
        2 => (key(), 1..6_usize).prop_map(|(prefix, limit)| Step::Read(KeyRange::prefix(prefix), limit)),
        1 => Just(Step::Reopen),
        1 => Just(Step::TakeSnapshot),
    ]
}

fn paged(snapshot: &dyn Snapshot, range: &KeyRange, limit: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut rest = Some(range.clone());
    while let Some(range) = rest {
        let page = snapshot.range(&range, limit).unwrap();
        entries.extend(page.entries);
        rest = page.rest;
    }
    entries
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_as_the_oracle(steps in proptest::collection::vec(step(), 1..40)) {
        let memory = Memory::default();
        let mut engine = Engine::with_backend(memory.clone(), "memory").unwrap();
        let mut oracle = Oracle::default();
        let mut snapshots: Vec<(Box<dyn Snapshot>, Oracle)> = Vec::new();
        for step in steps {
            match step {
                Step::Commit(transactions) => {
                    let pending: Vec<_> =
                        transactions.iter().map(|transaction| engine.submit(transaction.clone())).collect();
                    for (pending, transaction) in pending.into_iter().zip(&transactions) {
                        prop_assert_eq!(pending.wait().unwrap(), oracle.commit(transaction));
                    }
                }
                Step::Read(range, limit) => {
                    let snapshot = engine.snapshot().unwrap();
                    prop_assert_eq!(paged(&*snapshot, &range, limit), oracle.range(&range));
                }
                Step::Reopen => {
                    snapshots.clear();
                    drop(engine);
                    engine = Engine::with_backend(memory.clone(), "memory").unwrap();
                }
                Step::TakeSnapshot => snapshots.push((engine.snapshot().unwrap(), oracle.clone())),
            }
            prop_assert_eq!(engine.snapshot().unwrap().revision(), oracle.revision);
        }
        for (snapshot, then) in snapshots {
            prop_assert_eq!(snapshot.revision(), then.revision);
            prop_assert_eq!(snapshot.all(&KeyRange::all()).unwrap(), then.range(&KeyRange::all()));
        }
        for key in oracle.entries.keys() {
            prop_assert_eq!(engine.get(key).unwrap(), oracle.entries.get(key).cloned());
        }
        let mut watch = engine.watch(KeyRange::all(), Revision::ZERO).unwrap();
        let mut events = Vec::new();
        loop {
            let more = watch.next(Duration::ZERO).unwrap();
            if more.is_empty() {
                break;
            }
            events.extend(more);
        }
        prop_assert_eq!(events, oracle.events);
    }
}
