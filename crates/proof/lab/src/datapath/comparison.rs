//! The study: its subjects, workloads, rounds and baselines.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use time::OffsetDateTime;

use super::disks::{Disks, Sizes};
use super::fio::Buffers;
use super::peers::{Build, Content, PACKAGES, Server, version};
use super::subjects::{RAW, RAW_HUGE, RawFile, ServedDisks};
use super::workload::{DiskWorkload, Group, Task, all};
use crate::programs::run;
use crate::study::{Baseline, Pace, ReportSettings, Study, Subject, SubjectError, Workload};
use crate::vhost_user::guest::Pages;

/// The form of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The most important rows, in less than ten minutes.
    Quick,
    /// Every row, with enough rounds for a verdict.
    Full,
    /// Two rows and four subjects, in half a minute: a first impression.
    Brief,
}

/// The configuration of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonConfig {
    /// The form.
    pub form: Form,
    /// Only these groups; all of the form's if empty.
    pub groups: Vec<Group>,
    /// This project's program.
    pub program: PathBuf,
    /// Another build of it.
    pub baseline_program: Option<PathBuf>,
    /// The sizes of disks.
    pub sizes: Sizes,
    /// The pages of guests' memory.
    pub pages: Pages,
    /// How long a guest polls for answers before it sleeps.
    pub spin: Duration,
}

/// The name of the other build of the program.
const BASELINE: &str = "strongroom, the other build";
const OURS: &str = "strongroom";

/// The rows of a form and its groups.
pub fn rows(form: Form, groups: &[Group]) -> Vec<DiskWorkload> {
    let mut rows = all();
    rows.retain(|row| match form {
        Form::Quick => row.quick,
        Form::Full => true,
        Form::Brief => BRIEF_ROWS.contains(&row.name()),
    });
    if !groups.is_empty() {
        let mut chosen = if form == Form::Brief { rows } else { all() };
        chosen.retain(|row| {
            row.groups.iter().any(|group| {
                let is_quick = row.quick || form != Form::Quick || SLOW_GROUPS.contains(group);
                groups.contains(group) && is_quick
            })
        });
        return chosen;
    }
    rows
}

/// The quick form has none of these rows, or only their baselines, so that a request for such a
/// group gets all its rows.
const SLOW_GROUPS: [Group; 2] = [Group::Scaling, Group::Once];

const BRIEF_ROWS: [&str; 2] =
    ["disk: 4 KiB random write, depth 32", "disk: 512 KiB sequential read, depth 8"];

/// A missing program, and the package that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The program.
    pub program: String,
    /// The Debian package.
    pub package: String,
}

/// Peers that are not installed.
pub fn missing() -> Vec<Missing> {
    let is_missing = |(program, _): &&(&str, &str)| version(program).is_none();
    let missing = PACKAGES.iter().filter(is_missing);
    missing
        .map(|(program, package)| Missing { program: (*program).into(), package: (*package).into() })
        .collect()
}

/// All servers.
fn servers(config: &ComparisonConfig) -> Vec<Server> {
    let mut builds = vec![Build { program: config.program.clone(), name: OURS }];
    builds.extend(config.baseline_program.clone().map(|program| Build { program, name: BASELINE }));
    let ours = |content| {
        let mut builds = builds.clone();
        if matches!(content, Content::Memory | Content::EncryptedMemory) {
            // An older build cannot serve memory.
            builds.retain(|build| build.name == OURS || exposes_memory(&build.program));
        }
        builds.into_iter().map(move |build| Server::Strongroom(build, content))
    };
    if config.form == Form::Brief {
        let mut servers = vec![Server::StorageDaemon(Content::Encrypted)];
        servers.extend(ours(Content::Clear));
        servers.extend(ours(Content::Encrypted));
        return servers;
    }
    let mut servers = vec![
        Server::StorageDaemon(Content::Clear),
        Server::StorageDaemon(Content::Encrypted),
        Server::StorageDaemon(Content::Nothing),
        Server::QemuNbd(Content::Clear),
        Server::QemuNbd(Content::Encrypted),
        Server::Nbdkit(Content::Clear),
        Server::Nbdkit(Content::Encrypted),
        Server::Nbdkit(Content::Memory),
    ];
    for content in [Content::Clear, Content::Encrypted, Content::Memory, Content::EncryptedMemory] {
        servers.extend(ours(content));
    }
    servers
}

