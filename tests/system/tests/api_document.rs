//! The OpenAPI document of a real `strongroom serve`, checked by external programs: a public
//! validator, and a tool that generates requests from the document and compares the answers with
//! it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strongroom_system_tests::{Scratch, Serving};

/// Parameters that are left out of the generated requests, with the reasons.
///
/// - A cursor must come from a page, but the document can only say that it is a text: any other
///   text is refused (`bad_cursor`).
/// - Two requests with one key are one request, and the tool uses the same key for all of its
///   requests: the second is `key_reused`.
const LEFT_OUT: [&str; 2] = ["cursor", "idempotency-key"];

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn the_document_is_valid_and_the_server_keeps_to_it() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 64M --disk 8M --net none");
    let document = serving.gets("/openapi.json");
    fs::write(scratch.path("openapi.json"), &document).unwrap();
    run(Command::new(tools().join("openapi-spec-validator")).arg(scratch.path("openapi.json")));

    let mut document: Value = serde_json::from_str(&document).unwrap();
    leave_out(&mut document);
    keep_within(&mut document, &scratch);
    fs::write(scratch.path("driven.json"), document.to_string()).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/openapi/schemathesis.toml");
    let token = fs::read_to_string(scratch.path("home/control/token")).unwrap();
    let mut drive = Command::new(tools().join("st"));
    drive.arg("--config-file").arg(config).arg("run").arg(scratch.path("driven.json"));
    drive.arg("--url").arg(serving.api_url());
    drive.arg("--tls-verify").arg(scratch.path("home/control/api.crt"));
    drive.args(["--header", &format!("Authorization: Bearer {}", token.trim())]);
    drive.args(["--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES, "--checks", "all"]);
    drive.args(["--request-timeout", "60", "--workers", "1", "--no-color", "--warnings", "off"]);
    // The tool keeps its findings in its working directory.
    drive.current_dir(scratch.make_directory("driven"));
    run(&mut drive);
    // Every request was refused or carried out, and the server still works.
    assert_eq!(serving.gets("/readyz"), "ready\n");
    serving.end();
}

/// Requests for each operation, in addition to those at the limits of its parameters.
const EXAMPLES: &str = if cfg!(feature = "full") { "200" } else { "5" };

fn leave_out(document: &mut Value) {
    let paths = document["paths"].as_object_mut().unwrap();
    for operation in paths.values_mut().flat_map(|path| path.as_object_mut().unwrap().values_mut()) {
        if let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) {
            parameters.retain(|parameter| !LEFT_OUT.contains(&parameter["name"].as_str().unwrap()));
        }
    }
}

/// The server carries out requests, usually as root: a generated request for a datastore in `/`
/// made one there, with VMs in it. So only directories of this test are allowed.
fn keep_within(document: &mut Value, scratch: &Scratch) {
    let path = &mut document["components"]["schemas"]["AddDatastore"]["properties"]["path"];
    assert_eq!(path["pattern"], "^/", "the schema of the one path that the server writes to: {path}");
    let places = ["ds", "missing"].map(|name| scratch.path(name).display().to_string());
    *path = serde_json::json!({ "type": "string", "enum": places });
}

fn tools() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/openapi-tools");
    let made = Command::new(script).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    PathBuf::from(String::from_utf8(made.stdout).unwrap().trim())
}

#[track_caller]
fn run(command: &mut Command) {
    let ran = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ran.status.success(), "{command:?}:\n{said}");
}
