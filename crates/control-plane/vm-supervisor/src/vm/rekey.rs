//! Moves a running VM to another key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// What is done with the data keys of a VM that moves to another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataKeys {
    /// They are wrapped under the other key.
    Kept,
    /// All data is rewritten under new ones.
    Renewed,
}

/// A move in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct Rekeying {
    to: ProviderKey,
    data_keys: DataKeys,
    asked_by: Connection,
    request: u64,
    abandoned: Arc<AtomicBool>,
}

#[cfg(test)]
impl Rekeying {
    pub(super) fn for_tests(asked_by: Connection) -> Self {
        let (provider, key) = ("corp".parse().unwrap(), "key-1".parse().unwrap());
        let to = ProviderKey { provider, key, wrapped: None };
        Self { to, data_keys: DataKeys::Kept, asked_by, request: 1, abandoned: Arc::default() }
    }
}

impl Vm {
    /// Begins a move on a thread of its own: it fetches keys, writes descriptors, and may rewrite
    /// data. The request is answered when the move has ended. If the same move is requested again,
    /// for example by the next hostd, the last request gets the answer.
    pub(super) fn rekey(
        &mut self,
        asked_by: &Connection,
        request: u64,
        to: &ProviderKey,
        data_keys: DataKeys,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        self.machine()?;
        if let Some(rekeying) =
            self.activity.rekey_mut().filter(|known| (&known.to, known.data_keys) == (to, data_keys))
        {
            (rekeying.asked_by, rekeying.request) = (asked_by.clone(), request);
            return Ok(());
        }
        self.activity.allow_another()?;
        if data_keys == DataKeys::Renewed {
            self.check_volumes()?;
        }
        let mut spec = self.task.spec.clone();
        spec.learn(known)?;
        spec.move_to(to);
        self.configure(&spec)?;
        let (keys, events) = (Arc::clone(&self.keys), self.events.clone());
        let log = self.serial.log_sender();
        let (abandoned, is_ending) = (Arc::new(AtomicBool::new(false)), self.start.abandoned());
        let rekeying = Rekeying {
            to: to.clone(),
            data_keys,
            asked_by: asked_by.clone(),
            request,
            abandoned: Arc::clone(&abandoned),
        };
        let work = move || {
            let is_cancelled = || abandoned.load(Ordering::Relaxed);
            let manner = match data_keys {
                DataKeys::Kept => Manner::Rewrap { log: log.as_ref() },
                DataKeys::Renewed => Manner::Reencrypt { is_cancelled: &is_cancelled, log: log.as_ref() },
            };
            let moved = rekey(&spec, &keys, manner, |progress| {
                let _ = events.send(Event::Progress(progress));
                match data_keys == DataKeys::Renewed && is_ending.load(Ordering::Relaxed) {
                    true => Err(Problem::new("stopping", "the VM is stopping")),
                    false => Ok(()),
                }
            });
            let _ = events.send(Event::Rekeyed(moved.map(Box::new)));
        };
        thread::Builder::new().name("rekey".to_owned()).spawn(work).map_err(Problem::system)?;
        self.activity = Activity::Rekey(rekeying);
        Ok(())
    }

    /// Abandons a move that rewrites data: the volume that it is at goes back to the old key.
    pub(super) fn abandon_reencryption(&mut self) {
        if let Some(rekeying) = self.activity.rekey_mut() {
            rekeying.abandoned.store(true, Ordering::Relaxed);
        }
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
            let Some(volume) = volume else { continue };
            match disk.key {
                DiskKey::Provider { kek, .. } => volume.observed.kek = kek,
                DiskKey::Unencrypted => volume.observed.kek = None,
                DiskKey::HalfClear { .. } => {}
            }
        }
        *self.task.spec = spec.clone();
        Ok(())
    }
}
