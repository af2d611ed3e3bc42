//! The test cases, and which of them are within the server's scope.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::names;
use crate::xml::{Exchange, exchanges};

/// The versions of KMIP with test cases.
pub const VERSIONS: [&str; 5] = ["1.0", "1.1", "1.2", "1.3", "1.4"];

/// One case of the standard.
#[derive(Debug)]
pub struct Case {
    /// Its name in every version: `SKFF-M-1`.
    pub name: String,
    /// The rest of its file's name.
    pub title: String,
    /// Its version of KMIP, one of [`VERSIONS`].
    pub version: &'static str,
    pub exchanges: Vec<Exchange>,
}

impl Case {
    /// Cases of one family build on each other's objects; other cases have separate clients.
    pub fn family(&self) -> &str {
        match self.name.split_once('-') {
            Some((family @ ("SASED" | "TL"), _)) => family,
            _ => &self.name,
        }
    }

    /// The preconditions that the case states in prose: a fresh object in the default group.
    pub fn assumed(&self) -> Vec<Exchange> {
        if self.name != "TC-151" {
            return Vec::new();
        }
        let version = self.version.split_once('.').unwrap().1;
        exchanges(&include_str!("assumed/default_group.xml").replace("MINOR", version))
    }

    /// Why it is out of this server's scope, if it is.
    pub fn out_of_scope(&self) -> Option<&'static str> {
        if self.name.starts_with("MSGENC-") {
            return Some("messages in JSON, XML or over HTTPS");
        }
        let mut touched = Vec::new();
        for exchange in &self.exchanges {
            for item in exchange.request.children.iter().filter(|child| child.tag == "BatchItem") {
                item.walk(&mut |element| {
                    if names::OUT_OF_SCOPE.contains(&element.value.as_str()) {
                        touched.push(element.value.clone());
                    }
                });
            }
        }
        let touches = |names: &[&str]| touched.iter().any(|name| names.contains(&name.as_str()));
        if touches(&["Put", "Notify"]) {
            Some("the server calls the client")
        } else if touches(&["CreateSplitKey", "JoinSplitKey", "SplitKey"]) {
            Some("split keys")
        } else if !touched.is_empty() {
            Some("public-key objects")
        } else {
            None
        }
    }
}

/// All cases of a version, sorted by name, so that dependent cases come in the right order.
///
/// # Panics
///
/// If they cannot be fetched, because nothing would be tested.
pub fn of_version(version: &'static str) -> Vec<Case> {
    let directory = fetched().join(format!("v{version}"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "xml"))
        // Variants for another server.
        .filter(|path| !path.file_stem().unwrap().to_string_lossy().contains("_okms"))
        .collect();
    files.sort();
    let mut cases: Vec<Case> = files.iter().map(|path| read(path, version)).collect();
    distinguish(&mut cases);
    cases
}

fn read(path: &Path, version: &'static str) -> Case {
    let stem = path.file_stem().unwrap().to_string_lossy().replace('_', "-");
    let words: Vec<&str> = stem.split('-').collect();
    // The version is between name and title, `-12` or `-12-`; a few cases of one version are filed
    // under another.
    let number = version.replace('.', "");
    let place = words
        .iter()
        .rposition(|word| *word == number)
        .or_else(|| words.iter().rposition(|word| *word == "10"));
    let (name, title) = match place {
        // `CS-BC-M-4-12-3DES-13` has two versions in its name.
        Some(place) => (words[..place].join("-").replace("-12-3DES", "-3DES"), words[place + 1..].join(" ")),
        None => (words.join("-"), String::new()),
    };
    let text = std::fs::read_to_string(path).unwrap();
    Case { name, title, version, exchanges: exchanges(&text) }
}

/// Gives cases of one name and version the titles that tell them apart.
fn distinguish(cases: &mut [Case]) {
    for place in 1..cases.len() {
        let (before, rest) = cases.split_at_mut(place);
        let case = &mut rest[0];
        if before.iter().any(|other| other.name == case.name) {
            case.name = format!("{}: {}", case.name, case.title);
        }
    }
}

fn fetched() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let output = Command::new(root.join("scripts/fetch-kmip-cases"))
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("the script runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}
