//! The target's end.

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::Timespec;
use strongroom_keyserver::grant::Secrecy;
use strongroom_keyserver::grant::verify::CLOCK_SKEW_SECONDS;
use time::OffsetDateTime;

use super::shared::{Shared, Socket, shut_door};
use super::source::{is_passing, is_shut, spawn};
use super::strangers::Strangers;
use super::{Options, channel};
use crate::attempt::Admitted;
use crate::error::MigrateError;
use crate::handshake::{Timed, as_target};
use crate::keys::{Connection, Direction, SessionSecret};
use crate::line::{self, Heard};
use crate::record::{Kind, OVERHEAD_BYTES, Opener, RecordError, Sealer};

/// The first byte of a TLS handshake (RFC 8446, 5.1).
const TLS_HANDSHAKE: u8 = 22;

pub(super) fn run(
    shared: &Arc<Shared>,
    admitted: Admitted,
    listener: &TcpListener,
    qemu: &Path,
    options: Options,
) -> Result<(), MigrateError> {
    let (vm, secrecy) = (admitted.grant.migrating().vm, admitted.secrecy());
    let good_for = admitted.grant.period().expires.0.saturating_add(CLOCK_SKEW_SECONDS);
    let good_for = good_for.saturating_sub(OffsetDateTime::now_utc().unix_timestamp().unsigned_abs());
    let until = Instant::now() + Duration::from_secs(good_for);
    listener.set_nonblocking(true).map_err(MigrateError::Resources)?;
    let listener = Arc::new(listener.try_clone().map_err(MigrateError::Resources)?);
    shared.keep(Socket::WireDoor(Arc::downgrade(&listener)));
    let target = Target {
        shared,
        strangers: Strangers::default(),
        is_complete: AtomicBool::new(false),
        handshake: Mutex::new(Some(Arc::new(admitted))),
        session: Mutex::new(None),
        secrecy,
        listener: &listener,
        qemu,
        options,
    };
    thread::scope(|scope| {
        let outcome = target.accept_all(scope, until).and_then(|is_in_time| match is_in_time {
            false => Err(MigrateError::NobodyCame { vm }),
            true if target.is_complete.load(Ordering::Acquire) => shared.say_complete(),
            true => Err(MigrateError::Resources(io::Error::other("its listener was closed"))),
        });
        // The threads of the scope are waited for, so they have to end.
        outcome.unwrap_or_else(|error| shared.fail(error));
        target.strangers.dismiss();
    });
    Ok(())
}

struct Target<'a> {
    shared: &'a Arc<Shared>,
    strangers: Strangers,
    /// All channels have ended, and the listener is shut therefore.
    is_complete: AtomicBool,
    /// What a handshake needs; gone after the one that succeeds.
    handshake: Mutex<Option<Arc<Admitted>>>,
    session: Mutex<Option<Arc<SessionSecret>>>,
    secrecy: Secrecy,
    listener: &'a Arc<TcpListener>,
    qemu: &'a Path,
    options: Options,
}

