//! Volumes whose keys change, become unavailable and return.

use std::os::fd::AsFd;

use strongroom_datastore::file::{check, delete, describe};
use strongroom_keys::{Keyring, LeaseState, Leases, OnRevocation, RevokedHow};
use strongroom_types::VolumeSize;
use strongroom_worker::condition::{Condition, State};
use strongroom_worker::control::{Answer, Client, Request};
use strongroom_worker::supervise::SuperviseError;

use crate::providers::{OneKey, Silent, key_file_kek, provider_key, rewrap_request};
use crate::stage::{DEADLINE, LAYERS, LOCK_WAIT, Supervised, install, kill, wait_until};

#[test]
fn a_volume_moves_to_other_keys_while_it_is_served() {
    let supervised = Supervised::start();
    let worker = supervised.worker();
    let (old, file) = (key_file_kek(7), key_file_kek(9));
    let provided = OneKey(8).fetch(&provider_key("4711")).unwrap();

    let Answer::Rewrapped { old_kek, kek, generation } = supervised.ask(rewrap_request(&provided, 3)) else {
        panic!("it was not re-wrapped");
    };
    assert_eq!((old_kek, kek, generation), (old.id(), provided.id(), LAYERS as u64 + 2));

    // The next worker gets its keys from the new one.
    kill(worker);
    wait_until("another worker serves", || supervised.worker() != worker);

    // A key that no provider keeps comes in a pipe.
    let without = supervised.refused(rewrap_request(&file, 0));
    assert!(without.contains("no pipe came with the request"), "{without}");
    let pipe = key_file_kek(10).to_pipe().unwrap();
    let client = Client::connect(&supervised.volume()).unwrap().unwrap();
    let other = client.ask_with(rewrap_request(&file, 0), Some(pipe.as_fd()), DEADLINE).unwrap();
    assert!(matches!(&other, Answer::Refused { code, .. } if code == "wrong_key"), "{other:?}");
    let pipe = file.to_pipe().unwrap();
    let client = Client::connect(&supervised.volume()).unwrap().unwrap();
    let moved = client.ask_with(rewrap_request(&file, generation), Some(pipe.as_fd()), DEADLINE).unwrap();
    assert!(matches!(moved, Answer::Rewrapped { kek, .. } if kek == file.id()), "{moved:?}");

    let older = supervised.refused(rewrap_request(&provided, 99));
    assert!(older.contains("99"), "{older}");
    // It grows under its new key, and a newer program gets its keys too.
    let larger = Request::Resize { size_bytes: VolumeSize::new(2 << 20).unwrap(), least_generation: 0 };
    assert!(matches!(supervised.ask(larger), Answer::Resized { .. }));
    install(supervised.directory.path(), "serves better");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    let descriptor = describe(&supervised.volume()).unwrap().descriptor;
    assert!(descriptor.is_under(file.id()) && !descriptor.is_under(old.id()));
    assert!(check(&supervised.volume(), Some(&file)).unwrap().is_empty());
    supervised.end();
}

#[test]
fn an_outage_is_shown_and_disturbs_nothing() {
    let (supervised, leases) = Supervised::start_provided(OneKey(7));
    let worker = supervised.worker();
    assert_eq!(supervised.status().key.unwrap().lease.state, LeaseState::Held);
    leases.now(LeaseState::Outage);
    let key = supervised.status().key.unwrap();
    assert_eq!((key.provider.as_str(), key.key.as_str()), ("corp", "4711"));
    assert_eq!((key.lease.state, key.lease.reason.as_deref()), (LeaseState::Outage, Some("kms1 rests")));
    // The key is still held: a worker that dies is replaced, and the volume grows.
    kill(worker);
    wait_until("another worker serves", || supervised.status().worker_pid.is_some_and(|pid| pid != worker));
    let larger = Request::Resize { size_bytes: VolumeSize::new(2 << 20).unwrap(), least_generation: 0 };
    assert!(matches!(supervised.ask(larger), Answer::Resized { .. }));
    supervised.end();
}

