//! Backups of the inventory: where they go, who opens them, how many are kept; and sealing them.
//!
//! ```text
//! DIRECTORY/inventory-TIME-ID.backup    a backup; `.partial` until it is whole and was read back
//! DIRECTORY/inventory-backups.json      says that it is the directory, by an id
//! <home>/control/inventory-backup.json  the last one
//! <home>/control/backup-directory.json  which directory it is: its path, and the id in it
//! ```
//!
//! A directory whose file system is not mounted is an empty one on this machine's own disk. It has
//! no id, or another one, and takes no backup.
//!
//! All of this is said on the machine (`strongroom.conf`), and not over the API. Backups are sealed
//! to custodians as those of the key server are, by the same code, so this machine cannot open
//! them, and the schedule needs no secret.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use strongroom_api::backup::InventoryBackup;
use strongroom_control::backup::{AccessLogPart, BackupProblem, Backups, Export, UnfitDirectory};
use strongroom_files::FileError;
use strongroom_keyserver::backup::{
    self, BackupSource, Content, Custody, Failure, LastBackup, Record, RecordKind, Snapshot, read_header,
};
use time::OffsetDateTime;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::Places;
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::keyserver::CustodianArgument;

/// The record of the last backup, in the control plane's home.
const LAST: &str = "inventory-backup.json";
/// The longest record: sixteen custodians with the longest names need a tenth of it.
const LAST_BYTES_MAX: u64 = 64 * 1024;
/// The record of the directory, in the control plane's home.
const DIRECTORY: &str = "backup-directory.json";
/// The file in the directory that says that it is the one.
const MARK: &str = "inventory-backups.json";
/// The format of both.
const DIRECTORY_FORMAT: u32 = 1;
/// The longest of both, in bytes: a path has 4,096.
const DIRECTORY_BYTES_MAX: u64 = 16 * 1024;
/// The beginning and the end of a backup's name.
const PREFIX: &str = "inventory-";
const ENDING: &str = ".backup";
/// What is added to the name until a backup is whole.
const PARTIAL: &str = ".partial";
/// How many backups are kept if nothing is said.
const KEEP_DEFAULT: usize = 14;
/// The most backups that are kept: each look at the directory reads their headers.
const KEEP_MAX: usize = 10_000;
/// The shortest interval: a backup takes seconds, and reads the whole inventory.
const EVERY_MIN_S: u64 = 60;
/// The longest of the files that are backed up.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Files of the home that a lost machine takes with it, and that nothing makes again: what clients
/// have pinned, secrets that recipients of alarms verify messages by, what is said about this host.
pub const FILES: &[&str] = &[
    "control/api.crt",
    "control/api.key",
    "control/request.key",
    "control/installed.pem",
    "control/webhook.key",
    "control/mail.json",
    "hostd/host.json",
];

/// What is said about backups of the inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct BackupSettings {
    /// Existing directory for backups of the inventory
    #[arg(long = "backup-directory", value_name = "DIR", value_parser = parse_directory)]
    pub directory: Option<PathBuf>,

    /// Back the inventory up this often, such as 1d [default: only on request]
    #[arg(long = "backup-every", value_name = "TIME", value_parser = parse_every)]
    pub every_s: Option<u64>,

    /// Number of backups of the inventory to keep [default: 14]
    #[arg(long = "backup-keep", value_name = "N", value_parser = parse_keep)]
    pub keep: Option<usize>,

    /// Custodian of backups of the inventory, with their public key or certificate; repeatable
    #[arg(long = "backup-custodian", value_name = "NAME=FILE")]
    pub custodians: Vec<CustodianArgument>,

    /// Number of custodians needed to open a backup of the inventory, 2 or more [default: 2]
    #[arg(long = "backup-threshold", value_name = "M")]
    pub threshold: Option<u8>,

    /// Whether backups that are made without a request have the access log: included or left-out
    /// [default: included]
    #[arg(long = "backup-access-log", value_name = "WHETHER", value_parser = parse_access_log)]
    pub access_log: Option<AccessLogPart>,
}

