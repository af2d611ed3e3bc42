//! `strongroom volume upgrade`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_worker::control::{Answer, Client, ControlError, Request};

use crate::error::CliError;
use crate::output::Output;

/// The timeout for the new worker's start and the old one's draining; far beyond both.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);

/// The arguments of `upgrade`.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume stays exposed: a worker of the new program is started and given the keys, \
the old one drains and hands over, and the guest waits for a few milliseconds. NBD clients are \
disconnected in order, and reconnect. If the new program cannot take over, the old worker continues. The \
process of 'volume expose' is not replaced; it has the key, so none is needed here.

A volume that is exposed with --read-only cannot be upgraded; end that process, and expose the volume \
again.

Example, after the program was replaced by a newer one:
  strongroom volume upgrade ./ds/vm1"
)]
pub struct UpgradeArguments {
    /// Path of the volume, which must be exposed
    path: PathBuf,
}

#[derive(Serialize)]
struct Upgraded {
    path: PathBuf,
    old_worker_pid: u32,
    worker_pid: u32,
    program: String,
    stall_microseconds: u64,
}

impl fmt::Display for Upgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, old_worker_pid, worker_pid, program, stall_microseconds } = self;
        let stall_ms = *stall_microseconds as f64 / 1000.0;
        write!(
            f,
            "{}: worker {worker_pid} (version {program}) took over from worker {old_worker_pid}; the pause was {stall_ms:.1} ms",
            path.display()
        )
    }
}

impl UpgradeArguments {
    /// Asks the process that exposes the volume to exchange its worker.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let path = self.path.clone();
        let Some(client) = Client::connect(&path)? else {
            return Err(CliError::NotExposed { path, consequence: "nothing is to be upgraded" });
        };
        match client.ask(Request::Upgrade, ANSWER_WITHIN)? {
            Answer::Upgraded { old_worker_pid, worker_pid, program, stall_microseconds } => {
                output.answer(&Upgraded { path, old_worker_pid, worker_pid, program, stall_microseconds })
            }
            other => Err(ControlError::of_answer(&path, other).into()),
        }
    }
}
