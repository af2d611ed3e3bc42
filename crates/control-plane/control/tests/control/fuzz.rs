//! Valid and invalid requests generated from the document, for some seconds: no answer is a 5xx,
//! and the connection stays usable.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::server::Server;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use strongroom_api::OPERATIONS;
use strongroom_api::guard::Guard;

/// The default duration; `STRONGROOM_FUZZ_SECONDS` overrides it.
const SECONDS: u64 = 4;
/// Timeout for the tasks at the end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// The greatest depth of a generated value.
const DEPTH_MAX: usize = 6;

/// Words that are valid in some places and invalid in others.
const WORDS: [&str; 18] = [
    "web1",
    "web2",
    "web3",
    "ds1",
    "host1",
    "embedded",
    "disk0",
    "",
    " ",
    "..",
    "a/b",
    "\u{0}",
    "💾",
    "-1",
    "00000000-0000-0000-0000-000000000000",
    "null",
    "%00%FF",
    "{}",
];

struct Maker {
    random: StdRng,
    document: Value,
}

impl Maker {
    fn word(&mut self) -> String {
        match self.random.random_range(0..12) {
            0 => "n".repeat(self.random.random_range(0..2000)),
            1 => (0..self.random.random_range(0..20)).map(|_| self.random.random::<char>()).collect(),
            _ => (*WORDS.choose(&mut self.random).unwrap()).to_owned(),
        }
    }

    /// An arbitrary value.
    fn any(&mut self, depth: usize) -> Value {
        match self.random.random_range(0..if depth < DEPTH_MAX { 8 } else { 6 }) {
            0 => Value::Null,
            1 => json!(self.random.random::<bool>()),
            2 => json!(self.random.random::<i64>()),
            3 => json!(self.random.random::<f64>() * 1e300),
            4 => json!(self.random.random_range(0..5)),
            5 => json!(self.word()),
            6 => (0..self.random.random_range(0..4)).map(|_| self.any(depth + 1)).collect(),
            _ => {
                let fields = (0..self.random.random_range(0..4)).map(|_| (self.word(), self.any(depth + 1)));
                Value::Object(fields.collect::<Vec<_>>().into_iter().collect())
            }
        }
    }

    /// Usually a value of the schema, sometimes another.
    fn of(&mut self, schema: &Value, depth: usize) -> Value {
        if depth > DEPTH_MAX || self.random.random_ratio(1, 25) {
            return self.any(depth);
        }
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            let named = self.document["components"]["schemas"][name].clone();
            return self.of(&named, depth);
        }
        for many in ["oneOf", "anyOf"] {
            if let Some(chosen) =
                schema[many].as_array().and_then(|all| all.choose(&mut self.random)).cloned()
            {
                return self.of(&chosen, depth);
            }
        }
        if let Some(parts) = schema["allOf"].as_array().cloned() {
            let mut all = Map::new();
            for part in parts {
                if let Value::Object(fields) = self.of(&part, depth) {
                    all.extend(fields);
                }
            }
            return Value::Object(all);
        }
        if let Some(chosen) = schema["enum"].as_array().and_then(|all| all.choose(&mut self.random)) {
            return chosen.clone();
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds.choose(&mut self.random).cloned().unwrap_or_default(),
            kind => kind.clone(),
        };
        match kind.as_str() {
            Some("object") => self.object(schema, depth),
            Some("array") => {
                let most = schema["maxItems"].as_u64().unwrap_or(3).min(3);
                let many = self.random.random_range(0..=most + 1);
                let items = schema["items"].clone();
                (0..many).map(|_| self.of(&items, depth + 1)).collect()
            }
            Some("integer") => self.integer(schema),
            Some("boolean") => json!(self.random.random::<bool>()),
            Some("null") => Value::Null,
            Some("string") if schema["format"] == "uuid" && self.random.random_ratio(9, 10) => {
                json!(uuid::Uuid::from_u128(self.random.random()).to_string())
            }
            Some("string") => json!(self.word()),
            _ => self.any(depth + 1),
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut fields = Map::new();
        for (name, field) in schema["properties"].as_object().cloned().unwrap_or_default() {
            let needed = required.iter().any(|required| *required == json!(name));
            if self.random.random_ratio(if needed { 29 } else { 10 }, 30) {
                fields.insert(name, self.of(&field, depth + 1));
            }
        }
        if self.random.random_ratio(1, 30) {
            let (name, value) = (self.word(), self.any(depth + 1));
            fields.insert(name, value);
        }
        Value::Object(fields)
    }