/// Parses the directory.
pub fn parse_directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("'{text}' is not an absolute path")) }
}

/// Parses the interval, in seconds.
pub fn parse_every(text: &str) -> Result<u64, String> {
    let seconds = parse_seconds(text)?;
    if seconds < EVERY_MIN_S { Err(format!("'{text}' is less than a minute")) } else { Ok(seconds) }
}

/// Parses the number of backups.
pub fn parse_keep(text: &str) -> Result<usize, String> {
    let keep = text.parse().ok().filter(|keep| (1..=KEEP_MAX).contains(keep));
    keep.ok_or_else(|| format!("'{text}' is no number from 1 to {KEEP_MAX}"))
}

/// Parses whether the access log is backed up.
pub fn parse_access_log(text: &str) -> Result<AccessLogPart, String> {
    match text {
        "included" => Ok(AccessLogPart::Included),
        "left-out" => Ok(AccessLogPart::LeftOut),
        _ => Err(format!("'{text}' is neither of included or left-out")),
    }
}

impl BackupSettings {
    /// These settings, and the others' where these say nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            directory: self.directory.or(other.directory),
            every_s: self.every_s.or(other.every_s),
            keep: self.keep.or(other.keep),
            custodians: if self.custodians.is_empty() { other.custodians } else { self.custodians },
            threshold: self.threshold.or(other.threshold),
            access_log: self.access_log.or(other.access_log),
        }
    }

    /// The arguments that say the same to another process.
    pub fn arguments(&self) -> Vec<OsString> {
        let Self { directory, every_s, keep, custodians, threshold, access_log } = self;
        let mut all: Vec<OsString> = Vec::new();
        let mut say = |option: &str, value: OsString| all.extend([option.into(), value]);
        if let Some(directory) = directory {
            say("--backup-directory", directory.into());
        }
        if let Some(every_s) = every_s {
            say("--backup-every", format!("{every_s}s").into());
        }
        if let Some(keep) = keep {
            say("--backup-keep", keep.to_string().into());
        }
        for custodian in custodians {
            say("--backup-custodian", custodian.to_string().into());
        }
        if let Some(threshold) = threshold {
            say("--backup-threshold", threshold.to_string().into());
        }
        if let Some(access_log) = access_log {
            let said = match access_log {
                AccessLogPart::Included => "included",
                AccessLogPart::LeftOut => "left-out",
            };
            say("--backup-access-log", said.into());
        }
        all
    }

    /// The custodians, and how many of them open a backup.
    fn custody(&self) -> Result<Custody, BackupProblem> {
        if self.custodians.is_empty() {
            return Err(BackupProblem::NotSetUp("nobody is named who can open backups".to_owned()));
        }
        let read = self.custodians.iter().map(CustodianArgument::read).collect::<Result<Vec<_>, CliError>>();
        let custodians = read.map_err(failed)?;
        Custody::new(usize::from(self.threshold.unwrap_or(2)), custodians).map_err(failed)
    }
}

fn failed(error: impl ToString) -> BackupProblem {
    BackupProblem::Failed(error.to_string())
}

/// Seals backups of this machine's inventory.
pub struct SealedBackups {
    settings: BackupSettings,
    home: PathBuf,
    last: PathBuf,
    known: PathBuf,
}

/// The mark of a directory for backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    format: u32,
    id: Uuid,
}

/// The directory that backups go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownDirectory {
    format: u32,
    path: PathBuf,
    id: Uuid,
}

impl SealedBackups {
    /// The backups of the inventory in these places.
    pub fn of(places: &Places, settings: BackupSettings) -> Self {
        let made = Self {
            settings,
            home: places.home.clone(),
            last: places.control.join(LAST),
            known: places.control.join(DIRECTORY),
        };
        // When the program starts, its owner has just said which directory it is.
        if let Some(directory) = &made.settings.directory
            && let Err(problem) = made.recognise(directory)
        {
            tracing::warn!(%problem, "the inventory cannot be backed up");
        }
        made
    }

