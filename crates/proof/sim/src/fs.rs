//! The simulated file system's interface: names, power cuts, faults.

use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::io::Errno;
use strongroom_types::Extent;

use crate::faults::Faults;
use crate::file::{SimDirectory, SimFile};
use crate::inode::Inode;
use crate::names::{Ino, Target};
use crate::reactor::SimReactor;
use crate::state::{Habits, Medium, Node, State};

/// A simulated file system. Clones share it.
#[derive(Clone, Debug)]
pub struct SimFs {
    state: Arc<Mutex<State>>,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Also for writing.
    pub write: bool,
    /// Create it if it is missing.
    pub create: bool,
    /// With `create`: refuse an existing file.
    pub exclusive: bool,
    /// Truncate it.
    pub truncate: bool,
}

impl SimFs {
    /// An empty file system. Two with the same seed behave the same under the same calls.
    pub fn new(seed: u64) -> Self {
        Self::with(Medium::empty(), seed, Habits::default())
    }

    fn with(medium: Medium, seed: u64, habits: Habits) -> Self {
        let mut state = State::new(medium, seed);
        state.habits = habits;
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// An event loop for one thread; `seed` orders its completions.
    pub fn reactor(&self, seed: u64) -> Result<SimReactor, strongroom_io::IoError> {
        SimReactor::new(self.clone(), seed)
    }

    /// The file system after a power cut now. Equal seeds give equal results; this one is
    /// unchanged.
    pub fn cut(&self, seed: u64) -> Self {
        let medium = self.state().medium.clone();
        let habits = self.state().habits;
        Self::with(medium.crash(&mut StdRng::seed_from_u64(seed)), seed, habits)
    }

    /// Records every moment from now on, for [`Self::cut_at`].
    pub fn record(&self) {
        let mut state = self.state();
        let now = state.medium.clone();
        state.clock = 0;
        state.history = Some(vec![now]);
    }

    /// Gives up all content and every recorded moment. Handles that were leaked, as those of a
    /// killed process are, then hold no memory.
    pub fn discard(&self) {
        let mut state = self.state();
        state.medium = Medium::empty();
        state.history = None;
    }

    /// The number of recorded moments, which is the number of the next one. The last one is the
    /// present.
    pub fn moments(&self) -> usize {
        self.state().history.as_ref().map_or(0, Vec::len)
    }

    /// The file system after a power cut at an earlier moment.
    ///
    /// # Panics
    /// If there is no such moment.
    pub fn cut_at(&self, moment: usize, seed: u64) -> Self {
        let state = self.state();
        let recorded = state.history.as_ref().and_then(|history| history.get(moment));
        let Some(medium) = recorded else { panic!("moment {moment} was not recorded") };
        Self::with(medium.crash(&mut StdRng::seed_from_u64(seed)), seed, state.habits)
    }

    /// The file system after all its users were killed at an earlier moment. All completed changes
    /// are visible, and none is more durable than before. Operations in flight have ended: done,
    /// done in part, or not done.
    ///
    /// # Panics
    /// If there is no such moment.
    pub fn killed_at(&self, moment: usize, seed: u64) -> Self {
        let state = self.state();
        let recorded = state.history.as_ref().and_then(|history| history.get(moment));
        let Some(medium) = recorded else { panic!("moment {moment} was not recorded") };
        let killed = Self::with(medium.killed(&mut StdRng::seed_from_u64(seed)), seed, state.habits);
        killed.state().number_after(&state);
        killed
    }

    /// The moments at which a power cut could change these bytes of a file whose name begins with
    /// `name`.
    pub fn moments_unsettled(&self, name: &str, within: Extent) -> Vec<usize> {
        let state = self.state();
        let moments = state.history.iter().flatten().enumerate();
        let is_unsettled = |medium: &Medium| {
            let mut files = medium.names.called(|found| found.starts_with(name));
            files.any(|ino| {
                medium
                    .nodes
                    .get(&ino)
                    .is_some_and(|node| matches!(&**node, Node::File(file) if file.is_unsettled(within)))
            })
        };
        moments.filter(|(_, medium)| is_unsettled(medium)).map(|(moment, _)| moment).collect()
    }

    /// The moments at which a power cut could keep a renaming and lose an earlier change of names.
    pub fn moments_of_renamings(&self) -> Vec<usize> {
        let state = self.state();
        let moments = state.history.iter().flatten().enumerate();
        moments.filter(|(_, medium)| medium.names.may_only_rename()).map(|(moment, _)| moment).collect()
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Sets its capacity in bytes of blocks; initially unlimited.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.state().capacity_bytes = capacity_bytes;
    }

    /// Sets whether a new block persists whole or not at all, as on the supported file systems.
    /// Initially it does not.
    pub fn set_fills_whole(&self, fills_whole: bool) {
        self.state().habits.fills_whole = fills_whole;
    }

    /// Sets whether a sync that begins during another sync of the same file is acknowledged without
    /// effect, as btrfs does at times. Initially it is not.
    pub fn set_skips_overlapping_syncs(&self, skips_overlapping_syncs: bool) {
        self.state().habits.skips_overlapping_syncs = skips_overlapping_syncs;
    }

    /// Sets whether the device hangs, during which it completes no operation of a queue.
    pub fn set_hung(&self, hung: bool) {
        self.state().hung = hung;
    }

    /// Makes the device vanish: operations in flight fail, and so do all others until it comes
    /// back.
    pub fn vanish(&self) {
        self.state().gone = true;
    }

    /// Brings the device back, in the state after a power cut. Open handles stay dead.
    pub fn come_back(&self, seed: u64) {
        let mut state = self.state();
        state.medium = state.medium.crash(&mut StdRng::seed_from_u64(seed));
        state.mount += 1;
        state.gone = false;
        state.locks.clear();
        state.tick();
    }

    /// Makes a directory (`mkdir`).
    pub fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        let mut state = self.state();
        state.name_fault()?;
        let (parent, name) = state.parent(path)?;
        if state.medium.names.get(parent, name).is_some() {
            return Err(Errno::EXIST);
        }
        let ino = state.next_id();
        state.medium.nodes.insert(ino, Arc::new(Node::Directory));
        state.names().change(vec![(parent, name.to_owned(), Target::Added(ino))]);
        state.tick();
        Ok(())
    }

