//! `strongroom-lab ceph`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use strongroom_lab::ceph::comparison::{CephConfig, programs, report_settings, study};
use strongroom_lab::programs::make_secret;
use strongroom_lab::study::Pace;

use crate::studied::{found, keep_only, made, measure, stop_by_signals};

/// Measures volumes on a Ceph cluster beside QEMU's own driver of its images, plain and with LUKS.
///
/// All images lie in one pool, and are made and written first. Needs root, qemu-img and
/// qemu-storage-daemon with the module of `rbd` (Debian: qemu-block-extra). `make measure-ceph`
/// runs it with a cluster of this machine. Ends with a table for each row.
#[derive(Args)]
pub struct Arguments {
    /// Configuration file of the cluster's client.admin, with a keyring beside it.
    #[arg(long, value_name = "FILE")]
    conf: PathBuf,
    /// Pool of the images, which has a namespace 'lab'.
    #[arg(long, default_value = "rep2")]
    pool: String,
    /// The program that serves our volumes, of a release build: the worker's example.
    #[arg(long, value_name = "PATH", default_value = "target/release/examples/serve_from_ceph")]
    program: PathBuf,
    /// Where results are; made if it is missing.
    #[arg(long, value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Size of an image, in MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    image_mib: u64,
    /// Rounds; every other one goes backwards. Fewer than six give no verdict.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure only rows whose names have this text, such as 'at half'.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// How long each measurement is, in seconds, beside a third of it to warm up.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let stop = stop_by_signals()?;
    let directory = made(&arguments.directory)?;
    let config = CephConfig {
        conf: found(&arguments.conf)?,
        pool: arguments.pool.clone(),
        program: found(&arguments.program)?,
        secret: directory.join("secret"),
        directory: directory.clone(),
        bytes: arguments.image_mib << 20,
        stop: Arc::clone(&stop),
    };
    make_secret(&config.secret)?;
    let duration = Duration::try_from_secs_f64(arguments.seconds)?;
    let pace = Pace { rounds: arguments.rounds, warm_up: duration / 3, duration };
    let progress = |text: &str| eprintln!("{text}");
    let mut study = study(&config, pace, &progress).map_err(|error| error.to_string())?;
    keep_only(&mut study, arguments.only.as_deref())?;
    measure(&directory, study, programs(&config)?, &report_settings(), &stop)
}
