//! `strongroom volume snapshot merge`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{OpenOptions, describe};
use strongroom_processes::Signals;
use strongroom_types::display_bytes;
use strongroom_worker::{Progress, merge_next};

use super::super::open::OpenArguments;
use super::{of_merge, to_change};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;

/// The arguments of `merge`.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume must not be in use. Layers that no snapshot needs any more are merged with \
those above them, one pair after the other. An interrupted merge loses nothing, and is repeated by the \
next one.

Example:
  strongroom volume snapshot merge ./ds/vm1"
)]
pub struct MergeArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    open: OpenArguments,
}

#[derive(Serialize)]
struct MergedVolume {
    path: PathBuf,
    moved_bytes: u64,
    layers: usize,
    generation: u64,
}

impl fmt::Display for MergedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, moved_bytes, layers, .. } = self;
        match moved_bytes {
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
        let key = self.open.ask_for_key(&self.path)?;
        let merged = merge_all(&self.path, &to_change(&self.path, &self.open, &key)?, output)?;
        let descriptor = describe(&self.path)?.descriptor;
        output.answer(&MergedVolume {
            path: self.path.clone(),
            moved_bytes: merged.moved_bytes,
            layers: descriptor.layers.len(),
            generation: merged.generation.unwrap_or(descriptor.generation),
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
