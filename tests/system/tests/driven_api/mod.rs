//! A tool that generates requests from the API's own document, at the limits of each parameter and
//! at random.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use strongroom_system_tests::{Scratch, Serving};

/// Parameters that are left out of the generated requests, with the reasons.
///
/// - A cursor must come from a page, but the document can only say that it is a text: any other
///   text is refused (`bad_cursor`).
/// - Two requests with one key are one request, and the tool uses the same key for all of its
///   requests: the second is `key_reused`.
const LEFT_OUT: [&str; 2] = ["cursor", "idempotency-key"];

/// The document, as the tool gets it.
pub struct Driven<'test> {
    serving: &'test Serving<'test>,
    scratch: &'test Scratch,
    document: Value,
    /// Whether operations are left out.
    is_partial: bool,
}

impl<'test> Driven<'test> {
    pub fn of(serving: &'test Serving<'test>, scratch: &'test Scratch) -> Self {
        let mut document: Value = serde_json::from_str(&serving.gets("/openapi.json")).unwrap();
        for parameters in operations(&mut document).filter_map(|operation| operation.get_mut("parameters")) {
            let is_left_out = |parameter: &Value| LEFT_OUT.contains(&parameter["name"].as_str().unwrap());
            parameters.as_array_mut().unwrap().retain(|parameter| !is_left_out(parameter));
        }
        keep_within(&mut document, scratch);
        Self { serving, scratch, document, is_partial: false }
    }

    /// Has these objects named in paths, instead of whatever may be a name.
    pub fn about(mut self, parameter: &str, objects: &[&str]) -> Self {
        let parameters = operations(&mut self.document)
            .filter_map(|operation| operation.get_mut("parameters"))
            .flat_map(|parameters| parameters.as_array_mut().unwrap());
        for known in parameters.filter(|known| known["in"] == "path" && known["name"] == parameter) {
            known["schema"] = json!({ "type": "string", "enum": objects });
        }
        self
    }

    /// Has no disk made that is larger than this.
    pub fn with_disks_of_at_most(mut self, bytes: u64) -> Self {
        fn narrow(schema: &mut Value, bytes: u64) {
            match schema {
                Value::Object(fields) => {
                    for (name, field) in fields {
                        if name == "size_bytes" && field["maximum"].is_u64() {
                            field["maximum"] = json!(bytes);
                        }
                        narrow(field, bytes);
                    }
                }
                Value::Array(all) => all.iter_mut().for_each(|one| narrow(one, bytes)),
                _ => {}
            }
        }
        narrow(&mut self.document["components"]["schemas"], bytes);
        self
    }

    /// Leaves operations out.
    pub fn without(mut self, left_out: &[&str]) -> Self {
        self.is_partial = true;
        let paths = self.document["paths"].as_object_mut().unwrap();
        for path in paths.values_mut() {
            path.as_object_mut().unwrap().retain(|_, operation| {
                !left_out.contains(&operation["operationId"].as_str().unwrap_or_default())
            });
        }
        self
    }

    /// The document, for requests that a test generates itself.
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// The tool with the caller's token. It keeps what it finds in its working directory.
    pub fn command(&self, token: &str) -> Command {
        fs::write(self.scratch.path("driven.json"), self.document.to_string()).unwrap();
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/openapi/schemathesis.toml");
        let mut config = fs::read_to_string(config).unwrap();
        if self.is_partial {
            // The tool also sends methods that the document does not have: what was left out.
            config += "\n[phases.coverage]\nunexpected-methods = []\n";
        }
        fs::write(self.scratch.path("driven.toml"), config).unwrap();
        let mut drive = Command::new(tools().join("st"));
        drive
            .arg("--config-file")
            .arg(self.scratch.path("driven.toml"))
            .arg("run")
            .arg(self.scratch.path("driven.json"));
        drive.arg("--url").arg(self.serving.api_url());
        drive.arg("--tls-verify").arg(self.scratch.path("home/control/api.crt"));
        drive.args(["--header", &format!("Authorization: Bearer {token}")]);
        drive.args(["--phases", "examples,coverage,fuzzing"]);
        drive.args(["--request-timeout", "60", "--no-color", "--warnings", "off"]);
        drive.current_dir(self.scratch.make_directory("driven"));
        drive
    }
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document["paths"].as_object_mut().unwrap();
    paths.values_mut().flat_map(|path| path.as_object_mut().unwrap().values_mut())
}

/// The server carries out requests, usually as root: a generated request for a datastore in `/`
/// made one there, with VMs in it. So only directories of this test are allowed.
fn keep_within(document: &mut Value, scratch: &Scratch) {
    let path = &mut document["components"]["schemas"]["AddDatastore"]["properties"]["path"];
    assert_eq!(path["pattern"], "^/", "the schema of the one path that the server writes to: {path}");
    let places = ["ds", "missing"].map(|name| scratch.path(name).display().to_string());
    *path = json!({ "type": "string", "enum": places });
}

pub fn tools() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/openapi-tools");
    let made = Command::new(script).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    PathBuf::from(String::from_utf8(made.stdout).unwrap().trim())
}

#[track_caller]
pub fn run(command: &mut Command) {
    let ran = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ran.status.success(), "{command:?}:\n{said}");
}
