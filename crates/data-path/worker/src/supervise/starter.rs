//! Starts workers.
//!
//! That takes rights: to give a worker a user, namespaces and a cgroup. A supervisor that holds
//! keys has given those rights up, so it asks a process without keys ([`StartsWorkers`]). A
//! supervisor that has no such rights starts workers itself ([`WorkerStarter`]).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use strongroom_confine::UidLease;
use strongroom_filters::qos;
use strongroom_statistics::{LAYOUT, Page};

use super::Birthright;
use super::program::Program;
use super::quarters::{Place, Quarters};
use super::said::Said;
use crate::birth::{BirthSocket, Frontend, LimitPages, Order, Start};
use crate::placement::Placement;

/// The parameters of a new worker.
#[derive(Debug)]
pub struct NewWorker<'a> {
    /// What clients speak.
    pub frontend: &'a Frontend,
    /// Its placement.
    pub placement: Option<Placement>,
    /// A name for its cgroup.
    pub name: &'a str,
    /// Where clients connect.
    pub listener: BorrowedFd<'a>,
    /// Its statistics page, in this program's layout.
    pub page: Option<BorrowedFd<'a>>,
    /// The pages of its limits, in this program's layout.
    pub limits: Vec<BorrowedFd<'a>>,
}

impl<'a> NewWorker<'a> {
    /// The files that a request for a worker carries to another process.
    pub fn files(&self) -> Vec<BorrowedFd<'a>> {
        std::iter::once(self.listener).chain(self.page).chain(self.limits.iter().copied()).collect()
    }

    /// The worker of a request with these [`files`](Self::files), the last `limit_pages` of which
    /// are those of its limits.
    ///
    /// # Errors
    /// If there are other files.
    pub fn of_files(
        frontend: &'a Frontend,
        placement: Option<Placement>,
        name: &'a str,
        files: &'a [OwnedFd],
        limit_pages: usize,
    ) -> io::Result<Self> {
        let wrong = || io::Error::other("a worker was asked for with other files than it gets");
        let (listener, pages) = files.split_first().ok_or_else(wrong)?;
        let page_count = pages.len().checked_sub(limit_pages).filter(|count| *count <= 1);
        let (page, limits) = pages.split_at(page_count.ok_or_else(wrong)?);
        Ok(Self {
            frontend,
            placement,
            name,
            listener: listener.as_fd(),
            page: page.first().map(AsFd::as_fd),
            limits: limits.iter().map(AsFd::as_fd).collect(),
        })
    }
}

/// A worker that was sent [`Order::Start`].
#[derive(Debug)]
pub struct Born {
    /// Its process id.
    pub pid: u32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
    /// The supervisor's end of the worker's socket.
    pub socket: OwnedFd,
}

/// The index of one of a starter's programs.
pub type ProgramNumber = u32;

/// Starts workers, and ends them.
pub trait StartsWorkers: fmt::Debug + Send + Sync {
    /// Opens the program that is installed now.
    ///
    /// # Errors
    /// If it cannot be opened.
    fn installed_now(&self) -> io::Result<ProgramNumber>;

    /// Starts a worker.
    ///
    /// # Errors
    /// If the process cannot be started.
    fn start(&self, program: ProgramNumber, worker: &NewWorker<'_>) -> io::Result<Born>;

    /// How a worker ended, if it has. Then the caller must not ask again.
    fn ended(&self, pid: u32) -> Option<ExitStatus>;

    /// Kills a worker.
    fn kill(&self, pid: u32);
}

/// The starter and the program of a volume's workers.
#[derive(Clone, Debug)]
pub struct Workers {
    pub(super) starter: Arc<dyn StartsWorkers>,
    program: ProgramNumber,
}

impl Workers {
    /// Workers of a starter's first program.
    pub fn of(starter: Arc<dyn StartsWorkers>) -> Self {
        Self { starter, program: 0 }
    }

    /// Workers of the program that is installed now.
    pub(super) fn installed_now(&self) -> io::Result<Self> {
        let program = self.starter.installed_now()?;
        Ok(Self { starter: Arc::clone(&self.starter), program })
    }

    pub(super) fn start(
        &self,
        birthright: &Birthright,
        listener: BorrowedFd<'_>,
        page: Option<&Page>,
    ) -> io::Result<Born> {
        let Birthright { frontend, name, placement, limits, tls_key: _ } = birthright;
        let (placement, page) = (*placement, page.map(AsFd::as_fd));
        let limits = limits.iter().map(|page| page.as_fd()).collect();
        self.starter.start(self.program, &NewWorker { frontend, placement, name, listener, page, limits })
    }
}

/// Starts workers as children of this process.
#[derive(Debug)]
pub struct WorkerStarter {
    /// The programs by number. They are never removed, and there is at most one for each installed
    /// file.
    programs: Mutex<Vec<Arc<Program>>>,
    quarters: Quarters,
    /// The most workers that live at once.
    workers_max: usize,
    children: Mutex<HashMap<u32, Started>>,
}

#[derive(Debug)]
struct Started {
    child: Child,
    said: Said,
    /// `None` once the process is gone, and its user may belong to another one.
    place: Option<Place>,
}

impl WorkerStarter {
    /// Starts workers of this program, limited by `quarters`.
    pub fn new(program: Program, quarters: Quarters) -> Self {
        let programs = Mutex::new(vec![Arc::new(program)]);
        Self { programs, quarters, workers_max: usize::MAX, children: Mutex::default() }
    }

