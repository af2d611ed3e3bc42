//! `strongroom-lab moves`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use strongroom_lab::moves::{self, MovesConfig};
use strongroom_lab::study::{Machine, Pace, Report, Store};

use crate::scratch::Scratch;

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
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let program = fs::canonicalize(&arguments.program).map_err(|error| {
        format!("cannot find {}: {error}; build it, or say where it is", arguments.program.display())
    })?;
    let scratch = [Scratch::new(&arguments.first, "sr-moves")?, Scratch::new(&arguments.second, "sr-moves")?];
    let places = [fs::canonicalize(&scratch[0].0)?, fs::canonicalize(&scratch[1].0)?];
    let config = MovesConfig { program, places, size_bytes: arguments.size_mib << 20 };
    // What is measured takes its own time.
    let (warm_up, duration) = (Duration::ZERO, Duration::from_millis(1));
    let pace = Pace { rounds: arguments.rounds, warm_up, duration };
    let mut study = moves::study(&config, pace).map_err(|error| error.to_string())?;
    let progress = |text: &str| eprintln!("{text}");
    let plan = study.plan();
    progress(&plan.to_string());
    fs::create_dir_all(&arguments.directory)?;
    let directory = fs::canonicalize(&arguments.directory)?;
    let machine = Machine::describe(&directory, moves::programs(&config)?)?;
    let mut store = Store::open(&directory.join("measurements"), &plan, &machine)?;
    study.run(&mut store, &progress, &stop)?;
    let report = Report::of(&store, &moves::report_settings());
    let text = report.to_string();
    fs::write(directory.join("report.md"), &text)?;
    fs::write(directory.join("report.json"), serde_json::to_string_pretty(&report)?)?;
    print(&text);
    Ok(())
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}
