//! `strongroom-lab migrate`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use strongroom_lab::migrate::ways::{self, WaysConfig};
use strongroom_lab::migrate::whole::{self, WholeConfig};
use strongroom_lab::study::{Machine, Pace, Report, ReportSettings, Store, Study, Workload};

use crate::scratch::Scratch;

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
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let find = |path: &PathBuf| {
        fs::canonicalize(path)
            .map_err(|error| format!("cannot find {}: {error}; build it, or say where it is", path.display()))
    };
    fs::create_dir_all(&arguments.directory)
        .map_err(|error| format!("cannot make {}: {error}", arguments.directory.display()))?;
    let scratch = Scratch::new(Path::new("/tmp"), "sr-migrate")?;
    // A guest is watched before it moves, and after it has come.
    let (warm_up, duration) = (Duration::from_millis(1000), Duration::from_millis(200));
    let pace = Pace { rounds: arguments.rounds, warm_up, duration };
    let filled_bytes = arguments.filled_mib << 20;
    let has = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    if has(Part::Ways) {
        let config = WaysConfig {
            relays: find(&arguments.relays)?,
            null_relays: arguments.null_relays.as_ref().map(find).transpose()?,
            scratch: scratch.0.clone(),
            filled_bytes,
            stop: Arc::clone(&stop),
        };
        let study = ways::study(&config, pace).map_err(|error| error.to_string())?;
        measure(arguments, "ways", study, ways::programs(&config)?, &ways::report_settings(), &stop)?;
    }
    if has(Part::Whole) {
        let config = WholeConfig {
            program: find(&arguments.program)?,
            scratch: scratch.0.clone(),
            filled_bytes,
            stop: Arc::clone(&stop),
        };
        let study = whole::study(&config, pace);
        measure(arguments, "whole", study, whole::programs(&config)?, &whole::report_settings(), &stop)?;
    }
    Ok(())
}

fn measure<W: Workload>(
    arguments: &Arguments,
    name: &str,
    mut study: Study<'_, W>,
    programs: BTreeMap<String, String>,
    settings: &ReportSettings,
    stop: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    if let Some(text) = &arguments.only {
        study.workloads.retain(|row| row.name().contains(text.as_str()));
        if study.workloads.is_empty() {
            return Err(format!("no row has '{text}' in its name; without --only all are measured").into());
        }
    }
    let progress = |text: &str| eprintln!("{text}");
    let plan = study.plan();
    progress(&plan.to_string());
    let directory = fs::canonicalize(&arguments.directory)?.join(name);
    fs::create_dir_all(&directory)?;
    let machine = Machine::describe(&directory, programs)?;
    let mut store = Store::open(&directory.join("measurements"), &plan, &machine)?;
    study.run(&mut store, &progress, stop)?;
    let report = Report::of(&store, settings);
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
