//! A worker whose clients are connected, and whose volume is not open yet: another host has it.

use std::os::fd::AsFd;
use std::sync::Arc;

use strongroom_datastore::file::{Deks, OpenLayer, VolumeHead};
use strongroom_frontend::listen::Listener;
use strongroom_keys::Keyring;
use strongroom_statistics::Page;
use strongroom_types::VolumeSize;

use super::child::{Birthright, ChildError, WorkerProcess};
use super::kek::VolumeKek;
use super::starter::Workers;
use super::{Exposure, Phase, SuperviseError, Supervisor, drain_deadline_of, make_page};

/// A worker that waits for its volume.
#[derive(Debug)]
pub struct Standby {
    worker: WorkerProcess,
    page: Option<Arc<Page>>,
    listener: Listener,
    birthright: Birthright,
    workers: Workers,
    /// The size that clients were told.
    size_bytes: VolumeSize,
}

/// A volume that a worker waits for.
#[derive(Debug)]
pub struct AwaitedVolume {
    /// The owner's side of the volume.
    pub head: VolumeHead,
    /// The open layers.
    pub layer: OpenLayer,
    /// Their keys.
    pub deks: Deks,
    /// Its KEK.
    pub kek: VolumeKek,
    /// The access to key providers.
    pub keyring: Arc<dyn Keyring>,
}

impl Standby {
    /// Starts a worker that waits for a volume of this size. `discards` tells whether the volume
    /// frees space that the guest discards.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(
        listener: Listener,
        birthright: Birthright,
        workers: Workers,
        size_bytes: VolumeSize,
        discards: bool,
    ) -> Result<Self, SuperviseError> {
        let page = make_page().map(Arc::new);
        let start = || {
            let mut worker = WorkerProcess::start(&workers, &birthright, listener.as_fd(), page.as_deref())?;
            worker.await_volume(size_bytes, discards)?;
            Ok(worker)
        };
        let worker = start().map_err(|error: ChildError| SuperviseError::Start(error.to_string()))?;
        Ok(Self { worker, page, listener, birthright, workers, size_bytes })
    }

    /// Has the sessions go on over the volume.
    ///
    /// # Errors
    /// If the worker has died or refuses the volume, or it has another size; it is closed then.
    pub fn serve(self, volume: AwaitedVolume) -> Result<Supervisor, SuperviseError> {
        let Self { mut worker, page, listener, birthright, workers, size_bytes } = self;
        let AwaitedVolume { head, layer, deks, kek, keyring } = volume;
        // What was told before came from a descriptor that nobody had authenticated.
        let size_now = head.descriptor().size_bytes;
        if size_now != size_bytes {
            let path = head.path().display();
            return Err(SuperviseError::Start(format!(
                "{path} has {size_now}, and its clients were told of {size_bytes}"
            )));
        }
        let exposure = Exposure { head, kek, keyring, listener, birthright, workers };
        let control = Supervisor::control_directory(&exposure)?;
        let control = Supervisor::control_of(&exposure, control.as_fd())?;
        let served = worker.give_keys(deks, &exposure.kek).and_then(|()| worker.serve(layer));
        served.map_err(|error| SuperviseError::Start(error.to_string()))?;
        Ok(Supervisor::over(exposure, control, page, worker))
    }

    /// Ends the worker, in order.
    pub fn end(self) {
        if let Err(error) = self.worker.end(drain_deadline_of(&self.birthright.frontend)) {
            tracing::warn!("a worker that waited for its volume did not end in order: {error}");
        }
    }
}

impl Supervisor {
    /// Closes the volume, and keeps its clients.
    pub(super) fn release(mut self) -> Result<Standby, SuperviseError> {
        self.leave_snapshot();
        let Self { control, phase, exposure, page, .. } = self;
        let Phase::Serving(mut worker) = phase else {
            let message = "its worker had died, and no other one was back yet";
            return Err(SuperviseError::Stop(message.to_owned()));
        };
        let released = worker.release(drain_deadline_of(&exposure.birthright.frontend));
        released.map_err(|error| SuperviseError::Stop(error.to_string()))?;
        drop(control);
        let size_bytes = exposure.head.descriptor().size_bytes;
        let Exposure { head: _closed, listener, birthright, workers, .. } = exposure;
        Ok(Standby { worker, page, listener, birthright, workers, size_bytes })
    }
}