impl<'a> Target<'a> {
    /// Accepts connections until all channels of which the source says that it has sent everything
    /// over them have ended. Returns `false` if nobody has come until `until`.
    fn accept_all<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        until: Instant,
    ) -> Result<bool, MigrateError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && !self.shared.is_established() {
                return Ok(false);
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let left = (!self.shared.is_established()).then_some(&left);
            if is_shut(&**self.listener, left).map_err(MigrateError::Resources)? {
                return Ok(true);
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => Arc::new(stream),
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(MigrateError::Resources(error)),
            };
            self.strangers.let_in(Arc::downgrade(&stream));
            self.shared.keep(Socket::Wire(Arc::downgrade(&stream)));
            spawn(scope, "migrate-stranger", move || self.meet(scope, &stream))?;
        }
    }

    /// Finds out who has connected. Whoever proves nothing changes nothing.
    fn meet<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, stream: &Arc<TcpStream>) {
        let mut first = [0];
        let _ = stream.set_nodelay(true);
        let peeked = stream
            .set_read_timeout(Some(crate::handshake::HANDSHAKE_WITHIN))
            .and_then(|()| stream.peek(&mut first));
        let met = match (peeked, first) {
            (Ok(1), [TLS_HANDSHAKE]) => self.shake_hands(scope, stream),
            (Ok(1), _) => self.open_channel(stream),
            _ => return,
        };
        met.unwrap_or_else(|error| self.shared.fail(error));
    }

    /// Admits the source, and hears what it says until the end.
    fn shake_hands<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        stream: &Arc<TcpStream>,
    ) -> Result<(), MigrateError> {
        let Some(admitted) = self.handshake.lock().clone() else { return Ok(()) };
        let mut agreed = None;
        // The session is known before the source hears that it is accepted: its channels come at
        // once then. The host's private key has done its work.
        let shaken = as_target(&admitted, stream, |secret| {
            if self.handshake.lock().take().is_some() {
                let secret = Arc::new(secret);
                *self.session.lock() = Some(Arc::clone(&secret));
                agreed = Some(secret);
            }
        });
        drop(admitted);
        let secret = match (shaken, agreed) {
            (Ok(()), Some(secret)) => secret,
            // The source has come twice; the first connection counts.
            (Ok(()), None) => return Ok(()),
            // It was the source, which is gone again or has another grant.
            (Err(error), Some(_)) | (Err(error @ MigrateError::GrantsDiffer { .. }), None) => {
                return Err(error);
            }
            (Err(error), None) => {
                tracing::warn!(%error, "somebody has been refused by the target of a migration");
                return Ok(());
            }
        };
        let (speaker, mut listener) = line::line(&secret, Direction::ToSource)?;
        if !self.shared.establish(stream, speaker) {
            return Ok(());
        }
        self.strangers.know(&Arc::downgrade(stream));
        line::watch(stream).map_err(MigrateError::PeerGone)?;
        let mut channels = None;
        loop {
            match (listener.hear(stream), channels) {
                (Ok(Heard::Channels(count)), None) => {
                    channels = Some(count);
                    spawn(scope, "migrate-complete", move || self.complete_after(count))?;
                }
                // The source has heard that this side is complete, or is gone, which changes
                // nothing here any more.
                (Ok(Heard::End) | Err(_), Some(_)) if self.shared.has_said_complete() => return Ok(()),
                (Ok(Heard::Failed(reason)), _) => return Err(MigrateError::PeerEnded(reason)),
                (Ok(Heard::Channels(_) | Heard::End), _) => {
                    return Err(MigrateError::Line(RecordError::OutOfPlace));
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Accepts nothing more once so many channels have ended: this side is complete.
    fn complete_after(&self, channels: u16) {
        if self.shared.await_channels(channels) {
            self.is_complete.store(true, Ordering::Release);
            let _ = shut_door(&**self.listener);
        }
    }

    /// Admits a channel of the session, and passes everything on until its end.
    fn open_channel(&self, wire: &Arc<TcpStream>) -> Result<(), MigrateError> {
        let session = self.session.lock().clone();
        let Some(secret) = session else { return Ok(()) };
        let mut preamble = [0; channel::PREAMBLE_BYTES];
        let mut open = [0; OVERHEAD_BYTES];
        let mut timed = Timed::new(wire);
        if timed.read_exact(&mut preamble).and_then(|()| timed.read_exact(&mut open)).is_err() {
            return Ok(());
        }
        let Some(number) = channel::number_of(secret.id()?, preamble) else { return Ok(()) };
        let of = Connection::Channel(number);
        let mut opener = Opener::new(secret.key(of, Direction::ToTarget)?, self.secrecy)?;
        if !matches!(opener.open(&mut open), Ok((Kind::Open, _))) {
            tracing::warn!(
                number,
                "a connection that is not the source's is refused as a migration's channel"
            );
            return Ok(());
        }
        if number >= self.options.channels_max {
            return Err(MigrateError::TooManyChannels { channels_max: self.options.channels_max });
        }
        if !self.shared.open_channel(number) {
            // Somebody repeats the beginning of a channel that the source has opened.
            tracing::warn!(number, "a migration's channel is opened again, which is refused");
            return Ok(());
        }
        self.strangers.know(&Arc::downgrade(wire));
        // It may be here before the line is, on which the source would hear of a failure.
        if !self.shared.await_establishment() {
            return Ok(());
        }
        // Older QEMU takes the first connection for its main channel.
        if number > 0 && !self.shared.await_main() {
            return Ok(());
        }
        let failed = |error| MigrateError::Qemu { channel: number, error };
        let qemu = UnixStream::connect(self.qemu).map_err(failed)?;
        self.options.admit_qemu(&qemu).map_err(failed)?;
        let qemu = Arc::new(qemu);
        self.shared.keep(Socket::Qemu(Arc::downgrade(&qemu)));
        if number == 0 {
            self.shared.has_main();
        }
        let sealer = Sealer::new(secret.key(of, Direction::ToSource)?, self.secrecy)?;
        channel::run(self.shared, number, (&qemu, wire), (sealer, opener), Direction::ToSource, || ())?;
        self.shared.end_channel();
        Ok(())
    }
}
