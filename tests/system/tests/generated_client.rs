//! A program whose client of the API was generated from the OpenAPI document by a generator of
//! others makes a VM, runs it, pages through lists, is refused, and deletes the VM.

use std::fs;
use std::path::Path;
use std::process::Command;

use strongroom_system_tests::{Scratch, Serving};

use super::driven_api::{run, tools};

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_client_that_is_generated_from_the_document_makes_and_runs_a_vm() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    serving.runs("datastore add ds ds");
    let _place = serving.take_place();
    fs::write(scratch.path("openapi.json"), serving.gets("/openapi.json")).unwrap();
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/openapi");
    let generated = scratch.make_directory("generated");
    let mut generate = Command::new(tools().join("openapi-python-client"));
    generate.arg("generate").arg("--path").arg(scratch.path("openapi.json"));
    generate.arg("--config").arg(peers.join("client.yml"));
    // A part of the document that it cannot use is a failure.
    generate.args(["--meta", "none", "--fail-on-warning", "--output-path"]);
    run(generate.arg(generated.join("strongroom_client")));
    let mut program = Command::new(tools().join("python"));
    program.env("PYTHONPATH", &generated).arg(peers.join("client.py")).arg(serving.api_url());
    run(program.arg(scratch.path("home/control/api.crt")).arg(scratch.path("home/control/token")));
    serving.end();
}
