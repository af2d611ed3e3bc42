//! Encrypts or decrypts a disk of a running VM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use strongroom_host::protocol::{Disk, DiskKey, DiskName, KnownVolume, Problem, VmSpec};

use super::activity::Activity;
use super::disks::{DiskStep, record};
use super::unplug::ending;
use super::{Event, Vm};
use crate::disks::no_such_disk;
use crate::door::Connection;
use crate::seal::running::{RunningSeal, refuse_with_own_volumes};

/// An encryption or decryption in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct SealingDisk {
    disk: DiskName,
    key: DiskKey,
    asked_by: Connection,
    request: u64,
    abandoned: Arc<AtomicBool>,
}

impl SealingDisk {
    /// The disk.
    pub(super) fn disk(&self) -> &DiskName {
        &self.disk
    }

    #[cfg(test)]
    pub(super) fn for_tests(asked_by: Connection, disk: DiskName) -> Self {
        Self { disk, key: DiskKey::Unencrypted, asked_by, request: 1, abandoned: Arc::default() }
    }
}

impl Vm {
    /// Begins with a disk on a thread of its own, which rewrites it beside the one that serves it.
    /// The request is answered when that has ended. If it is repeated, for example by the next
    /// hostd, the last request gets the answer.
    pub(super) fn seal_disk(
        &mut self,
        asked_by: &Connection,
        request: u64,
        disk: &Disk,
        known: &[KnownVolume],
    ) -> Result<(), Problem> {
        self.machine()?;
        let is_same = |sealing: &&mut SealingDisk| (&sealing.disk, &sealing.key) == (&disk.name, &disk.key);
        if let Some(sealing) = self.activity.sealing_mut().filter(is_same) {
            (sealing.asked_by, sealing.request) = (asked_by.clone(), request);
            return Ok(());
        }
        self.activity.allow_another()?;
        self.check_volumes()?;
        self.learn(known)?;
        let vm = half_clear(&self.task.spec, disk)?;
        let volume = self.volumes.iter().find(|volume| volume.observed.disk == disk.name);
        let seal = volume.and_then(|volume| volume.served.as_ref()).map(|served| served.seal().clone());
        let seal = seal.ok_or_else(ending)?;
        let (keys, events) = (Arc::clone(&self.keys), self.events.clone());
        let (abandoned, is_ending) = (Arc::new(AtomicBool::new(false)), self.start.abandoned());
        let sealing = SealingDisk {
            disk: disk.name.clone(),
            key: disk.key.clone(),
            asked_by: asked_by.clone(),
            request,
            abandoned: Arc::clone(&abandoned),
        };
        let disk = disk.name.clone();
        let work = move || {
            let job = RunningSeal {
                keys: &keys,
                vm: &vm,
                disk: &disk,
                seal: &seal,
                is_cancelled: &|| abandoned.load(Ordering::Relaxed),
                record: &|step| record(&events, DiskStep::Seal(step)),
            };
            let sealed = job.complete(&mut |progress| {
                let _ = events.send(Event::Progress(progress));
                if is_ending.load(Ordering::Relaxed) { Err(ending()) } else { Ok(()) }
            });
            let _ = events.send(Event::DiskSealed(sealed.map(Box::new)));
        };
        thread::Builder::new().name("seal".to_owned()).spawn(work).map_err(Problem::system)?;
        self.activity = Activity::SealDisk(sealing);
        Ok(())
    }

    /// Ends it. After a failure the disk is half clear.
    pub(super) fn disk_sealed(&mut self, sealed: Result<Box<VmSpec>, Problem>) {
        let Some(sealing) = self.activity.end_sealing() else { return };
        let sealed = sealed.and_then(|spec| {
            self.state.changed_over = None;
            self.configure(&spec)
        });
        let (vm, disk) = (&self.task.spec.name, &sealing.disk);
        match &sealed {
            Ok(()) => tracing::info!("VM {vm}: {disk} is encrypted or decrypted as a whole"),
            Err(problem) => tracing::warn!("VM {vm}: {disk} is half clear: {problem}"),
        }
        self.tell();
        let answer = self.answer_of_volumes(sealing.request, sealed.err());
        sealing.asked_by.send(&answer);
    }

    /// Abandons it: the disk stays half clear.
    pub(super) fn abandon_sealing(&mut self) {
        if let Some(sealing) = self.activity.sealing_mut() {
            sealing.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

/// The VM with the disk half clear, as the control plane has ordered.
fn half_clear(vm: &VmSpec, ordered: &Disk) -> Result<VmSpec, Problem> {
    let mut spec = vm.clone();
    let known = spec.disks.iter_mut().find(|known| known.name == ordered.name);
    let known = known.ok_or_else(|| no_such_disk(vm, &ordered.name))?;
    let DiskKey::HalfClear { key, .. } = &ordered.key else {
        let message =
            format!("{} of VM {} is to be encrypted or decrypted, and is whole", ordered.name, vm.name);
        return Err(Problem::new("bad_request", message));
    };
    if known.key.provider_key().is_some_and(|known| known != key) {
        let message = format!("{} of VM {} is under another key", ordered.name, vm.name);
        return Err(Problem::new("bad_request", message));
    }
    (known.key, known.integrity) = (ordered.key.clone(), ordered.integrity);
    spec.check().map_err(|error| Problem::new("bad_spec", error.to_string()))?;
    refuse_with_own_volumes(&spec, &ordered.name)?;
    Ok(spec)
}
