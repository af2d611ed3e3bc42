//! `strongroom volume rekey`: moves volumes to other keys, as a job that can be killed and
//! repeated. The job is in `strongroom_jobs`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::NewTags;
use strongroom_jobs::reencrypt::NewSeal;
use strongroom_jobs::rekey::{Rekey, Rekeyed, RekeyedVolume, ReplacedKek, Volumes};
use strongroom_jobs::{FailedVolume, KeyRefusal, NewKeySource};
use strongroom_keys::ProviderName;
use strongroom_libvirt::Service;
use strongroom_memory::secret::SecretBytes;
use strongroom_processes::Signals;
use strongroom_worker::{ClientShare, Throttle};

use super::create::TagArguments;
use super::open::{FreshnessArguments, LockArguments};
use super::reencrypt::Reencryption;
use super::snapshot::{parse_client_share, parse_rate};
use crate::error::CliError;
use crate::keys::{KeyArguments, ask_twice, read_passphrase};
use crate::output::Output;

/// The arguments of `rekey`.
#[derive(Debug, Args)]
#[command(
    after_help = "With --kek no data is copied: only the data keys are wrapped again. Each key is replaced by one \
new key: volumes that shared a key share the new one. Volumes may be exposed meanwhile. If the job is \
interrupted or killed, run it again to continue; until a volume is done, the old key opens it. Volumes \
whose present keys are given in different ways (a key file, a passphrase) need one command each; a key \
provider's keys are found automatically.

The old key still opens old copies of the volume's descriptor. If it was compromised, destroy it where \
it is stored.

With --data one volume, with its snapshots, is rewritten under new data keys, one layer after the other; \
the datastore needs room for the largest layer once more. If the command is interrupted or killed, run it \
again to continue; --cancel leaves a volume that is not exposed under the key that it had. Without a new key \
(--to-...) the new data keys are under the present one, which still opens old data keys in old copies of \
the descriptor. With one, no data key is ever under both, and a volume that is not exposed does not open until it is done. \
An exposed volume is used meanwhile: the job pauses so that its clients keep --clients-keep percent of their \
speed. An exposure that is started before the job is done needs both keys (--next-key-file). \
With --integrity the rewritten volume has tags of that algorithm, without them with --no-integrity.

Examples:
  strongroom volume rekey --kek ./ds/vm1 --to-key-provider corp
  strongroom volume rekey --kek --datastore ./ds --key-file old.key --to-key-provider corp
  strongroom volume rekey --kek ./ds/vm1 ./ds/vm2 --passphrase-fd 3 3<old --to-key-file new.key
  strongroom volume rekey --data ./ds/vm1 --key-file old.key --to-key-file new.key"
)]
pub struct RekeyArguments {
    /// Paths of the volumes
    #[arg(required_unless_present = "datastore", conflicts_with = "datastore")]
    paths: Vec<PathBuf>,

    /// Move all encrypted volumes of the datastore DIR
    #[arg(long, value_name = "DIR")]
    datastore: Option<PathBuf>,

    /// Replace the key-encryption key, which wraps the data keys; no data is copied
    #[arg(long, required_unless_present = "data", conflicts_with = "data", requires = "TargetArguments")]
    kek: bool,

    /// Replace the data keys: every block of the volume and its snapshots is rewritten
    #[arg(long, conflicts_with = "datastore")]
    data: bool,

    /// The most bytes per second that --data writes while the volume is exposed, as in 50M
    #[arg(long, value_name = "SIZE", value_parser = parse_rate, requires = "data")]
    rate: Option<u64>,

    /// What the clients of an exposed volume keep of their speed beside --data, in percent: 0 to 99
    #[arg(long, value_name = "PERCENT", value_parser = parse_client_share, default_value = "80", requires = "data")]
    clients_keep: ClientShare,

    #[command(flatten)]
    tags: TagArguments,

    /// Rewrite the volume without tags
    #[arg(long, requires = "data", conflicts_with = "integrity")]
    no_integrity: bool,

    /// End a --data that was interrupted, and leave the volume under the key that it had
    #[arg(long, requires = "data")]
    cancel: bool,

    #[command(flatten)]
    target: TargetArguments,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    freshness: FreshnessArguments,

    #[command(flatten)]
    lock: LockArguments,
}

/// The source of the new keys.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct TargetArguments {
    /// Create the new keys at key provider NAME
    #[arg(long, value_name = "NAME")]
    to_key_provider: Option<ProviderName>,

    /// Read the new key from FILE, as --key-file does
    #[arg(long, value_name = "FILE")]
    to_key_file: Option<PathBuf>,

    /// Read the new passphrase from file descriptor N
    #[arg(long, value_name = "N")]
    to_passphrase_fd: Option<u32>,

    /// Ask for the new passphrase, twice
    #[arg(long)]
    to_passphrase: bool,
}

