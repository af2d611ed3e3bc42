//! Objects in the store: sealed, intact, and not rolled back.

use std::sync::Arc;

use strongroom_keyserver::objects::keeping::KeepingError;
use strongroom_keyserver::objects::transfer::PlainRecord;
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_store::{Engine, Entry, KeyRange, Store, Transaction};

use crate::fixture::{
    Fixture, assert_done, assert_refused, client, get, just, key_in, locate, located, name, revoke, root,
};

fn entries(store: &Engine) -> Vec<Entry> {
    store.snapshot().unwrap().all(&KeyRange::all()).unwrap()
}

fn records(store: &Engine) -> Vec<Entry> {
    store.snapshot().unwrap().all(&KeyRange::prefix(*b"object/")).unwrap()
}

#[test]
fn neither_keys_nor_names_can_be_read_in_the_store() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let id =
        fixture.create(&owner, vec![name("a name that tells"), AttributeValue::Comment("a word".to_owned())]);
    let key = key_in(&fixture.ask(&owner, get(&id)));
    for entry in entries(&fixture.store) {
        for bytes in [&entry.key, &entry.value] {
            for secret in [&key[..8], b"a name that", b"a word"] {
                assert!(!bytes.windows(secret.len()).any(|window| window == secret));
            }
        }
    }
}

/// A crash leaves the state before or after a transaction; so each change is one.
#[test]
fn every_change_is_one_transaction() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let revision = || fixture.store.snapshot().unwrap().revision().0;
    let id = fixture.create(&owner, vec![name("disk")]);
    assert_eq!(revision(), 1);
    let re_key = ReKeyRequest { unique_identifier: Some(id.clone()), ..ReKeyRequest::default() };
    for (number, payload) in [
        get(&id),
        RequestPayload::Activate(just(&id)),
        RequestPayload::ReKey(re_key),
        revoke(&id, RevocationReasonCode::CessationOfOperation),
        RequestPayload::Destroy(just(&id)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_done(&fixture.ask(&owner, payload));
        assert_eq!(revision(), 2 + number as u64);
    }
    // The first Get has made the key no longer fresh; another one changes nothing.
    let found = located(&fixture.ask(&owner, locate(vec![name("disk")])));
    key_in(&fixture.ask(&owner, get(&found[0])));
    let before = revision();
    key_in(&fixture.ask(&owner, get(&found[0])));
    assert_eq!(revision(), before);
}

#[test]
fn objects_outlive_the_server_under_the_same_root_only() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let id = fixture.create(&owner, vec![name("disk")]);
    let key = key_in(&fixture.ask(&owner, get(&id)));
    let store = Arc::clone(&fixture.store);
    drop(fixture);
    let again = Fixture::over(Arc::clone(&store), &root(1));
    assert_eq!(located(&again.ask(&owner, locate(vec![name("disk")]))), std::slice::from_ref(&id));
    assert_eq!(key_in(&again.ask(&owner, get(&id))), key);
    let elsewhere = Fixture::over(store, &root(2));
    assert_refused(&elsewhere.ask(&owner, get(&id)), ResultReason::GeneralFailure);
}

#[test]
fn a_destroyed_object_leaves_a_tombstone_without_its_key() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let id = fixture.create(&owner, vec![name("disk")]);
    let live_bytes = records(&fixture.store)[0].value.len();
    assert_done(&fixture.ask(&owner, RequestPayload::Destroy(just(&id))));
    let tombstones = records(&fixture.store);
    assert_eq!(tombstones.len(), 1);
    assert_ne!(tombstones[0].value.len(), live_bytes);
    assert_refused(&fixture.ask(&owner, get(&id)), ResultReason::ItemNotFound);
    assert_refused(&fixture.ask(&owner, RequestPayload::Destroy(just(&id))), ResultReason::ItemNotFound);
    assert!(located(&fixture.ask(&owner, locate(Vec::new()))).is_empty());
    assert_done(&fixture.ask(&owner, revoke(&id, RevocationReasonCode::KeyCompromise)));
    let state =
        GetAttributesRequest { unique_identifier: Some(id), attribute_names: vec![AttributeName::State] };
    let Some(ResponsePayload::GetAttributes(answer)) =
        fixture.ask(&owner, RequestPayload::GetAttributes(state)).payload
    else {
        panic!()
    };
    assert_eq!(answer.attributes[0].value, AttributeValue::State(State::DestroyedCompromised));
    fixture.create(&owner, vec![name("disk")]);
}

#[test]
fn a_record_put_back_or_put_elsewhere_is_refused() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let (id, other) = (fixture.create(&owner, Vec::new()), fixture.create(&owner, Vec::new()));
    let before = records(&fixture.store);
    assert_done(&fixture.ask(&owner, RequestPayload::Destroy(just(&id))));
    let destroyed = records(&fixture.store).into_iter().find(|entry| !before.contains(entry)).unwrap();
    let put = |key: &[u8], value: &[u8]| {
        fixture.store.commit(Transaction::new().put(key, value)).unwrap();
    };
    // The earlier object in place of its tombstone.
    let was = before.iter().find(|entry| entry.key == destroyed.key).unwrap();
    put(&was.key, &was.value);
    assert_refused(&fixture.ask(&owner, get(&id)), ResultReason::GeneralFailure);
    put(&destroyed.key, &destroyed.value);
    // One object in place of another.
    let others = before.iter().find(|entry| entry.key != was.key).unwrap();
    key_in(&fixture.ask(&owner, get(&other)));
    put(&others.key, &was.value);
    assert_refused(&fixture.ask(&owner, get(&other)), ResultReason::GeneralFailure);
}

#[test]
fn what_is_exported_lives_on_under_another_root_and_the_dead_stay_dead() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let (id, dead) = (fixture.create(&owner, vec![name("disk")]), fixture.create(&owner, Vec::new()));
    let key = key_in(&fixture.ask(&owner, get(&id)));
    assert_done(&fixture.ask(&owner, RequestPayload::Destroy(just(&dead))));
    let records: Vec<PlainRecord> = fixture.server.objects().export().unwrap().map(Result::unwrap).collect();
    assert_eq!(records.len(), 2);

    let restored = Fixture::under(&root(2));
    for record in &records {
        let transaction = restored.server.objects().import(record).unwrap();
        restored.store.commit(transaction).unwrap().committed().unwrap();
    }
    assert_eq!(located(&restored.ask(&owner, locate(vec![name("disk")]))), std::slice::from_ref(&id));
    assert_eq!(key_in(&restored.ask(&owner, get(&id))), key);
    assert_refused(&restored.ask(&owner, get(&dead)), ResultReason::ItemNotFound);
    assert_done(&restored.ask(&owner, RequestPayload::Destroy(just(&id))));

    for length_bytes in 0..records[0].content.len().min(64) {
        let content = records[0].content[..length_bytes].to_vec().into();
        let cut = PlainRecord { id: records[0].id, kind: records[0].kind, content };
        assert!(matches!(restored.server.objects().import(&cut), Err(KeepingError::Metadata { .. })));
    }
}
