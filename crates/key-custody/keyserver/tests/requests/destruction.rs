//! Destruction after a delay, with a second person, and never of a key with dependents.

use std::sync::atomic::Ordering;
use std::task::Poll;

use strongroom_keyserver::access::Role;
use strongroom_keyserver::grant::{VmId, ledger};
use strongroom_keyserver::objects::destruction::{
    DELAY_MIN_SECONDS, DestructionError, Destructions, REASON_MAX_BYTES,
};
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;

use crate::fixture::{
    Fixture, assert_done, assert_refused, client, get, identity, just, key_in, message, revoke,
};

struct Scene {
    fixture: Fixture,
    destructions: Destructions,
    id: ObjectId,
    text: String,
}

impl Scene {
    /// A scene with an active key whose owner can read its state.
    fn new() -> (Self, strongroom_keyserver::access::Identity) {
        let (fixture, owner) = (Fixture::new(), client("owner"));
        let text = fixture.create(&owner, Vec::new());
        assert_done(&fixture.ask(&owner, RequestPayload::Activate(just(&text))));
        let destructions =
            Destructions::new(fixture.store.clone(), fixture.server.objects(), fixture.server.inquiry());
        let id = text.parse().unwrap();
        (Self { fixture, destructions, id, text }, owner)
    }

    fn pass(&self, seconds: i64) {
        self.fixture.clock.0.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Carries out all due destructions, and returns the results.
    fn sweep(&self) -> Vec<Result<(), DestructionError>> {
        let due = self.fixture.wait(self.destructions.due()).unwrap();
        due.into_iter().map(|(id, _)| self.fixture.wait(self.destructions.carry_out(id))).collect()
    }

    fn swept(&self) -> usize {
        self.sweep().iter().filter(|result| result.is_ok()).count()
    }
}

#[test]
fn a_key_is_gone_after_the_delay_and_a_second_person_and_not_before() {
    let (scene, owner) = Scene::new();
    let (ann, bob) = (identity("ann", Role::Admin), identity("bob", Role::Admin));
    let schedule = scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "the customer left");
    scene.fixture.wait(schedule).unwrap();
    // It is deactivated, and still opens envelopes.
    assert_refused(
        &scene.fixture.ask(&owner, RequestPayload::Activate(just(&scene.text))),
        ResultReason::PermissionDenied,
    );
    key_in(&scene.fixture.ask(&owner, get(&scene.text)));

    scene.pass(DELAY_MIN_SECONDS);
    assert_eq!(scene.swept(), 0, "nobody has confirmed it");
    let alone = scene.fixture.wait(scene.destructions.confirm(&ann, scene.id));
    assert!(matches!(alone, Err(DestructionError::SamePerson)));
    scene.fixture.wait(scene.destructions.confirm(&bob, scene.id)).unwrap();
    assert_eq!(scene.swept(), 1);
    assert_eq!(scene.swept(), 0);
    assert!(scene.destructions.waiting().unwrap().is_empty());
    assert_refused(&scene.fixture.ask(&owner, get(&scene.text)), ResultReason::ItemNotFound);
    let again = scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "again"));
    assert!(matches!(again, Err(DestructionError::LifeCycle(_))));
}

#[test]
fn what_is_confirmed_is_due_only_once_that_is_on_record() {
    let (scene, _) = Scene::new();
    let (ann, bob) = (identity("ann", Role::Admin), identity("bob", Role::Admin));
    scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap();
    scene.pass(DELAY_MIN_SECONDS);
    let unrecorded = scene.fixture.wait(scene.destructions.begin_confirming());
    scene.fixture.wait(scene.destructions.confirm(&bob, scene.id)).unwrap();
    let mut due = std::pin::pin!(scene.destructions.due());
    let looks = std::future::poll_fn(|context| Poll::Ready(due.as_mut().poll(context).is_ready()));
    assert!(!scene.fixture.wait(looks), "the sweep sees a confirmation that nobody wrote down");
    drop(unrecorded);
    assert_eq!(scene.fixture.wait(due).unwrap().len(), 1);
}

#[test]
fn a_confirmed_destruction_still_waits_for_its_time_and_can_be_taken_back() {
    let (scene, owner) = Scene::new();
    let (ann, bob) = (identity("ann", Role::Admin), identity("bob", Role::Admin));
    scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap();
    let twice = scene.fixture.wait(scene.destructions.schedule(&bob, scene.id, DELAY_MIN_SECONDS, ""));
    assert!(matches!(twice, Err(DestructionError::AlreadyScheduled { .. })));
    scene.fixture.wait(scene.destructions.confirm(&bob, scene.id)).unwrap();
    scene.pass(DELAY_MIN_SECONDS - 1);
    assert_eq!(scene.swept(), 0);
    scene.fixture.wait(scene.destructions.cancel(scene.id)).unwrap();
    scene.pass(DELAY_MIN_SECONDS);
    assert_eq!(scene.swept(), 0);
    key_in(&scene.fixture.ask(&owner, get(&scene.text)));
    let again = scene.fixture.wait(scene.destructions.cancel(scene.id));
    assert!(matches!(again, Err(DestructionError::NotScheduled)));
}

