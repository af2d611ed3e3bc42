//! What `volume rekey --data`, `volume encrypt` and `volume decrypt` have in common. The job is in
//! `strongroom_jobs`.

use std::fmt;
use std::path::Path;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::NewTags;
use strongroom_jobs::JobError;
use strongroom_jobs::reencrypt::{NewSeal, Reencrypt, ReencryptedVolume, RewriteFacts};
use strongroom_keys::ProviderKey;
use strongroom_keyserver::evidence::{DataKeys, Move, Rewritten};
use strongroom_keyserver::management::questions::RecordMove;
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_processes::Signals;
use strongroom_providers::{Registry, SourceConfig};
use strongroom_types::{KeyEpoch, display_bytes};
use strongroom_worker::{ClientShare, ReencryptProgress, Throttle};

use super::open::{FreshnessArguments, LockArguments};
use super::snapshot::{parse_client_share, parse_rate};
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::keyserver::administrator_of_home;
use crate::output::Output;
use crate::progress::Meter;

/// How the job shares the machine with the clients of an exposed volume.
#[derive(Clone, Copy, Debug, Args)]
pub struct ThrottleArguments {
    /// The most bytes per second that are written while the volume is exposed, as in 50M
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    rate: Option<u64>,

    /// What the clients of an exposed volume keep of their speed meanwhile, in percent: 0 to 99
    #[arg(long, value_name = "PERCENT", value_parser = parse_client_share, default_value = "80")]
    clients_keep: ClientShare,
}

impl From<ThrottleArguments> for Throttle {
    fn from(arguments: ThrottleArguments) -> Self {
        let ThrottleArguments { rate, clients_keep } = arguments;
        Self { bytes_per_second: rate, clients_keep }
    }
}

/// A re-encryption, as a person asks for it.
pub struct Reencryption<'a> {
    pub path: &'a Path,
    pub to: NewSeal<'a>,
    /// How the rewritten layers are tagged.
    pub tags: NewTags,
    /// How the job shares the machine with the clients of an exposed volume.
    pub throttle: Throttle,
    pub key: &'a KeyArguments,
    pub freshness: FreshnessArguments,
    pub lock: LockArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Answer(ReencryptedVolume);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(volume) = self;
        let path = volume.path.display();
        if volume.cancelled {
            return write!(f, "{path}: the re-encryption is cancelled; generation {}", volume.generation);
        }
        let (layers, bytes) = (volume.rewritten_layers, display_bytes(volume.rewritten_bytes));
        writeln!(f, "{path}: {layers} layers were rewritten, {bytes}")?;
        if volume.kept_by_others > 0 {
            writeln!(
                f,
                "{} of them are shared with linked clones or their origin, which keep the old files under the old data keys: \
                 re-key these too",
                volume.kept_by_others
            )?;
        }
        if let Some(replaced) = &volume.replaced_kek {
            writeln!(
                f,
                "not needed by this volume any more: KEK {} (from a {})",
                replaced.kek_id, replaced.key
            )?;
        }
        match (&volume.kek_id, &volume.key) {
            (Some(kek_id), Some(key)) => {
                write!(f, "{path} is under KEK {kek_id} (from a {key}), generation {}", volume.generation)
            }
            _ => write!(f, "{path} is NOT encrypted any more, generation {}", volume.generation),
        }
    }
}

/// Records a completed job at the key server of the home. Returns the key that it is about; `None`
/// if none of the server's is involved.
fn on_record(home: &Path, done: &ReencryptedVolume) -> Result<Option<ObjectId>, CliError> {
    let RewriteFacts { volume, from, to, first_epoch, is_resumed, clear_bytes } = &done.facts;
    let registered = Registry::of_home(home).list()?;
    let is_embedded = |key: &&ProviderKey| {
        let mut configs =
            registered.iter().filter(|known| known.name == key.provider).map(|known| &known.config);
        configs.any(|config| {
            config.as_ref().is_ok_and(|config| matches!(config.source, SourceConfig::Embedded(_)))
        })
    };
    let id =
        |key: &Option<ProviderKey>| key.as_ref().filter(&is_embedded)?.key.as_str().parse::<ObjectId>().ok();
    let (from, to) = (id(from), id(to));
    let Some(key) = from.or(to) else { return Ok(None) };
    let Some(administrator) = administrator_of_home(home)? else {
        return Err(CliError::Usage("the key server is on another machine".to_owned()));
    };
    let is_freed = to.is_some() && done.kept_by_others == 0;
    let rewritten = Rewritten {
        layers: done.rewritten_layers as u64,
        bytes: done.rewritten_bytes,
        first_epoch: first_epoch.map(KeyEpoch::number),
        clear_bytes_freed: clear_bytes.filter(|_| is_freed),
    };
    let moved = Move {
        vm: None,
        volumes: vec![*volume],
        from: from.into_iter().collect(),
        to,
        data_keys: DataKeys::Renewed,
        is_shared: *is_resumed || done.kept_by_others > 0,
        rewritten: Some(rewritten),
    };
    administrator.ask(RecordMove { moved })?;
    Ok(Some(key))
}

impl Reencryption<'_> {
    /// Runs the job, or goes on with it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let mut meter = None;
        let mut report = |progress: ReencryptProgress| {
            let ReencryptProgress { done_bytes, left_bytes, .. } = progress;
            meter
                .get_or_insert_with(|| Meter::start(output, "re-encrypting", done_bytes + left_bytes))
                .at(done_bytes);
        };
        let done = self.with_job(|job| job.carry_out(&mut report))?;
        drop(meter);
        self.put_on_record(output, &done);
        output.answer(&Answer(done))
    }

    /// Tells the key server of the home, if one of its keys is involved: evidence is made of its
    /// records. The volume is done in any case.
    fn put_on_record(&self, output: &Output, done: &ReencryptedVolume) {
        match self.key.home.path().and_then(|home| on_record(&home, done)) {
            Ok(None) => {}
            Ok(Some(key)) => {
                output.remark(&format!("a signed report: `strongroom evidence --key {key} --output FILE`"));
            }
            Err(error) => output.remark(&format!(
                "the key server's audit log does not have this re-encryption, so no evidence will: {error}"
            )),
        }
    }

    /// Ends a job that is not finished.
    pub fn cancel(&self, output: &Output) -> Result<(), CliError> {
        output.answer(&Answer(self.with_job(|job| job.cancel())?))
    }

    fn with_job<T>(&self, act: impl FnOnce(&Reencrypt<'_>) -> Result<T, JobError>) -> Result<T, CliError> {
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let home = self.key.home.path()?;
        let keyring = self.key.keyring()?;
        let job = Reencrypt {
            home: &home,
            path: self.path,
            to: self.to,
            tags: self.tags,
            keyring: &*keyring,
            present: self.key,
            freshness: self.freshness.into(),
            lock_wait: self.lock.lock_wait,
            throttle: self.throttle,
            stop: signals.stop_flag(),
        };
        Ok(act(&job)?)
    }
}
