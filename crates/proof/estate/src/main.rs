//! `strongroom-estate`: measures the control plane of a large site with simulated hosts.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use strongroom_estate::api::Api;
use strongroom_estate::error::{EstateError, system};
use strongroom_estate::load::{self, KnownVm, LoadConfig};
use strongroom_estate::machines;
use strongroom_estate::measure::{Idle, LoadFigures, Measured, Readings, Started};
use strongroom_estate::network;
use strongroom_estate::site::{Role, Site};

/// The address of key server and hosts, in a network of their own.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));

/// Starts a site with simulated hosts, fills it, and measures its control plane, which has one
/// processor, while hosts, key server and driver have another. As root. Prints JSON.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The program.
    #[arg(long, value_name = "FILE")]
    program: PathBuf,
    /// A directory for the site, which must be empty.
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
    /// Hosts.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    hosts: u16,
    /// Numbers of VMs at which to measure, in rising order; a tenth of them runs.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000])]
    vms: Vec<usize>,
    /// Duration of each mixed load, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Duration of each time in which nothing happens, in seconds.
    #[arg(long, default_value_t = 60)]
    idle_seconds: u64,
    /// Operations under way at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// How long an operation takes on a host, in milliseconds.
    #[arg(long, default_value_t = 10)]
    operation_ms: u64,
    /// Encrypts the VMs, each under a key of its own.
    #[arg(long)]
    encrypted: bool,
    /// Seed of the order of operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The figures at one number of VMs.
#[derive(Serialize)]
struct Stage {
    vms: usize,
    running: usize,
    hosts: u16,
    encrypted: bool,
    filled_per_second: f64,
    start: Started,
    readings_ms: Readings,
    idle: Idle,
    load: LoadFigures,
    differences: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strongroom-estate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), EstateError> {
    network::enter_own(ADDRESS)?;
    // Everything that this process starts inherits it.
    pin(std::process::id(), 1)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    runtime.map_err(system("make a runtime"))?.block_on(measure(arguments))
}

/// Gives all threads of a process one processor.
fn pin(process: u32, processor: usize) -> Result<(), EstateError> {
    let mut only = CpuSet::new();
    only.set(processor).map_err(|errno| system("set processors")(errno.into()))?;
    let mut seen = BTreeSet::new();
    // A thread that begins meanwhile has the processors of the one that began it, and that may not
    // have been seen yet.
    loop {
        let threads = fs::read_dir(format!("/proc/{process}/task")).map_err(system("list threads"))?;
        let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let new: Vec<i32> = threads.filter(|thread| seen.insert(*thread)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in new {
            match sched_setaffinity(Pid::from_raw(thread), &only) {
                // It has ended.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(system("set processors")(errno.into())),
            }
        }
    }
}

async fn measure(arguments: &Arguments) -> Result<(), EstateError> {
    std::fs::create_dir_all(&arguments.directory).map_err(system("make the site's directory"))?;
    let site = Site::start(&arguments.program, &arguments.directory, ADDRESS)?;
    let pin_control = |control| pin(control, 0);
    pin_control(site.process(Role::Control)?)?;
    let api = Api::of(site.home())?;
    let machines = machines::join(
        &api,
        arguments.hosts,
        &arguments.directory.join("hosts"),
        machines::Joining {
            address: ADDRESS,
            operation_takes: Duration::from_millis(arguments.operation_ms),
        },
    )
    .await?;
    let measured = Measured { site: &site, api: &api, machines: &machines };
    let (workers, encrypted) = (usize::from(arguments.workers), arguments.encrypted);
    let mut known: Vec<KnownVm> = Vec::new();
    let mut ran = 0;
    let mut named = 0;
    for (vms, seed) in arguments.vms.iter().zip(arguments.seed..) {
        tell(&format!("filling up to {vms} VMs"))?;
        let began = Instant::now();
        let more: Vec<KnownVm> = (known.len()..*vms)
            .map(|_| {
                named += 1;
                let datastore = machines::datastore(named % usize::from(arguments.hosts));
                KnownVm::new(format!("vm-{named:05}"), datastore)
            })
            .collect();
        load::fill(&api, &more, workers, encrypted).await?;
        let filled_per_second = more.len() as f64 / began.elapsed().as_secs_f64();
        known.extend(more);
        let (running, first) = (vms / 10, known.len() - (vms / 10 - ran));
        load::start(&api, &mut known[first..], workers).await?;
        ran = running;
        tell("starting the control plane anew")?;
        let start = measured.start(known.len(), pin_control).await?;
        let readings_ms = measured.read("vm-00500", 200).await?;
        tell("idle")?;
        let idle = measured.idle(Duration::from_secs(arguments.idle_seconds)).await?;
        tell("under load")?;
        let config =
            LoadConfig { duration: Duration::from_secs(arguments.seconds), workers, encrypted, seed };
        let (load, loaded) = measured.under_load(load::run(&api, std::mem::take(&mut known), config)).await?;
        loaded.failures.iter().take(5).try_for_each(|failure| tell(failure))?;
        known = loaded.vms;
        let on_hosts: Vec<_> = machines.iter().flat_map(|machine| machine.host.vms()).collect();
        let differences = load::differences(&api, &known, &on_hosts).await?;
        differences.iter().take(5).try_for_each(|difference| tell(difference))?;
        print(&Stage {
            vms: *vms,
            running,
            hosts: arguments.hosts,
            encrypted,
            filled_per_second,
            start,
            readings_ms,
            idle,
            load,
            differences: differences.len(),
        })?;
    }
    drop(machines);
    site.stop()
}

fn tell(text: &str) -> Result<(), EstateError> {
    writeln!(io::stderr(), "{text}").map_err(system("write to stderr"))
}

fn print(stage: &Stage) -> Result<(), EstateError> {
    let text = serde_json::to_string(stage).map_err(|error| EstateError::Unexpected(error.to_string()))?;
    writeln!(io::stdout(), "{text}").map_err(system("write to stdout"))
}
