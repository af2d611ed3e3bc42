//! Starts monitors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::time::Duration;

use crate::launch::{Become, Files, Isolation, LaunchError, Launcher, Measure, Plan, Process, launch};
use crate::packet;

/// The interval after which the wait for a process is repeated.
const WAIT: Duration = Duration::from_secs(3600);

/// The process of a monitor. It ends when one of its connections ends. It is killed when this value
/// is dropped, or when the process that started it ends.
#[derive(Debug)]
pub struct MonitorProcess(Process);

impl MonitorProcess {
    /// Starts a monitor with a user of its own, for an unused connection to QEMU. Returns it with
    /// the supervisor's side of its connection. `becomes` says with whom it speaks.
    pub(crate) fn start(
        isolation: &Isolation<'_>,
        becomes: Become,
        qemu: UnixStream,
    ) -> Result<(Self, OwnedFd), LaunchError> {
        let program = becomes.to_string();
        let failed = |error: io::Error| LaunchError::Spawn { program: program.clone(), error };
        let (ours, theirs) = packet::pair().map_err(|errno| failed(errno.into()))?;
        let user = isolation.user_beside()?;
        let isolation = Owned::of(&user.isolation(isolation)).map_err(failed)?;
        let mut files = Files::default();
        files.add(theirs);
        files.add(qemu.into());
        let launched = on_lasting_thread(move || {
            let isolation = &isolation.borrowed();
            launch(isolation, &Plan { becomes, ..Plan::of(isolation) }, &files)
        });
        Ok((Self(launched.map_err(failed)??), ours))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Waits until it has ended. It is reaped when this value is dropped.
    pub fn wait(&self) {
        while !self.0.wait(WAIT) {}
    }

    /// Kills it, and waits for its end.
    pub fn end(&self) {
        self.0.send_kill();
        self.wait();
    }
}

impl Drop for MonitorProcess {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Owned copies of the fields of an [`Isolation`].
struct Owned {
    launcher: Launcher,
    user: Option<(u32, u32)>,
    lease: Option<OwnedFd>,
    cgroup: Option<PathBuf>,
    must: Vec<Measure>,
}

impl Owned {
    fn of(isolation: &Isolation<'_>) -> io::Result<Self> {
        Ok(Self {
            launcher: isolation.launcher.clone(),
            user: isolation.user,
            lease: isolation.lease.map(|lease| lease.try_clone_to_owned()).transpose()?,
            cgroup: isolation.cgroup.map(Into::into),
            must: isolation.must.to_vec(),
        })
    }

    fn borrowed(&self) -> Isolation<'_> {
        Isolation {
            launcher: &self.launcher,
            user: self.user,
            lease: self.lease.as_ref().map(AsFd::as_fd),
            users: None,
            cgroup: self.cgroup.as_deref(),
            must: &self.must,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs a job on a thread that lasts as long as the process: a monitor is killed when the *thread*
/// that started it ends (`PR_SET_PDEATHSIG`).
fn on_lasting_thread<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    static JOBS: OnceLock<Sender<Job>> = OnceLock::new();
    let jobs = match JOBS.get() {
        Some(jobs) => jobs,
        None => {
            let (sender, jobs) = channel::<Job>();
            // If two threads race, the loser's new thread ends at once, with its channel.
            std::thread::Builder::new()
                .name("monitors".to_owned())
                .spawn(move || jobs.into_iter().for_each(|job| job()))?;
            JOBS.get_or_init(|| sender)
        }
    };
    let (done, result) = sync_channel(1);
    let gone = |_| io::Error::other("the thread that starts monitors is gone");
    jobs.send(Box::new(move || drop(done.send(job())))).map_err(|_| gone(()))?;
    result.recv().map_err(|_| gone(()))
}
