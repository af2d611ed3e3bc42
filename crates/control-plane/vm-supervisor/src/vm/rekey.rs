//! Moves a running VM to another key.

use std::sync::Arc;
use std::thread;

use strongroom_host::layout::Layout;
use strongroom_host::orders::Report;
use strongroom_host::protocol::{DiskKey, KnownVolume, Problem, VmSpec};
use strongroom_host::served::served;
use strongroom_keys::ProviderKey;

use super::activity::Activity;
use super::{Event, Vm};
use crate::door::Connection;
use crate::rekey::{Manner, rekey};

/// A move in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct Rekeying {
    asked_by: Connection,
    request: u64,
}

#[cfg(test)]
impl Rekeying {
    pub(super) fn for_tests(asked_by: Connection) -> Self {
        Self { asked_by, request: 1 }
    }
}

impl Vm {
    /// Begins a move on a thread of its own: it fetches keys, and writes descriptors. The request
    /// is answered when the move has ended.
    pub(super) fn rekey(
        &mut self,
        asked_by: &Connection,
        request: u64,
        to: &ProviderKey,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        self.machine()?;
        self.activity.allow_another()?;
        let mut spec = self.task.spec.clone();
        spec.learn(known)?;
        spec.move_to(to);
        self.configure(&spec)?;
        let (keys, events) = (Arc::clone(&self.keys), self.events.clone());
        let log = self.serial.log_sender();
        let work = move || {
            let manner = Manner::Rewrap { log: log.as_ref() };
            let moved = rekey(&spec, &keys, manner, |progress| {
                let _ = events.send(Event::Progress(progress));
                Ok(())
            });
            let _ = events.send(Event::Rekeyed(moved.map(Box::new)));
        };
        thread::Builder::new().name("rekey".to_owned()).spawn(work).map_err(Problem::system)?;
        self.activity = Activity::Rekey(Rekeying { asked_by: asked_by.clone(), request });
        Ok(())
    }

    /// Ends a move. After a failure both keys stay known, and each volume is under one of them.
    pub(super) fn rekeyed(&mut self, moved: Result<Box<VmSpec>, Problem>) {
        let Some(rekeying) = self.activity.end_rekey() else { return };
        let moved = moved.and_then(|spec| self.configure(&spec));
        match &moved {
            Ok(()) => tracing::info!("VM {}: all of it is under another key now", self.task.spec.name),
            Err(problem) => {
                tracing::warn!("VM {}: it is not under another key: {problem}", self.task.spec.name);
            }
        }
        self.tell();
        let answer = self.answer_of_volumes(rekeying.request, moved.err());
        rekeying.asked_by.send(&answer);
    }

    /// Merges facts that the control plane knows: from here on no older volume is opened, also by a
    /// later supervisor.
    pub(super) fn learn(&mut self, known: &[KnownVolume]) -> Result<(), Problem> {
        let mut spec = self.task.spec.clone();
        spec.learn(known)?;
        if spec == self.task.spec { Ok(()) } else { self.configure(&spec) }
    }

    /// The answer to a request that has changed volumes.
    pub(super) fn answer_of_volumes(&self, id: u64, problem: Option<Problem>) -> Report {
        Report::Answer { id, problem, known: self.task.spec.known_volumes() }
    }

    pub(super) fn configure(&mut self, spec: &VmSpec) -> Result<(), Problem> {
        self.become_configured(spec, self.state.layout.clone())
    }

    /// Adopts a configuration and layout, and records them for a later supervisor.
    pub(super) fn become_configured(&mut self, spec: &VmSpec, layout: Layout) -> Result<(), Problem> {
        let before = (
            std::mem::replace(&mut self.state.spec, spec.clone()),
            std::mem::replace(&mut self.state.layout, layout),
        );
        if let Err(error) = self.state.write(&self.run) {
            (self.state.spec, self.state.layout) = before;
            let message = format!("the VM's state cannot be written: {error}");
            return Err(Problem::new("system", message));
        }
        for disk in served(spec) {
            let volume = self.volumes.iter_mut().find(|volume| volume.observed.disk == disk.name);
            if let (Some(volume), DiskKey::Provider { kek, .. }) = (volume, disk.key) {
                volume.observed.kek = kek;
            }
        }
        *self.task.spec = spec.clone();
        Ok(())
    }
}
