//! What `volume rekey --data`, `volume encrypt` and `volume decrypt` have in common. The job is in
//! `strongroom_jobs`.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use strongroom_datastore::file::NewTags;
use strongroom_jobs::JobError;
use strongroom_jobs::reencrypt::{NewSeal, Reencrypt, ReencryptedVolume};
use strongroom_processes::Signals;
use strongroom_types::display_bytes;
use strongroom_worker::{ReencryptProgress, Throttle};

use super::open::{FreshnessArguments, LockArguments};
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::Output;
use crate::progress::Meter;

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
        output.answer(&Answer(done))
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
