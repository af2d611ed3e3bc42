//! All volumes of a VM move from the keys that they are under to another one.
//!
//! ```text
//! the new key is had -> every volume is looked at -> vm.json says "next"
//!     -> each volume: under both, read back, under the new one alone -> vm.json: "key"
//! ```
//!
//! A volume that is not the one that is known, older than is known, or under no key of the VM's has
//! all of it refused before the first is changed: what is left under two keys is what somebody does
//! between the two looks at it.
//!
//! Whoever is killed at whatever moment: `vm.json`, the state of a VM that runs and the inventory
//! name both keys by then, and each volume's descriptor says under which one it is. Asked again, it
//! goes on with those that have not moved.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::{
    DatastoreError, DescribedVolume, Descriptor, Protection, RewrapOptions, authenticated, describe, rewrap,
};
use strongroom_host::protocol::{DiskKey, OwnVolume, Problem, Progress, ProgressUnit, VmSpec};
use strongroom_host::vm_directory::{VmDirectoryError, VmRecord};
use strongroom_host::volume_facts::facts;
use strongroom_keys::{Kek, KekSource, KeyError, ProviderKey};
use strongroom_worker::control::{Answer, Client, NewKek, Request};

use crate::attestation::tag;
use crate::console_log::LogSender;
use crate::job::key_problem;
use crate::keys::VmKeys;

/// How long whoever has a volume may take to let go of it: its last I/O.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// For a worker's supervisor to write two descriptors.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);
/// How often it is looked for more volumes after all that were found have moved.
const PASSES_MAX: usize = 4;

/// Moves the volumes of the VM to the key that its disks name as the next one, and writes that
/// down. Says what the VM is then. Of a VM that runs, `log` is what has the console's volume.
///
/// # Errors
/// While a key cannot be had, or a volume is damaged or in use. Each volume is under a key that
/// `vm.json` names.
pub fn rekey(
    spec: &VmSpec,
    keys: &VmKeys,
    log: Option<&LogSender>,
    tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<VmSpec, Problem> {
    let Some((to, from)) = spec.moving() else { return Ok(spec.clone()) };
    let from: Vec<ProviderKey> = from.into_iter().cloned().collect();
    let kek = keys.begin_move(&from, to).map_err(key_problem)?;
    let left = from.iter().map(|key| OldKey { key, kek: OnceCell::new() }).collect();
    let moving = Moving { spec, keys, log, left, to: &kek };
    let moved = moving
        .look_at_all()
        .and_then(|()| moving.begin())
        .and_then(|()| moving.all(tell))
        .and_then(|moved| moving.finish(to, &moved));
    keys.end_move(moved.is_ok());
    moved
}

struct Moving<'a> {
    spec: &'a VmSpec,
    keys: &'a VmKeys,
    log: Option<&'a LogSender>,
    left: Vec<OldKey<'a>>,
    to: &'a Kek,
}

/// A key that is left. It is had at most once: each time takes a grant.
struct OldKey<'a> {
    key: &'a ProviderKey,
    kek: OnceCell<Arc<Kek>>,
}

/// A volume that has moved, and the generation of its descriptor then, as whoever wrote it knows
/// it.
struct Moved {
    path: PathBuf,
    generation: u64,
}

