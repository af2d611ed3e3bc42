//! `strongroom key rotate`: a new key in the place of an old one, for every volume that needs that.
//!
//! In this order: the wish for a new key is noted, durably; the key is made, noted, and fetched
//! again; each volume is moved, by way of a descriptor under both keys; when nothing needs the old
//! key, for sure, it is taken out of use. Killed anywhere, the same command goes on with the same
//! new key; the old one opens each volume until that is done.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use strongroom_keys::{KekSource, ProviderKey, ProviderName};
use strongroom_processes::Signals;
use strongroom_providers::{KeyState, ProviderError, Revocation};
use strongroom_types::{KekId, counted};

use super::begun::{BegunRotation, BegunRotations};
use super::inventory::{Broken, Inventory, Key, state_name};
use super::{DatastoreArguments, KeyName};
use crate::datastores::{UnknownNeeds, provider_key};
use crate::error::{CliError, without_numbers};
use crate::home::HomeArguments;
use crate::keys::KeyArguments;
use crate::keyserver::Overseer;
use crate::output::Output;
use crate::volume::open::{FreshnessArguments, LockArguments};
use crate::volume::rekey::{Journal, Mover, NewKeys, TargetArguments};

/// How often it is looked for more volumes under the old key after all that were found have moved.
const PASSES_MAX: usize = 8;

/// Which keys, and to where.
#[derive(Debug, Args)]
#[command(
    after_help = "A new key is made at the provider, and every volume that is found under the old one is moved to it: in each datastore in which this \
machine made a volume under a provider's key, and in those given with --datastore. No data is copied, and volumes may be exposed meanwhile. \
The command can be interrupted, or killed, at any moment: called again in the same way it goes on with the same new key. When nothing \
needs the old key any more it is taken out of use (deactivated: it still opens old copies of a volume's descriptor; 'key destroy' ends that).

With --all-due every key is rotated that volumes need and whose time is over: the provider's cryptoperiod ('key-provider add \
--cryptoperiod'), or the key's own date. Call it from a timer.

Exit status: 0 all is done; 1 something is left, and the same command goes on with it.

Examples:
  strongroom key rotate 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11
  strongroom key rotate --volume ./ds/vm1 --to-key-provider corp
  strongroom key rotate --all-due"
)]
#[group(id = "which", required = true, multiple = false, args = ["key", "volume", "all_due"])]
pub struct RotateArguments {
    /// The key: its id at its provider, or the KEK id that a volume is under
    #[arg(value_name = "KEY")]
    key: Option<String>,

    /// The key that this volume is under
    #[arg(long, value_name = "PATH")]
    volume: Option<PathBuf>,

    /// Every key whose time is over
    #[arg(long)]
    all_due: bool,

    /// Whose keys; needed if several providers have one of that id
    #[arg(long, value_name = "NAME", conflicts_with = "volume")]
    provider: Option<ProviderName>,

    /// Make the new key at key provider NAME, and not where the old one is
    #[arg(long, value_name = "NAME")]
    to_key_provider: Option<ProviderName>,

    #[command(flatten)]
    datastores: DatastoreArguments,

    #[command(flatten)]
    lock: LockArguments,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Rotated {
    rotated: Vec<Rotation>,
    /// Providers that could not be asked for what is due.
    broken: Vec<Broken>,
    finished: bool,
}

#[derive(Serialize)]
struct Rotation {
    #[serde(flatten)]
    key: ProviderKey,
    /// The key in its place, if one was needed.
    new_key: Option<ProviderKey>,
    new_kek_id: Option<String>,
    /// Whether an earlier call had begun it.
    resumed: bool,
    moved: Vec<PathBuf>,
    failed: Vec<Failed>,
    /// What is left to be found out, while which the old key stays in use.
    unknown: Vec<UnknownNeeds>,
    /// The old key's state now.
    old_state: Option<KeyState>,
    /// Why the old key is not out of use, if that cannot be done.
    remark: Option<String>,
    finished: bool,
}

#[derive(Serialize)]
struct Failed {
    path: PathBuf,
    code: String,
    message: String,
}

impl fmt::Display for Rotated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rotated.is_empty() && self.broken.is_empty() {
            return f.write_str("no key is due");
        }
        let mut lines: Vec<String> = self.rotated.iter().map(ToString::to_string).collect();
        lines.extend(self.broken.iter().map(|broken| format!("broken: {}: {}", broken.name, broken.reason)));
        if !self.finished {
            lines.push("something is left; call it again in the same way to go on".to_owned());
        }
        f.write_str(&lines.join("\n"))
    }
}

