//! The users that workers run as, and the cgroups that limit them.

use std::sync::Arc;

use rustix::process::Pid;

use strongroom_confine::{Cgroup, CgroupError, TASKS_MAX, UidLease};

/// The limits of workers. Each worker has its own user, if possible.
#[derive(Clone, Debug, Default)]
pub enum Quarters {
    /// Each also has its own cgroup.
    #[default]
    OfItsOwn,
    /// All share this cgroup, if there is one, with each other and with the VM's other processes.
    InCgroup(Option<Arc<Cgroup>>),
}

/// A worker's user and cgroup, for as long as it lives. The order matters: the user becomes free
/// when the process is gone, and only then can the cgroup be removed.
#[derive(Debug)]
pub(super) struct Place {
    user: Option<UidLease>,
    _cgroup: Option<Arc<Cgroup>>,
}

impl Place {
    /// Its own user, if it has one.
    pub fn user(&self) -> Option<&UidLease> {
        self.user.as_ref()
    }
}

impl Quarters {
    /// Assigns a user and a cgroup to a worker that was just started and does nothing yet. `name`
    /// is for its cgroup.
    pub(super) fn admit(&self, worker: Pid, name: &str) -> Place {
        let cgroup = match self {
            Self::OfItsOwn => {
                let cgroup = Cgroup::create(&format!("{name}-{}", worker.as_raw_nonzero()), TASKS_MAX);
                entered(cgroup.map(Arc::new), worker)
            }
            Self::InCgroup(cgroup) => cgroup.clone().and_then(|cgroup| entered(Ok(cgroup), worker)),
        };
        Place { user: UidLease::take_as_root(), _cgroup: cgroup }
    }
}

/// The cgroup with this process in it, if possible.
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
