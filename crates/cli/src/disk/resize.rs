//! `strongroom disk resize`.

use clap::Args;
use strongroom_api::Reference;
use strongroom_api::volume::{ResizeVolume, VolumeChange};
use strongroom_types::VolumeSize;

use super::change;
use crate::api::{ApiArguments, WaitArguments, parse_reference};
use crate::error::CliError;
use crate::output::Output;
use crate::vm::parse_disk;

/// The arguments of `resize`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom disk resize data1 --size 40G")]
pub struct ResizeArguments {
    /// Name or id of the disk
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Its new size, which is larger than its present one
    #[arg(long, value_name = "SIZE", value_parser = parse_disk)]
    size: VolumeSize,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl ResizeArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let wish = ResizeVolume { volume: self.disk.clone(), size_bytes: self.size };
        let task = change(&api, VolumeChange::Resize(wish))?;
        self.wait.finish(&api, output, "growing", task, format!("disk {} has {}", self.disk, self.size))
    }
}
