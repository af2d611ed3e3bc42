//! `strongroom volume resize`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{Access, describe};
use strongroom_types::{VolumeSize, display_bytes};
use strongroom_worker::control::{Answer, Client, ControlError, Request};

use super::open::OpenArguments;
use crate::error::CliError;
use crate::output::Output;

/// The timeout for allocating a thick volume's new space, on a slow file system.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// The arguments of `resize`.
#[derive(Debug, Args)]
#[command(
    after_help = "A volume can grow, not shrink. The new space reads as zeroes; grow partitions and file \
systems in the guest. An exposed volume grows while it is used, and needs no key here, because the \
process that exposes it has the key. A guest over vhost-user sees the new size at once, NBD clients \
after reconnecting.

Example:
  strongroom volume resize ./ds/vm1 --size 40G"
)]
pub struct ResizeArguments {
    /// Path of the volume
    path: PathBuf,

    /// New size, such as 40G
    #[arg(long)]
    size: VolumeSize,

    #[command(flatten)]
    open: OpenArguments,
}

#[derive(Serialize)]
struct Resized {
    path: PathBuf,
    old_size_bytes: u64,
    size_bytes: u64,
    generation: u64,
}

impl fmt::Display for Resized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, new) = (self.path.display(), display_bytes(self.size_bytes));
        if self.size_bytes == self.old_size_bytes {
            return write!(f, "{path} has {new} already");
        }
        write!(f, "{path} grew from {} to {new}", display_bytes(self.old_size_bytes))
    }
}

impl ResizeArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        if let Some(client) = Client::connect(&self.path)? {
            return self.ask(client, output);
        }
        let (mut volume, key) = self.open.open(&self.path, Access::ReadWrite)?;
        let old_size_bytes = volume.descriptor().size_bytes.bytes();
        volume.grow(self.size, key.protection())?;
        output.answer(&Resized {
            path: self.path.clone(),
            old_size_bytes,
            size_bytes: volume.descriptor().size_bytes.bytes(),
            generation: volume.descriptor().generation,
        })
    }

    /// Asks the process that exposes the volume to do it.
    fn ask(&self, client: Client, output: &Output) -> Result<(), CliError> {
        let least_generation = self.open.freshness.least_generation;
        describe(&self.path)?.descriptor.expect_volume(&self.path, self.open.freshness.expect_volume)?;
        let request = Request::Resize { size_bytes: self.size, least_generation };
        match client.ask(request, ANSWER_WITHIN)? {
            Answer::Resized { old_size_bytes, size_bytes, generation } => output.answer(&Resized {
                path: self.path.clone(),
                old_size_bytes: old_size_bytes.bytes(),
                size_bytes: size_bytes.bytes(),
                generation,
            }),
            other => Err(ControlError::of_answer(&self.path, other).into()),
        }
    }
}