#[test]
fn without_its_key_a_volume_is_served_on_and_a_dead_worker_replaced_when_it_is_back() {
    let (supervised, leases) = Supervised::start_provided(OneKey(7));
    let worker = supervised.worker();
    leases.now(LeaseState::Waiting);
    // Requests that need the key are refused; the worker does not need it.
    let larger = Request::Resize { size_bytes: VolumeSize::new(2 << 20).unwrap(), least_generation: 0 };
    let refused = supervised.refused(larger.clone());
    assert!(refused.contains("key-unavailable: key provider corp, key 4711: kms1 rests"), "{refused}");
    let refused = supervised.refused(Request::Upgrade);
    assert!(refused.contains("key-unavailable"), "{refused}");
    assert_eq!(supervised.worker(), worker);

    kill(worker);
    let unavailable = || supervised.status().condition.state == State::KeyUnavailable;
    wait_until("it says that the key is missing", unavailable);
    assert!(leases.is_asked_for(&provider_key("4711")) && supervised.status().worker_pid.is_none());
    // A change without the key has no effect.
    leases.now(LeaseState::Waiting);
    assert!(unavailable());
    // Neither has another key under its name.
    leases.back(OneKey(9).fetch(&provider_key("4711")).unwrap());
    wait_until("the wrong key is let go of", || leases.kek(&provider_key("4711")).is_none());
    assert!(unavailable());

    leases.back(OneKey(7).fetch(&provider_key("4711")).unwrap());
    let other = supervised.worker();
    assert_ne!(other, worker);
    assert_eq!(supervised.status().condition, Condition::default());
    assert!(matches!(supervised.ask(larger), Answer::Resized { .. }));
    supervised.end();
}

#[test]
fn a_revoked_key_is_moved_away_from_while_the_volume_is_served() {
    let (silent, asked, speak) = Silent::new();
    let (supervised, leases) = Supervised::start_provided(silent);
    let worker = supervised.worker();
    leases.now(LeaseState::Revoked { how: RevokedHow::Compromised });
    assert_eq!(
        supervised.status().key.unwrap().lease.state,
        LeaseState::Revoked { how: RevokedHow::Compromised }
    );
    assert_eq!(supervised.worker(), worker);
    kill(worker);
    wait_until("it says that the key is missing", || {
        supervised.status().condition.state == State::KeyUnavailable
    });

    // The key server does not respond, and all other requests are answered meanwhile.
    let to = OneKey(8).fetch(&provider_key("4712")).unwrap();
    let client = Client::connect(&supervised.volume()).unwrap().unwrap();
    let request = rewrap_request(&to, 0);
    let moving = std::thread::spawn(move || client.ask(request, DEADLINE).unwrap());
    asked.recv_timeout(DEADLINE).expect("the move has begun");
    let refused = supervised.refused(rewrap_request(&key_file_kek(9), 0));
    assert!(refused.contains("being moved"), "{refused}");
    assert!(!moving.is_finished() && supervised.status().worker_pid.is_none());
    speak.send(()).unwrap();
    let moved = moving.join().unwrap();
    assert!(matches!(moved, Answer::Rewrapped { kek, .. } if kek == to.id()), "{moved:?}");
    // A worker is started under the new key; the old one is not used any more.
    assert_ne!(supervised.worker(), worker);
    assert_eq!(supervised.status().key.unwrap().key.as_str(), "4712");
    assert!(leases.kek(&provider_key("4711")).is_none() && leases.kek(&provider_key("4712")).is_some());
    supervised.end();
}

#[test]
fn where_it_is_set_up_so_a_revocation_ends_the_exposure_in_order() {
    let (supervised, leases) = Supervised::start_provided(OneKey(7));
    supervised.worker();
    leases.state.lock().on_revocation = OnRevocation::Stop;
    leases.now(LeaseState::Revoked { how: RevokedHow::Destroyed });
    let volume = supervised.volume();
    let ended = supervised.thread.join().unwrap().unwrap_err();
    assert!(matches!(ended, SuperviseError::Revoked { how: RevokedHow::Destroyed }), "{ended}");
    delete(&volume, LOCK_WAIT).unwrap();
}
