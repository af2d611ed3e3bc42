//! No durable record, no release.

use std::sync::atomic::Ordering;

use strongroom_keyserver::EventOutcome;
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;

use crate::fixture::{Fixture, assert_refused, client, create, get, key_in, message};

#[test]
fn nothing_leaves_while_the_record_cannot_be_kept() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let id = fixture.create(&owner, Vec::new());
    fixture.recorder.is_broken.store(true, Ordering::SeqCst);
    assert_refused(&fixture.ask(&owner, get(&id)), ResultReason::GeneralFailure);
    assert_refused(&fixture.ask(&owner, get("nothing")), ResultReason::GeneralFailure);
    assert_refused(&fixture.ask(&owner, create(Vec::new())), ResultReason::GeneralFailure);
    let query = RequestPayload::Query(QueryRequest { query_functions: vec![QueryFunction::Operations] });
    assert_eq!(fixture.ask(&owner, query).result_status, ResultStatus::Success);
    fixture.recorder.is_broken.store(false, Ordering::SeqCst);
    assert_eq!(key_in(&fixture.ask(&owner, get(&id))).len(), 32);
}

#[test]
fn every_item_is_on_record_with_who_what_and_how() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let id = fixture.create(&owner, Vec::new());
    fixture.send(&owner, &message(vec![get(&id), get("nothing")]));
    let events = fixture.events();
    let outcomes: Vec<_> = events.iter().map(|event| (event.operation.unwrap(), &event.outcome)).collect();
    assert!(matches!(
        outcomes.as_slice(),
        [
            (Operation::Create, EventOutcome::Done),
            (Operation::Get, EventOutcome::Released { wrapped: false }),
            (Operation::Get, EventOutcome::Refused { reason: ResultReason::ItemNotFound, .. }),
        ]
    ));
    assert!(events.iter().all(|event| *event.who.identity == owner));
    assert_eq!(events[1].objects.iter().map(ToString::to_string).collect::<Vec<_>>(), [id]);
}
