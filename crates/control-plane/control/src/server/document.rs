//! The OpenAPI document: generated once from the operations and their types.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Map, Value, json};
use strongroom_api::browser::{PAGE_HEADER, PAGE_HEADER_VALUE, SESSION_COOKIE};
use strongroom_api::guard::Guard;
use strongroom_api::limits::IDEMPOTENCY_KEY_MAX_BYTES;
use strongroom_api::{ErrorCode, IDEMPOTENCY_KEY_HEADER, Method, OPERATIONS, Operation, TOUCHES_EXTENSION};

use super::examples::Examples;

/// Whether an operation takes no token.
fn is_open(operation: &Operation) -> bool {
    operation.guard == Guard::Everyone
}

/// The operations that set a cookie without a caller, and take requests of the page alone.
const FOR_THE_PAGE: [&str; 2] = ["page_sign_in_begin", "page_sign_in"];

/// The introduction of the document.
const DESCRIPTION: &str = "Virtual machines whose disks nobody but they can read.\n\n\
Every operation but `openapi`, `healthz`, `readyz` and those that sign in takes a bearer token: `Authorization: Bearer TOKEN`; or, from the page of this \
server, the cookie of its session, with `Strongroom-Page: 1` beside it unless the method is GET. Each answer has the id of its request in `Strongroom-Request`. What changes \
something answers 202 with a task; `GET /v1/tasks/{task}?wait_s=60` waits for its end.\n\n\
Guest data does not pass here. `POST /v1/vms/{vm}/tickets` gives a ticket for one connection to the VM's host: connect \
to the unix socket in the ticket's `socket`, or from another machine to its `address` over TLS, send `{\"format\":1,\"ticket\":\"TICKET\"}` and a line feed, and read one line, \
which says what follows or why not. A ticket is good once, for 30 seconds. docs/API.md has an example for each use.";

/// Tags, with the subjects of their operations.
const TAGS: [(&str, &str); 11] = [
    ("vm", "Virtual machines: their lives, disks, dumps and keys."),
    ("volume", "Volumes of virtual machines: where they have content, and what they take."),
    ("datastore", "Directories that VMs' volumes are in."),
    ("host", "Machines that run VMs."),
    ("network", "Networks that VMs are connected to, and the bridges on which hosts have them."),
    ("policy", "Rules that VMs are made under."),
    ("key-provider", "Servers that keys come from."),
    ("task", "What is being done, and what was."),
    ("event", "What happened, and what is wrong now."),
    ("access", "Users, identity providers, roles, folders, tokens, sessions, and who did what."),
    ("server", "The control plane itself."),
];

