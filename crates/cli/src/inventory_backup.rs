//! `strongroom inventory`: backups of the control plane's inventory. `backup` asks the control
//! plane for one; `verify` and `restore` need none.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::backup::{InventoryBackup, MakeInventoryBackup};
use strongroom_control::backup::ExportedEntry;
use strongroom_control::inventory::{RestoredFrom, Revised};
use strongroom_control::{Restoration, RestorationError};
use strongroom_files::FileError;
use strongroom_keyserver::backup::{Content, CustodianName, LastBackup, Record, RecordKind};
use strongroom_types::{counted, display_bytes, unix_milliseconds_now};

use crate::api::{ApiArguments, CONTROL_DIRECTORY};
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::keyserver::ShareArguments;
use crate::output::{Output, utc};
use crate::serve::BACKED_UP_FILES;

/// A file that describes the machine rather than the site: one that is there is not replaced.
const HOST_FILE: &str = "hostd/host.json";

/// The commands for backups of the inventory.
#[derive(Debug, Subcommand)]
pub enum InventoryCommand {
    /// Back the inventory up now, into the directory of `serve`
    Backup(BackupArguments),
    /// Check a backup of the inventory, without restoring it
    Verify(VerifyArguments),
    /// Restore the inventory on a machine that has none
    Restore(RestoreArguments),
}

/// The arguments of `backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "The directory, the custodians and how many backups are kept are settings of `serve`, in strongroom.conf. Backups are \
sealed to the custodians, who open them as those of the key server: docs/INSTALL.md, Backup.

Examples:
  strongroom inventory backup
  strongroom inventory backup --without-access-log"
)]
pub struct BackupArguments {
    /// Leave the access log out: it begins anew after a restore
    #[arg(long)]
    without_access_log: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "Every byte is decrypted and checked, and nothing is written.

Example:
  strongroom inventory verify inventory.backup --share ada.share --share grace.share")]
pub struct VerifyArguments {
    /// File of the backup
    backup: PathBuf,

    #[command(flatten)]
    shares: ShareArguments,
}

/// The arguments of `restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "`serve` must not run. Restore the key server first, and give the machine the name and the addresses of the former one. \
The former control plane must not run any more; if it does, hosts refuse its orders from the start of the restored one on.

VMs are not started, ended or changed before their hosts have confirmed that they are as they were. For those that are not, an alarm \
says what to do.

Example:
  strongroom inventory restore inventory.backup --share ada.share --share grace.share"
)]
pub struct RestoreArguments {
    /// File of the backup
    backup: PathBuf,

    #[command(flatten)]
    shares: ShareArguments,

    #[command(flatten)]
    home: HomeArguments,
}

/// A backup that was made.
#[derive(Serialize)]
#[serde(transparent)]
struct Made(InventoryBackup);

/// A backup that is whole.
#[derive(Serialize)]
struct Verified {
    #[serde(flatten)]
    backup: LastBackup,
}

/// An inventory that was restored.
#[derive(Serialize)]
struct Restored {
    directory: PathBuf,
    #[serde(flatten)]
    backup: LastBackup,
    opened_by: Vec<CustodianName>,
    vms: usize,
    hosts: usize,
    users: usize,
    failed_tasks: usize,
    has_key_server: bool,
}

impl InventoryCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Backup(arguments) => {
                let api = arguments.api.connect()?;
                let wish = MakeInventoryBackup { without_access_log: arguments.without_access_log };
                output.answer(&Made(api.post_for("/v1/inventory/backups", &wish)?))
            }
            Self::Verify(VerifyArguments { backup, shares }) => {
                let session = shares.open(backup, Content::Inventory)?;
                output.answer(&Verified { backup: session.read_records(|_| Ok(()))? })
            }
            Self::Restore(arguments) => output.answer(&arguments.restore()?),
        }
    }
}