    /// Makes sure that this is the directory that it was, or marks it, if no backup went to this
    /// path yet.
    fn recognise(&self, directory: &Path) -> Result<(), BackupProblem> {
        let unwritten = |path: &Path| {
            let path = path.to_owned();
            move |error| failed(FileError { action: "write", path, error })
        };
        let known: Option<KnownDirectory> = read_if_there(&self.known)?;
        if let Some(known) = known.filter(|known| known.path == directory) {
            return is_marked(directory, known.id).then_some(()).ok_or_else(|| {
                BackupProblem::Unfit(UnfitDirectory {
                    reason: format!(
                        "{} is not the directory that it was: {MARK} in it is missing or another one's",
                        directory.display()
                    ),
                    next_step: format!(
                        "mount its file system; if another directory is meant from now on, remove {} and restart `serve`",
                        self.known.display()
                    ),
                })
            });
        }
        let mark = directory.join(MARK);
        let id = match read_if_there::<Mark>(&mark)? {
            Some(mark) => mark.id,
            None => {
                let made = Mark { format: DIRECTORY_FORMAT, id: Uuid::new_v4() };
                let text = serde_json::to_vec_pretty(&made).map_err(failed)?;
                strongroom_files::replace(&mark, &text).map_err(unwritten(&mark))?;
                made.id
            }
        };
        let known = KnownDirectory { format: DIRECTORY_FORMAT, path: directory.to_owned(), id };
        let text = serde_json::to_vec_pretty(&known).map_err(failed)?;
        strongroom_files::replace(&self.known, &text).map_err(unwritten(&self.known))
    }

    /// The files beside the inventory.
    fn files(&self) -> Result<Vec<Record>, BackupProblem> {
        let mut files = Vec::new();
        for name in FILES {
            let path = self.home.join(name);
            match strongroom_files::read(&path, FILE_BYTES_MAX) {
                Ok(content) => files.push(Record {
                    kind: RecordKind::File,
                    key: name.as_bytes().to_vec(),
                    value: Zeroizing::new(content),
                }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(FileError { action: "read", path, error })),
            }
        }
        Ok(files)
    }

    fn remember(&self, made: &InventoryBackup) -> Result<(), BackupProblem> {
        let text = serde_json::to_vec_pretty(made).map_err(failed)?;
        strongroom_files::replace(&self.last, &text)
            .map_err(|error| failed(FileError { action: "write", path: self.last.clone(), error }))
    }

    /// Removes the oldest backups, so that as many are left as are kept. `made` stays.
    fn remove_old(&self, directory: &Path, made: &Path) -> io::Result<()> {
        let keep = self.settings.keep.unwrap_or(KEEP_DEFAULT);
        let mut old: Vec<((u64, u64), PathBuf)> = Vec::new();
        for path in strongroom_files::list(directory, ENDING)? {
            let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
            if path == made || !is_ours(&path) || !is_file {
                continue;
            }
            // What is no backup of the inventory stays.
            let header = read_header(&path).ok().filter(|header| header.content == Content::Inventory);
            // Of two that were made within a second, the one with more changes is the later one.
            old.extend(header.map(|header| ((header.created_unix_seconds, header.generation), path)));
        }
        old.sort_by_key(|(made, _)| Reverse(*made));
        for (_, path) in old.into_iter().skip(keep.saturating_sub(1)) {
            strongroom_files::remove(&path)?;
        }
        Ok(())
    }
}

