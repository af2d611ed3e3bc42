//! Every role, and every privilege for itself, sends requests that are generated from the API's
//! document to all of its operations: valid ones, and ones with one slip. No answer is an error of
//! the server, each refusal says what to do next, no caller gains a right, and the access log has
//! what each did.

mod generator;
mod rights;
mod site;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use strongroom_system_tests::{Scratch, Serving};

use self::generator::{Generated, Generator, Slip, now_unix_seconds};
use self::rights::{Caller, Matrix, Scope, gained};
use self::site::{Answer, Client};
use crate::driven_api::Driven;

/// Operations that callers with a token do not use: a stream has no end, and a failed sign-in is
/// delayed by seconds, and makes others wait.
const LEFT_OUT: [&str; 7] = [
    "event_stream",
    "sign_in",
    "provider_sign_in_begin",
    "provider_sign_in",
    "emergency_sign_in",
    "page_sign_in_begin",
    "page_sign_in",
];
/// Operations that delay the next try when what is sent is wrong: only callers with a built-in role
/// for the whole site use them.
const DELAYED: [&str; 2] = ["user_password", "user_second_factor"];
/// What changes nothing, and is not on record.
const UNRECORDED: [&str; 2] = ["volume_read", "access_explain"];
/// What is read, and is on record.
const READ_ON_RECORD: [&str; 4] = ["access_review", "access_log", "access_log_head", "access_log_verify"];
/// How many refusals of one caller in an hour have an entry of their own.
const REFUSALS_WRITTEN: usize = 20;
const DISK_BYTES_MAX: u64 = 16 << 20;

/// Reads a number from the environment.
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn no_caller_gets_a_5xx_or_gains_a_right_whatever_it_sends() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let client = Client::of(&serving, &scratch);
    let driven = Driven::of(&serving, &scratch).with_disks_of_at_most(DISK_BYTES_MAX);
    let mut seed = given("STRONGROOM_FUZZ_SEED").unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(given("STRONGROOM_FUZZ_ROLES_SECONDS").unwrap_or(0));
    let site = Attacked { client: &client, scratch: &scratch, matrix: Matrix::read() };
    loop {
        println!("STRONGROOM_FUZZ_SEED={seed}");
        let mut generator = Generator::new(driven.document(), seed);
        let mut total = Turn::default();
        for (at, role) in roles(&client).iter().enumerate() {
            let turn = site.turn(&mut generator, role, &format!("{seed}-{at}"));
            println!("{:<40} {}", format!("{} ({:?})", role.name, role.scope), turn.summary());
            total.add(turn);
        }
        println!("seed {seed}, all callers: {}", total.summary());
        assert!(total.accepted > 100, "hardly anything was accepted: {}", total.summary());
        assert!(total.forbidden > 1000, "hardly anything was refused: {}", total.summary());
        seed += 1;
        if Instant::now() >= until {
            break;
        }
    }
    serving.end();
}

/// A role of callers.
struct Role {
    name: String,
    /// Of a role that the test makes.
    privileges: Vec<String>,
    is_built_in: bool,
    scope: Scope,
}