impl RestoreArguments {
    fn restore(&self) -> Result<Restored, CliError> {
        let home = self.home.path()?;
        let directory = home.join(CONTROL_DIRECTORY);
        let session = self.shares.open(&self.backup, Content::Inventory)?;
        let mut restoration = Restoration::begin(&directory)?;
        let mut files: Vec<Record> = Vec::new();
        let backup = session.read_records(|record| match record.kind {
            RecordKind::Entry => {
                let entry = ExportedEntry { key: record.key.clone(), value: record.value.to_vec() };
                Ok(restoration.add(entry)?)
            }
            RecordKind::File => {
                place_of(&home, record)?;
                files.push(record.clone());
                Ok(())
            }
            RecordKind::Ledger | RecordKind::Authority | RecordKind::Object | RecordKind::Tombstone => {
                Err("it has a record of a key server".into())
            }
        })?;
        // The inventory is last: what is beside it is there when it is.
        for file in &files {
            put(&place_of(&home, file).map_err(|error| CliError::Unsound(error.to_string()))?, file)?;
        }
        let from = RestoredFrom {
            backup: format!("{} of {}", backup.id, utc(backup.created_unix_seconds)),
            now_unix_ms: unix_milliseconds_now(),
        };
        let Revised { vms, hosts, users, tasks } = restoration.finish(&from)?;
        Ok(Restored {
            opened_by: session.given().cloned().collect(),
            has_key_server: home.join("keyserver/root.json").exists(),
            directory,
            backup,
            vms,
            hosts,
            users,
            failed_tasks: tasks,
        })
    }
}

/// The path of a file of a backup: one of those that are backed up, and no other.
fn place_of(home: &Path, file: &Record) -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync>> {
    let known = BACKED_UP_FILES.iter().find(|known| known.as_bytes() == file.key);
    known.map(|known| home.join(known)).ok_or_else(|| {
        let name = String::from_utf8_lossy(&file.key);
        format!(
            "it has the file '{}', which this program does not know; use the newer one",
            name.escape_debug()
        )
        .into()
    })
}

/// Writes a file. One that describes this machine stays as it is.
fn put(path: &Path, file: &Record) -> Result<(), CliError> {
    let failed = |error| CliError::File(FileError { action: "write", path: path.to_owned(), error });
    if file.key == HOST_FILE.as_bytes() && path.exists() {
        return Ok(());
    }
    let directory = strongroom_files::directory_of(path);
    strongroom_keyserver::state::make_directories(directory)?;
    strongroom_files::replace(path, &file.value).map_err(failed)
}

impl From<RestorationError> for CliError {
    fn from(error: RestorationError) -> Self {
        Self::InventoryNotRestored(error)
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InventoryBackup { id, file, length_bytes, created_unix_seconds, threshold, custodians, entries } =
            &self.0;
        writeln!(f, "{file} is a backup of the inventory")?;
        writeln!(f, "  backup      {id}, {}", utc(*created_unix_seconds))?;
        writeln!(f, "  has         {entries} entries, {}", display_bytes(*length_bytes))?;
        write!(f, "  opened by   {threshold} of {}", custodians.join(", "))
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LastBackup { id, created_unix_seconds, counts, .. } = &self.backup;
        writeln!(f, "the backup is whole")?;
        writeln!(f, "  backup      {id}, {}", utc(*created_unix_seconds))?;
        write!(f, "  has         {} entries, {} files", counts.entries, counts.files)
    }
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LastBackup { id, created_unix_seconds, .. } = &self.backup;
        let names: Vec<_> = self.opened_by.iter().map(ToString::to_string).collect();
        writeln!(
            f,
            "{} is what the inventory was on {}",
            self.directory.display(),
            utc(*created_unix_seconds)
        )?;
        writeln!(f, "  backup      {id}, opened by {}", names.join(", "))?;
        writeln!(
            f,
            "  has         {}, {}, {}",
            counted(self.vms, "VM"),
            counted(self.hosts, "host"),
            counted(self.users, "user")
        )?;
        if self.failed_tasks > 0 {
            writeln!(f, "  failed      {} that were open then", counted(self.failed_tasks, "task"))?;
        }
        if !self.has_key_server {
            writeln!(f, "\nThere is no key server here: restore it before `serve` makes a new one.")?;
        }
        write!(
            f,
            "\nNext: strongroom serve, then strongroom event alarms. Revoke again which tokens and roles were revoked since that day."
        )
    }
}
