//! Requests from the API's document: valid ones, which name objects of the site, and ones with a
//! single slip.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// The deepest value that is generated: types that contain each other end there.
const DEPTH_MAX: usize = 8;
/// The length of a giant text, in bytes; below the limit of a body.
const GIANT_BYTES: usize = 48 << 10;

/// Texts that programs have stumbled over.
const ODD_TEXTS: [&str; 14] = [
    "",
    " ",
    "\u{0}",
    "\u{202e}gnp.exe",
    "e\u{301}\u{301}\u{301}\u{301}",
    "\u{feff}",
    "\u{1f4be}\u{200d}\u{1f4be}",
    "\u{ffff}\u{10ffff}",
    "..",
    "../../etc/passwd",
    "a/b",
    "%00%FF",
    "{}",
    "00000000-0000-0000-0000-000000000000",
];

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slip {
    /// Nothing: it keeps to the document.
    None,
    /// One value is beyond its bounds, of another type or an odd text.
    Value,
    /// An object has a field that it does not know.
    UnknownField,
    /// An object lacks a field that it must have.
    MissingField,
    /// The body is no JSON, or no UTF-8.
    Body,
    /// A part of the path names nothing.
    Path,
    /// The query has what the operation does not take.
    Query,
}

impl Slip {
    const SLIPS: [Self; 6] =
        [Self::Value, Self::UnknownField, Self::MissingField, Self::Body, Self::Path, Self::Query];
}

