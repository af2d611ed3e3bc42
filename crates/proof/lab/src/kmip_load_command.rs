//! `strongroom-lab kmip-load`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use strongroom_lab::kmip_load::{Identity, LoadConfig, LoadError, run as make_load};

/// Gets one key from a KMIP server as often as it answers, or at a rate, and says how often and how
/// fast.
///
/// The key is created for it, AES-256, and stays. The answer is one JSON document.
/// scripts/measure-kmip runs it on Strongroom's key server, on PyKMIP's and on one out of kmip-go's
/// parts.
#[derive(clap::Args)]
pub struct Arguments {
    /// The server.
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// The authority of the server's certificate, PEM.
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// The client's certificate, PEM.
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Its key, PEM.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Connections; each has one request under way.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// How long.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How long before anything counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=60))]
    warm_up_seconds: u64,
    /// Gets a second, of all connections together; without it as fast as they are answered.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<(), LoadError> {
    let identity = Identity::new(&arguments.server, &arguments.ca, &arguments.cert, &arguments.key)?;
    let config = LoadConfig {
        connections: arguments.connections,
        duration: Duration::from_secs(arguments.seconds),
        warm_up: Duration::from_secs(arguments.warm_up_seconds),
        rate: arguments.rate,
    };
    let result = make_load(&identity, &config)?;
    let answer = serde_json::json!(result);
    writeln!(io::stdout(), "{answer}").map_err(LoadError::Output)
}