#[test]
fn what_is_needed_is_named_and_stays() {
    let (scene, owner) = Scene::new();
    let (ann, bob) = (identity("ann", Role::Admin), identity("bob", Role::Admin));
    *scene.fixture.volumes.0.lock() = vec!["volume db-1".to_owned(), "snapshot db-1@monday".to_owned()];
    let refused =
        scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap_err();
    assert_eq!(refused.to_string(), "the key is still needed by 2: volume db-1, snapshot db-1@monday");

    scene.fixture.volumes.0.lock().clear();
    scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap();
    scene.fixture.wait(scene.destructions.confirm(&bob, scene.id)).unwrap();
    scene.pass(DELAY_MIN_SECONDS);
    // A backup is found on a datastore at the last moment.
    scene.fixture.volumes.0.lock().push("backup of db-1".to_owned());
    assert!(matches!(scene.sweep()[..], [Err(DestructionError::Needed { .. })]));
    key_in(&scene.fixture.ask(&owner, get(&scene.text)));
    scene.fixture.volumes.0.lock().clear();
    assert_eq!(scene.swept(), 1);
}

#[test]
fn linked_clones_that_have_the_content_of_a_keys_vm_are_named() {
    let (scene, _) = Scene::new();
    let (vm, other) = (VmId::random(), VmId::random());
    let check = || scene.fixture.wait(scene.destructions.check_clones(scene.id));
    // A key that was made for no VM, or for another one than theirs.
    *scene.fixture.volumes.2.lock() = Some((vm, vec!["web2".to_owned(), "web3".to_owned()]));
    check().unwrap();
    ledger::bind(&*scene.fixture.store, &scene.text, other, None).unwrap();
    check().unwrap();
    ledger::bind(&*scene.fixture.store, &scene.text, vm, Some(other)).unwrap();
    let refused = check().unwrap_err();
    assert_eq!(refused.code(), "left-to-clones");
    assert!(refused.to_string().contains("web2, web3; delete them first"), "{refused}");
    // They do not need the key, so a destruction that was asked for nevertheless goes on.
    let (ann, bob) = (identity("ann", Role::Admin), identity("bob", Role::Admin));
    scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap();
    scene.fixture.wait(scene.destructions.confirm(&bob, scene.id)).unwrap();
    scene.pass(DELAY_MIN_SECONDS);
    assert_eq!(scene.swept(), 1);
}

#[test]
fn a_delay_has_limits() {
    let (scene, _) = Scene::new();
    let ann = identity("ann", Role::Admin);
    for delay_seconds in [0, DELAY_MIN_SECONDS - 1, i64::MAX] {
        let refused = scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, delay_seconds, ""));
        assert!(matches!(refused, Err(DestructionError::Delay { .. })));
    }
    let long = "x".repeat(REASON_MAX_BYTES + 1);
    let refused = scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, &long);
    assert!(matches!(scene.fixture.wait(refused), Err(DestructionError::Reason(_))));
}

#[test]
fn what_is_next_due_is_known() {
    let (scene, _) = Scene::new();
    let (ann, bob) = (identity("ann", Role::Admin), identity("bob", Role::Admin));
    scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap();
    assert_eq!(scene.destructions.next_due_in_seconds().unwrap(), None);
    scene.fixture.wait(scene.destructions.confirm(&bob, scene.id)).unwrap();
    assert_eq!(scene.destructions.next_due_in_seconds().unwrap(), Some(DELAY_MIN_SECONDS as u64));
    scene.pass(DELAY_MIN_SECONDS + 1);
    assert_eq!(scene.destructions.next_due_in_seconds().unwrap(), None, "it is due");
}

#[test]
fn a_client_destroys_its_own_key_at_once_unless_a_volume_needs_it() {
    let fixture = Fixture::new();
    let owner = client("owner");
    let group = AttributeValue::ObjectGroup("strongroom".to_owned());
    let (ours, foreign) = (fixture.create(&owner, vec![group]), fixture.create(&owner, Vec::new()));
    let destroy = |id: &str| fixture.ask(&owner, RequestPayload::Destroy(just(id)));

    *fixture.volumes.0.lock() = vec!["/mnt/ds/vm1".to_owned()];
    for id in [&ours, &foreign] {
        let answer = destroy(id);
        assert_refused(&answer, ResultReason::PermissionDenied);
        assert_eq!(answer.result_message.unwrap(), "the key is still needed by 1: /mnt/ds/vm1");
    }
    // Also refused in one transaction with other operations, all of which are undone.
    let mut undone = message(vec![
        RequestPayload::Activate(just(&foreign)),
        revoke(&foreign, RevocationReasonCode::Superseded),
        RequestPayload::Destroy(just(&foreign)),
    ]);
    undone.header.batch_error_continuation_option = Some(BatchErrorContinuationOption::Undo);
    let answers = fixture.send(&owner, &undone).items;
    assert_eq!(answers[0].result_status, ResultStatus::OperationUndone);
    assert_refused(&answers[2], ResultReason::PermissionDenied);

    fixture.volumes.0.lock().clear();
    fixture.volumes.1.store(true, Ordering::SeqCst);
    let answer = destroy(&ours);
    assert_refused(&answer, ResultReason::PermissionDenied);
    let said = answer.result_message.unwrap();
    assert!(said.ends_with("whether anything needs the key: /mnt/ds is not mounted"), "{said}");
    assert_done(&destroy(&foreign));
    fixture.volumes.1.store(false, Ordering::SeqCst);
    assert_done(&destroy(&ours));
}
