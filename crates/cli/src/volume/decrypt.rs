//! `strongroom volume decrypt`.

use std::path::PathBuf;

use clap::Args;
use strongroom_datastore::file::NewTags;
use strongroom_jobs::reencrypt::NewSeal;
use strongroom_worker::Throttle;

use super::open::{FreshnessArguments, LockArguments};
use super::reencrypt::Reencryption;
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::Output;

/// The arguments of `decrypt`.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume, with its snapshots, is rewritten without encryption and without tags, one layer after the \
other; the datastore needs room for the largest layer once more. The volume must not be exposed. Whoever can \
read the datastore can read it from then on. If the command is interrupted or killed, run it again to \
continue, or 'volume encrypt' to go back; until then the volume does not open.

Example:
  strongroom volume decrypt ./ds/vm1 --key-file vm1.key"
)]
pub struct DecryptArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    freshness: FreshnessArguments,

    #[command(flatten)]
    lock: LockArguments,
}

impl DecryptArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let command = Reencryption {
            path: &self.path,
            to: NewSeal::Clear,
            tags: NewTags::None,
            throttle: Throttle::default(),
            key: &self.key,
            freshness: self.freshness,
            lock: self.lock,
        };
        command.run(output)
    }
}