    fn integer(&mut self, schema: &Value) -> Value {
        let least = schema["minimum"].as_u64().unwrap_or(0);
        let most = schema["maximum"].as_u64().unwrap_or(u64::from(u32::MAX)).max(least);
        let step = schema["multipleOf"].as_u64().unwrap_or(1);
        match self.random.random_range(0..12) {
            0 => json!(least.wrapping_sub(1)),
            1 => json!(most.wrapping_add(1)),
            2 => json!(u64::MAX),
            3 => json!(-1),
            4 => json!(least),
            5 => json!(most),
            _ => json!(self.random.random_range(least..=most.min(least + (4 << 30))) / step * step),
        }
    }

    /// The path with its query, and the body, for an operation of the document.
    fn request(&mut self, method: &str, path: &str, operation: &Value) -> (String, Option<String>) {
        let (mut path, mut query) = (path.to_owned(), Vec::new());
        for parameter in operation["parameters"].as_array().cloned().unwrap_or_default() {
            let name = parameter["name"].as_str().unwrap();
            let value = match self.of(&parameter["schema"], 1) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            match parameter["in"].as_str() {
                Some("path") => path = path.replace(&format!("{{{name}}}"), &encoded(&value)),
                Some("query") if self.random.random_ratio(1, 3) => {
                    query.push(format!("{name}={}", encoded(&value)));
                }
                _ => {}
            }
        }
        if !query.is_empty() {
            path = format!("{path}?{}", query.join("&"));
        }
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = match schema {
            Value::Null if method == "get" || self.random.random_ratio(9, 10) => None,
            Value::Null => Some(self.any(0)),
            schema => Some(self.of(&schema.clone(), 0)),
        };
        let mut body = body.map(|body| body.to_string());
        if let Some(body) = body.as_mut().filter(|_| self.random.random_ratio(1, 20)) {
            // Cut off at any character.
            let end =
                (0..=self.random.random_range(0..=body.len())).rev().find(|at| body.is_char_boundary(*at));
            body.truncate(end.unwrap_or(0));
        }
        (path, body)
    }
}

/// Encodes all bytes that are special in a path.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[test]
fn no_request_gives_a_5xx() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    let added = client.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    client.done(&added);
    for name in ["web1", "web2"] {
        let wish = json!({ "name": name, "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }] });
        let created = client.post("/v1/vms", &wish);
        client.done(&created);
    }
    let seconds = std::env::var("STRONGROOM_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed = std::env::var("STRONGROOM_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    println!("STRONGROOM_FUZZ_SEED={seed}");
    let document = client.get("/openapi.json").json();
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if operation["operationId"] != "event_stream" {
                operations.push((method.clone(), path.clone(), operation.clone()));
            }
        }
    }
    let mut maker = Maker { random: StdRng::seed_from_u64(seed), document };
    let deadline = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut answers: BTreeMap<u16, u64> = BTreeMap::new();
    while Instant::now() < deadline {
        let (method, path, operation) = operations.choose(&mut maker.random).unwrap().clone();
        let (path, body) = maker.request(&method, &path, &operation);
        // A wait is not an error, but takes its time.
        if path.contains("wait_s") {
            continue;
        }
        let answer = client.ask(&method.to_ascii_uppercase(), &path, &[], body.as_deref());
        *answers.entry(answer.status).or_default() += 1;
        assert!(answer.status < 500, "{method} {path} {body:?}: {} {}", answer.status, answer.body);
        if answer.status == 0 {
            panic!("no answer: {method} {path} {body:?}: {}", answer.body);
        }
        if answer.status >= 400 {
            assert!(!answer.code().is_empty(), "{method} {path}: {}", answer.body);
        }
    }
    println!("answers by status: {answers:?}");
    assert!(answers.contains_key(&202), "nothing was accepted: {answers:?}");
    assert_eq!(client.get("/readyz").status, 200);
    let vms = everything_is_explained(&mut client);
    println!("VMs by lifecycle, wanted and found: {vms:?}");
}