    /// Removes an empty directory (`rmdir`).
    pub fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        let mut state = self.state();
        state.name_fault()?;
        let (parent, name) = state.parent(path)?;
        let ino = state.medium.names.get(parent, name).ok_or(Errno::NOENT)?;
        if !state.is_directory(ino) {
            return Err(Errno::NOTDIR);
        }
        if !state.medium.names.list(ino).is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        state.names().change(vec![(parent, name.to_owned(), Target::Gone)]);
        state.tick();
        Ok(())
    }

    /// Renames without replacing (`renameat2` with `RENAME_NOREPLACE`).
    pub fn rename_no_replace(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let mut state = self.state();
        state.name_fault()?;
        let (from_directory, from_name) = state.parent(from)?;
        let (to_directory, to_name) = state.parent(to)?;
        let ino = state.medium.names.get(from_directory, from_name).ok_or(Errno::NOENT)?;
        if state.medium.names.get(to_directory, to_name).is_some() {
            return Err(Errno::EXIST);
        }
        let gone = (from_directory, from_name.to_owned(), Target::Gone);
        state.names().change(vec![gone, (to_directory, to_name.to_owned(), Target::Moved(ino))]);
        state.tick();
        Ok(())
    }

    /// Whether a path exists.
    pub fn exists(&self, path: &Path) -> bool {
        let state = self.state();
        state.parent(path).is_ok_and(|(parent, name)| state.medium.names.get(parent, name).is_some())
    }

    /// Whether a path is a directory.
    pub fn is_directory(&self, path: &Path) -> bool {
        self.state().directory(path).is_ok()
    }

    /// Opens a directory.
    pub fn open_directory(&self, path: &Path) -> Result<SimDirectory, Errno> {
        let mut state = self.state();
        state.name_fault()?;
        let ino = state.directory(path)?;
        let (id, mount) = (state.next_id(), state.mount);
        drop(state);
        Ok(SimDirectory { fs: self.clone(), ino, id, mount })
    }

    pub(crate) fn open_file(&self, directory: Ino, name: &str, how: OpenHow) -> Result<SimFile, Errno> {
        let mut state = self.state();
        state.name_fault()?;
        let ino = match state.medium.names.get(directory, name) {
            Some(_) if how.create && how.exclusive => return Err(Errno::EXIST),
            Some(ino) if state.is_directory(ino) => return Err(Errno::ISDIR),
            Some(ino) => ino,
            None if !how.create => return Err(Errno::NOENT),
            None => {
                let ino = state.next_id();
                state.medium.nodes.insert(ino, Arc::new(Node::File(Inode::default())));
                state.names().change(vec![(directory, name.to_owned(), Target::Added(ino))]);
                state.tick();
                ino
            }
        };
        *state.open.entry(ino).or_default() += 1;
        let (id, mount) = (state.next_id(), state.mount);
        drop(state);
        let file = SimFile { fs: self.clone(), ino, id, mount, writable: how.write };
        if how.truncate {
            file.set_length(0)?;
        }
        Ok(file)
    }
}
