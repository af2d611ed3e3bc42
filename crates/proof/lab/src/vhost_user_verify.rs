//! `strongroom-lab vhost-user-verify`.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::protocol::feature;
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};

/// The duration without a limit of either kind.
const SECONDS_DEFAULT: u64 = 10;
/// How long to wait for the successor of a server that died.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(30);
/// The polling period for it.
const SUCCESSOR_PAUSE: Duration = Duration::from_millis(5);

/// Makes verified load on a vhost-user-blk server. THE CONTENT OF THE DISK IS LOST.
///
/// Reads, writes, flushes, discards and write-zeroes of 512 bytes to 1 MiB, at any alignment, in
/// chains of any shape. Every sector says what it is, so that one that is lost, stale, torn or
/// misplaced is named. Fails at the first such.
#[derive(Args)]
pub struct Arguments {
    /// The server's unix socket.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Queues, each with its own requests in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    queues: u16,
    /// Requests in flight, of each queue.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    depth: u16,
    /// Entries of a queue, a power of two.
    #[arg(long, default_value_t = 128, value_parser = queue_size)]
    queue_size: u16,
    /// How much of the disk to use, from its beginning on, in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65536))]
    area_mib: u64,
    /// How long, in seconds. 10, unless a count of operations is given.
    #[arg(long, conflicts_with = "operations", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    seconds: Option<u64>,
    /// How many requests.
    #[arg(long)]
    operations: Option<u64>,
    /// Where chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do without the event index.
    #[arg(long)]
    no_event_index: bool,
    /// Do without indirect descriptors.
    #[arg(long)]
    no_indirect: bool,
    /// Let some descriptors' memory go on from one memory region into the next. QEMU 7.2's server
    /// gives up over it.
    #[arg(long)]
    split_regions: bool,
    /// When the server dies, go on with its successor, as QEMU does: nothing is sent again. Needs a
    /// server that keeps what is in flight (INFLIGHT_SHMFD).
    #[arg(long)]
    reconnect: bool,
}

fn queue_size(text: &str) -> Result<u16, String> {
    let is_size = |size: &u16| size.is_power_of_two() && (4..=1024).contains(size);
    let size = text.parse().ok().filter(is_size);
    size.ok_or_else(|| "a power of two from 4 to 1024".to_owned())
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), LoadError> {
    let mut settings = Settings::new(arguments.queues, arguments.depth);
    settings.queue_size = arguments.queue_size;
    settings.splits_regions = arguments.split_regions;
    let unless = |unwanted, feature| if unwanted { feature } else { 0 };
    settings.without_features = unless(arguments.no_event_index, feature::RING_EVENT_IDX)
        | unless(arguments.no_indirect, feature::RING_INDIRECT_DESC);
    let front_end = FrontEnd::connect(&arguments.socket, settings)?;
    let config = LoadConfig { area_bytes: arguments.area_mib << 20, ..LoadConfig::new(arguments.seed) };
    let mut load = Load::new(front_end, config)?;
    let end = Instant::now() + Duration::from_secs(arguments.seconds.unwrap_or(SECONDS_DEFAULT));
    let run = |load: &mut Load| {
        let done = load.report().operations();
        load.run(match arguments.operations {
            Some(operations) => Until::Operations(operations.saturating_sub(done)),
            None => Until::Time(end),
        })
    };
    for step in [&run as &dyn Fn(&mut Load) -> _, &Load::read_all] {
        while let Err(error) = step(&mut load) {
            match error {
                LoadError::Disconnected if arguments.reconnect => find_successor(&mut load)?,
                error => return Err(error),
            }
        }
    }
    print(&load.report());
    Ok(())
}

fn find_successor(load: &mut Load) -> Result<(), LoadError> {
    let until = Instant::now() + SUCCESSOR_TIMEOUT;
    loop {
        match load.reconnect() {
            Ok(_) => return Ok(()),
            Err(LoadError::FrontEnd(error)) if error.is_gone() && Instant::now() < until => {
                thread::sleep(SUCCESSOR_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

#[allow(clippy::print_stdout)]
fn print(report: &Report) {
    println!("{report}");
}