impl Moving<'_> {
    /// Whether each volume is what it should be, under a key of the VM's. Nothing is locked:
    /// whoever serves a volume has it, and replaces descriptors whole.
    fn look_at_all(&self) -> Result<(), Problem> {
        let (found, known) = (volumes(self.spec)?, self.spec.known_volumes());
        let missing = known.iter().map(|known| self.spec.volume_path(&known.name));
        if let Some(missing) = missing.into_iter().find(|path| !found.iter().any(|found| found.path == *path))
        {
            let message = format!("{} is not there, and was before", missing.display());
            return Err(Problem::new("missing_volume", message));
        }
        for DescribedVolume { path, descriptor, .. } in &found {
            let disk = self.spec.disks.iter().find(|disk| self.spec.volume_path(&disk.name) == *path);
            let known = known.iter().find(|known| self.spec.volume_path(&known.name) == *path);
            let old = self.old_key(descriptor);
            if old.is_none() && disk.is_none() && known.is_none() {
                // An interrupted job's, or what was put there: it is under no key of these, and is
                // not touched.
                continue;
            }
            let protection = match (disk.map_or(self.spec.own_key(), |disk| &disk.key), old) {
                (DiskKey::Unencrypted, _) => Protection::Unencrypted,
                (DiskKey::Provider { .. }, Some(old)) => {
                    Protection::Encrypted(self.kek(old).map_err(key_problem)?)
                }
                (DiskKey::Provider { .. }, None) => Protection::Encrypted(self.to),
            };
            let looked_at = authenticated(path, protection, self.least_generation(path))
                .and_then(|found| found.expect_volume(path, known.map(|known| known.volume)));
            // What the guest was suspended with, and swap, go when they are used up.
            if path.symlink_metadata().is_ok() {
                looked_at.map_err(|error| datastore_problem(&error))?;
            }
        }
        Ok(())
    }

    fn all(&self, mut tell: impl FnMut(Progress) -> Result<(), Problem>) -> Result<Vec<Moved>, Problem> {
        let mut moved = Vec::new();
        let mut done = 0;
        for _ in 0..PASSES_MAX {
            let left = self.left()?;
            if left.is_empty() {
                return Ok(moved);
            }
            let total = done + left.len() as u64;
            for (path, old) in left {
                tell(Progress { done, total, unit: ProgressUnit::Volumes })?;
                if let Some(generation) = self.one(&path, old)? {
                    moved.push(Moved { path, generation });
                }
                done += 1;
            }
        }
        let message = format!("VM {} gets volumes under its old key again and again", self.spec.name);
        Err(Problem::new("rekey", message).with_next_step("try it again"))
    }

    /// The volumes that need an old key, each with it.
    fn left(&self) -> Result<Vec<(PathBuf, &OldKey<'_>)>, Problem> {
        let volumes = volumes(self.spec)?;
        let old = |volume: DescribedVolume| {
            let old = self.old_key(&volume.descriptor)?;
            Some((volume.path, old))
        };
        Ok(volumes.into_iter().filter_map(old).collect())
    }

    fn old_key(&self, descriptor: &Descriptor) -> Option<&OldKey<'_>> {
        let keks = descriptor.encryption.iter().flat_map(|encryption| encryption.keks());
        let mut sources = keks.filter_map(|record| match &record.source {
            KekSource::Provider(key) => Some(key),
            KekSource::Passphrase(_) | KekSource::KeyFile {} => None,
        });
        sources.find_map(|key| self.left.iter().find(|old| old.key == key))
    }

    /// By whoever serves it; else here. Says which generation its descriptor is of then; nothing of
    /// one that is gone.
    fn one(&self, path: &Path, old: &OldKey<'_>) -> Result<Option<u64>, Problem> {
        let client = Client::connect(path).map_err(|error| Problem::new("rekey", error.to_string()))?;
        if let Some(client) = client {
            return self.ask(client, path).map(Some);
        }
        let is_console = path == self.spec.own_volume_path(OwnVolume::Console);
        let _let_go = is_console.then(|| self.log.and_then(LogSender::let_go));
        let from = self.kek(old).map_err(key_problem)?;
        let (to, lock_wait, least_generation) = (self.to, LOCK_WAIT, self.least_generation(path));
        match rewrap(path, &RewrapOptions { from, to, lock_wait, least_generation }) {
            // What the guest was suspended with, and swap, go when they are used up.
            Err(_) if path.symlink_metadata().is_err() => Ok(None),
            Ok(descriptor) => Ok(Some(descriptor.generation)),
            Err(error) => Err(datastore_problem(&error)),
        }
    }

    /// The key goes to the volume's supervisor in a pipe: it need not be fetched once for each
    /// volume.
    fn ask(&self, client: Client, path: &Path) -> Result<u64, Problem> {
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new("rekey", format!("{} is not under its new key: {error}", path.display()))
        };
        let pipe = self.to.to_pipe().map_err(|error| failed(&error))?;
        let to = NewKek { id: self.to.id(), source: self.to.source().clone() };
        let request = Request::Rewrap { to, least_generation: self.least_generation(path) };
        match client.ask_with(request, Some(std::os::fd::AsFd::as_fd(&pipe)), ANSWER_WITHIN) {
            Ok(Answer::Rewrapped { generation, .. }) => Ok(generation),
            Ok(Answer::Refused { code, message }) => Err(Problem::new(&code, message)),
            Ok(other) => Err(failed(&format!("its supervisor answered {other:?}"))),
            Err(error) => Err(failed(&error)),
        }
    }

    fn least_generation(&self, path: &Path) -> u64 {
        let disk = self.spec.disks.iter().find(|disk| self.spec.volume_path(&disk.name) == path);
        let own = self.spec.own_volumes.iter().find(|own| self.spec.volume_path(&own.name) == path);
        let known = disk.map(|disk| disk.least_generation).or(own.map(|own| own.least_generation));
        known.unwrap_or(0)
    }

    fn kek<'old>(&self, old: &'old OldKey<'_>) -> Result<&'old Arc<Kek>, KeyError> {
        match old.kek.get() {
            Some(kek) => Ok(kek),
            None => {
                let kek = self.keys.hold_to_leave(old.key)?;
                Ok(old.kek.get_or_init(|| kek))
            }
        }
    }

    /// Both keys are the VM's until it is done.
    fn begin(&self) -> Result<(), Problem> {
        let record = read(self.spec)?;
        // What was interrupted has said so, and the old keys may be needed for nothing else.
        if record.spec == *self.spec && record.attestation.is_some() {
            Ok(())
        } else {
            self.write_down(record, self.spec)
        }
    }

    fn write_down(&self, mut record: VmRecord, spec: &VmSpec) -> Result<(), Problem> {
        let attested =
            record.become_attested(spec, |key, what| match self.left.iter().find(|old| old.key == key) {
                Some(old) => tag(what, self.kek(old)?),
                None if self.to.source() == &KekSource::Provider(key.clone()) => tag(what, self.to),
                None => self.keys.attest(key, what),
            });
        attested.map_err(key_problem)?;
        record.write(&spec.directory()).map_err(directory_problem)
    }

    /// Nothing needs the old keys any more.
    fn finish(&self, to: &ProviderKey, moved: &[Moved]) -> Result<VmSpec, Problem> {
        let mut spec = self.spec.clone();
        let mut known = spec.known_volumes();
        for known in &mut known {
            let path = spec.volume_path(&known.name);
            let of_it = moved.iter().filter(|moved| moved.path == path).map(|moved| moved.generation);
            known.least_generation = of_it.fold(known.least_generation, u64::max);
        }
        spec.learn(&known)?;
        for disk in &mut spec.disks {
            if disk.key.provider_key().is_some() {
                disk.key = DiskKey::provider(to.clone(), Some(self.to.id()));
            }
        }
        let facts = facts(&spec)?;
        let spec = spec.with_facts(&facts);
        self.write_down(read(&spec)?, &spec)?;
        Ok(spec)
    }
}

fn read(spec: &VmSpec) -> Result<VmRecord, Problem> {
    VmRecord::read_of(&spec.directory(), spec.id).map_err(directory_problem)
}

fn directory_problem(error: VmDirectoryError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

/// Every volume in the VM's directory, and what an interrupted job has left of one.
fn volumes(spec: &VmSpec) -> Result<Vec<DescribedVolume>, Problem> {
    let directory = spec.directory();
    let failed = |error: std::io::Error| {
        Problem::new("system", format!("cannot list {}: {error}", directory.display()))
    };
    let mut volumes = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if hidden || path == spec.tpm_state_path() || !entry.file_type().map_err(failed)?.is_dir() {
            continue;
        }
        match describe(&path) {
            Ok(volume) => volumes.push(volume),
            Err(_) if path.symlink_metadata().is_err() => {}
            // What it needs is not known, so nothing is said of the old key.
            Err(error) => return Err(datastore_problem(&error)),
        }
    }
    Ok(volumes)
}

fn datastore_problem(error: &DatastoreError) -> Problem {
    Problem::new(error.code(), error.to_string())
}