/// The same with a token of each role: no 5xx, and nobody has more rights at the end.
#[test]
fn no_role_gives_a_5xx_or_gains_a_right() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let added = admin.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    admin.done(&added);
    for name in ["web1", "web2"] {
        let wish = json!({ "name": name, "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }] });
        let created = admin.post("/v1/vms", &wish);
        admin.done(&created);
    }
    let seed = std::env::var("STRONGROOM_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    println!("STRONGROOM_FUZZ_SEED={seed}");
    let seconds = std::env::var("STRONGROOM_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let document = admin.get("/openapi.json").json();
    let mut maker = Maker { random: StdRng::seed_from_u64(seed), document };
    let ends = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 86_400;
    let roles = ["no-cryptography-administrator", "operator", "auditor"];
    for role in roles {
        let made = admin.post(
            "/v1/tokens",
            &json!({ "name": format!("t-{role}"), "role": role,
            "scope": { "type": "site" }, "expires_unix_seconds": ends }),
        );
        assert_eq!(made.status, 201, "{}", made.body);
        let mut client = server.client();
        client.token = made.json()["token"].as_str().unwrap().to_owned();
        let before = client.get("/v1/me").json()["site"].clone();
        let deadline = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS) / 2);
        let mut answers: BTreeMap<u16, u64> = BTreeMap::new();
        while Instant::now() < deadline {
            let operation = OPERATIONS.choose(&mut maker.random).unwrap();
            if ["event_stream", "sign_in", "page_sign_in", "user_password", "user_second_factor"]
                .contains(&operation.id)
            {
                continue;
            }
            let method = operation.method.as_str();
            let described = maker.document["paths"][operation.path][method.to_ascii_lowercase()].clone();
            let (path, body) = maker.request(&method.to_ascii_lowercase(), operation.path, &described);
            if path.contains("wait_s") {
                continue;
            }
            let answer = client.ask(method, &path, &[], body.as_deref());
            *answers.entry(answer.status).or_default() += 1;
            let said = format!("{role}: {method} {path} {body:?}: {} {}", answer.status, answer.body);
            assert!((200..500).contains(&answer.status), "{said}");
            if let Guard::Needs(needs) = operation.guard
                && answer.status < 300
            {
                let lacks = needs.always.iter().find(|needed| !before.to_string().contains(needed.as_str()));
                assert!(lacks.is_none(), "{said}");
            }
        }
        println!("{role}: answers by status: {answers:?}");
        assert!(answers.contains_key(&403), "nothing was refused: {answers:?}");
        let me = client.get("/v1/me");
        // It may have revoked its own token.
        assert!(me.status == 401 || me.json()["site"] == before, "{role}: {}", me.body);
    }
    let review = admin.get("/v1/access").json();
    for token in review["tokens"].as_array().unwrap() {
        assert_ne!(token["role"], "administrator", "{token}");
    }
    for user in review["users"].as_array().unwrap() {
        for grant in user["grants"].as_array().unwrap() {
            assert_ne!(grant["role"], "administrator", "{grant}");
        }
    }
}

/// Every task ends, and a failed one says why; each VM is in its desired state, or says why not.
fn everything_is_explained(client: &mut Client) -> BTreeMap<[String; 3], u64> {
    let until = Instant::now() + ENDS_WITHIN;
    loop {
        let open = client.get("/v1/tasks?state=running&limit=1").json();
        let Some(task) = open["items"].as_array().unwrap().first() else { break };
        assert!(Instant::now() < until, "it never ends: {task}");
        client.get(&format!("/v1/tasks/{}?wait_s=5", task["id"].as_str().unwrap()));
    }
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.trim().is_empty());
    for task in all(client, "/v1/tasks?state=failed") {
        let (code, message) = (&task["error"]["code"], &task["error"]["message"]);
        assert!(is_text(code) && is_text(message), "it failed, and nobody knows why: {task}");
    }
    let mut seen = BTreeMap::new();
    for vm in all(client, "/v1/vms") {
        let state = ["lifecycle", "desired", "power"].map(|field| vm[field].as_str().unwrap().to_owned());
        let as_wanted = state[0] == "present" && state[1] == state[2];
        assert!(as_wanted || is_text(&vm["reason"]), "nobody knows why it is so: {vm}");
        *seen.entry(state).or_insert(0_u64) += 1;
    }
    seen
}

/// Returns all items of a list, page by page.
fn all(client: &mut Client, path: &str) -> Vec<Value> {
    let (mut items, mut next) = (Vec::new(), String::new());
    loop {
        let join = if path.contains('?') { '&' } else { '?' };
        let page = client.get(&format!("{path}{join}limit=100{next}")).json();
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        let Some(cursor) = page["next"].as_str() else { return items };
        next = format!("&cursor={}", encoded(cursor));
    }
}