impl Backups for SealedBackups {
    fn make(&self, export: &Export) -> Result<InventoryBackup, BackupProblem> {
        let Some(directory) = &self.settings.directory else {
            return Err(BackupProblem::NotSetUp("there is no directory for backups".to_owned()));
        };
        let custody = self.settings.custody()?;
        let unfit = |error| failed(FileError { action: "use the directory", path: directory.clone(), error });
        self.recognise(directory)?;
        // Only this process makes them, one at a time: these are of one that was killed.
        for left in strongroom_files::list(directory, PARTIAL).map_err(unfit)? {
            if is_ours(&left) {
                strongroom_files::remove(&left).map_err(unfit)?;
            }
        }
        let path = directory.join(new_name());
        let source = InventorySource { export, files: self.files()? };
        let sealed = backup::write(&source, &custody, &path).map_err(failed)?;
        if let Err(problem) = self.recognise(directory) {
            // It was unmounted meanwhile, and the backup lies on this machine's own disk.
            let _ = strongroom_files::remove(&path);
            return Err(problem);
        }
        let length_bytes = fs::metadata(&path).map_err(unfit)?.len();
        let made = answer(&sealed, &path, length_bytes);
        self.remember(&made)?;
        if let Err(error) = self.remove_old(directory, &path) {
            tracing::warn!(directory = %directory.display(), %error, "old backups of the inventory cannot be removed");
        }
        Ok(made)
    }

    fn last(&self) -> Option<InventoryBackup> {
        let text = strongroom_files::read(&self.last, LAST_BYTES_MAX).ok()?;
        let last: InventoryBackup = serde_json::from_slice(&text).ok()?;
        let is_there = fs::metadata(&last.file).is_ok_and(|found| found.len() == last.length_bytes);
        is_there.then_some(last)
    }

    fn unfit(&self) -> Option<UnfitDirectory> {
        match self.recognise(self.settings.directory.as_deref()?) {
            Err(BackupProblem::Unfit(unfit)) => Some(unfit),
            Err(problem) => Some(UnfitDirectory {
                reason: problem.to_string(),
                next_step: "see to the directory of the backups (`backup-directory`)".to_owned(),
            }),
            Ok(()) => None,
        }
    }

    fn every(&self) -> Option<Duration> {
        self.settings.every_s.map(Duration::from_secs)
    }

    fn access_log(&self) -> AccessLogPart {
        self.settings.access_log.unwrap_or(AccessLogPart::Included)
    }
}

fn is_marked(directory: &Path, id: Uuid) -> bool {
    read_if_there::<Mark>(&directory.join(MARK)).is_ok_and(|mark| mark.is_some_and(|mark| mark.id == id))
}

fn read_if_there<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, BackupProblem> {
    let unread = |error| failed(FileError { action: "read", path: path.to_owned(), error });
    match strongroom_files::read(path, DIRECTORY_BYTES_MAX) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| unread(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unread(error)),
    }
}

/// The inventory and the files beside it, as the records of a backup.
struct InventorySource<'a> {
    export: &'a Export,
    files: Vec<Record>,
}

impl BackupSource for InventorySource<'_> {
    fn snapshot(&self) -> Result<Snapshot<'_>, Failure> {
        let entries = self.export.entries().map(|entry| {
            let entry = entry?;
            Ok(Record { kind: RecordKind::Entry, key: entry.key, value: Zeroizing::new(entry.value) })
        });
        let files = self.files.iter().cloned().map(Ok);
        Ok(Snapshot {
            content: Content::Inventory,
            generation: self.export.revision(),
            records: Box::new(files.chain(entries)),
        })
    }
}

/// A name that sorts by its time, and that no other backup has.
fn new_name() -> String {
    let now = OffsetDateTime::now_utc();
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = (now.hour(), now.minute(), now.second());
    let time = format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z");
    let random = Uuid::new_v4().simple().to_string();
    format!("{PREFIX}{time}-{random:.8}{ENDING}")
}

fn is_ours(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
}

/// A backup in the API's words.
fn answer(sealed: &LastBackup, path: &Path, length_bytes: u64) -> InventoryBackup {
    InventoryBackup {
        id: sealed.id.into(),
        file: path.display().to_string(),
        length_bytes,
        created_unix_seconds: sealed.created_unix_seconds,
        threshold: sealed.threshold,
        custodians: sealed.custodians.iter().map(|custodian| custodian.name.to_string()).collect(),
        entries: sealed.counts.entries,
    }
}
