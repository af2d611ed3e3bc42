//! `strongroom key rotate`: replaces a key by a new one for every volume that needs it. The job is
//! in `strongroom_jobs`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_jobs::FailedVolume;
use strongroom_jobs::inventory::{KeyName, state_name};
use strongroom_jobs::rotation::{Rotate, Rotated, Rotation, Which};
use strongroom_keys::ProviderName;
use strongroom_processes::Signals;
use strongroom_types::counted;

use super::DatastoreArguments;
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::keys::KeyArguments;
use crate::keyserver::overseer_of_home;
use crate::output::Output;
use crate::volume::open::LockArguments;

/// Which keys, and to where.
#[derive(Debug, Args)]
#[command(
    after_help = "Creates a new key at the provider, and moves every volume with the old key to it: in \
each datastore in which this machine created a volume with a provider's key, and in those given with \
--datastore. No data is copied, and volumes may be exposed meanwhile. If the command is interrupted or \
killed, run it again: it continues with the same new key. When no volume needs the old key any more, it \
is deactivated: it still opens old copies of a volume's descriptor, until 'key destroy'.

With --all-due, rotates every key that volumes need and that is due by the provider's cryptoperiod \
('key-provider add --cryptoperiod') or by the key's own date. Run it from a timer.

Exit status: 0 all is done; 1 something is left, and the same command continues with it.

Examples:
  strongroom key rotate 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11
  strongroom key rotate --volume ./ds/vm1 --to-key-provider corp
  strongroom key rotate --all-due"
)]
#[group(id = "which", required = true, multiple = false, args = ["key", "volume", "all_due"])]
pub struct RotateArguments {
    /// Id of the key at its provider, or a volume's KEK id
    #[arg(value_name = "KEY")]
    key: Option<String>,

    /// Rotate the key of the volume at PATH
    #[arg(long, value_name = "PATH")]
    volume: Option<PathBuf>,

    /// Rotate every key that is due
    #[arg(long)]
    all_due: bool,

    /// Provider of the keys; required if several have a key with that id
    #[arg(long, value_name = "NAME", conflicts_with = "volume")]
    provider: Option<ProviderName>,

    /// Create the new key at key provider NAME [default: the provider of the old key]
    #[arg(long, value_name = "NAME")]
    to_key_provider: Option<ProviderName>,

    #[command(flatten)]
    datastores: DatastoreArguments,

    #[command(flatten)]
    lock: LockArguments,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Answer(Rotated);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Rotated { rotated, broken, finished }) = self;
        if rotated.is_empty() && broken.is_empty() {
            return f.write_str("no key is due");
        }
        let mut lines: Vec<String> = rotated.iter().map(|rotation| Line(rotation).to_string()).collect();
        lines.extend(broken.iter().map(|broken| format!("broken: {}: {}", broken.name, broken.reason)));
        if !finished {
            lines.push("something is left; call it again in the same way to go on".to_owned());
        }
        f.write_str(&lines.join("\n"))
    }
}

/// One rotation, as text.
struct Line<'a>(&'a Rotation);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rotation) = self;
        for FailedVolume { path, message, .. } in &rotation.failed {
            writeln!(f, "not done: {}: {message}", path.display())?;
        }
        for unknown in &rotation.unknown {
            writeln!(f, "not looked into, so the old key stays in use: {unknown}")?;
        }
        if let Some(remark) = &rotation.remark {
            writeln!(f, "the old key stays in use: {remark}")?;
        }
        write!(f, "{}: {} moved", rotation.key, counted(rotation.moved.len(), "volume"))?;
        if let Some(new) = &rotation.new_key {
            write!(f, " to {new}")?;
        }
        match rotation.old_state {
            Some(state) => write!(f, "; the old key is {}", state_name(state)),
            None => Ok(()),
        }
    }
}

impl RotateArguments {
    /// Rotates the keys. The exit status tells whether all is done.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let home = self.home.path()?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let present = KeyArguments::of_providers(&self.home);
        let overseer = overseer_of_home(&home);
        let job = Rotate {
            home: &home,
            which: &self.which(),
            to: self.to_key_provider.as_ref(),
            datastores: &self.datastores.datastores,
            overseer: overseer.as_ref(),
            keyring: &*present.keyring()?,
            present: &present,
            lock_wait: self.lock.lock_wait,
            is_interrupted: &|| signals.came(),
        };
        let rotated = job.carry_out()?;
        let finished = rotated.finished;
        output.answer(&Answer(rotated))?;
        Ok(if finished { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn which(&self) -> Which {
        match (&self.key, &self.volume) {
            (Some(key), _) => Which::Key(KeyName { key: key.clone(), provider: self.provider.clone() }),
            (None, Some(volume)) => Which::OfVolume(volume.clone()),
            (None, None) => Which::AllDue(self.provider.clone()),
        }
    }
}
