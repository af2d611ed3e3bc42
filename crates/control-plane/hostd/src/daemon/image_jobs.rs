//! The jobs that read the image of a client, which may come back when its connection was lost.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_host::orders::JobRequest;
use strongroom_host::protocol::{DiskName, Problem};
use strongroom_host::wire::Wire;
use strongroom_types::VmId;

/// The running jobs, by the disk that they fill.
#[derive(Debug, Default)]
pub struct ImageJobs(Mutex<HashMap<(VmId, DiskName), Arc<Wire>>>);

/// A job that is listed until this is dropped.
pub struct ListedJob<'a> {
    jobs: &'a ImageJobs,
    disk: (VmId, DiskName),
}

impl ImageJobs {
    /// Lists a job. A VM has one at a time.
    pub fn list(&self, vm: VmId, disk: DiskName, wire: Arc<Wire>) -> ListedJob<'_> {
        let disk = (vm, disk);
        self.0.lock().insert(disk.clone(), wire);
        ListedJob { jobs: self, disk }
    }

    /// The job that fills a disk.
    pub fn of(&self, vm: VmId, disk: &DiskName) -> Option<Arc<Wire>> {
        self.0.lock().get(&(vm, disk.clone())).cloned()
    }
}

impl Drop for ListedJob<'_> {
    fn drop(&mut self) {
        self.jobs.0.lock().remove(&self.disk);
    }
}

/// Hands the connection of a client that has come back to its job.
///
/// # Errors
/// If the job has just ended.
pub fn hand_on(job: &Wire, client: impl AsFd) -> Result<(), Problem> {
    job.send(&JobRequest::Client {}, &[client.as_fd()]).map_err(|error| {
        Problem::new("job_died", format!("the disk is not being filled any more: {error}"))
            .with_next_step("look at its task")
    })
}
