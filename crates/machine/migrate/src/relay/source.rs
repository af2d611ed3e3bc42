//! The source's end.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, Scope};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use socket2::SockRef;
use strongroom_keyserver::grant::Secrecy;

use super::shared::{Shared, Socket, shut_door};
use super::{Options, channel};
use crate::attempt::Admitted;
use crate::error::MigrateError;
use crate::handshake::{HANDSHAKE_WITHIN, as_source};
use crate::keys::{Connection, Direction, SessionSecret};
use crate::line::{self, Heard};
use crate::record::{Kind, Opener, RecordError, Sealer};

/// The most bytes that wait in the kernel before they are on the wire: some milliseconds at a
/// gigabit a second. It would take as many as a long link has under way, and more, and QEMU takes
/// for sent what waits there: a guest that stands still would wait for all of it beside the rest of
/// its memory.
const UNSENT_BYTES_MAX: u32 = 1 << 20;

pub(super) fn run(
    shared: &Arc<Shared>,
    admitted: Admitted,
    target: SocketAddr,
    qemu: UnixListener,
    options: Options,
) -> Result<(), MigrateError> {
    qemu.set_nonblocking(true).map_err(MigrateError::Resources)?;
    let qemu = Arc::new(qemu);
    shared.keep(Socket::QemuDoor(Arc::downgrade(&qemu)));
    let wire = connect(shared, target)?;
    let secret = as_source(&admitted, &wire)?;
    let secrecy = admitted.secrecy();
    // The host's private key has done its work.
    drop(admitted);
    line::watch(&wire).map_err(MigrateError::PeerGone)?;
    let (speaker, listener) = line::line(&secret, Direction::ToTarget)?;
    if !shared.establish(&wire, speaker) {
        return Err(MigrateError::Cancelled);
    }
    let source = Source { shared, target, secret, secrecy, options };
    thread::scope(|scope| {
        let outcome = spawn(scope, "migrate-line", || listen(shared, listener, &wire)).and_then(|()| {
            let channels = source.accept_all(scope, &qemu)?;
            // The target waits for this, so it does not wait for the way back of a channel.
            if shared.await_sent(channels) { shared.say_channels(channels) } else { Ok(()) }
        });
        // The threads of the scope are waited for, so they have to end.
        outcome.unwrap_or_else(|error| shared.fail(error));
    });
    Ok(())
}

/// Starts a thread of the migration.
pub(super) fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() + Send + 'scope,
) -> Result<(), MigrateError> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, run);
    thread.map(drop).map_err(MigrateError::Resources)
}

/// Hears what the target says until it is complete.
fn listen(shared: &Shared, mut listener: line::Listener, wire: &TcpStream) {
    let error = match (listener.hear(wire), shared.said_channels()) {
        (Ok(Heard::End), Some(channels)) => {
            if shared.await_channels(channels) {
                // The target needs nothing more, and may be gone.
                let _ = shared.say_complete();
            }
            return;
        }
        (Ok(Heard::Failed(reason)), _) => MigrateError::PeerEnded(reason),
        (Ok(Heard::End | Heard::Channels(_)), _) => MigrateError::Line(RecordError::OutOfPlace),
        (Err(error), _) => error,
    };
    shared.fail(error);
}

struct Source<'a> {
    shared: &'a Arc<Shared>,
    target: SocketAddr,
    secret: SessionSecret,
    secrecy: Secrecy,
    options: Options,
}

