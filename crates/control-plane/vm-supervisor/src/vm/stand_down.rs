//! Gives way to another supervisor, which may enter more directories: this one was confined before
//! it had a key, and cannot be let into another place.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use strongroom_host::protocol::Problem;

use super::Vm;
use super::activity::Activity;
use crate::volumes::ServedVolume;

impl Vm {
    /// Closes the volumes in order, and ends this process without ending the VM: the guest's
    /// requests wait until the next supervisor serves them.
    pub(super) fn stand_down(&mut self) -> Result<(), Problem> {
        self.machine()?;
        self.activity.allow_another()?;
        self.check_volumes()?;
        if let Some(missing) = &self.standing.missing {
            let message = format!("the next supervisor of the VM would wait for {}", missing.key);
            return Err(Problem::new("key_unavailable", message).with_next_step("try again when it is there"));
        }
        std::mem::take(&mut self.serial).finish();
        let closing = self.close_volumes(ServedVolume::stop);
        let vm = self.task.spec.name.clone();
        let work = move || {
            for closed in closing {
                if let Ok(Err(problem)) = closed.recv() {
                    tracing::warn!("VM {vm}: {problem}");
                }
            }
            tracing::info!("VM {vm}: another supervisor takes over");
            std::process::exit(0);
        };
        thread::Builder::new().name("stand down".to_owned()).spawn(work).map_err(Problem::system)?;
        self.activity = Activity::StandDown;
        Ok(())
    }

    /// Has all volumes closed. Each receiver gets the end of one.
    pub(super) fn close_volumes(
        &mut self,
        close: impl Fn(&ServedVolume),
    ) -> Vec<Receiver<Result<(), Problem>>> {
        let mut closing = Vec::new();
        for volume in self.volumes.iter_mut().filter(|volume| !volume.ended) {
            let (done, closed) = sync_channel(1);
            volume.leaving = Some(done);
            closing.push(closed);
            if let Some(served) = &volume.served {
                close(served);
            }
        }
        closing
    }
}
