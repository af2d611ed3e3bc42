//! The OpenAPI document of a real `strongroom serve`, checked by external programs: a public
//! validator, and a tool that generates requests from the document and compares the answers with
//! it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use strongroom_system_tests::{Scratch, Serving};

use super::driven_api::{Driven, run, tools};

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn the_document_is_valid_and_the_server_keeps_to_it() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 64M --disk 8M --net none");
    fs::write(scratch.path("openapi.json"), serving.gets("/openapi.json")).unwrap();
    run(Command::new(tools().join("openapi-spec-validator")).arg(scratch.path("openapi.json")));
    let token = fs::read_to_string(scratch.path("home/control/token")).unwrap();
    let mut drive = Driven::of(&serving, &scratch).command(token.trim());
    drive.args(["--max-examples", EXAMPLES, "--checks", "all", "--workers", "1"]);
    run(&mut drive);
    // Every request was refused or carried out, and the server still works.
    assert_eq!(serving.gets("/readyz"), "ready\n");
    serving.end();
}

/// Set this variable to rewrite the page's copy of the document.
const WRITE_VARIABLE: &str = "STRONGROOM_TRANSCRIBE";
const PAGES_COPY: &str = "web/openapi.json";

/// The page's client is generated from its copy, so another API breaks the page's type check.
#[test]
fn the_pages_copy_of_the_document_is_what_the_program_answers() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let mut document: Value = serde_json::from_str(&serving.gets("/openapi.json")).unwrap();
    serving.end();
    leave_out_examples(&mut document);
    let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGES_COPY);
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        let text = serde_json::to_string_pretty(&document).unwrap();
        fs::write(&copy, format!("{text}\n")).unwrap();
    }
    let kept: Value = serde_json::from_str(&fs::read_to_string(&copy).unwrap()).unwrap();
    assert!(
        kept == document,
        "{PAGES_COPY} is of another API: write it anew with {WRITE_VARIABLE}=1, then run `scripts/page build`"
    );
}

/// The page makes no use of them, and they are most of the document's changes.
fn leave_out_examples(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("example");
            fields.remove("examples");
            fields.values_mut().for_each(leave_out_examples);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out_examples),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Requests for each operation, in addition to those at the limits of its parameters.
const EXAMPLES: &str = if cfg!(feature = "full") { "200" } else { "5" };