    /// Limits how many workers live at once.
    #[must_use]
    pub fn at_most(self, workers_max: usize) -> Self {
        Self { workers_max, ..self }
    }

    /// Waits for the end of all workers after their supervisor has gone, so that their last output
    /// is still copied.
    pub fn wait_for_all(&self) {
        let children = std::mem::take(&mut *self.children.lock());
        for mut started in children.into_values() {
            let _ = started.child.wait();
            started.said.finish();
        }
    }
}

impl StartsWorkers for WorkerStarter {
    fn installed_now(&self) -> io::Result<ProgramNumber> {
        let mut programs = self.programs.lock();
        let Some(first) = programs.first() else { return Err(io::ErrorKind::NotFound.into()) };
        let installed = first
            .installed_now()
            .map_err(|error| io::Error::other(format!("cannot open {}: {error}", first.path().display())))?;
        let known = programs.iter().position(|known| known.is_same_file(&installed));
        let number = known.unwrap_or_else(|| {
            programs.push(Arc::new(installed));
            programs.len() - 1
        });
        ProgramNumber::try_from(number).map_err(io::Error::other)
    }

    fn start(&self, program: ProgramNumber, worker: &NewWorker<'_>) -> io::Result<Born> {
        let program = self.programs.lock().get(program as usize).cloned();
        let program = program.ok_or_else(|| io::Error::other("no such program"))?;
        // Held until the new worker is counted: another one may be requested meanwhile.
        let mut children = self.children.lock();
        make_room(&mut children, self.workers_max)?;
        let failed = |error| io::Error::other(format!("{}: {error}", program.path().display()));
        let (socket, theirs) = BirthSocket::pair().map_err(io::Error::other)?;
        let (said, stderr) = Said::pass_on()?;
        let mut command = program.command();
        command.stdin(theirs).stdout(Stdio::null()).stderr(stderr);
        let mut child = command.spawn().map_err(failed)?;
        // The command holds the other ends.
        drop(command);
        // It is not reaped yet, so its process id is still valid.
        let process = Pid::from_child(&child);
        let pidfd = match pidfd_open(process, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(errno.into());
            }
        };
        let place = self.quarters.admit(process, worker.name);
        let (frontend, placement) = (worker.frontend.clone(), worker.placement);
        let (user, statistics) = (place.user().map(UidLease::user), worker.page.map(|_| LAYOUT));
        let count = worker.limits.len();
        let limits = (count > 0).then_some(LimitPages { layout: qos::LAYOUT, count });
        let start = Order::Start(Start { frontend, user, placement, statistics, limits });
        let lease = place.user().map(AsFd::as_fd);
        let files = std::iter::once(worker.listener).chain(lease).chain(worker.page);
        let files: Vec<_> = files.chain(worker.limits.iter().copied()).collect();
        // If it has ended already, that is noticed later.
        let _ = socket.send(&start, &files);
        let pid = child.id();
        children.insert(pid, Started { child, said, place: Some(place) });
        Ok(Born { pid, pidfd, socket: socket.into_socket() })
    }

    fn ended(&self, pid: u32) -> Option<ExitStatus> {
        let mut children = self.children.lock();
        let status = children.get_mut(&pid)?.child.try_wait().ok().flatten()?;
        let ended = children.remove(&pid);
        drop(children);
        // Log its last output before any message about its end.
        ended?.said.finish();
        Some(status)
    }

    fn kill(&self, pid: u32) {
        if let Some(started) = self.children.lock().get_mut(&pid) {
            let _ = started.child.kill();
        }
    }
}

/// Refuses a worker beyond `workers_max`. Ended workers release their user and cgroup, and are
/// forgotten once `workers_max` of them have piled up whose end was not queried.
fn make_room(children: &mut HashMap<u32, Started>, workers_max: usize) -> io::Result<()> {
    let mut gone = 0;
    for started in children.values_mut() {
        if matches!(started.child.try_wait(), Ok(Some(_))) {
            started.place = None;
            gone += 1;
        }
    }
    if children.len() - gone >= workers_max {
        let message = format!("there are as many workers as it may have ({workers_max})");
        return Err(io::Error::other(message));
    }
    if gone >= workers_max {
        children.retain(|_, started| started.place.is_some());
    }
    Ok(())
}
