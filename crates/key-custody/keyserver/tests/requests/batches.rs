//! Batches: order, errors, the ID placeholder, sizes, and conflicting clients.

use strongroom_keyserver::Caller;
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_kmip::ttlv::Limits;

use crate::fixture::{
    Fixture, assert_done, assert_refused, client, create, get, just, key_in, locate, located, message, name,
};

fn with_option(payloads: Vec<RequestPayload>, option: BatchErrorContinuationOption) -> RequestMessage {
    let mut request = message(payloads);
    request.header.batch_error_continuation_option = Some(option);
    request
}

#[test]
fn a_batch_stops_goes_on_or_is_undone_as_its_header_says() {
    let owner = client("owner");
    let payloads = || vec![create(vec![name("first")]), get("nothing"), create(vec![name("second")])];
    let statuses = |response: &ResponseMessage| -> Vec<ResultStatus> {
        response.items.iter().map(|item| item.result_status).collect()
    };
    use ResultStatus::{OperationFailed as Failed, OperationUndone as Undone, Success};
    for (option, expected, left) in [
        (BatchErrorContinuationOption::Stop, vec![Success, Failed], 1),
        (BatchErrorContinuationOption::Continue, vec![Success, Failed, Success], 2),
        (BatchErrorContinuationOption::Undo, vec![Undone, Failed], 0),
    ] {
        let fixture = Fixture::new();
        let response = fixture.send(&owner, &with_option(payloads(), option));
        assert_eq!(statuses(&response), expected, "{option}");
        assert_eq!(located(&fixture.ask(&owner, locate(Vec::new()))).len(), left, "{option}");
    }
}

#[test]
fn a_batch_that_is_undone_gives_no_key_out_and_one_that_is_not_does() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let get_it = || RequestPayload::Get(GetRequest::default());
    let undo = BatchErrorContinuationOption::Undo;
    let undone = fixture.send(&owner, &with_option(vec![create(Vec::new()), get_it(), get("nothing")], undo));
    assert!(undone.items.iter().all(|item| item.payload.is_none()));
    let done = fixture.send(&owner, &with_option(vec![create(Vec::new()), get_it()], undo));
    assert_eq!(key_in(&done.items[1]).len(), 32);
    let Some(ResponsePayload::Create(created)) = &done.items[0].payload else { panic!() };
    assert_eq!(key_in(&fixture.ask(&owner, get(&created.unique_identifier))), key_in(&done.items[1]));
}

#[test]
fn destroying_and_making_anew_under_one_name_can_be_one_transaction() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let old = fixture.create(&owner, vec![name("disk")]);
    let batch = vec![RequestPayload::Destroy(just(&old)), create(vec![name("disk")])];
    let response = fixture.send(&owner, &with_option(batch, BatchErrorContinuationOption::Undo));
    response.items.iter().for_each(assert_done);
    let found = located(&fixture.ask(&owner, locate(vec![name("disk")])));
    assert!(found.len() == 1 && found[0] != old);
}

#[test]
fn the_placeholder_is_what_the_last_item_made_or_found() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let get_it = || RequestPayload::Get(GetRequest::default());
    let response = fixture.send(&owner, &message(vec![create(vec![name("disk")]), get_it()]));
    let key = key_in(&response.items[1]);
    let response = fixture.send(&owner, &message(vec![locate(vec![name("disk")]), get_it()]));
    assert_eq!(key_in(&response.items[1]), key);
    fixture.create(&owner, Vec::new());
    let response = fixture.send(&owner, &message(vec![locate(Vec::new()), get_it()]));
    assert_refused(&response.items[1], ResultReason::ItemNotFound);
    assert_refused(&fixture.ask(&owner, get_it()), ResultReason::ItemNotFound);
}

#[test]
fn an_answer_that_is_too_large_is_refused_and_nothing_is_done_for_it() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let mut request = message(vec![create(vec![name("disk")])]);
    request.header.maximum_response_size = Some(100);
    assert_refused(&fixture.send(&owner, &request).items[0], ResultReason::ResponseTooLarge);
    assert!(located(&fixture.ask(&owner, locate(Vec::new()))).is_empty());
}

#[test]
fn what_is_no_message_or_too_much_of_one_is_refused() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let query = || RequestPayload::Query(QueryRequest::default());
    let many = fixture.send(&owner, &message((0..65).map(|_| query()).collect()));
    assert_refused(&many.items[0], ResultReason::InvalidMessage);
    let caller = Caller::new(owner, None);
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0x42, 0, 0x78, 1, 0x7f, 0xff, 0xff, 0xff]] {
        let answer = fixture.wait(fixture.server.answer(caller.clone(), bytes, &Limits::default()));
        let answer = ResponseMessage::decode(&answer, &Limits::default()).unwrap();
        assert_refused(&answer.items[0], ResultReason::InvalidMessage);
    }
}

/// Sixteen concurrent clients draw on the same limit: the total allocated equals the limit.
#[test]
fn usage_limits_are_given_out_once_however_many_ask_at_a_time() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let limits = UsageLimits { total: 100, count: None, unit: UsageLimitsUnit::Byte };
    let id = fixture.create(&owner, vec![AttributeValue::UsageLimits(limits)]);
    assert_done(&fixture.ask(&owner, RequestPayload::Activate(just(&id))));
    let request = || {
        message(vec![RequestPayload::GetUsageAllocation(GetUsageAllocationRequest {
            unique_identifier: Some(id.clone()),
            usage_limits_count: 10,
        })])
    };
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (server, caller, request) =
                (fixture.server.clone(), Caller::new(owner.clone(), None), request());
            fixture.spawn(async move { server.handle(caller, &request).await.items.remove(0).result_status })
        })
        .collect();
    let given = tasks.into_iter().map(|task| fixture.wait(task).unwrap());
    assert_eq!(given.filter(|status| *status == ResultStatus::Success).count(), 10);
}

#[test]
fn one_of_many_that_want_a_name_gets_it() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (server, caller) = (fixture.server.clone(), Caller::new(owner.clone(), None));
            let request = message(vec![create(vec![name("disk")])]);
            fixture.spawn(async move { server.handle(caller, &request).await.items.remove(0).result_status })
        })
        .collect();
    let ended: Vec<_> = tasks.into_iter().map(|task| fixture.wait(task).unwrap()).collect();
    assert_eq!(ended.iter().filter(|status| **status == ResultStatus::Success).count(), 1);
    assert_eq!(located(&fixture.ask(&owner, locate(Vec::new()))).len(), 1);
}

#[test]
fn a_batch_that_is_too_much_for_one_transaction_is_refused_whole() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    let payloads = (0..64).map(|number| create(vec![name(&format!("disk {number}"))])).collect();
    let response = fixture.send(&owner, &with_option(payloads, BatchErrorContinuationOption::Undo));
    response.items.iter().for_each(|item| assert_refused(item, ResultReason::InvalidMessage));
    assert!(located(&fixture.ask(&owner, locate(Vec::new()))).is_empty());
}
