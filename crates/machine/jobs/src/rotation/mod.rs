//! A new key in the place of an old one, for every volume that needs that.
//!
//! In this order: the wish for a new key is noted, durably; the key is made, noted, and fetched
//! again; each volume is moved, by way of a descriptor under both keys; when nothing needs the old
//! key, for sure, it is taken out of use. Killed anywhere, the same call goes on with the same new
//! key; the old one opens each volume until that is done.

mod begun;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use strongroom_keys::{KekSource, Keyring, ProviderKey, ProviderName};
use strongroom_providers::{FailedProvider, KeyState, ProviderError, Revocation};
use strongroom_types::KekId;

use self::begun::{BegunRotation, BegunRotations};
use crate::datastores::{KnownDatastores, UnknownNeeds, provider_key};
use crate::error::{FailedVolume, JobError};
use crate::inventory::{Broken, Inventory, Key, KeyName, Overseer};
use crate::present_keys::PresentKeys;
use crate::rekey::{Freshness, Journal, Mover, NewKeySource, NewKeys};

/// How often it is looked for more volumes under the old key after all that were found have moved.
const PASSES_MAX: usize = 8;

/// Which keys get a successor.
#[derive(Clone, Debug)]
pub enum Which {
    /// One key.
    Key(KeyName),
    /// The key that a volume is under.
    OfVolume(PathBuf),
    /// Every key whose time is over, or those of one provider.
    AllDue(Option<ProviderName>),
}

/// A job.
pub struct Rotate<'a> {
    /// Where jobs are noted.
    pub home: &'a Path,
    /// Which keys.
    pub which: &'a Which,
    /// Where new keys are made; nothing means where the old one is.
    pub to: Option<&'a ProviderName>,
    /// Datastores to look for volumes in, beside those that are known.
    pub datastores: &'a [PathBuf],
    /// As whom this machine's own key server is asked about keys.
    pub overseer: Option<&'a Overseer>,
    /// Whatever reaches the key providers.
    pub keyring: &'a dyn Keyring,
    /// Where the present keys come from.
    pub present: &'a dyn PresentKeys,
    /// How long to wait for a process that has a volume.
    pub lock_wait: Duration,
    /// Whether a person wants the job to stop before its next volume.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// What a job has done.
#[derive(Debug, Serialize)]
pub struct Rotated {
    /// The keys that it rotated, or went on with.
    pub rotated: Vec<Rotation>,
    /// Providers that could not be asked for what is due.
    pub broken: Vec<Broken>,
    /// Whether nothing is left to be done.
    pub finished: bool,
}

/// What has become of one key.
#[derive(Debug, Serialize)]
pub struct Rotation {
    /// The old key.
    #[serde(flatten)]
    pub key: ProviderKey,
    /// The key in its place, if one was needed.
    pub new_key: Option<ProviderKey>,
    /// The id that volumes have for the new key.
    pub new_kek_id: Option<String>,
    /// Whether an earlier call had begun it.
    pub resumed: bool,
    /// The volumes that were moved now.
    pub moved: Vec<PathBuf>,
    /// The volumes that were not.
    pub failed: Vec<FailedVolume>,
    /// What is left to be found out, while which the old key stays in use.
    pub unknown: Vec<UnknownNeeds>,
    /// The old key's state now.
    pub old_state: Option<KeyState>,
    /// Why the old key is not out of use, if that cannot be done.
    pub remark: Option<String>,
    /// Whether nothing is left to be done.
    pub finished: bool,
}

/// A rotation that is begun or gone on with, and what is known of the old key.
struct Task {
    rotation: BegunRotation,
    key: Key,
}