impl fmt::Display for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Failed { path, message, .. } in &self.failed {
            writeln!(f, "not done: {}: {message}", path.display())?;
        }
        for unknown in &self.unknown {
            writeln!(f, "not looked into, so the old key stays in use: {unknown}")?;
        }
        if let Some(remark) = &self.remark {
            writeln!(f, "the old key stays in use: {remark}")?;
        }
        write!(f, "{}: {} moved", self.key, counted(self.moved.len(), "volume"))?;
        if let Some(new) = &self.new_key {
            write!(f, " to {new}")?;
        }
        match self.old_state {
            Some(state) => write!(f, "; the old key is {}", state_name(state)),
            None => Ok(()),
        }
    }
}

impl RotateArguments {
    /// Rotates them; the exit status says whether all is done.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let home = self.home.path()?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let rotations = BegunRotations::of_home(&home);
        let mut inventory = self.look(&home)?;
        let tasks = self.tasks(&home, &mut inventory, &rotations)?;
        let broken = if self.all_due { inventory.broken } else { Vec::new() };
        let mut rotated = Vec::new();
        for (task, key) in &tasks {
            let rotation = self.rotate(&home, task, key, &rotations, &signals)?;
            rotated.push(rotation);
        }
        let finished = broken.is_empty() && rotated.iter().all(|rotation| rotation.finished);
        output.answer(&Rotated { rotated, broken, finished })?;
        Ok(if finished { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// What is to be rotated: what was begun and is meant, or what is there.
    fn tasks(
        &self,
        home: &Path,
        inventory: &mut Inventory,
        rotations: &BegunRotations,
    ) -> Result<Vec<(BegunRotation, Key)>, CliError> {
        let mut begun = rotations.list()?;
        let to = |key: &Key| self.to_key_provider.clone().unwrap_or_else(|| key.key.provider.clone());
        let is_same = |begun: &BegunRotation, key: &Key| begun.key == key.key && begun.to == to(key);
        let mut keys = Vec::new();
        match (&self.key, &self.volume) {
            (Some(name), _) => {
                // Once its volumes have moved, nothing else knows its KEK id.
                begun.retain(|begun| begun.kek.is_some_and(|kek| kek.to_string() == *name));
                if begun.is_empty() {
                    let name = KeyName { key: name.clone(), provider: self.provider.clone() };
                    keys.push(inventory.find(&name)?);
                }
            }
            (None, Some(volume)) => {
                let key = inventory.key_of_volume(volume)?;
                let mut moved = Vec::new();
                for begun in begun {
                    let journal = Journal::open(home, &begun.job())?;
                    if key.kek.is_some_and(|kek| journal.new_key(kek).is_some()) {
                        moved.push(begun);
                    }
                }
                begun = moved;
                if begun.is_empty() {
                    keys.push(key);
                }
            }
            (None, None) => {
                let now = SystemTime::now();
                let all = inventory.keys(self.provider.as_ref());
                begun.retain(|begun| self.provider.as_ref().is_none_or(|name| *name == begun.key.provider));
                let is_new = |key: &Key| !begun.iter().any(|begun| is_same(begun, key));
                keys.extend(all.into_iter().filter(|key| is_due(key, now)).filter(is_new));
            }
        }
        let begun = begun.into_iter().map(|begun| (inventory.look_up(begun.key.clone()), begun));
        let mut tasks: Vec<_> = begun.map(|(key, begun)| (begun, key)).collect();
        tasks.extend(
            keys.into_iter().map(|key| (BegunRotation::new(key.key.clone(), key.kek, to(&key)), key)),
        );
        Ok(tasks)
    }

    /// What there is now. A volume that was named is looked for where it is, known or not.
    fn look(&self, home: &Path) -> Result<Inventory, CliError> {
        let mut datastores = self.datastores.datastores.clone();
        let beside = self.volume.as_deref().and_then(Path::parent);
        datastores.extend(beside.map(|parent| match parent.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => parent.to_owned(),
        }));
        Inventory::open(home, &datastores, Overseer::of_home(home).as_ref())
    }

    fn rotate(
        &self,
        home: &Path,
        task: &BegunRotation,
        key: &Key,
        rotations: &BegunRotations,
        signals: &Signals,
    ) -> Result<Rotation, CliError> {
        let mut journal = Journal::open(home, &task.job())?;
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
            return Err(CliError::Usage(format!(
                "no volume is known that needs {}; say where there are any with --datastore DIR",
                key.key
            )));
        }
        if let Some(vm) = key.vms().first() {
            journal.finish()?;
            return Err(CliError::Usage(format!(
                "{} is the key of VM {vm}: rotate it with `strongroom vm key rotate {vm}`",
                key.key
            )));
        }
        rotations.begin(task)?;
        let target = TargetArguments::at_provider(task.to.clone());
        let present = KeyArguments::of_providers(&self.home);
        let mut keys = NewKeys::new(&target, present.keyring()?);
        for _ in 0..PASSES_MAX {
            let inventory = self.look(home)?;
            rotation.unknown = inventory.scan().unknown().to_vec();
            let needing = inventory.needing(&key.key);
            if needing.is_empty() {
                break;
            }
            for volume in needing {
                if signals.came() {
                    return Err(CliError::Interrupted);
                }
                let old = volume.keks.iter().find(|kek| provider_key(&kek.source) == Some(&key.key));
                let old = old.map(|kek| kek.id);
                check_successor(&inventory, old, &journal)?;
                let mover = Mover {
                    key: &present,
                    in_place_of: old,
                    freshness: FreshnessArguments {
                        least_generation: 0,
                        expect_kek: None,
                        expect_volume: None,
                    },
                    lock_wait: self.lock.lock_wait,
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
                    Err(error @ (CliError::Interrupted | CliError::NewKeyOutOfUse { .. })) => {
                        return Err(error);
                    }
                    Err(error) => rotation.failed.push(Failed {
                        path: volume.path.clone(),
                        code: error.code().to_owned(),
                        message: without_numbers(&error.to_string()),
                    }),
                }
            }
            if !rotation.failed.is_empty() {
                break;
            }
        }
        self.end(home, &mut rotation)?;
        if rotation.finished {
            // The other way round a journal that is finished would be begun anew.
            rotations.end(task)?;
            journal.finish()?;
        }
        Ok(rotation)
    }

    /// Takes the old key out of use if nothing needs it, for sure.
    fn end(&self, home: &Path, rotation: &mut Rotation) -> Result<(), CliError> {
        let inventory = self.look(home)?;
        rotation.unknown = inventory.scan().unknown().to_vec();
        if !rotation.failed.is_empty()
            || !rotation.unknown.is_empty()
            || !inventory.needing(&rotation.key).is_empty()
        {
            return Ok(());
        }
        let failed = |error| CliError::Provider { name: rotation.key.provider.clone(), error };
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
fn check_successor(inventory: &Inventory, old: Option<KekId>, journal: &Journal) -> Result<(), CliError> {
    let Some(record) = old.and_then(|old| journal.successor(old)) else { return Ok(()) };
    let Some(key) = provider_key(&record.source) else { return Ok(()) };
    match inventory.facts(key)?.state {
        KeyState::Active => Ok(()),
        state => Err(CliError::NewKeyOutOfUse { key: Box::new(key.clone()), state: state_name(state) }),
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
