//! `strongroom-lab first-writes`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde::Serialize;
use strongroom_lab::first_writes::error::StudyError;
use strongroom_lab::first_writes::product::{ImageFormat, StorageDaemon, Strongroom};
use strongroom_lab::first_writes::report::Tables;
use strongroom_lab::first_writes::result::FileSystemResult;
use strongroom_lab::first_writes::session::Place;
use strongroom_lab::first_writes::steps::{STEPS, Step};
use strongroom_lab::first_writes::study::{Study, StudyConfig, Subject};
use strongroom_lab::programs::make_secret;
use strongroom_lab::vhost_user::front_end::Settings;

use crate::scratch::Scratch;
use crate::studied::stop_by_signals;

/// Measures first writes beside overwriting, of Strongroom's volumes and QEMU's images.
///
/// Each directory is a file system to measure on. Volumes and images are made there, served over
/// vhost-user one at a time, written, read in samples, and deleted. Needs root, qemu-img and
/// qemu-storage-daemon. scripts/measure-first-writes runs it on ext4, XFS and btrfs.
#[derive(Args)]
pub struct Arguments {
    /// Where to measure, one or more; each must be there already.
    #[arg(required = true, value_name = "DIRECTORY")]
    directories: Vec<PathBuf>,
    /// The strongroom program, of a release build.
    #[arg(long, value_name = "PATH", default_value = "target/release/strongroom")]
    program: PathBuf,
    /// Size of each disk, in MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=65536))]
    volume_mib: u64,
    /// How much of first writes counts as "until the log is full", in MiB. By default what
    /// `volume info` says of the log, and 16 if it says nothing.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4096))]
    log_mib: Option<u64>,
    /// How much each sequential phase writes, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=32768))]
    sequential_mib: u64,
    /// Only these steps of a round.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = STEPS)]
    steps: Vec<Step>,
    /// Rounds; every other one goes backwards.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Queues, each with its own requests in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    queues: u16,
    /// Requests in flight per queue, 4 KiB at random.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    depth: u16,
    /// Requests in flight per queue, sequential.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=128))]
    sequential_depth: u16,
    /// Where chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Strongroom alone.
    #[arg(long, conflicts_with = "raw")]
    no_peers: bool,
    /// A sparse raw file behind QEMU's storage daemon as well.
    #[arg(long)]
    raw: bool,
    /// All figures of all rounds, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    processors: usize,
    queues: u16,
    depth: u16,
    sequential_depth: u16,
    volume_bytes: u64,
    file_systems: Vec<FileSystemResult>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), StudyError> {
    let stop = catch_signals().map_err(|error| StudyError::File {
        action: "catch signals in",
        path: "/proc/self".into(),
        error,
    })?;
    let config = StudyConfig {
        volume_bytes: arguments.volume_mib << 20,
        log_bytes: arguments.log_mib.map(|mib| mib << 20),
        sequential_bytes: arguments.sequential_mib << 20,
        steps: arguments.steps.clone(),
        rounds: arguments.rounds,
        sequential_depth: arguments.sequential_depth,
        seed: arguments.seed,
    };
    let mut file_systems = Vec::new();
    for directory in &arguments.directories {
        let scratch = Scratch::new(directory, "fw")?;
        let secret = scratch.0.join("secret");
        make_secret(&secret)?;
        let subjects = subjects(arguments, &secret);
        // libvhost-user (QEMU 7.2) mistakes a chain that crosses into the next region for a loop.
        let settings = Settings { splits_regions: false, ..Settings::new(arguments.queues, arguments.depth) };
        let (directory, socket) = (scratch.0.clone(), scratch.0.join("s"));
        let place = Place { directory, socket, settings, stop: Arc::clone(&stop) };
        let study =
            Study { place, config: &config, subjects: &subjects, progress: &|text| eprintln!("{text}") };
        let result = study.run()?;
        if !arguments.json {
            print(&Tables(&result).to_string());
        }
        file_systems.push(result);
    }
    if arguments.json {
        let answer = Answer {
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            queues: arguments.queues,
            depth: arguments.depth,
            sequential_depth: arguments.sequential_depth,
            volume_bytes: config.volume_bytes,
            file_systems,
        };
        let text = serde_json::to_string_pretty(&answer);
        print(&text.map_err(|error| StudyError::Answer { command: "the report".to_owned(), error })?);
    }
    Ok(())
}

fn subjects(arguments: &Arguments, secret: &Path) -> Vec<Subject> {
    let strongroom = |name: &str, thick| {
        let (program, key_file) = (arguments.program.clone(), Some(secret.to_owned()));
        let product = Box::new(Strongroom { name: name.to_owned(), program, key_file, thick });
        Subject { product, only_overwriting: thick }
    };
    let image = |name: &str, format| {
        let product = StorageDaemon { name: name.to_owned(), format, passphrase_file: secret.to_owned() };
        Subject { product: Box::new(product), only_overwriting: false }
    };
    let mut subjects = vec![strongroom("strongroom", false), strongroom("strongroom, thick", true)];
    if !arguments.no_peers {
        subjects.push(image("qcow2 with LUKS", ImageFormat::Qcow2Luks));
    }
    if arguments.raw {
        subjects.push(image("raw, QEMU", ImageFormat::Raw));
    }
    subjects
}

fn catch_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = stop_by_signals()?;
    Ok(stop)
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}
