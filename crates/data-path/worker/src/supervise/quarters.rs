//! As whom workers run, and what bounds them.

use std::sync::Arc;

use rustix::process::Pid;

use strongroom_confine::{Cgroup, CgroupError, RUN_DIRECTORY, TASKS_MAX, UidLease};

/// What bounds workers. Each has a user of its own, where it can have one.
#[derive(Clone, Debug, Default)]
pub enum Quarters {
    /// Each has a cgroup of its own, too.
    #[default]
    OfItsOwn,
    /// All share this cgroup, if there is one, with each other and with whatever else runs for the
    /// same VM.
    InCgroup(Option<Arc<Cgroup>>),
}

/// What a worker has of its quarters, for as long as it lives. In this order: a user is free when
/// its process is gone, and a cgroup can be removed then.
#[derive(Debug)]
pub(super) struct Place {
    user: Option<UidLease>,
    _cgroup: Option<Arc<Cgroup>>,
}

impl Place {
    /// Its user, if it has one of its own.
    pub fn user(&self) -> Option<&UidLease> {
        self.user.as_ref()
    }
}

impl Quarters {
    /// Makes room for a worker that has just been started and does nothing yet. `name` is for its
    /// cgroup.
    pub(super) fn admit(&self, worker: Pid, name: &str) -> Place {
        let cgroup = match self {
            Self::OfItsOwn => {
                let cgroup = Cgroup::create(&format!("{name}-{}", worker.as_raw_nonzero()), TASKS_MAX);
                entered(cgroup.map(Arc::new), worker)
            }
            Self::InCgroup(cgroup) => cgroup.clone().and_then(|cgroup| entered(Ok(cgroup), worker)),
        };
        Place { user: take_user(), _cgroup: cgroup }
    }
}

/// A user of its own, which only root can give.
fn take_user() -> Option<UidLease> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    UidLease::take(RUN_DIRECTORY.as_ref())
        .inspect_err(|error| tracing::warn!("the worker gets no user of its own: {error}"))
        .ok()
}

/// The cgroup with this process in it, where there can be one.
fn entered(cgroup: Result<Arc<Cgroup>, CgroupError>, worker: Pid) -> Option<Arc<Cgroup>> {
    match cgroup.and_then(|cgroup| cgroup.add(worker).map(|()| cgroup)) {
        Ok(cgroup) => {
            for warning in cgroup.warnings() {
                tracing::info!("the worker's cgroup: {warning}");
            }
            Some(cgroup)
        }
        Err(error) => {
            tracing::info!("the worker has no cgroup of its own: {error}");
            None
        }
    }
}
