//! Destroying after a delay, with a second person, and never what is needed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use strongroom_keyserver::access::Role;
use strongroom_keyserver::objects::destruction::{
    DELAY_MIN_SECONDS, Dependents, DestructionError, Destructions,
};
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;

use crate::fixture::{Fixture, assert_done, assert_refused, client, get, identity, just, key_in};

/// What is said to need every key.
#[derive(Default)]
struct Volumes(Mutex<Vec<String>>);

impl Dependents for Volumes {
    fn of(&self, _: ObjectId) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.lock().unwrap().clone())
    }
}

struct Scene {
    fixture: Fixture,
    destructions: Destructions,
    volumes: Arc<Volumes>,
    id: ObjectId,
    text: String,
}

impl Scene {
    /// A key that is active, and whose owner can tell how it is.
    fn new() -> (Self, strongroom_keyserver::access::Identity) {
        let (fixture, owner) = (Fixture::new(), client("owner"));
        let text = fixture.create(&owner, Vec::new());
        assert_done(&fixture.ask(&owner, RequestPayload::Activate(just(&text))));
        let volumes = Arc::new(Volumes::default());
        let destructions =
            Destructions::new(fixture.store.clone(), fixture.server.objects(), volumes.clone());
        let id = text.parse().unwrap();
        (Self { fixture, destructions, volumes, id, text }, owner)
    }

    fn pass(&self, seconds: i64) {
        self.fixture.clock.0.fetch_add(seconds, Ordering::SeqCst);
    }

    fn swept(&self) -> usize {
        let swept = self.fixture.wait(self.destructions.sweep()).unwrap();
        swept.iter().filter(|swept| swept.result.is_ok()).count()
    }
}

#[test]
fn a_key_is_gone_after_the_delay_and_a_second_person_and_not_before() {
    let (scene, owner) = Scene::new();
    let (ann, bob) = (identity("ann", Role::Admin), identity("bob", Role::Admin));
    let schedule = scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "the customer left");
    scene.fixture.wait(schedule).unwrap();
    // It is deactivated, and still there for what it has sealed.
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
    *scene.volumes.0.lock().unwrap() = vec!["volume db-1".to_owned(), "snapshot db-1@monday".to_owned()];
    let refused =
        scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap_err();
    assert_eq!(refused.to_string(), "the key is still needed by 2: volume db-1, snapshot db-1@monday");

    scene.volumes.0.lock().unwrap().clear();
    scene.fixture.wait(scene.destructions.schedule(&ann, scene.id, DELAY_MIN_SECONDS, "")).unwrap();
    scene.fixture.wait(scene.destructions.confirm(&bob, scene.id)).unwrap();
    scene.pass(DELAY_MIN_SECONDS);
    // A backup is found on a datastore at the last moment.
    scene.volumes.0.lock().unwrap().push("backup of db-1".to_owned());
    let swept = scene.fixture.wait(scene.destructions.sweep()).unwrap();
    assert!(matches!(swept[0].result, Err(DestructionError::Needed { .. })));
    key_in(&scene.fixture.ask(&owner, get(&scene.text)));
    scene.volumes.0.lock().unwrap().clear();
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
}