impl Source<'_> {
    /// Accepts QEMU's connections until it has closed channel 0. Returns how many there were.
    fn accept_all<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        qemu: &Arc<UnixListener>,
    ) -> Result<u16, MigrateError> {
        let failed = |channel| move |error| MigrateError::Qemu { channel, error };
        let mut number = 0;
        while let Some(connection) = accept(qemu).map_err(failed(number))? {
            if number == self.options.channels_max {
                return Err(MigrateError::TooManyChannels { channels_max: number });
            }
            if let Err(error) = self.options.admit_qemu(&connection) {
                tracing::warn!(%error, "a connection to a migration's socket is refused");
                continue;
            }
            self.shared.open_channel(number);
            let qemu = Arc::clone(qemu);
            spawn(scope, &format!("migrate-{number}"), move || {
                let is_sent = || {
                    self.shared.end_sending();
                    if number == 0 {
                        // QEMU opens no channel after it has closed its main one.
                        let _ = shut_door(&*qemu);
                    }
                };
                match self.channel(number, connection, is_sent) {
                    Ok(()) => self.shared.end_channel(),
                    // The target may have failed, and says so on the line.
                    Err(error @ (MigrateError::Connect { .. } | MigrateError::Wire { .. })) => {
                        self.shared.broke_off(error);
                    }
                    Err(error) => self.shared.fail(error),
                }
            })?;
            number += 1;
        }
        Ok(number)
    }

    fn channel(&self, number: u16, qemu: UnixStream, is_sent: impl FnOnce()) -> Result<(), MigrateError> {
        let qemu = Arc::new(qemu);
        self.shared.keep(Socket::Qemu(Arc::downgrade(&qemu)));
        let of = Connection::Channel(number);
        let mut sealer = Sealer::new(self.secret.key(of, Direction::ToTarget)?, self.secrecy)?;
        let opener = Opener::new(self.secret.key(of, Direction::ToSource)?, self.secrecy)?;
        let wire = connect(self.shared, self.target)?;
        let open = sealer.sealed(Kind::Open, &[])?;
        let preamble = channel::preamble(self.secret.id()?, number);
        io::Write::write_all(&mut &*wire, &[&preamble[..], &open].concat())
            .map_err(|error| MigrateError::Wire { channel: number, error })?;
        channel::run(self.shared, number, (&qemu, &wire), (sealer, opener), Direction::ToTarget, is_sent)
    }
}

/// Accepts the next connection, or returns `None` once the listener is shut and has no more of
/// them.
fn accept(qemu: &UnixListener) -> io::Result<Option<UnixStream>> {
    loop {
        let is_shut = is_shut(qemu, None)?;
        match qemu.accept() {
            Ok((connection, _)) => return Ok(Some(connection)),
            Err(_) if is_shut => return Ok(None),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits for a connection, at most until the timeout. Returns whether the listener is shut.
pub(super) fn is_shut(listener: impl AsFd, timeout: Option<&Timespec>) -> io::Result<bool> {
    let mut door = [PollFd::new(&listener, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut door, timeout))?;
    Ok(door[0].revents().contains(PollFlags::HUP))
}

/// Whether an error of `accept` is of one connection only.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

/// Connects to the target; an end of the migration ends the wait for it.
fn connect(shared: &Shared, target: SocketAddr) -> Result<Arc<TcpStream>, MigrateError> {
    let failed = |error: io::Error| MigrateError::Connect { address: target, error };
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
    let wire = Arc::new(TcpStream::from(socket.map_err(|error| MigrateError::Resources(error.into()))?));
    shared.keep(Socket::Wire(Arc::downgrade(&wire)));
    match rustix::net::connect(&wire, &target) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(failed(error.into())),
    }
    let within = Timespec { tv_sec: HANDSHAKE_WITHIN.as_secs() as i64, tv_nsec: 0 };
    let polled =
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&*wire, PollFlags::OUT)], Some(&within)));
    if polled.map_err(|error| failed(error.into()))? == 0 {
        return Err(failed(io::ErrorKind::TimedOut.into()));
    }
    socket_error(&*wire).map_err(|error| failed(error.into()))?.map_err(|error| failed(error.into()))?;
    wire.set_nonblocking(false).map_err(failed)?;
    wire.set_nodelay(true).map_err(failed)?;
    SockRef::from(&*wire).set_tcp_notsent_lowat(UNSENT_BYTES_MAX).map_err(failed)?;
    if shared.has_ended() { Err(MigrateError::Cancelled) } else { Ok(wire) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn little_waits_in_the_kernel_for_a_long_link() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = connect(&Arc::new(Shared::new(None)), listener.local_addr().unwrap()).unwrap();
        assert_eq!(SockRef::from(&*wire).tcp_notsent_lowat().unwrap(), UNSENT_BYTES_MAX);
    }
}
