//! Moves all volumes of a VM to another key.
//!
//! ```text
//! the new key is had -> every volume is looked at -> vm.json says "next"
//!     -> each volume: under both, read back, under the new one alone -> vm.json: "key"
//! ```
//!
//! The volumes can be rewritten under new data keys instead, also while the VM runs: then no data
//! key is ever under both keys ([`reencryption`]).
//!
//! The move is refused before the first change if any volume has the wrong id, is older than the
//! known one, or is under none of the VM's keys. A volume could only stay behind under its old key
//! if an attacker changed it between this check and its move.
//!
//! The move survives the kill of any process at any moment: `vm.json`, the state of a running VM
//! and the inventory name both keys before the first change, and each volume's descriptor says
//! which key it is under. A repeated request continues with the remaining volumes.

pub mod reencryption;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::storage::{EntryKind, is_gone};
use strongroom_datastore::file::{
    DescribedVolume, Descriptor, Protection, RewrapOptions, authenticated, describe, rewrap,
};
use strongroom_host::protocol::{DiskKey, OwnVolume, Problem, Progress, ProgressUnit, VmSpec};
use strongroom_host::vm_directory::{VmRecord, entries_of};
use strongroom_host::volume_facts::facts;
use strongroom_keys::{Kek, KekSource, KeyError, ProviderKey};
use strongroom_worker::control::{Answer, Client, NewKek, Peer, Request};

use crate::attestation::tag;
use crate::console_log::{LetGo, LogSender};
use crate::job::key_problem;
use crate::keys::VmKeys;
use crate::own_volume::LOCK_WAIT;

use self::reencryption::Rewriting;

/// How long a worker's supervisor may take to write two descriptors.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);
/// How often the directory is searched for further volumes after all those found have moved.
const PASSES_MAX: usize = 4;

/// How a volume gets to the new key.
#[derive(Clone, Copy)]
pub enum Manner<'a> {
    /// Its data keys are wrapped under the new key. For a running VM, `log` holds the console's
    /// volume.
    Rewrap {
        /// The recorder of the console's output.
        log: Option<&'a LogSender>,
    },
    /// Its data is rewritten under new data keys.
    Reencrypt {
        /// Whether the job was cancelled; asked about twice a second.
        is_cancelled: &'a dyn Fn() -> bool,
        /// As for [`Rewrap`](Self::Rewrap).
        log: Option<&'a LogSender>,
    },
}

/// Moves the volumes of the VM to the next key of its disks, and records that. Returns the VM's new
/// configuration. An error of `tell` ends the job between two steps.
///
/// # Errors
/// If a key is unavailable, or a volume is damaged or in use. Each volume is then under a key that
/// `vm.json` names.
pub fn rekey(
    spec: &VmSpec,
    keys: &VmKeys,
    manner: Manner<'_>,
    mut tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<VmSpec, Problem> {
    spec.check_whole()?;
    let Some((to, from)) = spec.moving() else { return Ok(spec.clone()) };
    let from: Vec<ProviderKey> = from.into_iter().cloned().collect();
    let kek = keys.begin_move(&from, to).map_err(key_problem)?;
    let left = from.iter().map(|key| OldKey { key, kek: OnceCell::new() }).collect();
    let moving = Moving { spec, keys, left, to: &kek };
    let moved = moving
        .look_at_all()
        .and_then(|()| moving.begin())
        .and_then(|()| moving.all(manner, &mut tell))
        .and_then(|moved| moving.finish(to, &moved));
    keys.end_move(moved.is_ok());
    moved
}

struct Moving<'a> {
    spec: &'a VmSpec,
    keys: &'a VmKeys,
    left: Vec<OldKey<'a>>,
    to: &'a Kek,
}

/// A key that the volumes leave. It is fetched at most once, since each fetch takes a grant.
struct OldKey<'a> {
    key: &'a ProviderKey,
    kek: OnceCell<Arc<Kek>>,
}

/// A volume under an old key.
struct LeftVolume<'a> {
    volume: DescribedVolume,
    old: &'a OldKey<'a>,
}

/// A moved volume, with the generation of its descriptor as the process that wrote it knows it.
struct Moved {
    path: PathBuf,
    generation: u64,
}

