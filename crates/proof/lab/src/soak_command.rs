//! `strongroom-lab soak`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use strongroom_lab::soak::kind::Kind;
use strongroom_lab::soak::{SoakConfig, SoakError, SoakReport, run};
use thiserror::Error;

/// Has volumes served for an hour under verified load, while what serves them is killed, replaced,
/// stopped, grown, re-keyed, cut off and starved of room; and says whether anything was lost, and
/// whether memory and descriptors stay flat.
///
/// Everything it needs it makes in a directory of its own, and takes away again. Fails if anything
/// is not as it must be, and says how to repeat it.
#[derive(Args)]
#[command(after_help = "Examples:
  strongroom-lab soak
  strongroom-lab soak --seconds 300 --seed 7 --program target/release/strongroom
  strongroom-lab soak --samples soak.jsonl --report soak.json")]
pub struct Arguments {
    /// How long, in seconds.
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(5..=2_592_000))]
    seconds: u64,
    /// Where chance begins: the same events in the same order come of the same seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program.
    #[arg(long, value_name = "FILE", default_value = "strongroom")]
    program: PathBuf,
    /// Where the volumes are made; the system's place for temporary files, if nowhere.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Requests a second, of all volumes together.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    rate: u64,
    /// Between two events in the mean, in milliseconds.
    #[arg(long, default_value_t = 3000)]
    event_period_ms: u64,
    /// Between two looks at the processes, in milliseconds; the more samples, the surer the
    /// verdict.
    #[arg(long, default_value_t = 2000)]
    sample_period_ms: u64,
    /// No volume on a small file system, which takes root or user namespaces.
    #[arg(long)]
    no_small: bool,
    /// Where each sample goes as a line of JSON; it is kept then.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Where the report goes as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Why the command failed.
#[derive(Debug, Error)]
pub enum SoakFailed {
    /// The soak could not be started or ended.
    #[error(transparent)]
    Soak(#[from] SoakError),
    /// The report cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Report {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// There were violations, which the report lists.
    #[error("the soak found {0} violations")]
    Violations(usize),
}

/// Runs the command.
pub fn run_soak(arguments: &Arguments) -> Result<(), SoakFailed> {
    let stop: Arc<AtomicBool> = Arc::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let caught = signal_hook::flag::register(signal, Arc::clone(&stop));
        caught.map_err(|error| SoakError::file("catch signals in", "/proc/self", error))?;
    }
    let kinds = Kind::ALL.into_iter().filter(|kind| !arguments.no_small || *kind != Kind::Small);
    let config = SoakConfig {
        program: arguments.program.clone(),
        directory: arguments.directory.clone().unwrap_or_else(std::env::temp_dir),
        kinds: kinds.collect(),
        duration: Duration::from_secs(arguments.seconds),
        seed: arguments.seed,
        rate: arguments.rate as f64,
        event_period: Duration::from_millis(arguments.event_period_ms),
        sample_period: Duration::from_millis(arguments.sample_period_ms),
        samples: arguments.samples.clone(),
        stop,
    };
    eprintln!("a soak of {} s with seed {}", arguments.seconds, arguments.seed);
    let report = run(&config, &|text| eprintln!("{text}"))?;
    print(&report);
    if let Some(path) = &arguments.report {
        let failed = |error| SoakFailed::Report { path: path.clone(), error };
        let text = serde_json::to_string_pretty(&report).map_err(|error| failed(error.into()))?;
        std::fs::write(path, text).map_err(failed)?;
    }
    if report.is_clean() { Ok(()) } else { Err(SoakFailed::Violations(report.violations.len())) }
}

#[allow(clippy::print_stdout)]
fn print(report: &SoakReport) {
    println!("{report}");
}