/// The built-in roles, each privilege for itself with the right to see, and the strongest role
/// where it counts only in a part of the site.
fn roles(client: &Client) -> Vec<Role> {
    let known = client.read("/v1/roles?limit=100");
    let privileges = |of: &Value| -> Vec<String> {
        of["privileges"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
    };
    let built_in: Vec<(String, Vec<String>)> = known["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|role| role["built_in"] == true)
        .map(|role| (role["name"].as_str().unwrap().to_owned(), privileges(role)))
        .collect();
    let all = built_in.iter().map(|(_, privileges)| privileges).max_by_key(|all| all.len()).unwrap().clone();
    let mut roles: Vec<Role> = built_in
        .iter()
        .map(|(name, privileges)| Role {
            name: name.clone(),
            privileges: privileges.clone(),
            is_built_in: true,
            scope: Scope::Site,
        })
        .collect();
    for scope in [Scope::Folder, Scope::Vm, Scope::Datastore, Scope::Network] {
        let name = "administrator".to_owned();
        roles.push(Role { name, privileges: all.clone(), is_built_in: true, scope });
    }
    for privilege in &all {
        let privileges = BTreeSet::from(["view".to_owned(), privilege.clone()]).into_iter().collect();
        let name = format!("only-{}", privilege.replace('_', "-"));
        roles.push(Role { name, privileges, is_built_in: false, scope: Scope::Site });
    }
    roles
}

/// What a caller's requests were answered with.
#[derive(Default)]
struct Turn {
    accepted: usize,
    forbidden: usize,
    by_status: BTreeMap<u16, usize>,
    /// Operations that were carried out, and have to be on record.
    done: BTreeMap<String, usize>,
}

impl Turn {
    fn add(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.forbidden += other.forbidden;
        for (status, count) in other.by_status {
            *self.by_status.entry(status).or_default() += count;
        }
    }

    fn summary(&self) -> String {
        format!("{} accepted, {} forbidden, {:?}", self.accepted, self.forbidden, self.by_status)
    }
}

/// The site, and what is known of it.
struct Attacked<'test> {
    client: &'test Client,
    scratch: &'test Scratch,
    matrix: Matrix,
}

impl Attacked<'_> {
    /// A caller with the role sends two requests to each operation.
    fn turn(&self, generator: &mut Generator, role: &Role, label: &str) -> Turn {
        self.client.restore();
        let mut caller = self.caller(role, label);
        generator.objects = self.client.objects(self.scratch);
        generator.objects.insert("token", vec![caller.name.clone()]);
        let before = self.client.state();
        let logged = self.client.read("/v1/access/log/head")["id"].as_u64().unwrap();
        let mut turn = Turn::default();
        for operation in generator.operations() {
            let is_waited_for = role.is_built_in && role.scope == Scope::Site;
            let is_left_out = |left_out: &[&str]| left_out.contains(&operation.id.as_str());
            if is_left_out(&LEFT_OUT) || (is_left_out(&DELAYED) && !is_waited_for) {
                continue;
            }
            for request in [generator.valid(&operation), generator.nearly_valid(&operation)] {
                self.sends(&mut caller, &request, &mut turn);
            }
        }
        let after = self.client.state();
        let gained = gained(&caller, &before, &after);
        assert!(gained.is_empty(), "{} ({:?}): {gained:#?}", caller.name, caller.scope);
        self.is_on_record(&caller, logged, &turn);
        turn
    }

    /// A token with the role, as a caller.
    fn caller(&self, role: &Role, label: &str) -> Caller {
        let name = format!("{}-{label}", role.name);
        let mut role_name = role.name.clone();
        if !role.is_built_in {
            role_name = name.clone();
            let wish = json!({ "name": role_name, "privileges": role.privileges });
            let made = self.client.owner("POST", "/v1/roles", &wish);
            assert_eq!(made.status, 201, "{}", made.json());
        }
        let mut caller = Caller {
            name,
            privileges: role.privileges.iter().cloned().collect(),
            scope: role.scope,
            role: role_name,
            token: String::new(),
        };
        self.get_token(&mut caller);
        caller
    }

    fn get_token(&self, caller: &mut Caller) {
        let scope = match caller.scope {
            Scope::Site => json!({ "type": "site" }),
            Scope::Folder => json!({ "type": "folder", "folder": site::FOLDER }),
            Scope::Vm => json!({ "type": "vm", "vm": "inside1" }),
            Scope::Datastore => json!({ "type": "datastore", "datastore": site::DATASTORE }),
            Scope::Network => json!({ "type": "network", "network": site::NETWORK }),
        };
        let wish = json!({
            "name": caller.name, "role": caller.role, "scope": scope, "expires_unix_seconds": now_unix_seconds() + 86_400,
        });
        let made = self.client.owner("POST", "/v1/tokens", &wish);
        assert_eq!(made.status, 201, "{}", made.json());
        caller.token = made.json()["token"].as_str().unwrap().to_owned();
    }

    fn sends(&self, caller: &mut Caller, request: &Generated, turn: &mut Turn) {
        let Generated { operation, method, target, sent, slip, .. } = request;
        let body = sent.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let shown: String = body.chars().take(2000).collect();
        let asked =
            format!("{} ({:?}): {operation}, {slip:?}: {method} {target} {shown}", caller.name, caller.scope);
        let answer = self
            .client
            .ask(&caller.token, method, target, sent.as_deref())
            .unwrap_or_else(|error| panic!("no answer: {error}: {asked}"));
        let Answer { status, body } = &answer;
        let said = format!("{asked}: {status} {}", String::from_utf8_lossy(body));
        *turn.by_status.entry(*status).or_default() += 1;
        let refused = self.matrix.refuses(caller, request);
        match status {
            200..=299 => {
                assert!(refused.is_none(), "accepted, but {}: {said}", refused.unwrap());
                turn.accepted += 1;
                let is_read = method == "GET" && !READ_ON_RECORD.contains(&operation.as_str());
                if !is_read && !UNRECORDED.contains(&operation.as_str()) {
                    *turn.done.entry(operation.clone()).or_default() += changes(operation, &answer);
                }
                if ["token_rotate", "token_revoke"].contains(&operation.as_str()) && self.is_ended(caller) {
                    self.client.owner("DELETE", &format!("/v1/tokens/{}", caller.name), &Value::Null);
                    self.get_token(caller);
                }
            }
            400..=499 | 503 => {
                assert_is_problem(&answer, &said);
                turn.forbidden += usize::from(*status == 403);
                if *slip == Slip::None
                    && let Some(reason) = refused
                {
                    assert!([403, 404].contains(status), "not forbidden, but {reason}: {said}");
                }
            }
            _ => panic!("{said}"),
        }
    }

    fn is_ended(&self, caller: &Caller) -> bool {
        self.client.ask(&caller.token, "GET", "/v1/me", None).is_ok_and(|answer| answer.status == 401)
    }

    /// The access log has an entry for all that the caller did, and its refusals.
    fn is_on_record(&self, caller: &Caller, after: u64, turn: &Turn) {
        let mut written: BTreeMap<String, u64> = BTreeMap::new();
        let (mut refused, mut after) = (0, after);
        loop {
            let page =
                self.client.read(&format!("/v1/access/log?by={}&after={after}&limit=1000", caller.name));
            for entry in page["items"].as_array().unwrap() {
                after = entry["id"].as_u64().unwrap();
                let times = entry["repeated"].as_u64().unwrap_or(1);
                match entry["kind"].as_str().unwrap() {
                    "refused" => refused += times,
                    _ => {
                        *written.entry(entry["operation"].as_str().unwrap().to_owned()).or_default() += times
                    }
                }
            }
            if page["next"].is_null() {
                break;
            }
        }
        for (operation, times) in &turn.done {
            let found = written.get(operation).copied().unwrap_or(0);
            assert!(found >= *times as u64, "{}: {operation}: {found} entries for {times}", caller.name);
        }
        let least = turn.forbidden.min(REFUSALS_WRITTEN) as u64;
        assert!(refused >= least, "{}: {refused} entries for {} refusals", caller.name, turn.forbidden);
    }
}

/// How many changes were accepted with an answer.
fn changes(operation: &str, answer: &Answer) -> usize {
    match operation {
        // A task that is over, or was cancelled before, is answered with as it is.
        "task_cancel" => 0,
        "volume_change" => {
            let answers = answer.json()["changes"].clone();
            answers.as_array().unwrap().iter().filter(|one| one["task"].is_object()).count()
        }
        _ => 1,
    }
}

/// A refusal is a problem, as the document says it, with a sentence and a next step.
fn assert_is_problem(answer: &Answer, said: &str) {
    let problem: Value =
        serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {said}"));
    let text = |field: &str| problem["error"][field].as_str().is_some_and(|text| !text.trim().is_empty());
    assert!(text("code") && text("message"), "no problem: {said}");
    assert_ne!(problem["error"]["code"], "internal", "{said}");
    // A value that is out of bounds is refused with its bounds, and a conflict with the state that
    // it is about. All other refusals say what to do.
    let states_it = problem["error"]["code"] == "invalid" || answer.status == 409;
    assert!(text("next_step") || states_it, "no next step: {said}");
}