impl Rotate<'_> {
    /// Rotates them, or goes on with that.
    ///
    /// # Errors
    /// [`JobError::NoSuchKey`] and the like for a key that is not one, [`JobError::NothingToMove`],
    /// [`JobError::KeyOfVm`], [`JobError::NewKeyOutOfUse`], [`JobError::JobRuns`],
    /// [`JobError::Interrupted`], and what keeps the job from being noted. What keeps one volume
    /// from being moved is in the answer.
    pub fn carry_out(&self) -> Result<Rotated, JobError> {
        let rotations = BegunRotations::of_home(self.home);
        let mut inventory = self.look()?;
        let tasks = self.tasks(&mut inventory, &rotations)?;
        let broken = match self.which {
            Which::AllDue(_) => inventory.broken,
            Which::Key(_) | Which::OfVolume(_) => Vec::new(),
        };
        let rotated = tasks.iter().map(|task| self.rotate(task, &rotations));
        let rotated = rotated.collect::<Result<Vec<_>, _>>()?;
        let finished = broken.is_empty() && rotated.iter().all(|rotation| rotation.finished);
        Ok(Rotated { rotated, broken, finished })
    }

    /// What is to be rotated: what was begun and is meant, or what is there.
    fn tasks(&self, inventory: &mut Inventory, rotations: &BegunRotations) -> Result<Vec<Task>, JobError> {
        let mut begun = rotations.list()?;
        let to = |key: &Key| self.to.unwrap_or(&key.key.provider).clone();
        let is_same = |begun: &BegunRotation, key: &Key| begun.key == key.key && begun.to == to(key);
        let mut keys = Vec::new();
        match self.which {
            Which::Key(name) => {
                // Once its volumes have moved, nothing else knows its KEK id.
                begun.retain(|begun| begun.kek.is_some_and(|kek| kek.to_string() == name.key));
                if begun.is_empty() {
                    keys.push(inventory.find(name)?);
                }
            }
            Which::OfVolume(volume) => {
                let key = inventory.key_of_volume(volume)?;
                let mut moved = Vec::new();
                for begun in begun {
                    let journal = Journal::open(self.home, &begun.job())?;
                    if key.kek.is_some_and(|kek| journal.new_key(kek).is_some()) {
                        moved.push(begun);
                    }
                }
                begun = moved;
                if begun.is_empty() {
                    keys.push(key);
                }
            }
            Which::AllDue(provider) => {
                let now = SystemTime::now();
                let all = inventory.keys(provider.as_ref());
                begun.retain(|begun| provider.as_ref().is_none_or(|name| *name == begun.key.provider));
                let is_new = |key: &Key| !begun.iter().any(|begun| is_same(begun, key));
                keys.extend(all.into_iter().filter(|key| is_due(key, now)).filter(is_new));
            }
        }
        let begun =
            begun.into_iter().map(|rotation| Task { key: inventory.look_up(rotation.key.clone()), rotation });
        let mut tasks: Vec<_> = begun.collect();
        tasks.extend(
            keys.into_iter()
                .map(|key| Task { rotation: BegunRotation::new(key.key.clone(), key.kek, to(&key)), key }),
        );
        Ok(tasks)
    }

    /// What there is now. A volume that was named is looked for where it is, known or not.
    fn look(&self) -> Result<Inventory, JobError> {
        let mut datastores = self.datastores.to_vec();
        if let Which::OfVolume(volume) = self.which {
            datastores.extend(volume.parent().map(|parent| match parent.as_os_str().is_empty() {
                true => PathBuf::from("."),
                false => parent.to_owned(),
            }));
        }
        Inventory::open(self.home, &datastores, self.overseer)
    }

    fn rotate(&self, task: &Task, rotations: &BegunRotations) -> Result<Rotation, JobError> {
        let Task { rotation: task, key } = task;
        let mut journal = Journal::open(self.home, &task.job())?;
        let mut rotation = Rotation {
            key: key.key.clone(),
            new_key: None,
            new_kek_id: None,
            resumed: journal.is_resumed(),
            moved: Vec::new(),
            failed: Vec::new(),
            unknown: Vec::new(),
            old_state: key.facts.as_ref().ok().map(|facts| facts.state),
            remark: None,
            finished: false,
        };
        if key.volumes.is_empty() && !rotation.resumed && rotation.old_state == Some(KeyState::Active) {
            journal.finish()?;
            return Err(JobError::NothingToMove { key: Box::new(key.key.clone()) });
        }
        if let Some(vm) = key.vms().into_iter().next() {
            journal.finish()?;
            return Err(JobError::KeyOfVm { key: Box::new(key.key.clone()), vm });
        }
        rotations.begin(task)?;
        let target = NewKeySource::Provider(task.to.clone());
        let mut keys = NewKeys::new(&target, self.keyring);
        let datastores = KnownDatastores::of_home(self.home);
        for _ in 0..PASSES_MAX {
            let inventory = self.look()?;
            rotation.unknown = inventory.scan().unknown().to_vec();
            let needing = inventory.needing(&key.key);
            if needing.is_empty() {
                break;
            }
            for volume in needing {
                if (self.is_interrupted)() {
                    return Err(JobError::Interrupted);
                }
                let old = volume.keks.iter().find(|kek| provider_key(&kek.source) == Some(&key.key));
                let old = old.map(|kek| kek.id);
                check_successor(&inventory, old, &journal)?;
                let mover = Mover {
                    present: self.present,
                    datastores: &datastores,
                    in_place_of: old,
                    freshness: Freshness::default(),
                    lock_wait: self.lock_wait,
                };
                match mover.move_volume(&volume.path, &mut journal, &mut keys) {
                    Ok(moved) => {
                        rotation.new_kek_id = Some(moved.done.kek.to_string());
                        if let Some(KekSource::Provider(new)) =
                            journal.new_key(moved.done.kek).map(|record| &record.source)
                        {
                            rotation.new_key = Some(new.clone());
                        }
                        rotation.moved.push(volume.path.clone());
                        journal.set_done(moved.done)?;
                    }
                    Err(error) => rotation.failed.push(FailedVolume::new(volume.path.clone(), &error)),
                }
            }
            if !rotation.failed.is_empty() {
                break;
            }
        }
        self.end(&mut rotation)?;
        if rotation.finished {
            // The other way round a journal that is finished would be begun anew.
            rotations.end(task)?;
            journal.finish()?;
        }
        Ok(rotation)
    }

    /// Takes the old key out of use if nothing needs it, for sure.
    fn end(&self, rotation: &mut Rotation) -> Result<(), JobError> {
        let inventory = self.look()?;
        rotation.unknown = inventory.scan().unknown().to_vec();
        if !rotation.failed.is_empty()
            || !rotation.unknown.is_empty()
            || !inventory.needing(&rotation.key).is_empty()
        {
            return Ok(());
        }
        let failed =
            |error| JobError::Provider(FailedProvider { name: rotation.key.provider.clone(), error });
        let provider = inventory.provider(&rotation.key.provider)?;
        if inventory.facts(&rotation.key)?.state == KeyState::Active {
            match provider.revoke(&rotation.key, Revocation::Superseded) {
                Ok(()) => {}
                Err(ProviderError::Unsupported(why)) => rotation.remark = Some(why.to_owned()),
                Err(error) => return Err(failed(error)),
            }
        }
        rotation.old_state = Some(inventory.facts(&rotation.key)?.state);
        rotation.finished = true;
        Ok(())
    }
}

