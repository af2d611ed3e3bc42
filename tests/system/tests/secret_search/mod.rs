//! Common parts of the searches for secrets: the secrets of a volume in every form that could
//! appear, and the places where they must not.

pub mod own_user;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_system_tests::CommandLine;

/// Longer than any step that does not hang.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// The length of the prefix that a search compares first.
const START_BYTES: usize = 4;

/// The secrets to search for.
#[derive(Default)]
pub struct Needles {
    needles: Vec<Needle>,
    by_start: HashMap<[u8; START_BYTES], Vec<usize>>,
}

/// A secret in one form.
#[derive(Clone)]
struct Needle {
    secret: String,
    name: String,
    bytes: Vec<u8>,
}

/// A finding in the memory of a process.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The secret and its place.
    pub what: String,
    /// Whether it is in pages that are locked, and excluded from dumps.
    pub is_protected: bool,
}

impl Needles {
    /// The secrets of a volume, derived by another implementation, in all their forms.
    pub fn of_volume(strongroom: &CommandLine<'_>, volume: &str, key: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/secrets/secrets_of_volume.py");
        let call = format!("exec /usr/bin/python3 {} {volume} {key}", script.display());
        let told = strongroom.peer("sh", &["-c", &call]);
        let mut needles = Self::default();
        for line in told.lines() {
            let (name, hex) = line.split_once(' ').unwrap();
            let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
            needles.add(name, &bytes.collect::<Vec<u8>>());
        }
        // KEK and DEK, the keys derived from them, and 39 round keys.
        let secrets = told.lines().count();
        assert!(secrets >= 44 && needles.needles.len() >= 7 * secrets, "{secrets} secrets");
        needles
    }

    /// Adds a secret: as it is, in hexadecimal of both cases, and in base64 at every alignment.
    pub fn add(&mut self, name: &str, secret: &[u8]) {
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        self.add_form(name, "as it is", secret.to_vec());
        self.add_form(name, "as hex", hex.to_uppercase().into_bytes());
        self.add_form(name, "as hex", hex.into_bytes());
        // As Rust's Debug prints bytes.
        let list = secret.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        self.add_form(name, "as a list", list.into_bytes());
        for skipped in 0..3 {
            // Whole groups of three bytes have the same digits at any position of this alignment.
            let whole = &secret[skipped..secret.len() - (secret.len() - skipped) % 3];
            self.add_form(name, "as base64", base64(whole, b"+/"));
            self.add_form(name, "as base64url", base64(whole, b"-_"));
        }
    }

    fn add_form(&mut self, secret: &str, form: &str, bytes: Vec<u8>) {
        let start = *bytes.first_chunk().unwrap();
        // Base64 and base64url are often the same.
        if self.by_start.get(&start).is_some_and(|at| at.iter().any(|at| self.needles[*at].bytes == bytes)) {
            return;
        }
        self.by_start.entry(start).or_default().push(self.needles.len());
        let name = format!("{secret} {form}");
        self.needles.push(Needle { secret: secret.to_owned(), name, bytes });
    }

    /// Only one of the secrets, in all its forms.
    pub fn only(&self, secret: &str) -> Self {
        let mut only = Self::default();
        let needle =
            self.needles.iter().find(|needle| needle.secret == secret && needle.name.ends_with("as it is"));
        only.add(secret, &needle.unwrap().bytes);
        only
    }

    /// These secrets and others.
    pub fn and(mut self, others: &Self, whose: &str) -> Self {
        for needle in others.needles.iter().filter(|needle| needle.name.ends_with("as it is")) {
            self.add(&format!("{whose} {}", needle.secret), &needle.bytes);
        }
        self
    }

    /// Returns each secret in the content, with its position. One pass compares all of them, by
    /// their first bytes.
    pub fn found_in(&self, content: &[u8]) -> Vec<(usize, &str)> {
        // Two bytes exclude most positions.
        let mut pairs = vec![false; 1 << 16];
        for start in self.by_start.keys() {
            pairs[usize::from(start[0]) << 8 | usize::from(start[1])] = true;
        }
        let mut found = Vec::new();
        for (at, window) in content.windows(START_BYTES).enumerate() {
            if !pairs[usize::from(window[0]) << 8 | usize::from(window[1])] {
                continue;
            }
            let candidates = self.by_start.get(window).into_iter().flatten().map(|at| &self.needles[*at]);
            found.extend(
                candidates
                    .filter(|needle| content[at..].starts_with(&needle.bytes))
                    .map(|needle| (at, needle.name.as_str())),
            );
        }
        found
    }

