//! Changes the snapshots of a running VM.

use std::sync::Arc;
use std::thread;

use strongroom_host::protocol::{KnownVolume, Problem, SnapshotChange, VmSnapshots, VmSpec};

use super::activity::Activity;
use super::{Event, Vm};
use crate::door::Connection;
use crate::snapshots::{self, Serving};

/// A change in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct ChangingSnapshots {
    change: SnapshotChange,
    asked_by: Connection,
    request: u64,
}

#[cfg(test)]
impl ChangingSnapshots {
    pub(super) fn for_tests(asked_by: Connection, change: SnapshotChange) -> Self {
        Self { change, asked_by, request: 1 }
    }
}

/// Returns the VM's snapshots.
pub(super) fn found(spec: &VmSpec) -> VmSnapshots {
    let found = snapshots::read(spec);
    found
        .inspect_err(|problem| tracing::warn!("VM {}: its snapshots: {problem}", spec.name))
        .unwrap_or_default()
}

impl Vm {
    /// Begins a change on a thread of its own. The request is answered when the change has ended.
    /// If the same change is requested again, for example by the next hostd, the last request gets
    /// the answer.
    pub(super) fn change_snapshots(
        &mut self,
        asked_by: &Connection,
        request: u64,
        change: SnapshotChange,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        self.machine()?;
        if let Some(changing) =
            self.activity.snapshot_change_mut().filter(|changing| changing.change == change)
        {
            (changing.asked_by, changing.request) = (asked_by.clone(), request);
            return Ok(());
        }
        self.activity.allow_another()?;
        self.check_volumes()?;
        self.learn(known)?;
        let (spec, keys, events) = (self.task.spec.clone(), Arc::clone(&self.keys), self.events.clone());
        let wanted = change.clone();
        let work = move || {
            let changed = snapshots::change(&keys, &spec, &wanted, Serving::Yes, |progress| {
                let _ = events.send(Event::Progress(progress));
                Ok(())
            });
            let _ = events.send(Event::SnapshotsChanged(changed.map(Box::new)));
        };
        let begun = thread::Builder::new().name("snapshots".to_owned()).spawn(work);
        begun.map_err(|error| Problem::new("system", error.to_string()))?;
        let asked_by = asked_by.clone();
        self.activity = Activity::SnapshotChange(ChangingSnapshots { change, asked_by, request });
        Ok(())
    }

    /// Ends a change. One that failed can have changed some volumes.
    pub(super) fn snapshots_changed(&mut self, changed: Result<Box<VmSpec>, Problem>) {
        let Some(changing) = self.activity.end_snapshot_change() else { return };
        let changed = changed.and_then(|spec| self.configure(&spec));
        if let Err(problem) = &changed {
            tracing::warn!("VM {}: its snapshots: {problem}", self.task.spec.name);
        }
        self.snapshots = found(&self.task.spec);
        self.tell();
        let answer = self.answer_of_volumes(changing.request, changed.err());
        changing.asked_by.send(&answer);
    }
}
