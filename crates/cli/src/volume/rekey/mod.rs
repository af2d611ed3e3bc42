//! `strongroom volume rekey`: volumes move to other keys, as a job that can be killed and called
//! again.

mod journal;
mod mover;
mod new_keys;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{ListedVolume, list};
use strongroom_libvirt::Service;
use strongroom_processes::Signals;

pub use self::journal::Journal;
pub use self::mover::{Moved, Mover, ReplacedKek};
pub use self::new_keys::{NewKeys, TargetArguments};
use super::open::{FreshnessArguments, LockArguments};
use crate::error::{CliError, without_numbers};
use crate::keys::KeyArguments;
use crate::output::Output;

/// Which volumes, and to which keys.
#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is copied: the keys of the data are wrapped anew, and the data stays. Each key is replaced by one: volumes that shared a \
key share the next. Volumes may be exposed meanwhile. The job can be interrupted, or killed, at any moment: called again \
in the same way, it goes on, and until a volume is done the old key opens it. Volumes whose present key is given in different ways \
(a key file, a passphrase) take one call each; a key provider's is found by itself.

The old key still opens old copies of the volume's descriptor. Was it compromised, destroy it where it is kept.

Examples:
  strongroom volume rekey --kek ./ds/vm1 --to-key-provider corp
  strongroom volume rekey --kek --datastore ./ds --key-file old.key --to-key-provider corp
  strongroom volume rekey --kek ./ds/vm1 ./ds/vm2 --passphrase-fd 3 3<old --to-key-file new.key"
)]
pub struct RekeyArguments {
    /// The volumes
    #[arg(required_unless_present = "datastore", conflicts_with = "datastore")]
    paths: Vec<PathBuf>,

    /// All volumes of the datastore DIR that are encrypted
    #[arg(long, value_name = "DIR")]
    datastore: Option<PathBuf>,

    /// Replace the key-encryption key, which wraps the keys of the data
    #[arg(long, required = true)]
    kek: bool,

    #[command(flatten)]
    target: TargetArguments,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    freshness: FreshnessArguments,

    #[command(flatten)]
    lock: LockArguments,
}

#[derive(Serialize)]
struct Rekeyed {
    /// The file with what was done.
    job: PathBuf,
    /// Whether an earlier call had begun it.
    resumed: bool,
    /// Whether all volumes are under their new keys.
    finished: bool,
    target: String,
    volumes: Vec<RekeyedVolume>,
    failed: Vec<FailedVolume>,
    /// Which of these volumes no longer need.
    replaced_keks: Vec<ReplacedKek>,
}

#[derive(Serialize)]
struct RekeyedVolume {
    path: PathBuf,
    volume_id: String,
    kek_id: String,
    key: String,
    /// The least generation of it from now on.
    generation: u64,
}

#[derive(Serialize)]
struct FailedVolume {
    path: PathBuf,
    code: String,
    message: String,
}

impl fmt::Display for Rekeyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FailedVolume { path, message, .. } in &self.failed {
            writeln!(f, "not done: {}: {message}", path.display())?;
        }
        for ReplacedKek { kek_id, key } in &self.replaced_keks {
            writeln!(f, "not needed by these volumes any more: KEK {kek_id} (from a {key})")?;
        }
        if let ([only], true) = (self.volumes.as_slice(), self.finished) {
            let RekeyedVolume { path, kek_id, key, generation, .. } = only;
            return write!(
                f,
                "{} is under KEK {kek_id} (from a {key}), generation {generation}",
                path.display()
            );
        }
        let (done, all) = (self.volumes.len(), self.volumes.len() + self.failed.len());
        write!(f, "{done} of {all} volumes are under keys from a {}", self.target)?;
        if self.finished { Ok(()) } else { write!(f, "; call it again in the same way to go on") }
    }
}

impl RekeyArguments {
    /// Moves the volumes; the exit status says whether all were.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let paths = self.volumes()?;
        let single = paths.len() == 1 && self.datastore.is_none();
        if !single && self.freshness.are_given() {
            return Err(CliError::Usage("--least-generation and --expect-kek are of one volume".to_owned()));
        }
        let what = format!("{} to {}", self.scope(&paths), self.target.identity()?);
        let mut journal = Journal::open(&self.key.home.path()?, &what)?;
        let resumed = journal.is_resumed();
        let mut keys = NewKeys::new(&self.target, self.key.keyring()?);
        let (freshness, lock_wait) = (self.freshness, self.lock.lock_wait);
        let mover = Mover { key: &self.key, in_place_of: None, freshness, lock_wait };
        let signals = Signals::catch().map_err(CliError::Signals)?;

        let (mut volumes, mut failed, mut replaced_keks) = (Vec::new(), Vec::new(), Vec::new());
        for path in paths {
            if signals.came() {
                return Err(CliError::Interrupted);
            }
            match mover.move_volume(&path, &mut journal, &mut keys) {
                Ok(Moved { done, key, replaced }) => {
                    journal.set_done(done.clone())?;
                    replaced_keks.extend(replaced.filter(|replaced| !replaced_keks.contains(replaced)));
                    let (volume_id, kek_id) = (done.volume.to_string(), done.kek.to_string());
                    volumes.push(RekeyedVolume { path, volume_id, kek_id, key, generation: done.generation });
                }
                Err(error @ (CliError::Interrupted | CliError::OtherNewKey { .. })) => return Err(error),
                Err(error) => {
                    let message = without_numbers(&error.to_string());
                    failed.push(FailedVolume { path, code: error.code().to_owned(), message });
                }
            }
        }
        let finished = failed.is_empty();
        if finished {
            journal.finish()?;
        }
        for RekeyedVolume { path, .. } in &volumes {
            if let Some(unit) = Service::with_key_file(path) {
                output.remark(&format!(
                    "{unit} would start with the key file that {path} had: call 'vm disk attach --libvirt DOMAIN {path}' with the new key.",
                    path = path.display()
                ));
            }
        }
        let (job, target) = (journal.path().to_owned(), self.target.to_string());
        output.answer(&Rekeyed { job, resumed, finished, target, volumes, failed, replaced_keks })?;
        Ok(if finished { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The volumes by their absolute paths, in order, each once.
    fn volumes(&self) -> Result<Vec<PathBuf>, CliError> {
        let mut paths = match &self.datastore {
            None => self.paths.clone(),
            Some(datastore) => {
                let is_wanted = |listed: &ListedVolume| match listed {
                    ListedVolume::Volume(volume) => volume.descriptor.encryption.is_some(),
                    // What cannot be read is told of, volume by volume.
                    ListedVolume::Broken { path, .. } => !is_hidden(path),
                };
                let listed = list(datastore)?;
                listed
                    .iter()
                    .filter(|listed| is_wanted(listed))
                    .map(|listed| listed.path().to_owned())
                    .collect()
            }
        };
        for path in &mut paths {
            let found = path.canonicalize();
            *path = found.map_err(|error| CliError::File { action: "find", path: path.clone(), error })?;
        }
        paths.sort();
        paths.dedup();
        Ok(paths)
    }

    /// What of the volumes tells one job from another.
    fn scope(&self, paths: &[PathBuf]) -> String {
        match self.datastore.as_ref().and_then(|datastore| datastore.canonicalize().ok()) {
            Some(datastore) => format!("all of {}", datastore.display()),
            None => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// What an interrupted creation or deletion has left is no volume.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}