/// Whether a build knows the command that serves a disk in memory.
fn exposes_memory(program: &Path) -> bool {
    run(Command::new(program).args(["volume", "expose-memory", "--help"])).is_ok()
}

/// The study, after making every disk that it needs. `progress` receives the name of each disk.
pub fn study<'study>(
    config: &ComparisonConfig,
    rows: Vec<DiskWorkload>,
    pace: Pace,
    disks: &'study Disks,
    progress: &dyn Fn(&str),
) -> Result<Study<'study, DiskWorkload>, SubjectError> {
    let missing = missing();
    let is_there = |program: &str| missing.iter().all(|missing| missing.program != program);
    let only_ours =
        !config.groups.is_empty() && config.groups.iter().all(|group| *group == Group::Encryption);
    let mut subjects: Vec<Box<dyn Subject<DiskWorkload> + 'study>> = Vec::new();
    if is_there("fio") && !only_ours {
        let raw = RawFile::new(Buffers::Plain, disks)?;
        if rows.iter().any(|row| raw.supports(row)) {
            raw.prepare(progress)?;
        }
        subjects.push(Box::new(raw));
        if config.form != Form::Brief && huge_pages_on_request() {
            subjects.push(Box::new(RawFile::new(Buffers::Huge, disks)?));
        }
    }
    for server in servers(config) {
        let is_possible = server.is_ours() || (is_there(server.program()) && !only_ours);
        // LUKS images are made with one of QEMU's programs, and written by another.
        let is_luks = !server.is_ours() && server.content() == Content::Encrypted;
        let can_be_made = !is_luks || (is_there("qemu-img") && is_there("qemu-storage-daemon"));
        if is_possible && can_be_made {
            let served = ServedDisks::new(server, disks, config.pages, config.spin)?;
            for row in rows.iter().filter(|row| served.supports(row)) {
                served.prepare(row, progress)?;
            }
            subjects.push(Box::new(served));
        }
    }
    let rows = rows.into_iter().filter(|row| row.task != Task::Map || is_there("nbdinfo")).collect();
    Ok(Study { name: "datapath".to_owned(), settings: settings(config), subjects, workloads: rows, pace })
}

/// Whether the system provides huge pages on request.
fn huge_pages_on_request() -> bool {
    // Without this file, it has none.
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| !text.contains("[never]"))
}

fn settings(config: &ComparisonConfig) -> BTreeMap<String, String> {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let pages = match config.pages {
        Pages::Huge => "2 MiB, where the system gives them to shared memory",
        Pages::Small => "4 KiB",
    };
    BTreeMap::from([
        ("a disk".to_owned(), mib(config.sizes.disk)),
        ("each of several disks".to_owned(), mib(config.sizes.one_of_several)),
        ("in memory".to_owned(), mib(config.sizes.memory)),
        ("guests' pages".to_owned(), pages.to_owned()),
        ("guests spin".to_owned(), format!("{} us", config.spin.as_micros())),
    ])
}

