//! The OpenAPI document: made from the operations and their types once, and served as it is.

use std::sync::OnceLock;

use serde_json::{Value, json};
use strongroom_api::{IDEMPOTENCY_KEY_HEADER, Method, OPERATIONS, TOUCHES_EXTENSION};

/// Operations that want no token.
const OPEN: [&str; 3] = ["openapi", "healthz", "readyz"];

/// The document.
fn document(api: utoipa::openapi::OpenApi) -> Value {
    // A document that does not serialise would have no operations, which a test would see.
    let mut document = serde_json::to_value(api).unwrap_or(Value::Null);
    document["info"] = json!({
        "title": "Strongroom",
        "version": "1",
        "description": "Virtual machines whose disks nobody but they can read.",
        "license": { "name": "Apache-2.0" },
    });
    document["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    for operation in OPERATIONS {
        let method = operation.method.as_str().to_ascii_lowercase();
        let Some(found) = document["paths"][operation.path].get_mut(&method) else { continue };
        found[TOUCHES_EXTENSION] = json!(operation.touches.as_str());
        if !OPEN.contains(&operation.id) {
            found["security"] = json!([{ "token": [] }]);
        }
        if operation.method != Method::Get {
            let key = json!({
                "name": IDEMPOTENCY_KEY_HEADER, "in": "header", "required": false,
                "description": "Asked again with the same key, it is the same request and is done once.",
                "schema": { "type": "string", "minLength": 1, "maxLength": 128 },
            });
            match found.get_mut("parameters").and_then(Value::as_array_mut) {
                Some(parameters) => parameters.push(key),
                None => found["parameters"] = json!([key]),
            }
        }
    }
    document
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