    /// Fails the test if one of them is in the content.
    #[track_caller]
    pub fn assert_not_in(&self, place: &str, content: &[u8]) {
        let found = self.found_in(content);
        assert!(found.is_empty(), "in {place}, at these bytes: {found:?}");
    }

    /// Fails the test if one of them is in a file under the directory, at any depth. Returns the
    /// number of files.
    #[track_caller]
    pub fn assert_not_under(&self, directory: &Path) -> usize {
        let files = strongroom_system_tests::datastore::files_under(directory);
        for file in &files {
            match fs::read(file) {
                // What the site does goes on meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                read => self.assert_not_in(&file.display().to_string(), &read.unwrap()),
            }
        }
        files.len()
    }

    /// Fails the test if one of them is visible to other processes in one of these.
    #[track_caller]
    pub fn assert_not_seen_of(&self, processes: &[u32]) {
        for (path, content) in processes.iter().flat_map(|process| seen_from_outside(*process)) {
            self.assert_not_in(&path.display().to_string(), &content);
        }
    }

    /// Returns every place in a process's memory with one of them. Only root can look.
    pub fn found_in_memory(&self, process: u32) -> Vec<Found> {
        let mut found = Vec::new();
        for Mapping { place, is_protected, content } in memory_of(process) {
            let hits = self.found_in(&content);
            found.extend(hits.into_iter().map(|(at, name)| {
                let what = format!("{name} in process {process}, {place}, at byte {at}");
                Found { what, is_protected }
            }));
        }
        found
    }
}

/// RFC 4648 over whole groups of three bytes.
fn base64(bytes: &[u8], last_two: &[u8; 2]) -> Vec<u8> {
    let digits: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*last_two).collect();
    let groups = bytes.as_chunks::<3>().0.iter();
    groups
        .flat_map(|[a, b, c]| {
            let bits = u32::from(*a) << 16 | u32::from(*b) << 8 | u32::from(*c);
            [18, 12, 6, 0].map(|shift| digits[(bits >> shift & 63) as usize])
        })
        .collect()
}

/// What other processes may see of a process, as far as the kernel allows.
pub fn seen_from_outside(process: u32) -> Vec<(PathBuf, Vec<u8>)> {
    let process = PathBuf::from(format!("/proc/{process}"));
    let files = ["cmdline", "environ", "comm", "status", "maps", "limits"].map(|name| process.join(name));
    files.into_iter().filter_map(|path| Some((path.clone(), fs::read(&path).ok()?))).collect()
}

/// A part of a process's memory.
struct Mapping {
    place: String,
    is_protected: bool,
    content: Vec<u8>,
}

/// The readable memory of a process, for root only.
fn memory_of(process: u32) -> Vec<Mapping> {
    let memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in fs::read_to_string(format!("/proc/{process}/smaps")).unwrap().lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            // This belongs to the mapping whose head came before.
            let has = |flag| flags.split_whitespace().any(|found| found == flag);
            if let Some(mapping) = mappings.last_mut() {
                mapping.is_protected = has("lo") && has("dd");
            }
        } else if line.split_whitespace().next().is_some_and(|first| first.contains('-')) {
            let content = read_mapping(&memory, line).unwrap_or_default();
            mappings.push(Mapping { place: line.to_owned(), is_protected: false, content });
        }
    }
    mappings
}

/// The readable content of a mapping. The kernel's own pages, and those of a ring, cannot be read.
fn read_mapping(memory: &File, line: &str) -> Option<Vec<u8>> {
    let mut fields = line.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    if !fields.next()?.starts_with('r') {
        return None;
    }
    let mut content = vec![0; usize::try_from(end - start).ok()?];
    memory.read_exact_at(&mut content, start).ok()?;
    Some(content)
}