/// The baselines: the file itself, the best peer, our own server without encryption, and the other
/// build if there is one.
pub fn report_settings(config: &ComparisonConfig) -> ReportSettings {
    let (ours, others): (Vec<_>, Vec<_>) = servers(config).into_iter().partition(Server::is_ours);
    let names = |servers: &[&Server]| servers.iter().map(|server| server.name()).collect::<Vec<_>>();
    // A server without I/O is a bound, not a peer.
    let peers: Vec<_> = others.iter().filter(|server| server.content() != Content::Nothing).collect();
    let clear: Vec<_> = ours
        .iter()
        .filter(|server| matches!(server, Server::Strongroom(build, Content::Clear | Content::Memory) if build.name == OURS))
        .collect();
    let mut baselines = vec![
        Baseline { title: "raw".to_owned(), subjects: vec![RAW.to_owned()] },
        Baseline { title: "raw, huge pages".to_owned(), subjects: vec![RAW_HUGE.to_owned()] },
        Baseline { title: "the best peer".to_owned(), subjects: names(&peers) },
        Baseline { title: "our clear".to_owned(), subjects: names(&clear) },
    ];
    if config.baseline_program.is_some() {
        let other: Vec<_> = ours
            .iter()
            .filter(|server| matches!(server, Server::Strongroom(build, _) if build.name == BASELINE))
            .collect();
        baselines.push(Baseline { title: "the other build".to_owned(), subjects: names(&other) });
    }
    ReportSettings::new(baselines)
}

/// The programs that take part, with their versions.
pub fn programs(config: &ComparisonConfig) -> io::Result<BTreeMap<String, String>> {
    let mut programs = BTreeMap::new();
    for (program, _) in PACKAGES {
        programs.extend(version(program).map(|version| (program.to_owned(), version)));
    }
    programs.insert(OURS.to_owned(), fingerprint(&config.program)?);
    if let Some(program) = &config.baseline_program {
        programs.insert(BASELINE.to_owned(), fingerprint(program)?);
    }
    Ok(programs)
}

/// A fingerprint of a build. It is not a cryptographic hash, because it needs no protection against
/// attackers.
pub(crate) fn fingerprint(program: &Path) -> io::Result<String> {
    let mut file = File::open(program)?;
    let mut hasher = std::hash::DefaultHasher::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            count => hasher.write(&piece[..count]),
        }
    }
    let version = version(&program.to_string_lossy()).unwrap_or_default();
    Ok(format!("{version}, {:016x}", hasher.finish()))
}

/// The directory of a plan's measurements until it is complete.
pub fn unfinished(
    directory: &Path,
    plan: &impl serde::Serialize,
    programs: &BTreeMap<String, String>,
) -> PathBuf {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(serde_json::to_string(&(plan, programs)).unwrap_or_default().as_bytes());
    directory.join(format!("unfinished-{:016x}", hasher.finish()))
}

/// The time, in the form for file names.
pub fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let (date, time) = (now.date(), now.time());
    format!("{date}T{:02}-{:02}-{:02}", time.hour(), time.minute(), time.second())
}

/// Moves a finished study's files to a unique name, by the second of its completion.
pub fn finish(unfinished: &Path, directory: &Path, name: &str) -> io::Result<PathBuf> {
    for number in 1..u32::MAX {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let finished = directory.join(format!("{name}{suffix}"));
        if !finished.exists() {
            fs::rename(unfinished, &finished)?;
            return Ok(finished);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_and_groups_choose_rows() {
        let names = |form, groups: &[Group]| -> Vec<String> {
            rows(form, groups).iter().map(|row| row.name().to_owned()).collect()
        };
        assert_eq!(names(Form::Brief, &[]), BRIEF_ROWS);
        assert_eq!(names(Form::Full, &[]).len(), all().len());
        let quick = names(Form::Quick, &[]);
        assert!(
            quick.iter().any(|name| name.starts_with("NBD, memory"))
                && quick.iter().all(|name| !name.contains("disks"))
        );
        assert!(names(Form::Quick, &[Group::Memory]).len() < names(Form::Full, &[Group::Memory]).len());
        assert_eq!(names(Form::Quick, &[Group::Scaling]).len(), 8);
        // A group without rows in the quick form is included whole.
        assert_eq!(names(Form::Quick, &[Group::Once]).len(), 3);
    }
}