/// An operation of the document.
#[derive(Clone, Debug)]
pub struct Described {
    pub id: String,
    pub method: String,
    pub path: String,
    parameters: Vec<Value>,
    body: Value,
    has_to_have_body: bool,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Generated {
    pub operation: String,
    pub method: String,
    /// The path with its query, as it is sent.
    pub target: String,
    /// The parameters in the path, as they are before they are encoded.
    pub named: BTreeMap<String, String>,
    /// The body before anything was cut or inserted.
    pub body: Value,
    /// The body as it is sent; none if there is none.
    pub sent: Option<Vec<u8>>,
    pub slip: Slip,
}

/// Makes requests up. What it makes depends on its seed, the document and the objects.
pub struct Generator {
    random: StdRng,
    schemas: Value,
    operations: Vec<Described>,
    /// Objects of the site by the fields and parameters that name them.
    pub objects: BTreeMap<&'static str, Vec<String>>,
    made: u64,
    slip: Slip,
}

impl Generator {
    pub fn new(document: &Value, seed: u64) -> Self {
        let mut operations = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                operations.push(Described {
                    id: operation["operationId"].as_str().unwrap().to_owned(),
                    method: method.to_ascii_uppercase(),
                    path: path.clone(),
                    parameters: operation["parameters"].as_array().cloned().unwrap_or_default(),
                    body: operation["requestBody"]["content"]["application/json"]["schema"].clone(),
                    has_to_have_body: operation["requestBody"]["required"] == true,
                });
            }
        }
        Self {
            random: StdRng::seed_from_u64(seed),
            schemas: document["components"]["schemas"].clone(),
            operations,
            objects: BTreeMap::new(),
            made: 0,
            slip: Slip::None,
        }
    }

    /// The operations, in an order of this turn.
    pub fn operations(&mut self) -> Vec<Described> {
        let mut operations = self.operations.clone();
        operations.shuffle(&mut self.random);
        operations
    }

    /// A request that keeps to the document.
    pub fn valid(&mut self, of: &Described) -> Generated {
        self.request(of, Slip::None)
    }

    /// A request with one slip, of a kind that the operation leaves room for.
    pub fn nearly_valid(&mut self, of: &Described) -> Generated {
        let has_body = !of.body.is_null();
        let possible: Vec<Slip> = Slip::SLIPS
            .into_iter()
            .filter(|slip| match slip {
                Slip::None => false,
                Slip::Value | Slip::UnknownField | Slip::MissingField => has_body,
                Slip::Body => of.method != "GET",
                Slip::Path => of.path.contains('{'),
                Slip::Query => true,
            })
            .collect();
        let slip = *possible.choose(&mut self.random).unwrap();
        self.request(of, slip)
    }

    fn request(&mut self, of: &Described, slip: Slip) -> Generated {
        let (mut target, mut query, mut named) = (of.path.clone(), Vec::new(), BTreeMap::new());
        let of_path = |parameter: &&Value| parameter["in"] == "path";
        let wrong = of.parameters.iter().filter(of_path).count().max(1);
        let wrong = self.random.random_range(0..wrong);
        for (at, parameter) in of.parameters.iter().filter(of_path).enumerate() {
            let name = parameter["name"].as_str().unwrap();
            let value = match slip == Slip::Path && at == wrong {
                true => self.odd_text(),
                false => self.text_of(&parameter["schema"], name),
            };
            target = target.replace(&format!("{{{name}}}"), &encoded(value.as_bytes()));
            named.insert(name.to_owned(), value);
        }
        for parameter in of.parameters.iter().filter(|parameter| parameter["in"] == "query") {
            let name = parameter["name"].as_str().unwrap();
            // A cursor comes from a page.
            if name == "cursor" || self.random.random_ratio(2, 3) {
                continue;
            }
            let value = self.text_of(&parameter["schema"], name);
            query.push(format!("{name}={}", encoded(value.as_bytes())));
        }
        if slip == Slip::Query {
            let value = self.odd_text();
            let known = of.parameters.iter().filter(|parameter| parameter["in"] == "query");
            let known: Vec<&str> = known.map(|parameter| parameter["name"].as_str().unwrap()).collect();
            query.push(match (known.choose(&mut self.random), self.random.random_range(0..4)) {
                (Some(name), 0) => format!("{name}={}", encoded(value.as_bytes())),
                (Some(name), 1) => format!("{name}=1&{name}=1"),
                (Some(name), _) => format!("{name}=%FF%FE"),
                (None, 0) => format!("{}=1", encoded(value.as_bytes())),
                (None, _) => "no_such_parameter=1".to_owned(),
            });
        }
        if !query.is_empty() {
            target = format!("{target}?{}", query.join("&"));
        }
        self.slip = slip;
        let body = match &of.body {
            Value::Null => Value::Null,
            schema => self.value(&schema.clone(), "", 0),
        };
        // A value that has no place for the slip is wrong as a whole.
        let slips_are_taken = matches!(self.slip, Slip::None | Slip::Body | Slip::Path | Slip::Query);
        let body = if slips_are_taken { body } else { self.wrong_value(&Value::Null) };
        let may_be_absent = !of.has_to_have_body && slip == Slip::None;
        let is_absent = of.body.is_null() || (may_be_absent && self.random.random_ratio(1, 4));
        let body = if is_absent { Value::Null } else { body };
        let sent = (!is_absent).then(|| body.to_string().into_bytes());
        let sent = if slip == Slip::Body { Some(self.mangled(sent.unwrap_or_default())) } else { sent };
        Generated { operation: of.id.clone(), method: of.method.clone(), target, named, body, sent, slip }
    }

    /// Takes the slip that is to be made, at one of a few places.
    fn slips(&mut self, slip: Slip) -> bool {
        let now = self.slip == slip && self.random.random_ratio(1, 3);
        if now {
            self.slip = Slip::None;
        }
        now
    }

    fn value(&mut self, schema: &Value, field: &str, depth: usize) -> Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            let named = self.schemas[name].clone();
            return self.value(&named, field, depth);
        }
        if depth > 0 && self.slips(Slip::Value) {
            return self.wrong_value(schema);
        }
        if let Some(known) = self.known(field, schema) {
            return json!(known);
        }
        for many in ["oneOf", "anyOf"] {
            if let Some(choices) = schema[many].as_array() {
                let deep = depth >= DEPTH_MAX;
                let shallow = choices.iter().find(|choice| choice["type"] == "null").filter(|_| deep);
                let chosen = shallow.or_else(|| choices.choose(&mut self.random)).cloned().unwrap();
                return self.value(&chosen, field, depth + 1);
            }
        }
        if let Some(chosen) = schema["enum"].as_array().and_then(|all| all.choose(&mut self.random)) {
            return chosen.clone();
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds.choose(&mut self.random).cloned().unwrap(),
            kind => kind.clone(),
        };
        match kind.as_str() {
            Some("object") => self.object(schema, depth),
            Some("array") if depth >= DEPTH_MAX => json!([]),
            Some("array") => {
                let least = schema["minItems"].as_u64().unwrap_or(0);
                let most = schema["maxItems"].as_u64().unwrap_or(2).min(2).max(least);
                let items = schema["items"].clone();
                let count = self.random.random_range(least..=most);
                (0..count).map(|_| self.value(&items, field, depth + 1)).collect()
            }
            Some("integer" | "number") => self.integer(schema, field),
            Some("boolean") => json!(self.random.random::<bool>()),
            Some("string") => json!(self.text(schema, field)),
            Some("null") | None => Value::Null,
            Some(other) => panic!("a type that this test does not know: {other} in {schema}"),
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut fields = Map::new();
        for (name, field) in schema["properties"].as_object().cloned().unwrap_or_default() {
            let is_required = required.iter().any(|required| *required == json!(name));
            let is_left_out = match is_required {
                true => self.slips(Slip::MissingField),
                false => self.random.random_ratio(3, 5),
            };
            if !is_left_out {
                fields.insert(name.clone(), self.value(&field, &name, depth + 1));
            }
        }
        if self.slips(Slip::UnknownField) {
            let name =
                if self.random.random::<bool>() { "no_such_field".to_owned() } else { self.odd_text() };
            fields.insert(name, json!(1));
        }
        Value::Object(fields)
    }

    fn integer(&mut self, schema: &Value, field: &str) -> Value {
        let least = schema["minimum"].as_u64().unwrap_or(0);
        let most = schema["maximum"].as_u64().unwrap_or(u64::from(u32::MAX)).max(least);
        let step = schema["multipleOf"].as_u64().unwrap_or(1);
        // The test ends, and this machine has room for it.
        let most = match field {
            "wait_s" => least,
            "timeout_s" => least.max(1),
            "memory_bytes" => most.min(128 << 20),
            "room_bytes" => most,
            // A token that has ended already is refused, whatever it would permit.
            "expires_unix_seconds" => return json!(now_unix_seconds() + 3600),
            _ => most.min(least.saturating_add(1 << 24)),
        };
        let most = most.max(least);
        let value = match self.random.random_range(0..4) {
            0 => least,
            1 => most,
            _ => self.random.random_range(least..=most),
        };
        json!((value / step * step).max(least.next_multiple_of(step)))
    }

    /// An object of the site, for a field that names one.
    fn known(&mut self, field: &str, schema: &Value) -> Option<String> {
        let is_text = schema["type"] == "string"
            || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!("string")));
        if !is_text || schema["enum"].is_array() {
            return None;
        }
        let named = self.objects.get(field)?;
        named.choose(&mut self.random).filter(|_| self.random.random_ratio(9, 10)).cloned()
    }

    fn text_of(&mut self, schema: &Value, field: &str) -> String {
        match self.value(schema, field, 0) {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// A text of the schema. Nothing that it names is outside of this machine.
    fn text(&mut self, schema: &Value, field: &str) -> String {
        self.made += 1;
        let made = self.made;
        match (field, schema["format"].as_str()) {
            ("url" | "issuer", _) => return format!("https://127.0.0.1:9/{made}"),
            // The server writes there.
            ("path", _) => return self.objects["path"][0].clone(),
            ("kernel" | "initrd" | "file", _) => return format!("/nonexistent/{made}"),
            ("device" | "bridge", _) => return format!("fuzz{}", made % 1000),
            ("password" | "current", _) => return format!("correct horse battery {made}"),
            (_, Some("uuid")) => {
                let random =
                    u128::from(self.random.random::<u64>()) << 64 | u128::from(self.random.random::<u64>());
                let hex = format!("{random:032x}");
                let cuts = [0..8, 8..12, 12..16, 16..20, 20..32];
                return cuts.map(|cut| hex[cut].to_owned()).join("-");
            }
            _ => {}
        }
        let text = match schema["pattern"].as_str() {
            // Whether there is such a thing is decided by the hosts; how it is written is not.
            None if field == "machine_type" => "pc-q35-7.2".to_owned(),
            None if field == "processor" => "host".to_owned(),
            None => format!("n{made}"),
            Some(
                "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
                | "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
                | "^[A-Za-z0-9._-]+$"
                | "^[!-~]+$",
            ) => format!("n{made}"),
            Some("^client[.][A-Za-z0-9._-]+$") => format!("client.n{made}"),
            Some("^/") => format!("/nonexistent/{made}"),
            Some("^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}(=[A-Za-z0-9._/:@+-]{1,63})?$") => format!("tag{made}=x"),
            Some("^[0-9]{6}$") => format!("{:06}", made % 1_000_000),
            Some("^[0-9a-f]{32}$") => format!("{made:032x}"),
            Some("^[0-9a-f]{64}$") => format!("{made:064x}"),
            Some("^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$") => format!("52:54:00:00:00:{:02x}", made % 256),
            Some(urls) if urls.starts_with("^https") => format!("https://127.0.0.1:9/{made}"),
            Some(mail) if mail.contains("+@") => format!("n{made}@localhost"),
            Some(other) => panic!("a pattern that this test does not know: {other}, of {field}"),
        };
        let most = schema["maxLength"].as_u64().map_or(usize::MAX, |most| usize::try_from(most).unwrap());
        text.chars().take(most).collect()
    }

    fn odd_text(&mut self) -> String {
        match self.random.random_range(0..8) {
            0 => "g".repeat(2000),
            1 => (0..self.random.random_range(1..40)).map(|_| self.random.random::<char>()).collect(),
            _ => (*ODD_TEXTS.choose(&mut self.random).unwrap()).to_owned(),
        }
    }

    /// A value that a schema does not have.
    fn wrong_value(&mut self, schema: &Value) -> Value {
        let most = schema["maximum"].as_u64();
        match self.random.random_range(0..12) {
            0 => most.map_or(json!(u64::MAX), |most| json!(most.wrapping_add(1))),
            1 => json!(-1),
            2 => json!(u64::MAX),
            3 => json!(1e300),
            4 => json!(0.5),
            5 => Value::Null,
            6 => json!([[[[1]]]]),
            7 => json!({ "type": "no_such_type" }),
            8 => json!("g".repeat(GIANT_BYTES)),
            9 => json!("g".repeat(schema["maxLength"].as_u64().unwrap_or(64).min(1 << 15) as usize + 1)),
            10 => json!(true),
            _ => json!(self.odd_text()),
        }
    }

    /// A body that is no JSON, or no UTF-8.
    fn mangled(&mut self, mut body: Vec<u8>) -> Vec<u8> {
        match self.random.random_range(0..8) {
            0 => body.truncate(self.random.random_range(0..=body.len())),
            1 => body.insert(self.random.random_range(0..=body.len()), 0xff),
            2 => body = br#"{"name":"\ud800"}"#.to_vec(),
            3 => body = b"{\"name\":\"\xed\xa0\x80\"}".to_vec(),
            4 => body = [b"\xef\xbb\xbf".as_slice(), &body].concat(),
            5 => body = "[".repeat(GIANT_BYTES).into_bytes(),
            6 => body = br#"{"name":"a","name":"b"}"#.to_vec(),
            _ => body.extend_from_slice(b"{}"),
        }
        body
    }
}

pub fn now_unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Encodes all bytes that are special in a path.
pub fn encoded(text: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.iter()
        .map(|byte| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
