//! `strongroom-lab snapshots`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use strongroom_lab::programs::make_secret;
use strongroom_lab::snapshots::config::{Part, Sizes, SnapshotsConfig};
use strongroom_lab::snapshots::goals;
use strongroom_lab::snapshots::run::run as measure;
use strongroom_lab::study::SubjectError;

use crate::scratch::Scratch;
use crate::studied::{found, made, stop_by_signals};

const MIB: u64 = 1 << 20;
/// Snapshots of a volume before their layers are merged.
const SNAPSHOTS_MAX: usize = 8;

/// Measures what guests notice of snapshots, and what snapshots cost.
///
/// How long guests wait while up to 16 volumes get a snapshot of one instant; how long making one
/// takes; the speed of reads through 8 layers, of writes right after a snapshot, and of a guest
/// while layers are merged. Beside qcow2 with LUKS. Of re-encryption: the speed of a guest while
/// the data keys of its volume are renewed (reencrypt), and of a volume that nobody uses (rewrite).
/// Of moves: the speed of a guest while its volume moves to another directory (move). Disks, of
/// 7 GiB at most, are made in the directory and deleted; an interrupted run goes on where it was.
/// Needs root, qemu-img and qemu-storage-daemon.
#[derive(Args)]
#[command(after_help = "Examples:
  strongroom-lab snapshots
  strongroom-lab snapshots gap --volumes 16 --depths 4 --rounds 20
  strongroom-lab snapshots reencrypt rewrite --rounds 12
  strongroom-lab snapshots move
  strongroom-lab snapshots --quick")]
pub struct Arguments {
    /// What to measure.
    #[arg(value_enum, value_name = "PART", default_values_t = Part::OF_SNAPSHOTS)]
    parts: Vec<Part>,
    /// The strongroom program, of a release build.
    #[arg(long, value_name = "PATH", default_value = "target/release/strongroom")]
    program: PathBuf,
    /// Where disks and results are; on the file system that is to be measured.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab/snapshots")]
    directory: PathBuf,
    /// Small disks and one round, to see that everything works; about a minute.
    #[arg(long)]
    quick: bool,
    /// Rounds; every other one goes backwards. Fewer than six give no verdict.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// How long each measurement of IOPS is, in seconds, beside a quarter of it to warm up.
    #[arg(long)]
    seconds: Option<f64>,
    /// Gap: numbers of volumes in a group.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = clap::value_parser!(u16).range(1..=64))]
    volumes: Vec<u16>,
    /// Gap: requests of each guest in flight.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u16).range(1..=64))]
    depths: Vec<u16>,
    /// Gap: pairs of windows in a measurement.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: Option<u16>,
    /// Gap: the least duration of a window, in milliseconds.
    #[arg(long, default_value_t = 200)]
    window_ms: u64,
    /// Merge: size of each layer, in MiB, enough to be merged for as long as a measurement is.
    #[arg(long, value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    merge_mib: Option<u64>,
    /// Strongroom alone.
    #[arg(long)]
    no_peers: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), SubjectError> {
    let stop = stop_by_signals()?;
    let program = found(&arguments.program)?;
    let directory = made(&arguments.directory)?;
    let scratch = Scratch::new(&directory, "d")?;
    let sockets = Scratch::new(&std::env::temp_dir(), "strongroom-lab")?;
    let secret = scratch.0.join("secret");
    make_secret(&secret)?;
    let places = Places { program, scratch: scratch.0.clone(), sockets: sockets.0.clone(), secret };
    let config = arguments.config(places, stop)?;
    let progress = |text: &str| eprintln!("{text}");
    let mut goals = Vec::new();
    for part in &arguments.parts {
        let found = measure(*part, &config, &directory, &progress)?;
        print(&format!("{}\n", found.markdown.trim_end()));
        progress(&format!("report and raw values: {}", found.directory.display()));
        goals.extend(found.goals);
    }
    print(&format!("### Goals\n\n{}", goals::table(&goals)));
    Ok(())
}

/// What a run uses.
struct Places {
    program: PathBuf,
    scratch: PathBuf,
    sockets: PathBuf,
    secret: PathBuf,
}

impl Arguments {
    fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    fn config(&self, places: Places, stop: Arc<AtomicBool>) -> Result<SnapshotsConfig, SubjectError> {
        let Places { program, scratch, sockets, secret } = places;
        let sizes = Sizes {
            group: self.choose(64, 256) * MIB,
            created: 20 << 30,
            created_content: self.choose(16, 256) * MIB,
            chain: self.choose(32, 512) * MIB,
            after: self.choose(64, 1024) * MIB,
            after_log: self.quick.then_some(MIB),
            merge: self.merge_mib.unwrap_or(self.choose(256, 1024)) * MIB,
        };
        let seconds = self.seconds.unwrap_or(self.choose(0.5, 2.0));
        Ok(SnapshotsConfig {
            program,
            scratch,
            sockets,
            secret,
            sizes,
            volumes: self.volumes.clone(),
            depths: if self.quick {
                self.depths.iter().last().copied().into_iter().collect()
            } else {
                self.depths.clone()
            },
            pairs: usize::from(self.pairs.unwrap_or(self.choose(2, 6))),
            snapshots_max: SNAPSHOTS_MAX,
            window: Duration::from_millis(self.window_ms),
            rounds: self.rounds.unwrap_or(self.choose(1, 6)),
            duration: Duration::try_from_secs_f64(seconds)?,
            has_peers: !self.no_peers,
            stop,
        })
    }
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}
