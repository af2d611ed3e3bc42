//! The machine of the measurements, as far as figures depend on it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::statfs;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Disk, StudyError};

/// Flags of processors, named as in `/proc/cpuinfo`, that affect the speed of ciphers, hashes and
/// copies.
const FLAGS: [&str; 16] = [
    "aes",
    "pclmulqdq",
    "sha_ni",
    "avx",
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "vaes",
    "vpclmulqdq",
    "gfni",
    "erms",
    "fsrm",
    "bmi2",
    "sha2",
    "hypervisor",
];

/// A machine. Unknown facts are empty or zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// When it was described.
    pub date: String,
    /// The processors' model.
    pub processor: String,
    /// The number of processors that this process may use.
    pub processors: usize,
    /// Their relevant flags.
    pub processor_flags: Vec<String>,
    /// Their frequency governor, if there is one.
    pub governor: String,
    /// Active mitigations, by vulnerability.
    pub mitigations: BTreeMap<String, String>,
    /// The kernel's release.
    pub kernel: String,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Transparent huge pages, and pages reserved.
    pub huge_pages: String,
    /// The measured directory.
    pub directory: String,
    /// The file system there, its options, and what it is on.
    pub file_system: String,
    /// The disk beneath.
    pub disk: String,
    /// The disk's scheduler, and its write cache mode.
    pub disk_queue: String,
    /// Load averages of 1, 5 and 15 minutes.
    pub load_averages: String,
    /// The compared programs, each with its version ([`version_of`]).
    pub programs: BTreeMap<String, String>,
}

impl Machine {
    /// Describes this machine, its file system at `directory`, and the programs that a study names.
    pub fn describe(directory: &Path, programs: BTreeMap<String, String>) -> Result<Self, StudyError> {
        let failed =
            |error| StudyError::File { action: "find the disk of", path: directory.to_owned(), error };
        let disk = Disk::under(directory).map_err(failed)?;
        let directory = fs::canonicalize(directory).map_err(failed)?;
        let processor = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        let flags: Vec<&str> = colon(&processor, "flags").split(' ').collect();
        let flags = FLAGS.into_iter().filter(|flag| flags.contains(flag));
        Ok(Self {
            date: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            processor: colon(&processor, "model name").to_owned(),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            processor_flags: flags.map(str::to_owned).collect(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            mitigations: mitigations(),
            kernel: read("/proc/sys/kernel/osrelease"),
            memory_bytes: number(&memory, "MemTotal") << 10,
            huge_pages: format!(
                "{}; {} of {} KiB reserved",
                read("/sys/kernel/mm/transparent_hugepage/enabled"),
                number(&memory, "HugePages_Total"),
                number(&memory, "Hugepagesize")
            ),
            file_system: file_system(&directory),
            directory: directory.display().to_string(),
            disk_queue: disk.as_ref().map(queue).unwrap_or_default(),
            disk: disk.map(|disk| disk.name).unwrap_or_default(),
            load_averages: load_averages(),
            programs,
        })
    }

    /// The first difference because of which figures of both machines cannot share a table.
    pub(super) fn differs(&self, other: &Self) -> Option<&'static str> {
        [
            ("processors", (&self.processor, self.processors) != (&other.processor, other.processors)),
            ("kernel", self.kernel != other.kernel),
            ("memory", self.memory_bytes != other.memory_bytes),
            ("file system", self.file_system != other.file_system),
            ("list of programs and their versions", self.programs != other.programs),
        ]
        .into_iter()
        .find_map(|(what, differs)| differs.then_some(what))
    }
}

/// The identity of a program: the first line of its `--version`, its size, and its modification
/// time, which distinguish two builds of one version. A name without a slash is searched like in a
/// shell.
pub fn version_of(program: &Path) -> io::Result<String> {
    let is_name = program.components().count() == 1;
    let path = std::env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|place| place.join(program));
    let file = places.find(|file| file.is_file()).unwrap_or_else(|| program.to_owned());
    let facts = fs::metadata(&file)?;
    let answer = Command::new(&file).arg("--version").stdin(Stdio::null()).output()?;
    let answer = String::from_utf8_lossy(&answer.stdout);
    let written = OffsetDateTime::from(facts.modified()?).format(&Rfc3339).unwrap_or_default();
    Ok(format!("{}, {} bytes of {written}", answer.lines().next().unwrap_or_default(), facts.len()))
}

