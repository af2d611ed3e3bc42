//! `strongroom-lab vhost-user-load`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use strongroom_lab::datapath::guest_load::{GuestLoad, Guests, Order, Pattern};
use strongroom_lab::processes;
use strongroom_lab::vhost_user::guest::Pages;
use strongroom_lab::vhost_user::prepared::Lengths;

/// Loads one or more vhost-user-blk servers, and says how many requests they answered and what that
/// took of the processor.
#[derive(Args)]
#[command(after_help = "Example:
  strongroom volume expose-memory --size 1G --vhost-user unix:/tmp/memory.sock &
  strongroom-lab vhost-user-load /tmp/memory.sock --reads 70 --depth 32 --seconds 5")]
pub struct Arguments {
    /// The servers' sockets.
    #[arg(required = true, value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
    /// How much a request transfers, in bytes.
    #[arg(long, default_value_t = 4096)]
    block_bytes: u32,
    /// Requests of each queue in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    depth: u16,
    /// How many of a hundred requests are reads.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: u8,
    /// Requests of that length, and as many of a quarter, a 16th and a 64th of it, at least 4096
    /// bytes.
    #[arg(long)]
    mixed: bool,
    /// One block after another, in place of at random.
    #[arg(long)]
    sequential: bool,
    /// Queues of each disk, each with a thread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    queues: u16,
    /// How long a queue's thread looks for answers before it sleeps, in microseconds.
    #[arg(long, default_value_t = 0)]
    spin_us: u64,
    /// The guest's memory in pages of 4 KiB, in place of 2 MiB.
    #[arg(long)]
    small_pages: bool,
    /// How long is not counted, in seconds.
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// How long is counted, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// For programs.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    operations_per_second: f64,
    megabytes_per_second: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    latency_p999_us: f64,
    latency_max_us: f64,
    server_cpu_us_per_operation: f64,
    client_cpu_us_per_operation: f64,
    operations_per_kick: f64,
    operations_per_sleep: f64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let pattern = Pattern {
        order: if arguments.sequential { Order::Sequential } else { Order::Random },
        reads_percent: arguments.reads,
        block_bytes: arguments.block_bytes,
        depth: arguments.depth,
    };
    let guests = Guests {
        queues: arguments.queues,
        pages: if arguments.small_pages { Pages::Small } else { Pages::Huge },
        spin: Duration::from_micros(arguments.spin_us),
        lengths: if arguments.mixed { Lengths::Mixed } else { Lengths::Same },
    };
    let mut front_ends = Vec::new();
    let mut servers = Vec::new();
    for socket in &arguments.sockets {
        let front_end = GuestLoad::connect(socket, pattern, guests)?;
        // The listening process, and its descendants.
        let peer = getsockopt(front_end.socket(), PeerCredentials)?.pid();
        servers.extend(processes::family(peer.unsigned_abs())?);
        front_ends.push(front_end);
    }
    servers.sort_unstable();
    servers.dedup();
    let server_time = || -> Duration {
        // If a process has ended meanwhile, the load notices it.
        servers.iter().map(|id| processes::processor_time(*id).unwrap_or_default()).sum()
    };
    let mut load = GuestLoad::new(front_ends, pattern, guests, stop)?;
    let (warm_up, duration) =
        (Duration::try_from_secs_f64(arguments.warm_up)?, Duration::try_from_secs_f64(arguments.seconds)?);
    let (loaded, [before, after]) = load.run(warm_up, duration, &mut || server_time())?;
    let (operations, seconds) = (loaded.operations.max(1) as f64, loaded.elapsed.as_secs_f64());
    let us = |duration: Duration| duration.as_secs_f64() * 1e6;
    let answer = Answer {
        operations_per_second: operations / seconds,
        megabytes_per_second: loaded.bytes as f64 / seconds / 1e6,
        latency_p50_us: us(loaded.latencies.quantile(0.5)),
        latency_p99_us: us(loaded.latencies.quantile(0.99)),
        latency_p999_us: us(loaded.latencies.quantile(0.999)),
        latency_max_us: us(loaded.latencies.longest()),
        server_cpu_us_per_operation: us(after.saturating_sub(before)) / operations,
        client_cpu_us_per_operation: us(loaded.client_cpu) / operations,
        operations_per_kick: operations / loaded.kicks.max(1) as f64,
        operations_per_sleep: operations / loaded.sleeps.max(1) as f64,
    };
    if arguments.json {
        print(&serde_json::to_string_pretty(&answer)?);
    } else {
        print(&format!(
            "{:.0} IOPS, {:.1} MB/s; p50 {:.1}, p99 {:.1}, p99.9 {:.1}, longest {:.0} us; processor per request: server {:.2}, \
             guest {:.2} us; {:.1} requests for a kick, {:.1} for a sleep",
            answer.operations_per_second,
            answer.megabytes_per_second,
            answer.latency_p50_us,
            answer.latency_p99_us,
            answer.latency_p999_us,
            answer.latency_max_us,
            answer.server_cpu_us_per_operation,
            answer.client_cpu_us_per_operation,
            answer.operations_per_kick,
            answer.operations_per_sleep,
        ));
    }
    Ok(())
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}
