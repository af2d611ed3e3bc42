//! As whom workers run, and what bounds them together.

use std::sync::Arc;

use rustix::process::Pid;

use crate::sandbox::{Cgroup, CgroupError, RUN_DIRECTORY, TASKS_MAX, UidLease};

/// As whom workers run, and what bounds them together.
#[derive(Clone, Debug, Default)]
pub enum Quarters {
    /// Each has a user and a cgroup of its own, where it can have them.
    #[default]
    OfItsOwn,
    /// All share what is here with each other, and with whatever else runs for the same VM.
    Shared {
        /// Their user; without one they run as the supervisor does.
        user: Option<Arc<UidLease>>,
        /// Their cgroup.
        cgroup: Option<Arc<Cgroup>>,
    },
}

/// What a worker has of its quarters, for as long as it lives. In this order: a user is free when its process is gone, and a
/// cgroup can be removed then.
#[derive(Debug)]
pub(super) struct Place {
    user: Option<Arc<UidLease>>,
    _cgroup: Option<Arc<Cgroup>>,
}

impl Place {
    /// Its user, if it has one of its own.
    pub fn user(&self) -> Option<Arc<UidLease>> {
        self.user.clone()
    }
}

impl Quarters {
    /// Makes room for a worker that has just been started and does nothing yet. `name` is for its cgroup.
    pub(super) fn admit(&self, worker: Pid, name: &str) -> Place {
        match self {
            Self::OfItsOwn => {
                let cgroup = Cgroup::create(&format!("{name}-{}", worker.as_raw_nonzero()), TASKS_MAX);
                Place { user: take_user().map(Arc::new), _cgroup: entered(cgroup.map(Arc::new), worker) }
            }
            Self::Shared { user, cgroup } => {
                let cgroup = cgroup.as_ref().and_then(|cgroup| entered(Ok(Arc::clone(cgroup)), worker));
                Place { user: user.clone(), _cgroup: cgroup }
            }
        }
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
