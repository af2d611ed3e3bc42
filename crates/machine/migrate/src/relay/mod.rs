//! The relay of one end: QEMU's channels on unix sockets on this host, records on TCP connections
//! to the other.
//!
//! | file | what |
//! |---|---|
//! | `source` | accepts QEMU's connections, numbers them in that order, and connects to the target |
//! | `target` | accepts the source's connections, and connects to QEMU: channel 0 first |
//! | `channel` | a channel: how it is opened, and its two directions |
//! | `pump` | one direction of one channel, a thread each |
//! | `shared` | what the threads of a migration share: its end, its sockets, its progress |
//! | `pace` | the limit of bytes per second |
//! | `strangers` | connections that have proven nothing yet |
//!
//! A thread waits in a read or a write of the kernel, and nowhere else for long: a receiver that is
//! slow slows its sender down, and an end closes all sockets, which wakes every thread.

mod channel;
mod pace;
mod pump;
mod shared;
mod source;
mod strangers;
mod target;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::net::sockopt::socket_peercred;
use time::OffsetDateTime;

use crate::attempt::{Attempt, Part, Site, UsedGrants};
use crate::error::MigrateError;

use self::shared::Shared;

pub use self::pump::{Inbound, Outbound};
pub use self::shared::Progress;

/// The most channels of a migration: more than any link between two hosts needs.
pub const CHANNELS_MAX: u16 = 65;

/// Settings of one end.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most channels that QEMU may open: one, and as many as its `multifd-channels`. 1 to
    /// [`CHANNELS_MAX`].
    pub channels_max: u16,
    /// The most bytes per second from the source to the target, over all channels.
    pub bytes_per_second: Option<NonZeroU64>,
    /// QEMU's user. A peer of another user at QEMU's sockets is refused.
    pub qemu_user: Option<u32>,
}

impl Options {
    fn check(&self) -> Result<(), MigrateError> {
        if (1..=CHANNELS_MAX).contains(&self.channels_max) {
            return Ok(());
        }
        Err(MigrateError::Option {
            what: "the most channels of a migration",
            given: self.channels_max.into(),
            allowed: format!("from 1 to {CHANNELS_MAX}"),
        })
    }

    /// Refuses a peer of another user.
    fn admit_qemu(&self, peer: &UnixStream) -> io::Result<()> {
        let user = socket_peercred(peer)?.uid.as_raw();
        if self.qemu_user.is_none_or(|expected| expected == user) {
            return Ok(());
        }
        let reason = format!("a process of user {user} is at QEMU's socket");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    }
}

/// One end of a migration. It is cancelled when it is dropped.
pub struct Migration {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Migration {
    /// Begins to send: connects to the target, and passes on what QEMU sends to `qemu`.
    ///
    /// The grant is used up by this call. QEMU is told to `migrate` once the two hosts have
    /// [admitted](Self::is_established) each other, so that no VM notices an attempt that fails
    /// before.
    ///
    /// # Errors
    /// What [`Attempt`], [`Site`] and [`Options`] are refused for; nothing has happened then.
    pub fn send(
        attempt: Attempt,
        site: Site,
        used: &UsedGrants,
        target: SocketAddr,
        qemu: UnixListener,
        options: Options,
    ) -> Result<Self, MigrateError> {
        options.check()?;
        let admitted = attempt.admit(site, Part::Source, used, OffsetDateTime::now_utc())?;
        let shared = Arc::new(Shared::new(options.bytes_per_second));
        Self::spawn(&shared, "migrate-source", {
            let shared = Arc::clone(&shared);
            move || source::run(&shared, admitted, target, qemu, options)
        })
    }

    /// Begins to receive: admits the source at `listener`, and passes on what it sends to the QEMU
    /// that listens at `qemu`. `listener` is of this migration alone.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn receive(
        attempt: Attempt,
        site: Site,
        used: &UsedGrants,
        listener: TcpListener,
        qemu: &Path,
        options: Options,
    ) -> Result<Self, MigrateError> {
        options.check()?;
        let admitted = attempt.admit(site, Part::Target, used, OffsetDateTime::now_utc())?;
        let shared = Arc::new(Shared::new(options.bytes_per_second));
        Self::spawn(&shared, "migrate-target", {
            let (shared, qemu) = (Arc::clone(&shared), qemu.to_owned());
            move || target::run(&shared, admitted, &listener, &qemu, options)
        })
    }

    fn spawn(
        shared: &Arc<Shared>,
        name: &str,
        run: impl FnOnce() -> Result<(), MigrateError> + Send + 'static,
    ) -> Result<Self, MigrateError> {
        let ended = Arc::clone(shared);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || match run() {
            Ok(()) => ended.complete(),
            Err(error) => ended.fail(error),
        });
        Ok(Self { shared: Arc::clone(shared), thread: Some(thread.map_err(MigrateError::Resources)?) })
    }

    /// Waits until the two hosts have admitted each other, or the attempt has ended. Returns
    /// whether they have.
    pub fn is_established(&self) -> bool {
        self.shared.await_establishment()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// Sets another limit of bytes per second, from the next record on.
    pub fn set_limit(&self, bytes_per_second: Option<NonZeroU64>) {
        self.shared.set_limit(bytes_per_second);
    }

    /// Ends it, on both hosts, unless it is complete.
    pub fn cancel(&self) {
        self.shared.fail(MigrateError::Cancelled);
    }

    /// Waits for its end. It is complete when QEMU has closed all channels on both hosts and every
    /// byte has passed; whether a VM runs at the target is a question to QEMU there.
    ///
    /// # Errors
    /// Why it ended early, on this host or on the other one.
    pub fn wait(mut self) -> Result<Progress, MigrateError> {
        self.join();
        self.shared.failure().map_or_else(|| Ok(self.shared.progress()), Err)
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic ends the released program. In tests the panicked thread has reported it.
            let _ = thread.join();
        }
    }
}

impl Drop for Migration {
    fn drop(&mut self) {
        self.cancel();
        self.join();
    }
}

impl fmt::Debug for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Migration({:?})", self.progress())
    }
}
