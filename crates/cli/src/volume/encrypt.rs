//! `strongroom volume encrypt`.

use std::path::PathBuf;

use clap::Args;
use strongroom_datastore::file::NewTags;
use strongroom_jobs::reencrypt::NewSeal;

use super::create::TagArguments;
use super::open::{FreshnessArguments, LockArguments};
use super::reencrypt::{Reencryption, ThrottleArguments};
use super::rekey::TargetArguments;
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::Output;

/// The arguments of `encrypt`.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume, with its snapshots, is rewritten, one layer after the other; the datastore needs room for \
the largest layer once more. An exposed volume is used meanwhile: what is written from then on is encrypted, \
and the job pauses so that clients keep --clients-keep percent of their speed. If the command is interrupted \
or killed, run it again to continue, or 'volume decrypt' to go back. Until then the volume opens only with \
'volume expose --unfinished encrypt', and needs its key. The old files are removed, not overwritten: what the \
disk below keeps of freed blocks is still readable there.

Examples:
  strongroom volume encrypt ./ds/vm1 --to-key-file vm1.key
  strongroom volume encrypt ./ds/vm1 --to-key-provider corp --integrity"
)]
pub struct EncryptArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    tags: TagArguments,

    #[command(flatten)]
    target: TargetArguments,

    #[command(flatten)]
    throttle: ThrottleArguments,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    freshness: FreshnessArguments,

    #[command(flatten)]
    lock: LockArguments,
}

impl EncryptArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let ask = || Ok(self.target.passphrase()?);
        let source = self.target.source(&ask);
        let command = Reencryption {
            path: &self.path,
            to: NewSeal::FirstKek(&source),
            tags: self.tags.integrity().map_or(NewTags::Kept, NewTags::By),
            throttle: self.throttle.into(),
            key: &self.key,
            freshness: self.freshness,
            lock: self.lock,
        };
        command.run(output)
    }
}
