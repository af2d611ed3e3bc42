//! `strongroom volume expose-memory`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::vhost_user_blk::QUEUES_MAX;
use strongroom_processes::Signals;
use strongroom_types::{VolumeSize, display_bytes};
use strongroom_worker::birth::Frontend;
use strongroom_worker::supervise::{
    Birthright, MemoryExposure, Quarters, WorkerStarter, Workers, limit_page,
};

use super::target::{UnixAddress, absolute};
use crate::error::CliError;
use crate::limits::LimitArguments;
use crate::output::Output;
use crate::readiness;
use crate::worker::{WORKER_COMMAND, this_program};

/// The export's name, and the disk's serial number.
const NAME: &str = "memory";

/// The arguments of `expose-memory`.
#[derive(Debug, Args)]
#[command(
    after_help = "For tests, and for measuring the cost of serving and encrypting without a disk. The \
disk is empty, and its content is in the memory of the process that serves it: it is lost when the \
process ends, and a process that dies is not replaced. Blocks are encrypted like a volume's, under a \
temporary key.

Runs in the foreground. When clients can connect, the first line on stdout is the socket's path. \
SIGTERM, SIGINT (Control-C) and SIGHUP end it.

Examples:
  strongroom volume expose-memory --size 2G --vhost-user unix:/run/memory.sock
  strongroom volume expose-memory --size 2G --nbd unix:/run/memory.sock --unencrypted"
)]
pub struct ExposeMemoryArguments {
    /// Size that clients see, such as 2G; memory is allocated on write
    #[arg(long)]
    size: VolumeSize,

    #[command(flatten)]
    address: SocketArguments,

    /// Do not encrypt
    #[arg(long)]
    unencrypted: bool,

    #[command(flatten)]
    limits: LimitArguments,
}

/// The socket and the protocol.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SocketArguments {
    /// Address for NBD clients: unix:SOCKET
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<UnixAddress>,

    /// Address for QEMU, as a virtio disk in shared memory: unix:SOCKET
    #[arg(long, value_name = "ADDRESS")]
    vhost_user: Option<UnixAddress>,
}

#[derive(Serialize)]
struct Exposed {
    socket: PathBuf,
    size_bytes: u64,
    encrypted: bool,
    /// The process that exposes it: this one.
    pid: u32,
    /// The process that serves it.
    worker_pid: u32,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protection = if self.encrypted { "encrypted" } else { "NOT encrypted" };
        writeln!(f, "{}\n", self.socket.display())?;
        write!(
            f,
            "An empty disk in memory ({}, {protection}) is exposed by worker {} until Control-C or SIGTERM; its content is gone \
             then.",
            display_bytes(self.size_bytes),
            self.worker_pid
        )
    }
}

impl ExposeMemoryArguments {
    /// Runs the command: exposes the disk until a signal arrives. `log` makes the worker log as
    /// this process does.
    pub fn run(&self, output: &Output, log: &[OsString]) -> Result<(), CliError> {
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let (frontend, socket) = match &self.address {
            SocketArguments { nbd: Some(UnixAddress(socket)), .. } => {
                (Frontend::Nbd { export: NAME.to_owned(), tls: None }, socket)
            }
            SocketArguments { vhost_user: Some(UnixAddress(socket)), .. } => {
                (Frontend::VhostUser { serial: NAME.to_owned(), queues_max: QUEUES_MAX }, socket)
            }
            _ => return Err(CliError::Usage("say where: --nbd or --vhost-user unix:SOCKET".to_owned())),
        };
        let socket = absolute(socket)?;
        let program = this_program(log, WORKER_COMMAND)?;
        let limits = vec![limit_page(self.limits.limits())?];
        let birthright =
            Birthright { frontend, tls_key: None, name: NAME.to_owned(), placement: None, limits };
        let exposure = MemoryExposure {
            size_bytes: self.size,
            encrypted: !self.unencrypted,
            listener: Listener::bind_for(&Address::Unix(socket.clone()), None)?,
            birthright,
            workers: Workers::of(Arc::new(WorkerStarter::new(program, Quarters::OfItsOwn))),
        };
        let mut answered = Ok(());
        exposure.serve(&signals, |worker_pid| {
            readiness::tell("READY=1");
            answered = output.answer(&Exposed {
                socket,
                size_bytes: self.size.bytes(),
                encrypted: !self.unencrypted,
                pid: std::process::id(),
                worker_pid,
            });
        })?;
        answered
    }
}
