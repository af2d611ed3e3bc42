//! The OpenAPI document of a real `strongroom serve`, checked by external programs: a public
//! validator, and a tool that generates requests from the document and compares the answers with
//! it.

use std::fs;
use std::process::Command;

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

/// Requests for each operation, in addition to those at the limits of its parameters.
const EXAMPLES: &str = if cfg!(feature = "full") { "200" } else { "5" };
