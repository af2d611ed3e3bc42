//! `strongroom volume snapshot merge`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{DescribedVolume, OpenOptions, describe};
use strongroom_processes::Signals;
use strongroom_types::{display_bytes, parse_bytes};
use strongroom_worker::control::{
    Answer, Client, ControlError, MergeAct, MergeProgress, MergeStatus, Request, SNAPSHOT_WITHIN,
    resolve_exposed,
};
use strongroom_worker::{ClientShare, Progress, Throttle, merge_next};

use super::super::open::OpenArguments;
use super::wait::{WAITS_FOR_OTHERS, await_merges, in_words};
use super::{of_merge, to_change};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;

/// The arguments of `merge`.
#[derive(Debug, Args)]
#[command(
    after_help = "Layers that no snapshot needs any more are made one with those above them, one pair after the other. An interrupted merge \
loses nothing, and the next one does it again. If the volume is exposed, the process that exposes it merges in the background, \
and needs no key here. It pauses after each step so that clients keep --clients-keep percent of their speed, by the latency of their \
requests beside the merge and without it; while they have none it goes as fast as it can, or as --rate allows. What is written from then on goes to a new layer, so one layer stays below it until the next merge.

Examples:
  strongroom volume snapshot merge ./ds/vm1
  strongroom volume snapshot merge ./ds/vm1 --rate 50M --wait
  strongroom volume snapshot merge ./ds/vm1 --pause"
)]
pub struct MergeArguments {
    /// Path of the volume
    path: PathBuf,

    /// The most bytes per second that an exposed volume's merge copies, as in 50M
    #[arg(long, value_name = "SIZE", value_parser = parse_rate, conflicts_with = "pause")]
    rate: Option<u64>,

    /// What the clients of an exposed volume keep of their speed, in percent: 0 to 99
    #[arg(long, value_name = "PERCENT", value_parser = parse_client_share, conflicts_with = "pause", default_value = "80")]
    clients_keep: ClientShare,

    /// Wait until the layers of an exposed volume are merged
    #[arg(long, conflicts_with = "pause")]
    wait: bool,

    /// Pause the merge of an exposed volume, until this command is run again without it
    #[arg(long)]
    pause: bool,

    #[command(flatten)]
    open: OpenArguments,
}

/// A rate of 0 would be a pause without that name.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err("nothing goes on at 0 bytes per second; --pause makes a merge wait".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses the part of their speed that clients keep.
pub fn parse_client_share(text: &str) -> Result<ClientShare, String> {
    let percent: u8 = text.parse().map_err(|_| format!("'{text}' is no percentage; write 80"))?;
    ClientShare::try_from(percent).map_err(|error| error.to_string())
}

/// What became of the merge of an exposed volume.
#[derive(Serialize)]
struct Ordered {
    path: PathBuf,
    /// Nothing once no layers are left to be merged.
    merge: Option<MergeStatus>,
    /// Whether layers wait until no other volume has them.
    waits_for_others: bool,
    layers: usize,
    generation: u64,
}

impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, merge, layers, .. } = self;
        let path = path.display();
        match merge {
            Some(merge) if merge.state == MergeProgress::Running => {
                write!(
                    f,
                    "{path}: its layers are merged in the background; `strongroom volume info {path}` shows how far that is"
                )
            }
            Some(merge) => write!(f, "{path}: merge: {}", in_words(merge)),
            None if self.waits_for_others => write!(f, "{path}: {WAITS_FOR_OTHERS}"),
            None => write!(f, "{path}: no layers are left to be merged; layers now: {layers}"),
        }
    }
}

#[derive(Serialize)]
struct MergedVolume {
    path: PathBuf,
    moved_bytes: u64,
    /// Whether layers wait until no other volume has them.
    waits_for_others: bool,
    layers: usize,
    generation: u64,
}

impl fmt::Display for MergedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, moved_bytes, layers, .. } = self;
        match moved_bytes {
            0 if self.waits_for_others => write!(f, "{}: {WAITS_FOR_OTHERS}", path.display()),
            0 => write!(f, "{} has no layers to be merged", path.display()),
            moved => {
                write!(f, "{}: {} were merged; layers now: {layers}", path.display(), display_bytes(*moved))
            }
        }
    }
}

impl MergeArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        if let Some(client) = Client::connect(&self.path)? {
            return self.ask(client, output);
        }
        if self.pause {
            let consequence = "no merge of it is under way";
            return Err(CliError::NotExposed { path: self.path.clone(), consequence });
        }
        let key = self.open.ask_for_key(&self.path)?;
        let merged = merge_all(&self.path, &to_change(&self.path, &self.open, &key)?, output)?;
        let DescribedVolume { descriptor, shared_layers, .. } = describe(&self.path)?;
        output.answer(&MergedVolume {
            path: self.path.clone(),
            moved_bytes: merged.moved_bytes,
            waits_for_others: descriptor.waits_for_others(&shared_layers),
            layers: descriptor.layers.len(),
            generation: merged.generation.unwrap_or(descriptor.generation),
        })
    }
}

impl MergeArguments {
    /// Has the process that exposes the volume do it.
    fn ask(&self, client: Client, output: &Output) -> Result<(), CliError> {
        let freshness = self.open.freshness;
        describe(&self.path)?.descriptor.expect_volume(&self.path, freshness.expect_volume)?;
        resolve_exposed(&self.path)?;
        let act = match self.pause {
            true => MergeAct::Pause,
            false => {
                let (bytes_per_second, clients_keep) = (self.rate, self.clients_keep);
                MergeAct::Start { throttle: Throttle { bytes_per_second, clients_keep } }
            }
        };
        let request = Request::Merge { act, least_generation: freshness.least_generation };
        let mut merge = match client.ask(request, SNAPSHOT_WITHIN)? {
            Answer::Merging(merge) => Some(merge),
            Answer::NothingToMerge => None,
            other => return Err(ControlError::of_answer(&self.path, other).into()),
        };
        if self.wait && merge.take().is_some() {
            await_merges(&self.path, output)?;
        }
        let DescribedVolume { descriptor, shared_layers, .. } = describe(&self.path)?;
        output.answer(&Ordered {
            path: self.path.clone(),
            merge,
            waits_for_others: descriptor.waits_for_others(&shared_layers),
            layers: descriptor.layers.len(),
            generation: descriptor.generation,
        })
    }
}

/// The result of merges.
#[derive(Debug, Default)]
pub struct MergedLayers {
    /// Bytes that were moved.
    pub moved_bytes: u64,
    /// The descriptor's generation, if anything was merged.
    pub generation: Option<u64>,
}

/// Merges each pair of layers whose lower one no snapshot needs.
pub fn merge_all(path: &Path, options: &OpenOptions<'_>, output: &Output) -> Result<MergedLayers, CliError> {
    let signals = Signals::catch().map_err(CliError::Signals)?;
    let mut all = MergedLayers::default();
    loop {
        let size_bytes = describe(path)?.descriptor.size_bytes.bytes();
        let mut meter = Meter::start(output, "merging", size_bytes);
        let mut progress = Progress { stop: signals.stop_flag(), report: &mut |bytes| meter.at(bytes) };
        let merged = merge_next(path, options, &mut progress).map_err(|error| of_merge(error, path))?;
        let Some(merged) = merged else { return Ok(all) };
        all.moved_bytes += merged.moved_bytes;
        all.generation = Some(merged.descriptor.generation);
    }
}
