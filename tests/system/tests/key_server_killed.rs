//! The key server is killed at random moments while clients make, read, re-key and destroy keys,
//! and restarted each time. Every answer still holds, an unanswered request happened completely or
//! not at all, and nothing was released without a record.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_kmip::client::{Client, ClientError, NewKey};
use strongroom_kmip::message::{ReKeyRequest, RequestPayload, ResponsePayload};
use strongroom_kmip::protocol::{AttributeValue, Name, NameType, RevocationReasonCode, State};
use strongroom_system_tests::{KeyServerUser, Scratch};

/// A smaller number in CI.
const ROUNDS: u32 = if cfg!(feature = "full") { 100 } else { 4 };
const CLIENTS: u32 = 3;
/// The most answers in a round before the server is killed.
const ANSWERS_MAX: u32 = 120;
/// Timeout of a request to a killed server.
const DEADLINE: Duration = Duration::from_secs(60);

/// A key as its client knows it.
struct Key {
    id: String,
    /// `None` after another key has taken its name.
    name: Option<String>,
    /// Its state, according to the last answer.
    state: State,
    /// The state that was requested when the server died.
    asked: Option<State>,
    /// The released key material.
    content: Option<Vec<u8>>,
}

/// The work of one client until the server was gone.
#[derive(Default)]
struct Work {
    keys: Vec<Key>,
    /// The name of a key that it had requested.
    unanswered: Option<String>,
    /// The answers by operation and object, with the record's names.
    answered: HashMap<(&'static str, String), usize>,
}

fn client(user: &KeyServerUser<'_>) -> Client {
    crate::kmip_client::client(&user.kmip, &user.client_file("."))
}

/// Unwraps the server's answer; `None` if the server is gone. It refuses none of these requests.
fn answer<T>(outcome: Result<T, ClientError>) -> Option<T> {
    match outcome {
        Ok(answer) => Some(answer),
        Err(error) if error.refusal().is_none() => None,
        Err(error) => panic!("{error}"),
    }
}

/// Works with keys of its own until the server is gone. Reports each answer.
fn work(client: &Client, name: &str, seed: u64, told: &Sender<()>) -> Work {
    let mut random = StdRng::seed_from_u64(seed);
    let mut work = Work::default();
    loop {
        let living: Vec<usize> = (0..work.keys.len())
            .filter(|number| !matches!(work.keys[*number].state, State::Destroyed))
            .collect();
        let done = if living.len() < 3 {
            work.create(client, format!("{name}-{}", work.keys.len()))
        } else {
            let number = living[random.random_range(0..living.len())];
            match (random.random_range(0..4), work.keys[number].state) {
                (0 | 1, _) => work.get(client, number),
                (2, State::Active) if work.keys[number].name.is_some() => work.re_key(client, number),
                _ => work.age(client, number),
            }
        };
        if done.is_none() {
            return work;
        }
        // The receiver is gone once the server is about to be killed.
        let _ = told.send(());
    }
}

impl Work {
    fn note(&mut self, operation: &'static str, id: &str) {
        *self.answered.entry((operation, id.to_owned())).or_default() += 1;
    }

    fn create(&mut self, client: &Client, name: String) -> Option<()> {
        self.unanswered = Some(name.clone());
        let wanted = NewKey { unique_name: Some(name.clone()), ..NewKey::aes_256() };
        let id = answer(client.create(&wanted))?;
        self.unanswered = None;
        self.note("Create", &id);
        self.keys.push(Key { id, name: Some(name), state: State::PreActive, asked: None, content: None });
        Some(())
    }

    fn get(&mut self, client: &Client, number: usize) -> Option<()> {
        let key = &mut self.keys[number];
        let content = answer(client.get(&key.id))?.secret.expose().to_vec();
        assert!(key.content.is_none() || key.content.as_ref() == Some(&content), "{} has changed", key.id);
        key.content = Some(content);
        let id = key.id.clone();
        self.note("Get", &id);
        Some(())
    }

    /// Re-keys this key: another takes its place and name.
    fn re_key(&mut self, client: &Client, number: usize) -> Option<()> {
        let old = &self.keys[number];
        let (id, name) = (old.id.clone(), old.name.clone());
        self.unanswered.clone_from(&name);
        let request =
            ReKeyRequest { unique_identifier: Some(id.clone()), offset: None, template_attribute: None };
        let answers = answer(client.batch(vec![RequestPayload::ReKey(request)]))?;
        let new = match answers.into_iter().next() {
            Some(Ok(ResponsePayload::ReKey(answer))) => answer.unique_identifier,
            other => panic!("Re-key of {id}: {other:?}"),
        };
        self.unanswered = None;
        self.keys[number].name = None;
        self.note("ReKey", &id);
        self.keys.push(Key { id: new, name, state: State::Active, asked: None, content: None });
        Some(())
    }