/// Whether a key's time is over, and volumes need it.
fn is_due(key: &Key, now: SystemTime) -> bool {
    let is_there = key.facts.as_ref().is_ok_and(|facts| facts.state != KeyState::Destroyed);
    is_there
        && !key.volumes.is_empty()
        && key.vms().is_empty()
        && key.expires.is_some_and(|expires| expires <= now)
}

/// Refuses to move anything to a new key that somebody took out of use since an earlier call made
/// it: it may be about to be destroyed.
fn check_successor(inventory: &Inventory, old: Option<KekId>, journal: &Journal) -> Result<(), JobError> {
    let Some(record) = old.and_then(|old| journal.successor(old)) else { return Ok(()) };
    let Some(key) = provider_key(&record.source) else { return Ok(()) };
    match inventory.facts(key)?.state {
        KeyState::Active => Ok(()),
        state => Err(JobError::NewKeyOutOfUse { key: Box::new(key.clone()), state }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strongroom_providers::KeyFacts;

    use super::*;

    #[test]
    fn a_key_is_due_when_its_time_is_over_and_volumes_need_it() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let facts = KeyFacts { state: KeyState::Active, created: None, activated: None, deactivates: None };
        let key =
            ProviderKey { provider: "corp".parse().unwrap(), key: "4711".parse().unwrap(), wrapped: None };
        let volumes = vec![PathBuf::from("/ds/vm1")];
        let key = Key { key, kek: None, facts: Ok(facts.clone()), volumes, expires: Some(at(100)) };
        assert!(!is_due(&key, at(99)) && is_due(&key, at(100)));
        assert!(!is_due(&Key { expires: None, ..key.clone() }, at(100)));
        assert!(!is_due(&Key { volumes: Vec::new(), ..key.clone() }, at(100)));
        // The provider took it out of use by itself: all the more.
        let state = KeyState::Deactivated;
        assert!(is_due(&Key { facts: Ok(KeyFacts { state, ..facts.clone() }), ..key.clone() }, at(100)));
        let state = KeyState::Destroyed;
        assert!(!is_due(&Key { facts: Ok(KeyFacts { state, ..facts }), ..key.clone() }, at(100)));
        assert!(!is_due(&Key { facts: Err("it rests".to_owned()), ..key }, at(100)));
    }
}
