//! What a process does that a [`Launcher`](crate::Launcher) has started: it becomes a foreign
//! program, or one of the four parts of this program that have a process of their own.

use std::io;

use crate::guest_agent;
use crate::launch::{LaunchError, Parts, become_program};
use crate::monitor;
use crate::network::frame_filter;
use crate::swtpm;

/// Becomes the program that the supervisor names. The supervisor's socket is this process's
/// standard input. The caller must call this first of all, with a single thread. Returns only on an
/// error, which has then been reported to the supervisor.
pub fn process_main() -> LaunchError {
    become_program(&Parts {
        frame_filter: |guest, network, addresses| frame_filter::run(guest.into(), network.into(), addresses),
        monitor: |supervisor, qemu| monitor::process::run(supervisor, qemu.into()).map_err(io::Error::other),
        agent_monitor: |supervisor, channel| {
            guest_agent::process::run(&supervisor, channel.into()).map_err(io::Error::other)
        },
        tpm_gate: swtpm::gate::run,
    })
}
