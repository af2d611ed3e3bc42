//! `strongroom-lab moves`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use strongroom_lab::moves::{self, MovesConfig};
use strongroom_lab::study::Pace;

use crate::scratch::Scratch;
use crate::studied::{found, made, measure, stop_by_signals};

/// Measures moves of a volume between two file systems, beside copies of the same file.
///
/// Ends with a table for each direction. `make measure-moves` runs it between the disk and a file
/// system in a file on it.
#[derive(Args)]
pub struct Arguments {
    /// Directory on the first file system.
    first: PathBuf,
    /// Directory on the second file system.
    second: PathBuf,
    /// The program, of a release build.
    #[arg(long, value_name = "PATH", default_value = "target/release/strongroom")]
    program: PathBuf,
    /// Where results are; made if it is missing.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab/moves")]
    directory: PathBuf,
    /// Size of the volume, in MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    size_mib: u64,
    /// Rounds; every other one goes backwards. Fewer than six give no verdict.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let stop = stop_by_signals()?;
    let program = found(&arguments.program)?;
    let directory = made(&arguments.directory)?;
    let scratch = [Scratch::new(&arguments.first, "sr-moves")?, Scratch::new(&arguments.second, "sr-moves")?];
    let places = [fs::canonicalize(&scratch[0].0)?, fs::canonicalize(&scratch[1].0)?];
    let config = MovesConfig { program, places, size_bytes: arguments.size_mib << 20 };
    // What is measured takes its own time.
    let (warm_up, duration) = (Duration::ZERO, Duration::from_millis(1));
    let pace = Pace { rounds: arguments.rounds, warm_up, duration };
    let study = moves::study(&config, pace).map_err(|error| error.to_string())?;
    measure(&directory, study, moves::programs(&config)?, &moves::report_settings(), &stop)
}
