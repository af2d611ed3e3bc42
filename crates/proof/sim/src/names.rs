//! The names of a file system: the files of each directory's entries, current and durable.
//!
//! A change of names (creation, renaming, removal) is one transaction, which a power cut leaves
//! whole or not at all. Until its directory has been synced, any subset of them may persist.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand::rngs::StdRng;

use crate::inode::Mood;

/// The number of a file or directory.
pub(crate) type Ino = u64;

/// The root directory.
pub(crate) const ROOT: Ino = 1;

type Entries = BTreeMap<(Ino, String), Ino>;

/// What a change makes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// It is gone.
    Gone,
    /// It leads to this file, beside the file's other entries.
    Added(Ino),
    /// It leads to this file, which has no other entry: only what has one name is renamed.
    Moved(Ino),
}

/// An entry and what becomes of it.
type NameChange = (Ino, String, Target);

#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    current: Entries,
    durable: Entries,
    /// Completed and not durable, in order.
    pending: Vec<Vec<NameChange>>,
}

impl Names {
    pub(crate) fn get(&self, directory: Ino, name: &str) -> Option<Ino> {
        self.current.get(&(directory, name.to_owned())).copied()
    }

    /// All files with a matching name, in any directory.
    pub(crate) fn called(&self, is_so: impl Fn(&str) -> bool) -> impl Iterator<Item = Ino> {
        self.current.iter().filter(move |((_, name), _)| is_so(name)).map(|(_, ino)| *ino)
    }

    /// The names in a directory, sorted.
    pub(crate) fn list(&self, directory: Ino) -> Vec<String> {
        let from = (directory, String::new())..(directory + 1, String::new());
        self.current.range(from).map(|((_, name), _)| name.clone()).collect()
    }

    /// Whether any name leads to the file.
    pub(crate) fn lead_to(&self, ino: Ino) -> bool {
        self.count(ino) > 0
    }

    /// The number of names that lead to the file.
    pub(crate) fn count(&self, ino: Ino) -> u64 {
        self.current.values().filter(|other| **other == ino).count() as u64
    }

    /// Whether a power cut could keep a renaming and lose an earlier change.
    pub(crate) fn may_only_rename(&self) -> bool {
        let is_renaming = |changes: &Vec<NameChange>| {
            changes.iter().any(|(_, _, target)| matches!(target, Target::Moved(_)))
        };
        self.pending.iter().skip(1).any(is_renaming)
    }

    /// Changes entries, in one transaction.
    pub(crate) fn change(&mut self, changes: Vec<NameChange>) {
        apply(&mut self.current, &changes);
        self.pending.push(changes);
    }

    /// Makes the changes of a directory durable.
    pub(crate) fn sync(&mut self, directory: Ino) {
        for changes in std::mem::take(&mut self.pending) {
            if changes.iter().any(|(of, ..)| *of == directory) {
                apply(&mut self.durable, &changes);
            } else {
                self.pending.push(changes);
            }
        }
    }

    /// The names after a power cut; unreachable files are gone.
    pub(crate) fn crash(&self, random: &mut StdRng) -> Self {
        let mut left = self.durable.clone();
        let mood = Mood::draw(random);
        for changes in &self.pending {
            let chance = mood.chance(random);
            if random.random_bool(chance) {
                apply(&mut left, changes);
            }
        }
        let mut reached = BTreeSet::from([ROOT]);
        loop {
            let more: Vec<Ino> = left
                .iter()
                .filter(|((directory, _), ino)| reached.contains(directory) && !reached.contains(ino))
                .map(|(_, ino)| *ino)
                .collect();
            if more.is_empty() {
                break;
            }
            reached.extend(more);
        }
        left.retain(|(directory, _), _| reached.contains(directory));
        Self { current: left.clone(), durable: left, pending: Vec::new() }
    }

    /// All files with a name.
    pub(crate) fn files(&self) -> impl Iterator<Item = Ino> {
        self.current.values().copied()
    }
}

fn apply(entries: &mut Entries, changes: &[NameChange]) {
    for (directory, name, target) in changes {
        let entry = (*directory, name.clone());
        match target {
            Target::Gone => drop(entries.remove(&entry)),
            Target::Added(ino) => drop(entries.insert(entry, *ino)),
            Target::Moved(ino) => {
                entries.retain(|_, other| other != ino);
                entries.insert(entry, *ino);
            }
        }
    }
}