    /// Advances its life by one step.
    fn age(&mut self, client: &Client, number: usize) -> Option<()> {
        let key = &mut self.keys[number];
        let (operation, next) = match key.state {
            State::PreActive => ("Activate", State::Active),
            State::Active => ("Revoke", State::Deactivated),
            _ => ("Destroy", State::Destroyed),
        };
        key.asked = Some(next);
        let id = key.id.clone();
        answer(match next {
            State::Active => client.activate(&id),
            State::Deactivated => client.revoke(&id, RevocationReasonCode::Superseded, ""),
            _ => client.destroy(&id),
        })?;
        (key.state, key.asked) = (next, None);
        self.note(operation, &id);
        Some(())
    }

    /// Compares the client's knowledge with a restarted server.
    fn check(&self, client: &Client, recorded: &HashMap<(String, String), usize>) {
        for key in &self.keys {
            let state = client.state(&key.id).unwrap_or_else(|error| panic!("{} is lost: {error}", key.id));
            let wanted = [Some(key.state), key.asked];
            assert!(wanted.contains(&Some(state)), "{} is {state:?} instead of {wanted:?}", key.id);
            match client.get(&key.id) {
                Ok(got) if state != State::Destroyed => {
                    let same = key.content.as_deref().is_none_or(|content| content == got.secret.expose());
                    assert!(same, "{} is another key", key.id);
                }
                Err(error) if state == State::Destroyed => assert!(error.refusal().is_some(), "{error}"),
                Ok(_) => panic!("{} lives after its destruction", key.id),
                Err(error) => panic!("{} cannot be had: {error}", key.id),
            }
        }
        let named = |name: &str| {
            let name = Name { value: name.to_owned(), kind: NameType::UninterpretedTextString };
            client.locate(vec![AttributeValue::Name(name)], 10).unwrap()
        };
        for key in self
            .keys
            .iter()
            .filter(|key| key.state != State::Destroyed && key.asked != Some(State::Destroyed))
        {
            // The name of a key that was being re-keyed belongs to the old key or to the new one.
            if let Some(name) = key.name.as_ref().filter(|name| self.unanswered.as_ref() != Some(*name)) {
                assert_eq!(named(name), std::slice::from_ref(&key.id), "{name}");
            }
        }
        // A requested key exists completely, or not at all.
        if let Some(name) = &self.unanswered {
            let found = named(name);
            assert!(found.len() <= 1, "{name}: {found:?}");
            for id in found {
                client.get(&id).unwrap_or_else(|error| panic!("{name} is half there: {error}"));
            }
        }
        for ((operation, id), times) in &self.answered {
            let on_record = recorded.get(&((*operation).to_owned(), id.clone())).copied().unwrap_or_default();
            assert!(on_record >= *times, "{operation} of {id}: {times} answers, {on_record} on record");
        }
    }
}

/// How often each operation on each object is on record as done.
fn recorded(user: &KeyServerUser<'_>) -> HashMap<(String, String), usize> {
    let mut recorded = HashMap::new();
    for line in user.audit().iter().filter(|line| line["outcome"] == "done") {
        for object in line["objects"].as_array().into_iter().flatten() {
            let key = (line["action"].as_str().unwrap().to_owned(), object.as_str().unwrap().to_owned());
            *recorded.entry(key).or_default() += 1;
        }
    }
    recorded
}

fn wait_for_answers(told: &Receiver<()>, answers: u32) {
    for _ in 0..answers {
        told.recv_timeout(DEADLINE).unwrap();
    }
}

#[test]
fn what_was_answered_is_so_whenever_the_server_is_killed() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let mut random = StdRng::seed_from_u64(7);
    let (mut keys, mut answered, mut half_way) = (0, 0, 0);
    let mut server = user.serve("keyserver");
    for round in 0..ROUNDS {
        let (told, heard) = channel();
        let works: Vec<Work> = thread::scope(|scope| {
            let workers: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (told, client) = (told.clone(), client(&user));
                    let (name, seed) = (format!("key-{round}-{number}"), random.random());
                    scope.spawn(move || work(&client, &name, seed, &told))
                })
                .collect();
            wait_for_answers(&heard, random.random_range(1..=ANSWERS_MAX));
            server.kill();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        // From time to time it is also killed while it starts.
        if round % 4 == 3 {
            user.start_server(&format!("keyserver-{round}-killed"), &[]).kill();
        }
        server = user.serve(&format!("keyserver-{round}"));
        let (again, recorded) = (client(&user), recorded(&user));
        for work in &works {
            work.check(&again, &recorded);
            keys += work.keys.len();
            answered += work.answered.values().sum::<usize>();
            let asked = work.keys.iter().filter(|key| key.asked.is_some()).count();
            half_way += asked + usize::from(work.unanswered.is_some());
        }
    }
    assert!(server.terminate(DEADLINE).success());
    let verified = user.json(&["audit", "verify"]);
    assert_eq!(verified["whole"], true, "{verified}");
    println!(
        "{ROUNDS} kills: {keys} keys, {answered} answers kept, {half_way} changes under way when it was killed"
    );
}
