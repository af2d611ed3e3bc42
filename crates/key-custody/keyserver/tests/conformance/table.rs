//! The table of `docs/KMIP.md`: the result of each case.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::cases::VERSIONS;

const BEGIN: &str = "<!-- conformance table: written by crates/key-custody/keyserver/tests/conformance -->";
const END: &str = "<!-- end of the conformance table -->";

/// Cases within scope that the server does not pass: name, version (empty for all), and reason.
const NOT_PASSED: &[(&str, &str, &str)] = &[
    ("TC-101", "", ASYNCHRONOUS),
    ("TC-32", "", ASYNCHRONOUS),
    ("CS-RNG-O-1", "", SEED),
    ("CS-RNG-O-2", "", SEED),
    ("CS-RNG-O-4", "", SEED),
    ("OMOS-O-1", "", "an object of more than 4096 bytes; this case is optional"),
    ("CS-BC-M-GCM-3", "", STREAMING),
    ("TC-STREAM-ENC-1", "", STREAMING),
    ("TC-DERIVEKEY-1", "", "Derive Key is not offered"),
    (
        "CS-BC-M-4-3DES",
        "",
        "3DES does not encrypt here (NIST SP 800-131A has disallowed it since 2024); its keys are kept",
    ),
    (
        "TC-92",
        "1.0",
        "the file's dates lie in 2010: the key that it expects to be active was deactivated then",
    ),
    ("SKFF-O-6", "1.1", "the file expects an Object Group that nobody has set"),
    (
        "CS-BC-M-6",
        "1.3",
        "the file has a ciphertext that is not AES of its data under its key; its second edition has the right one",
    ),
    (
        "CS-BC-M-7: Encrypt with All Fields",
        "1.2",
        "no case that can be played: it uses a key that it does not make, and fields of KMIP 1.4",
    ),
    (
        "TC-SK-CREATE-ENCRYPT-DECRYPT-DESTROY",
        "1.2",
        "encrypts with a key that was never activated, which the standard forbids",
    ),
];

const ASYNCHRONOUS: &str =
    "asynchronous operations, which are optional: every operation is done when it is answered";
const SEED: &str =
    "four ways to treat a client's seed, of which a server has one: this one uses nothing of it (CS-RNG-O-3)";
const STREAMING: &str = "data in several parts, which is optional (Query, Streaming Capability: false)";

/// The result of one case.
#[derive(Debug)]
pub enum Outcome {
    Passed,
    Failed(String),
    OutOfScope(&'static str),
}

/// One case of one version.
#[derive(Debug)]
pub struct Result {
    pub name: String,
    pub version: &'static str,
    pub outcome: Outcome,
}

/// Compares the results with the known failures and with the document.
///
/// # Panics
///
/// If a case fails unexpectedly, passes unexpectedly, or if the document differs.
pub fn check(results: &[Result]) {
    let mut wrong = String::new();
    for result in results {
        let known = reason(&result.name, result.version);
        match (&result.outcome, known) {
            (Outcome::Failed(difference), None) => {
                let _ = writeln!(wrong, "{} {} fails: {difference}", result.version, result.name);
            }
            (Outcome::Passed, Some(_)) => {
                let _ = writeln!(wrong, "{} {} passes, and is said not to", result.version, result.name);
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/KMIP.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the document has the table's beginning");
    let (_, after) = rest.split_once(END).expect("the document has the table's end");
    let expected = format!("{before}{BEGIN}\n{}{END}{after}", render(results));
    if std::env::var_os("STRONGROOM_WRITE_TABLES").is_some() {
        std::fs::write(&path, expected).unwrap();
    } else {
        assert!(
            document == expected,
            "docs/KMIP.md has another table; STRONGROOM_WRITE_TABLES=1 writes this one"
        );
    }
}

fn reason(name: &str, version: &str) -> Option<&'static str> {
    let applies =
        |case: &&(&str, &str, &'static str)| case.0 == name && (case.1.is_empty() || case.1 == version);
    NOT_PASSED.iter().find(applies).map(|(_, _, reason)| *reason)
}

fn render(results: &[Result]) -> String {
    let mut rows: BTreeMap<&str, BTreeMap<&str, &Outcome>> = BTreeMap::new();
    for result in results {
        rows.entry(&result.name).or_default().insert(result.version, &result.outcome);
    }
    let mut reasons: Vec<&str> = Vec::new();
    let mut table = String::new();
    let _ = writeln!(table, "| case | {} |", VERSIONS.join(" | "));
    let _ = writeln!(table, "|---|{}", "---|".repeat(VERSIONS.len()));
    for (name, outcomes) in &rows {
        let cells = VERSIONS.map(|version| match outcomes.get(version) {
            None => String::new(),
            Some(Outcome::Passed) => "passed".to_owned(),
            Some(Outcome::OutOfScope(why)) => note(&mut reasons, why),
            Some(Outcome::Failed(_)) => note(&mut reasons, reason(name, version).unwrap_or("fails")),
        });
        let _ = writeln!(table, "| {name} | {} |", cells.join(" | "));
    }
    let count = |what: fn(&Outcome) -> bool| results.iter().filter(|result| what(&result.outcome)).count();
    let passed = count(|outcome| matches!(outcome, Outcome::Passed));
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let out_of_scope = count(|outcome| matches!(outcome, Outcome::OutOfScope(_)));
    let _ = writeln!(
        table,
        "\n{} cases: {passed} passed, {failed} within the scope not passed, {out_of_scope} outside of it.\n",
        results.len()
    );
    for (number, reason) in reasons.iter().enumerate() {
        let _ = writeln!(table, "- n{}: {reason}", number + 1);
    }
    table
}

/// The number of a reason in the list under the table.
fn note<'a>(reasons: &mut Vec<&'a str>, reason: &'a str) -> String {
    let place = reasons.iter().position(|known| *known == reason).unwrap_or_else(|| {
        reasons.push(reason);
        reasons.len() - 1
    });
    format!("n{}", place + 1)
}
