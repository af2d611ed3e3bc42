//! `strongroom volume decrypt`.

use std::path::PathBuf;

use clap::Args;
use strongroom_datastore::file::NewTags;
use strongroom_jobs::reencrypt::NewSeal;

use super::open::{FreshnessArguments, LockArguments};
use super::reencrypt::{Reencryption, ThrottleArguments};
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::Output;

/// The arguments of `decrypt`.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume, with its snapshots, is rewritten without encryption and without tags, one layer after the \
other; the datastore needs room for the largest layer once more. Everyone who can read the datastore can read \
the volume from then on. An exposed volume is used meanwhile: what is written from then on is clear, and the \
job pauses so that clients keep --clients-keep percent of their speed. If the command is interrupted or \
killed, run it again to continue, or 'volume encrypt' to go back. Until then the volume opens only with \
'volume expose --unfinished decrypt', and needs its key.

Example:
  strongroom volume decrypt ./ds/vm1 --key-file vm1.key"
)]
pub struct DecryptArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    throttle: ThrottleArguments,

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
            throttle: self.throttle.into(),
            key: &self.key,
            freshness: self.freshness,
            lock: self.lock,
        };
        command.run(output)
    }
}
