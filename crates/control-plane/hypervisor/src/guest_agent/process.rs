//! The process of a conversation. Before it reads a byte, it confines itself to its two sockets and
//! memory.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use strongroom_confine::deny_to_monitor;

use super::AgentRequest;
use super::channel::{Channel, Turn};
use crate::monitor::process::{MonitorError, answer};
use crate::monitor::said::{Answer, Outcome};

/// Converses with the guest for the supervisor, until that closes its connection. The process has
/// one thread and these two sockets.
pub(crate) fn run(supervisor: &OwnedFd, channel: UnixStream) -> Result<(), MonitorError> {
    // The name in process lists.
    let _ = rustix::thread::set_name(c"strongroom-qga");
    let channel = Channel::new(channel)?;
    deny_to_monitor()?;
    converse(supervisor, channel)
}

/// As [`run`], for a process that is confined.
pub(super) fn converse(supervisor: &OwnedFd, mut channel: Channel) -> Result<(), MonitorError> {
    let is_wanted = || !has_hung_up(supervisor);
    let carry_out = |request: AgentRequest, _| request.run(&mut channel, &is_wanted);
    answer(supervisor, carry_out).map_err(MonitorError::Supervisor)
}

impl AgentRequest {
    fn run(self, channel: &mut Channel, is_wanted: &dyn Fn() -> bool) -> Outcome {
        let turn = |within| Turn::new(within, is_wanted);
        match self {
            Self::Find { within } => channel.find(turn(within)).map(|()| Answer::Done),
            Self::Freeze { within } => channel.freeze(turn(within)).map(Answer::Count),
            Self::Thaw { within } => channel.thaw(turn(within)).map(Answer::Count),
        }
    }
}

/// Whether the supervisor has closed its connection.
fn has_hung_up(supervisor: &OwnedFd) -> bool {
    match recv(supervisor, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, received)) => received == 0,
        Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
    }
}
