//! `strongroom volume rekey`: volumes move to other keys, as a job that can be killed and called again.

mod journal;
mod new_keys;

use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    DatastoreError, Descriptor, EncryptionRecord, KekRecord, ListedVolume, RewrapOptions, describe, list,
    rewrap,
};
use strongroom_keys::{Kek, KekSource};
use strongroom_types::{KekId, VolumeId};
use strongroom_worker::control::{Answer, Client, NewKek, Request};

use self::journal::{Done, Journal};
use self::new_keys::{NewKeys, TargetArguments};
use super::open::{FreshnessArguments, LockArguments};
use crate::error::{CliError, without_numbers};
use crate::keys::KeyArguments;
use crate::output::Output;
use crate::signals::Signals;

/// For an exposed volume's supervisor to fetch the key and write two descriptors.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);

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

#[derive(PartialEq, Serialize)]
struct ReplacedKek {
    kek_id: String,
    key: String,
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

/// What one volume has become.
struct Moved {
    done: Done,
    key: String,
    replaced: Option<ReplacedKek>,
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
        let signals = Signals::catch().map_err(CliError::Signals)?;

        let (mut volumes, mut failed, mut replaced_keks) = (Vec::new(), Vec::new(), Vec::new());
        for path in paths {
            if signals.came() {
                return Err(CliError::Interrupted);
            }
            match self.rekey(&path, &mut journal, &mut keys) {
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

    /// Moves one volume, or goes on with that.
    fn rekey(&self, path: &Path, journal: &mut Journal, keys: &mut NewKeys<'_>) -> Result<Moved, CliError> {
        let descriptor = describe(path)?.descriptor;
        let Some(encryption) = &descriptor.encryption else {
            return Err(DatastoreError::NotEncrypted { path: path.to_owned() }.into());
        };
        // What an earlier call has made of it, if any: an older one was put back.
        let known = journal.done(path).filter(|done| done.volume == descriptor.volume);
        let least_generation = known.map_or(0, |done| done.generation).max(self.freshness.least_generation);
        let given = keys.given()?.filter(|given| descriptor.is_under(given.id));
        let begun = encryption.keks().find_map(|record| journal.new_key(record.id)).cloned().or(given);
        let client = Client::connect(path)?;
        // An exposed volume's key is with whoever exposes it. Of another it is had before a new one is made in vain.
        let from = match (&client, &begun) {
            (None, Some(begun)) if begun.id == encryption.kek.id => None,
            (None, begun) => match self.key.for_volume_to_leave(path, &descriptor, self.freshness.expect_kek)
            {
                Ok(key) => key.into_kek(),
                // The new key alone can finish.
                Err(_) if begun.is_some() => None,
                Err(error) => return Err(error),
            },
            (Some(_), _) => None,
        };
        let to = match &begun {
            Some(record) => keys.get(record)?,
            None => keys.in_place_of(encryption.kek.id, journal)?,
        };
        let generation = match client {
            Some(client) => ask(client, path, to, least_generation)?,
            None => {
                let (from, lock_wait) = (from.as_ref().unwrap_or(to), self.lock.lock_wait);
                rewrap(path, &RewrapOptions { from, to, lock_wait, least_generation })?.generation
            }
        };
        Ok(moved(path, &descriptor, encryption, to, generation))
    }
}

/// Has the process that exposes the volume do it; says the generation then. A key that no provider keeps goes there in a
/// pipe.
fn ask(client: Client, path: &Path, to: &Kek, least_generation: u64) -> Result<u64, CliError> {
    let pipe = match to.source() {
        KekSource::Provider(_) => None,
        KekSource::Passphrase(_) | KekSource::KeyFile {} => Some(to.to_pipe().map_err(CliError::Handover)?),
    };
    let new = NewKek { id: to.id(), source: to.source().clone() };
    let request = Request::Rewrap { to: new, least_generation };
    match client.ask_with(request, pipe.as_ref().map(AsFd::as_fd), ANSWER_WITHIN)? {
        Answer::Rewrapped { generation, .. } => Ok(generation),
        other => Err(CliError::of_answer(path, other)),
    }
}

fn moved(
    path: &Path,
    before: &Descriptor,
    encryption: &EncryptionRecord,
    to: &Kek,
    generation: u64,
) -> Moved {
    let (volume, kek): (VolumeId, KekId) = (before.volume, to.id());
    let old: Option<&KekRecord> = encryption.keks().find(|record| record.id != kek);
    let replaced = old.map(|old| ReplacedKek { kek_id: old.id.to_string(), key: old.source.to_string() });
    Moved {
        done: Done { path: path.to_owned(), volume, generation, kek },
        key: to.source().to_string(),
        replaced,
    }
}

/// What an interrupted creation or deletion has left is no volume.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}
