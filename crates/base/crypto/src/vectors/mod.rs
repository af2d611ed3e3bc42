//! The published vectors of every algorithm, run in full: `tests/vectors/README.md` lists the
//! source of each file. Each test states how many cases it ran and how many it could not run, so
//! that a parser that overlooks cases fails.

mod aes_gcm;
#[allow(unsafe_code)]
mod aes_xts;
mod derivation;
mod wrapping;

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use strongroom_memory::secret::SecretBytes;

/// One case of a NIST-style file: its `name = value` lines, with those of the `[name = value]`
/// headers above it. `[NAME]` headers are under `section`; a bare `FAIL` line is under `FAIL`.
struct Case(HashMap<String, String>);

impl Case {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.0))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn number(&self, name: &str) -> usize {
        self.text(name).parse().unwrap()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let digits = self.text(name);
        assert!(digits.len().is_multiple_of(2), "{name} = {digits}");
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    fn secret(&self, name: &str) -> SecretBytes {
        SecretBytes::from_slice_and_wipe(&mut self.bytes(name)).unwrap()
    }
}

/// Reads a file of `tests/vectors`; a case begins wherever a line names `first_field`.
fn cases(file: &str, first_field: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(file);
    let stored = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    if file.ends_with(".gz") {
        flate2::read::GzDecoder::new(&stored[..]).read_to_string(&mut text).unwrap();
    } else {
        text = String::from_utf8(stored).unwrap();
    }
    parse(&text, first_field)
}

fn parse(text: &str, first_field: &str) -> Vec<Case> {
    let mut headers = HashMap::new();
    let mut cases: Vec<Case> = Vec::new();
    let mut in_case = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (name, value) = header.split_once('=').unwrap_or(("section", header));
            headers.insert(name.trim().to_owned(), value.trim().to_owned());
            in_case = false;
            continue;
        }
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
        if name == first_field {
            cases.push(Case(headers.clone()));
            in_case = true;
        }
        assert!(in_case, "a line outside any case: {line}");
        let earlier = cases.last_mut().unwrap().0.insert(name, value);
        assert!(earlier.is_none(), "a case without {first_field} at: {line}");
    }
    cases
}