impl Moving<'_> {
    /// Checks that each volume is the right one, and under one of the VM's keys. Takes no lock: the
    /// process that serves a volume holds it, and replaces descriptors atomically.
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
                // The remains of an interrupted job, or an attacker's file: it is under none of
                // these keys, and is not touched.
                continue;
            }
            let protection = match (disk.map_or(self.spec.own_key(), |disk| &disk.key), old) {
                (DiskKey::Unencrypted, _) => Protection::Unencrypted,
                (DiskKey::Provider { .. } | DiskKey::HalfClear { .. }, Some(old)) => {
                    Protection::Encrypted(self.kek(old).map_err(key_problem)?)
                }
                (DiskKey::Provider { .. } | DiskKey::HalfClear { .. }, None) => {
                    Protection::Encrypted(self.to)
                }
            };
            let found = match (old, &descriptor.reencrypting) {
                // An interrupted job has it between the keys.
                (Some(old), Some(_)) => self.rewriting(path, old)?.authenticated(),
                _ => authenticated(path, protection, self.least_generation(path)),
            };
            let looked_at =
                found.and_then(|found| found.expect_volume(path, known.map(|known| known.volume)));
            // A suspended memory or a swap disk may disappear at any time.
            if !is_gone(path) {
                looked_at?;
            }
        }
        Ok(())
    }

    fn all(
        &self,
        manner: Manner<'_>,
        tell: &mut dyn FnMut(Progress) -> Result<(), Problem>,
    ) -> Result<Vec<Moved>, Problem> {
        let mut moved = Vec::new();
        for _ in 0..PASSES_MAX {
            let left = self.left()?;
            if left.is_empty() {
                return Ok(moved);
            }
            moved.extend(match manner {
                Manner::Rewrap { log } => self.rewrap_all(left, log, tell)?,
                Manner::Reencrypt { is_cancelled, log } => {
                    self.reencrypt_all(left, is_cancelled, log, tell)?
                }
            });
        }
        let message = format!("VM {} gets volumes under its old key again and again", self.spec.name);
        Err(Problem::new("rekey", message).with_next_step("try it again"))
    }

    fn rewrap_all(
        &self,
        left: Vec<LeftVolume<'_>>,
        log: Option<&LogSender>,
        tell: &mut dyn FnMut(Progress) -> Result<(), Problem>,
    ) -> Result<Vec<Moved>, Problem> {
        let (mut moved, total) = (Vec::new(), left.len() as u64);
        for (done, left) in (0..).zip(left) {
            tell(Progress::new(done, total, ProgressUnit::Volumes))?;
            if let Some(generation) = self.one(&left, log)? {
                moved.push(Moved { path: left.volume.path, generation });
            }
        }
        Ok(moved)
    }

    /// Returns the volumes under an old key, each with that key.
    fn left(&self) -> Result<Vec<LeftVolume<'_>>, Problem> {
        let volumes = volumes(self.spec)?;
        let old = |volume: DescribedVolume| {
            let old = self.old_key(&volume.descriptor)?;
            Some(LeftVolume { volume, old })
        };
        Ok(volumes.into_iter().filter_map(old).collect())
    }

    /// A volume between one of its old keys and the new one.
    fn rewriting<'r>(&'r self, path: &'r Path, old: &'r OldKey<'_>) -> Result<Rewriting<'r>, Problem> {
        let from = self.kek(old).map_err(key_problem)?;
        let (to, least_generation) = (self.to, self.least_generation(path));
        Ok(Rewriting { path, from, to, lock_wait: LOCK_WAIT, least_generation })
    }

    fn old_key(&self, descriptor: &Descriptor) -> Option<&OldKey<'_>> {
        let keks = descriptor.encryption.iter().flat_map(|encryption| encryption.keks());
        let mut sources = keks.filter_map(|record| match &record.source {
            KekSource::Provider(key) => Some(key),
            KekSource::Passphrase(_) | KekSource::KeyFile {} => None,
        });
        sources.find_map(|key| self.left.iter().find(|old| old.key == key))
    }

    /// Moves one volume, through the process that serves it if there is one. Returns the generation
    /// of its descriptor; `None` if the volume is gone.
    fn one(&self, left: &LeftVolume<'_>, log: Option<&LogSender>) -> Result<Option<u64>, Problem> {
        let LeftVolume { volume: DescribedVolume { path, descriptor, .. }, old } = left;
        let client = Client::connect_to(path, Peer::ThisProcess)
            .map_err(|error| Problem::new("rekey", error.to_string()))?;
        if let Some(client) = client {
            return self.ask(client, path).map(Some);
        }
        let _let_go = self.let_go(path, log);
        if descriptor.reencrypting.is_some() {
            // It becomes a volume under its old key, whose data keys can be wrapped again.
            self.rewriting(path, old)?.give_up()?;
        }
        let from = self.kek(old).map_err(key_problem)?;
        let (to, lock_wait, least_generation) = (self.to, LOCK_WAIT, self.least_generation(path));
        match rewrap(path, &RewrapOptions { from, to, lock_wait, least_generation }) {
            // A suspended memory or a swap disk may disappear at any time.
            Err(_) if is_gone(path) => Ok(None),
            Ok(descriptor) => Ok(Some(descriptor.generation)),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the recorder of the console's output wait, if this is its volume.
    fn let_go(&self, path: &Path, log: Option<&LogSender>) -> Option<LetGo> {
        let is_console = path == self.spec.own_volume_path(OwnVolume::Console);
        log.filter(|_| is_console).and_then(LogSender::let_go)
    }

    /// The key is passed to the volume's supervisor in a pipe, so that it need not be fetched again
    /// for each volume.
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

    /// Records both keys until the move is complete.
    fn begin(&self) -> Result<(), Problem> {
        VmRecord::change(self.spec, |record| {
            // An interrupted move has already recorded this; the old keys may then be needed for
            // nothing else.
            if record.spec == *self.spec && record.attestation.is_some() {
                Ok(())
            } else {
                self.attest(record, self.spec)
            }
        })
    }

    fn attest(&self, record: &mut VmRecord, spec: &VmSpec) -> Result<(), Problem> {
        let attested =
            record.become_attested(spec, |key, what| match self.left.iter().find(|old| old.key == key) {
                Some(old) => tag(what, self.kek(old)?),
                None if self.to.source() == &KekSource::Provider(key.clone()) => tag(what, self.to),
                None => self.keys.attest(key, what),
            });
        attested.map_err(key_problem)
    }

    /// Records that the old keys are no longer needed.
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
        VmRecord::change(&spec, |record| self.attest(record, &spec))?;
        Ok(spec)
    }
}

/// Returns every volume in the VM's directories, including the remains of interrupted jobs.
pub fn volumes(spec: &VmSpec) -> Result<Vec<DescribedVolume>, Problem> {
    let mut volumes = Vec::new();
    for directory in spec.directories() {
        for (name, kind) in entries_of(&directory)? {
            let path = directory.join(&name);
            if name.starts_with('.') || path == spec.tpm_state_path() || kind != EntryKind::Directory {
                continue;
            }
            match describe(&path) {
                Ok(volume) => volumes.push(volume),
                Err(_) if is_gone(&path) => {}
                // Its key is not known, so the old key may still be needed.
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(volumes)
}