/// The content of a kernel file, without its line end; empty if it does not exist.
fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim_end().to_owned()).unwrap_or_default()
}

pub(super) fn load_averages() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The value of the first `name : value`.
fn colon<'text>(text: &'text str, name: &str) -> &'text str {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.into_iter().find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
}

fn number(text: &str, name: &str) -> u64 {
    colon(text, name).split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn mitigations() -> BTreeMap<String, String> {
    let directory = fs::read_dir("/sys/devices/system/cpu/vulnerabilities");
    let entries = directory.into_iter().flatten().flatten();
    let told = entries.map(|entry| {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        (entry.file_name().to_string_lossy().into_owned(), text.trim_end().to_owned())
    });
    told.filter(|(_, text)| !text.is_empty() && text != "Not affected").collect()
}

/// The mount that a directory is on: the longest mount point above it (proc(5), mountinfo).
fn file_system(directory: &Path) -> String {
    let mounts = read("/proc/self/mountinfo");
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let before: Vec<&str> = before.split(' ').collect();
        let after: Vec<&str> = after.split(' ').collect();
        let point = *before.get(4)?;
        let told = format!("{}, {} on {}, {}", after.first()?, point, after.get(1)?, before.get(5)?);
        directory.starts_with(point).then_some((point.len(), told))
    };
    // Of several mounts on one point, the last is visible.
    let told = mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, told)| told);
    let block = statfs(directory).map_or(0, |statistics| statistics.f_bsize);
    format!("{}, blocks of {block} bytes", told.unwrap_or_default())
}

fn queue(disk: &Disk) -> String {
    let number = disk.number();
    let device = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    // A partition uses its disk's queue.
    let queue = |file: &str| {
        let own = read(&format!("{device}/queue/{file}"));
        if own.is_empty() { read(&format!("{device}/../queue/{file}")) } else { own }
    };
    format!("scheduler {}, {}", queue("scheduler"), queue("write_cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described() {
        let directory = tempfile::tempdir().unwrap();
        let programs = BTreeMap::from([("cat".to_owned(), "9.1".to_owned())]);
        let machine = Machine::describe(directory.path(), programs).unwrap();
        assert!(machine.processors > 0 && machine.memory_bytes > 1 << 20 && !machine.kernel.is_empty());
        assert!(machine.date.ends_with('Z') && machine.file_system.contains(" on "), "{machine:?}");
        assert!(machine.load_averages.split(' ').count() == 3);
        let later = Machine { date: String::new(), load_averages: String::new(), ..machine.clone() };
        assert_eq!(machine.differs(&later), None);
        let other = Machine { kernel: "7.0".to_owned(), ..later };
        assert_eq!(machine.differs(&other), Some("kernel"));
        let text = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine);
        assert!(Machine::describe(Path::new("/no/such/directory"), BTreeMap::new()).is_err());
    }

    #[test]
    fn a_program_is_known_by_more_than_its_version() {
        let by_name = version_of(Path::new("cat")).unwrap();
        assert!(by_name.starts_with("cat (GNU coreutils) ") && by_name.contains(" bytes of "), "{by_name}");
        assert!(
            version_of(Path::new("/no/such/program")).is_err() && version_of(Path::new("no-such")).is_err()
        );
    }

    #[test]
    fn values_stand_behind_colons() {
        let text = "model name\t: AMD EPYC\nflags\t\t: aes avx\nMemTotal:   123 kB\n";
        assert_eq!((colon(text, "model name"), colon(text, "flags")), ("AMD EPYC", "aes avx"));
        assert_eq!((number(text, "MemTotal"), number(text, "none")), (123, 0));
    }
}
