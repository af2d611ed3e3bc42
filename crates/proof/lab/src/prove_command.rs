//! `strongroom-lab prove`.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use strongroom_lab::prove::claims::{claims, report_settings};
use strongroom_lab::prove::study::{Proof, ProofConfig, study};
use strongroom_lab::prove::work;
use strongroom_lab::study::{Machine, Pace, Report, Store, version_of};

use crate::studied::{made, stop_by_signals};

/// Puts the instrument to the test: it measures what is known beforehand, and must find it.
///
/// A delay and a rate limit injected by nbdkit's filters, within 5 %; work that takes longer, told
/// from noise; equal servers and equal work, not told apart. Ends with an error unless all of it
/// was found. Needs nbdkit and fio.
///
/// Example: strongroom-lab prove target/prove
#[derive(Args)]
pub struct Arguments {
    /// Where results are kept. The same command goes on from there after an interruption.
    directory: PathBuf,
    /// Rounds; every other one goes backwards.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each measurement is, in milliseconds, beside a quarter of it to warm up.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    duration_ms: u64,
    /// The delay that is injected, in milliseconds. A sleep of 2 ms itself is some 5 % longer on a
    /// virtual machine.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    delay_ms: u64,
    /// The rate that is injected, in 10^6 bits per second.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate_mbit: u64,
    /// How much longer the slower work takes, in per cent.
    #[arg(long, default_value_t = 5.0)]
    slower_percent: f64,
    /// What each measurement of work is off by at random, in per cent.
    #[arg(long, default_value_t = 2.0)]
    noise_percent: f64,
    /// Only these.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Proof::Delay, Proof::Rate, Proof::Same, Proof::Work])]
    proofs: Vec<Proof>,
    /// A build of strongroom.
    #[arg(long, value_name = "PATH", requires = "slower_program")]
    program: Option<PathBuf>,
    /// Another build of the same, known to be slower: it must be told from the first.
    #[arg(long, value_name = "PATH", requires = "program")]
    slower_program: Option<PathBuf>,
    /// All figures of all rounds, for programs.
    #[arg(long)]
    json: bool,
}

/// Does work for a while, and tells how much.
#[derive(Args)]
pub struct WorkArguments {
    #[arg(long)]
    passes: u64,
    #[arg(long)]
    warm_up_ms: u64,
    #[arg(long)]
    duration_ms: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let stop = stop_by_signals()?;
    let duration = Duration::from_millis(arguments.duration_ms);
    let config = ProofConfig {
        pace: Pace { rounds: arguments.rounds, warm_up: duration / 4, duration },
        delay: Duration::from_millis(arguments.delay_ms),
        rate_bits: arguments.rate_mbit * 1_000_000,
        slower: arguments.slower_percent / 100.0,
        noise: arguments.noise_percent / 100.0,
        proofs: arguments.proofs.clone(),
        lab: std::env::current_exe()?,
        programs: arguments.program.clone().zip(arguments.slower_program.clone()),
    };
    let directory = made(&arguments.directory)?;
    let mut study = study(&directory, &config, &stop).map_err(|error| error.to_string())?;
    let plan = study.plan();
    eprintln!("{plan}");
    let machine = Machine::describe(&directory, versions(&config))?;
    let mut store = Store::open(&directory, &plan, &machine)?;
    study.run(&mut store, &|text| eprintln!("{text}"), &stop)?;
    let report = Report::of(&store, &report_settings());
    let claims = claims(&store, &report, &config);
    if arguments.json {
        let answer = serde_json::json!({ "claims": claims, "report": report });
        print(&serde_json::to_string_pretty(&answer)?);
    } else {
        print(&report.to_string());
        claims.iter().for_each(|claim| print(&format!("- {claim}")));
    }
    match claims.iter().filter(|claim| !claim.holds).count() {
        0 => Ok(()),
        count => Err(format!(
            "{count} of {} claims do not hold; look at what others did on the machine, and run it again with more rounds",
            claims.len()
        )
        .into()),
    }
}

/// Runs the work that the study measures.
pub fn work(arguments: &WorkArguments) -> Result<(), Box<dyn Error>> {
    let warm_up = Duration::from_millis(arguments.warm_up_ms);
    let done = work::work(arguments.passes, warm_up, Duration::from_millis(arguments.duration_ms))?;
    print(&serde_json::to_string(&done)?);
    Ok(())
}

/// The versions of the measured programs. A missing program is reported when it is measured.
fn versions(config: &ProofConfig) -> BTreeMap<String, String> {
    let builds = config.programs.iter().flat_map(|(program, slower)| [program.clone(), slower.clone()]);
    let programs = ["nbdkit", "fio"].into_iter().map(PathBuf::from).chain(builds);
    let version = |program: PathBuf| Some((program.display().to_string(), version_of(&program).ok()?));
    programs.filter_map(version).collect()
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}