#[derive(Serialize)]
#[serde(transparent)]
pub struct Answer(pub Rekeyed);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rekeyed) = self;
        for FailedVolume { path, message, .. } in &rekeyed.failed {
            writeln!(f, "not done: {}: {message}", path.display())?;
        }
        for ReplacedKek { kek_id, key } in &rekeyed.replaced_keks {
            writeln!(f, "not needed by these volumes any more: KEK {kek_id} (from a {key})")?;
        }
        if let ([only], true) = (rekeyed.volumes.as_slice(), rekeyed.finished) {
            let RekeyedVolume { path, kek_id, key, generation, .. } = only;
            return write!(
                f,
                "{} is under KEK {kek_id} (from a {key}), generation {generation}",
                path.display()
            );
        }
        let (done, all) = (rekeyed.volumes.len(), rekeyed.volumes.len() + rekeyed.failed.len());
        write!(f, "{done} of {all} volumes are under keys from {}", rekeyed.target)?;
        if rekeyed.finished { Ok(()) } else { write!(f, "; call it again in the same way to go on") }
    }
}

impl RekeyArguments {
    /// Moves the volumes. The exit status tells whether all were moved.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        if self.data {
            return self.reencrypt(output).map(|()| ExitCode::SUCCESS);
        }
        let volumes = match &self.datastore {
            None => Volumes::these(&self.paths)?,
            Some(datastore) => Volumes::of_datastore(datastore)?,
        };
        if !volumes.is_one() && self.freshness.are_given() {
            return Err(CliError::Usage("--least-generation and --expect-kek are of one volume".to_owned()));
        }
        if self.tags.integrity().is_some() {
            return Err(CliError::Usage(
                "--integrity goes with --data, which rewrites the volume".to_owned(),
            ));
        }
        let ask = || Ok(self.target.passphrase()?);
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let job = Rekey {
            home: &self.key.home.path()?,
            volumes: &volumes,
            to: &self.target.source(&ask),
            keyring: &*self.key.keyring()?,
            present: &self.key,
            freshness: self.freshness.into(),
            lock_wait: self.lock.lock_wait,
            is_interrupted: &|| signals.came(),
        };
        let rekeyed = job.carry_out()?;
        for RekeyedVolume { path, .. } in &rekeyed.volumes {
            if let Some(unit) = Service::with_key_file(path) {
                output.remark(&format!(
                    "{unit} would start with the key file that {path} had: call 'vm disk attach --libvirt DOMAIN {path}' with the new key.",
                    path = path.display()
                ));
            }
        }
        let finished = rekeyed.finished;
        output.answer(&Answer(rekeyed))?;
        Ok(if finished { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn new_tags(&self) -> NewTags {
        match self.tags.integrity() {
            _ if self.no_integrity => NewTags::None,
            Some(integrity) => NewTags::By(integrity),
            None => NewTags::Kept,
        }
    }

    /// Gives one volume other data keys.
    fn reencrypt(&self, output: &Output) -> Result<(), CliError> {
        let [path] = self.paths.as_slice() else {
            return Err(CliError::Usage("--data takes one volume; call it once for each".to_owned()));
        };
        let ask = || Ok(self.target.passphrase()?);
        let source = self.target.source(&ask);
        let command = Reencryption {
            path,
            to: if self.target.are_given() { NewSeal::NewKek(&source) } else { NewSeal::SameKek },
            tags: self.new_tags(),
            throttle: Throttle { bytes_per_second: self.rate, clients_keep: self.clients_keep },
            key: &self.key,
            freshness: self.freshness,
            lock: self.lock,
        };
        if self.cancel { command.cancel(output) } else { command.run(output) }
    }
}

impl TargetArguments {
    /// Whether any source is given.
    fn are_given(&self) -> bool {
        let Self { to_key_provider, to_key_file, to_passphrase_fd, to_passphrase } = self;
        to_key_provider.is_some() || to_key_file.is_some() || to_passphrase_fd.is_some() || *to_passphrase
    }

    /// The source of the new keys; `ask` returns the new passphrase.
    pub fn source<'a>(&self, ask: &'a dyn Fn() -> Result<SecretBytes, KeyRefusal>) -> NewKeySource<'a> {
        match (&self.to_key_provider, &self.to_key_file) {
            (Some(provider), _) => NewKeySource::Provider(provider.clone()),
            (None, Some(file)) => NewKeySource::KeyFile(file.clone()),
            (None, None) => NewKeySource::Passphrase(ask),
        }
    }

    /// The new passphrase, from a descriptor or a person.
    pub fn passphrase(&self) -> Result<SecretBytes, CliError> {
        match self.to_passphrase_fd {
            Some(descriptor) => read_passphrase(descriptor),
            None => ask_twice(Path::new("the volumes")),
        }
    }
}
