//! `strongroom-lab migrate`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use strongroom_lab::migrate::ways::{self, WaysConfig};
use strongroom_lab::migrate::whole::{self, WholeConfig};
use strongroom_lab::study::Pace;

use crate::scratch::Scratch;
use crate::studied::{found, keep_only, made, measure, stop_by_signals};

/// Measures live migration: how a VM's memory passes from QEMU to QEMU, and what a guest notices of
/// a whole move.
///
/// Each measurement starts its two ends in network namespaces of their own, with a link between
/// them: needs root, qemu-system-x86_64, openssl, python3 and /dev/net/tun. Ends with a table for
/// each row. `make measure-migrations` runs it.
#[derive(Args)]
pub struct Arguments {
    /// What is measured [default: all].
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// The relays, of a release build: an example of strongroom-migrate.
    #[arg(long, value_name = "PATH", default_value = "target/release/examples/relays")]
    relays: PathBuf,
    /// The same relays with a cipher that does nothing; without this they are left out.
    #[arg(long, value_name = "PATH")]
    null_relays: Option<PathBuf>,
    /// The program, of a release build.
    #[arg(long, value_name = "PATH", default_value = "target/release/strongroom")]
    program: PathBuf,
    /// Where results are; made if it is missing.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab/migrations")]
    directory: PathBuf,
    /// Memory that the guest fills, in MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=2048))]
    filled_mib: u32,
    /// Rounds; every other one goes backwards. Fewer than six give no verdict.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure only rows whose names have this text, such as '150 ms'.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Memory through relays, beside QEMU's own ways.
    Ways,
    /// Whole moves of the program's VMs.
    Whole,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let stop = stop_by_signals()?;
    let directory = made(&arguments.directory)?;
    let scratch = Scratch::new(Path::new("/tmp"), "sr-migrate")?;
    // A guest is watched before it moves, and after it has come.
    let (warm_up, duration) = (Duration::from_millis(1000), Duration::from_millis(200));
    let pace = Pace { rounds: arguments.rounds, warm_up, duration };
    let filled_bytes = arguments.filled_mib << 20;
    let only = arguments.only.as_deref();
    let has = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    if has(Part::Ways) {
        let config = WaysConfig {
            relays: found(&arguments.relays)?,
            null_relays: arguments.null_relays.as_deref().map(found).transpose()?,
            scratch: scratch.0.clone(),
            filled_bytes,
            stop: Arc::clone(&stop),
        };
        let mut study = ways::study(&config, pace).map_err(|error| error.to_string())?;
        keep_only(&mut study, only)?;
        let directory = made(&directory.join("ways"))?;
        measure(&directory, study, ways::programs(&config)?, &ways::report_settings(), &stop)?;
    }
    if has(Part::Whole) {
        let config = WholeConfig {
            program: found(&arguments.program)?,
            scratch: scratch.0.clone(),
            filled_bytes,
            stop: Arc::clone(&stop),
        };
        let mut study = whole::study(&config, pace);
        keep_only(&mut study, only)?;
        let directory = made(&directory.join("whole"))?;
        measure(&directory, study, whole::programs(&config)?, &whole::report_settings(), &stop)?;
    }
    Ok(())
}
