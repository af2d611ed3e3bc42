//! The OpenAPI document: made from the operations and their types once, and served as it is.

use std::sync::OnceLock;

use serde_json::{Map, Value, json};
use strongroom_api::limits::IDEMPOTENCY_KEY_MAX_BYTES;
use strongroom_api::{IDEMPOTENCY_KEY_HEADER, Method, OPERATIONS, TOUCHES_EXTENSION};

use super::examples::Examples;

/// Operations that want no token.
const OPEN: [&str; 3] = ["openapi", "healthz", "readyz"];

/// What a reader of the document needs before the first operation.
const DESCRIPTION: &str = "Virtual machines whose disks nobody but they can read.\n\n\
Every operation but `openapi`, `healthz` and `readyz` takes a bearer token: `Authorization: Bearer TOKEN`. What changes \
something answers 202 with a task; `GET /v1/tasks/{task}?wait_s=60` waits for its end.\n\n\
Guest data does not pass here. `POST /v1/vms/{vm}/tickets` gives a ticket for one connection to the VM's host: connect \
to the unix socket in the ticket's `socket`, send `{\"format\":1,\"ticket\":\"TICKET\"}` and a line feed, and read one line, \
which says what follows or why not. A ticket is good once, for 30 seconds. docs/API.md has an example for each use.";

/// Tags and what their operations are about.
const TAGS: [(&str, &str); 8] = [
    ("vm", "Virtual machines: their lives, disks, dumps and keys."),
    ("datastore", "Directories that VMs' volumes are in."),
    ("host", "Machines that run VMs."),
    ("policy", "Rules that VMs are made under."),
    ("key-provider", "Servers that keys come from."),
    ("task", "What is being done, and what was."),
    ("event", "What happened, and what is wrong now."),
    ("server", "The control plane itself."),
];

/// The document.
fn document(api: utoipa::openapi::OpenApi) -> Value {
    // A document that does not serialise would have no operations, which a test would see.
    let mut document = serde_json::to_value(api).unwrap_or(Value::Null);
    document["info"] = json!({
        "title": "Strongroom",
        "version": "1",
        "description": DESCRIPTION,
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["tags"] =
        TAGS.iter().map(|(name, description)| json!({ "name": name, "description": description })).collect();
    document["components"]["securitySchemes"] = json!({ "token": {
        "type": "http", "scheme": "bearer", "description": "The first one is in `<home>/control/token`.",
    } });
    let examples = Examples::read();
    for operation in OPERATIONS {
        let method = operation.method.as_str().to_ascii_lowercase();
        let Some(found) = document["paths"][operation.path].get_mut(&method) else { continue };
        found[TOUCHES_EXTENSION] = json!(operation.touches.as_str());
        complete_answers(found, !OPEN.contains(&operation.id));
        add_examples(found, &examples);
        if !OPEN.contains(&operation.id) {
            found["security"] = json!([{ "token": [] }]);
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

/// Says of each answer what it is, and of each operation what it answers when it fails.
fn complete_answers(operation: &mut Value, may_refuse: bool) {
    let summary = operation["summary"].as_str().unwrap_or_default().to_owned();
    let Some(answers) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    let error = |description: &str| {
        json!({
            "description": description,
            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } },
        })
    };
    if may_refuse {
        answers.insert(
            "4XX".to_owned(),
            error("It was refused and nothing was changed; `code` and `message` say why."),
        );
    }
    // One range in place of the single codes of those that say so themselves.
    answers.remove("503");
    answers.insert("5XX".to_owned(), error("It cannot be done now; `next_step` says when to ask again."));
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

/// Gives the body of the request, and of each answer, the example of its type.
fn add_examples(operation: &mut Value, examples: &Examples) {
    let with_example = |contents: &mut Map<String, Value>| {
        for content in contents.values_mut() {
            let schema = &content["schema"];
            // A body that may be left out is its type or nothing.
            let choices = schema["oneOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
            let named = choices.iter().find_map(|choice| choice["$ref"].as_str()).unwrap_or_default();
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

/// Keeps the document of the router that is served.
pub(super) fn keep(api: utoipa::openapi::OpenApi) {
    let _ = TEXT.set(document(api).to_string());
}

/// The document's text.
pub(super) fn text() -> String {
    TEXT.get().cloned().unwrap_or_default()
}