/// The document.
fn document(api: utoipa::openapi::OpenApi) -> Value {
    // A document that cannot be serialised would have no operations, which a test would notice.
    let mut document = serde_json::to_value(api).unwrap_or(Value::Null);
    flatten(&mut document["components"]["schemas"]);
    name_all(&mut document["components"]["schemas"]);
    document["info"] = json!({
        "title": "Strongroom",
        "version": "1",
        "description": DESCRIPTION,
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["tags"] =
        TAGS.iter().map(|(name, description)| json!({ "name": name, "description": description })).collect();
    document["components"]["securitySchemes"] = json!({
        "token": {
            "type": "http", "scheme": "bearer", "description": "The first one is in `<home>/control/token`.",
        },
        "page": {
            "type": "apiKey", "in": "cookie", "name": SESSION_COOKIE,
            "description": "Set by `page_sign_in`. It counts only for requests of the page that this server serves.",
        },
    });
    let examples = Examples::read();
    for operation in OPERATIONS {
        let method = operation.method.as_str().to_ascii_lowercase();
        let Some(found) = document["paths"][operation.path].get_mut(&method) else { continue };
        found[TOUCHES_EXTENSION] = json!(operation.touches.as_str());
        complete_answers(found, operation);
        leave_out_null(found);
        add_examples(found, &examples);
        if !is_open(operation) {
            found["security"] = json!([{ "token": [] }, { "page": [] }]);
        }
        if FOR_THE_PAGE.contains(&operation.id) {
            found["parameters"] = json!([{
                "name": PAGE_HEADER, "in": "header", "required": true,
                "description": "Sent by the page of this server alone: the answer sets a cookie.",
                "schema": { "type": "string", "enum": [PAGE_HEADER_VALUE] },
            }]);
        }
        if operation.method != Method::Get {
            let key = json!({
                "name": IDEMPOTENCY_KEY_HEADER, "in": "header", "required": false,
                "description": "A request with the key of an earlier one is that request: it is done once. Printable ASCII.",
                "schema": {
                    "type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_MAX_BYTES, "pattern": "^[!-~]+$",
                },
            });
            match found.get_mut("parameters").and_then(Value::as_array_mut) {
                Some(parameters) => parameters.push(key),
                None => found["parameters"] = json!([key]),
            }
        }
    }
    document
}

/// What the reference to a schema begins with.
const REFERENCE: &str = "#/components/schemas/";

/// Gives an object that has another one's fields among its own those fields. The library composes
/// the two instead (`allOf`), which many generators of clients make two types of.
fn flatten(schemas: &mut Value) {
    let known = schemas.clone();
    for schema in schemas.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let Some(Value::Array(parts)) = schema.as_object_mut().and_then(|schema| schema.remove("allOf"))
        else {
            continue;
        };
        for part in parts {
            let referred = part["$ref"].as_str().and_then(|path| path.strip_prefix(REFERENCE));
            let part = referred.map_or(&part, |name| &known[name]);
            schema["type"] = json!("object");
            for (name, property) in part["properties"].as_object().into_iter().flatten() {
                schema["properties"][name] = property.clone();
            }
            if let Some(required) = part["required"].as_array() {
                let all = schema["required"].as_array().into_iter().flatten().chain(required);
                schema["required"] = all.cloned().collect();
            }
        }
    }
}

/// Gives each type a name for generators of clients, which otherwise make one up: the entries of a
/// page are the type that the page is of, and a variant has a title.
fn name_all(schemas: &mut Value) {
    let known = schemas.clone();
    for (name, schema) in schemas.as_object_mut().into_iter().flatten() {
        let entry = name.strip_prefix("Page_").filter(|entry| known.get(entry).is_some());
        if let (Some(entry), Some(items)) = (entry, schema.pointer_mut("/properties/items/items")) {
            *items = json!({ "$ref": format!("{REFERENCE}{entry}") });
        }
        for variant in schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(title) = variant_title(name, variant) {
                variant["title"] = json!(title);
            }
        }
    }
}

/// The title of a variant that is an object: the type's name, and the value of the field that tells
/// the variants apart, or the variant's field.
fn variant_title(of: &str, variant: &Value) -> Option<String> {
    let tag = |field: &Value| match field["enum"].as_array().map(Vec::as_slice) {
        Some([only]) => only.as_str().map(str::to_owned),
        _ => None,
    };
    let tagged = variant["properties"].as_object()?.values().find_map(tag);
    let word = tagged.or_else(|| variant["required"][0].as_str().map(str::to_owned))?;
    let capitalised = word.split('_').map(|part| {
        let (first, rest) = part.split_at_checked(1).unwrap_or((part, ""));
        format!("{}{rest}", first.to_ascii_uppercase())
    });
    Some(format!("{of}{}", capitalised.collect::<String>()))
}

/// Says of each answer what it is, and of each operation what it answers when it fails.
fn complete_answers(operation: &mut Value, which: &Operation) {
    let has_query = operation["parameters"]
        .as_array()
        .is_some_and(|parameters| parameters.iter().any(|parameter| parameter["in"] == "query"));
    let summary = operation["summary"].as_str().unwrap_or_default().to_owned();
    let Some(answers) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    let error = |description: &str| {
        json!({
            "description": description,
            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } },
        })
    };
    // These replace the errors that the operations list themselves.
    answers.retain(|status, _| status.starts_with('2'));
    let mut refusals: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for code in ErrorCode::ALL.into_iter().filter(|code| may_answer(*code, which, has_query)) {
        let name = serde_json::to_value(code).unwrap_or_default();
        let name = format!("`{}`", name.as_str().unwrap_or_default());
        refusals.entry(code.http_status()).or_default().push(name);
    }
    for (status, codes) in refusals {
        let what = match status {
            500.. => "It cannot be done now; `next_step` says when to ask again",
            _ => "It was refused and nothing was changed",
        };
        answers.insert(status.to_string(), error(&format!("{what}: {}.", codes.join(", "))));
    }
    for (status, answer) in answers {
        let described = match status.as_str() {
            "201" => "It was made.",
            "202" => "It was accepted; the task says how it goes on.",
            _ => &summary,
        };
        if answer.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
            answer["description"] = json!(described);
        }
    }
}

