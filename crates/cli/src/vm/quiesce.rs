//! The options of the commands that make snapshots of running VMs.

use clap::Args;
use strongroom_api::vm::QuiesceWithin;

use crate::duration::parse_seconds;

/// Whether the guest becomes quiet for a snapshot.
#[derive(Clone, Debug, Args)]
pub struct QuiesceArguments {
    /// Have the guest agent freeze the guest's file systems meanwhile
    #[arg(long)]
    quiesce: bool,

    /// How long it may take to freeze them, 1s to 5m [default: 30s]
    #[arg(long, value_name = "TIME", requires = "quiesce", value_parser = parse_within)]
    quiesce_within: Option<QuiesceWithin>,
}

impl QuiesceArguments {
    /// How long the guest may take, if it is to become quiet.
    pub fn within(&self) -> Option<QuiesceWithin> {
        self.quiesce.then(|| self.quiesce_within.unwrap_or_default())
    }
}

fn parse_within(text: &str) -> Result<QuiesceWithin, String> {
    let seconds = u32::try_from(parse_seconds(text)?).unwrap_or(u32::MAX);
    QuiesceWithin::new(seconds).map_err(|error| error.to_string())
}
