//! `strongroom volume resize`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::Access;
use strongroom_types::{VolumeSize, display_bytes};

use super::open::OpenArguments;
use crate::error::CliError;
use crate::output::Output;

/// Which volume, and its new size.
#[derive(Debug, Args)]
#[command(
    after_help = "A volume can grow, not shrink. What is new reads as zeroes; the guest's own partitions and file \
systems are for the guest to grow.

Example:
  strongroom volume resize ./ds/vm1 --size 40G"
)]
pub struct ResizeArguments {
    /// The volume
    path: PathBuf,

    /// The new size, as in 40G
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
    /// Grows the volume.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
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
}