/// Whether an operation may answer with a code. There is no wildcard arm, so that each new code is
/// considered here.
fn may_answer(code: ErrorCode, operation: &Operation, has_query: bool) -> bool {
    use ErrorCode as Code;
    let (is_open, is_change) = (is_open(operation), operation.method != Method::Get);
    // A host or a key provider is asked before the answer.
    let asks_others = is_change || ["vm_key_status", "vm_stats", "datastore_scan"].contains(&operation.id);
    match code {
        // Any operation refuses a query that it does not take.
        Code::Malformed => true,
        // A refusal is on record, too.
        Code::Unauthorized | Code::TooMany | Code::Timeout | Code::AccessLogFull => !is_open || is_change,
        Code::Forbidden => !is_open || FOR_THE_PAGE.contains(&operation.id),
        Code::NotFound => operation.path.contains('{') || is_change || has_query,
        Code::Invalid => is_change || has_query,
        Code::BadCursor => has_query,
        Code::NameTaken
        | Code::Busy
        | Code::InUse
        | Code::VolumeKnown
        | Code::KeyReused
        | Code::TooLarge
        | Code::UnsupportedMediaType
        | Code::QuotaExceeded
        | Code::NoHost => is_change,
        Code::Stale => ["vm_set", "vm_snapshot_schedule_set"].contains(&operation.id),
        Code::Conflict
        | Code::KeyUnavailable
        | Code::KeyRevoked
        | Code::HostUnavailable
        | Code::DatastoreFull
        | Code::DatastoreUnavailable
        | Code::HostFailed
        | Code::Cancelled => asks_others,
        Code::RecipientUnreachable => operation.id == "recipient_test",
        Code::IdentityProviderUnavailable => {
            let ask_them = ["identity_provider_create", "provider_sign_in_begin", "provider_sign_in"];
            ask_them.contains(&operation.id) || FOR_THE_PAGE.contains(&operation.id)
        }
        Code::Unavailable => !is_open || is_change || operation.id == "readyz",
        Code::Internal => !["openapi", "healthz"].contains(&operation.id),
        // The first two are not answers of an operation, and this version never sends the last.
        Code::NoSuchPath | Code::MethodNotAllowed | Code::Unknown => false,
    }
}

/// Says of a body that may be absent only that. The library adds that it may be `null`, of which
/// generators of clients make a third choice beside a body and none.
fn leave_out_null(operation: &mut Value) {
    let Some(schema) = operation.pointer_mut("/requestBody/content/application~1json/schema") else { return };
    let choices = schema["oneOf"].as_array().map_or([].as_slice(), Vec::as_slice);
    if let Some(body) = choices.iter().find(|choice| choice["$ref"].is_string()).cloned() {
        *schema = body;
    }
}

/// Adds the examples of the types of the request body and of each answer.
fn add_examples(operation: &mut Value, examples: &Examples) {
    let with_example = |contents: &mut Map<String, Value>| {
        for content in contents.values_mut() {
            let named = content["schema"]["$ref"].as_str().unwrap_or_default();
            if let Some(example) = named.rsplit('/').next().and_then(|name| examples.of(name)) {
                content["example"] = example;
            }
        }
    };
    let answers = operation["responses"].as_object_mut().into_iter().flat_map(Map::values_mut);
    answers.filter_map(|answer| answer.get_mut("content")?.as_object_mut()).for_each(with_example);
    if let Some(contents) = operation.pointer_mut("/requestBody/content").and_then(Value::as_object_mut) {
        with_example(contents);
    }
}

static TEXT: OnceLock<String> = OnceLock::new();

/// Stores the document of the served router.
pub(super) fn keep(api: utoipa::openapi::OpenApi) {
    let _ = TEXT.set(document(api).to_string());
}

/// The document's text.
pub(super) fn text() -> String {
    TEXT.get().cloned().unwrap_or_default()
}
