//! The simulated file system as its user sees it: names, power cuts, faults.

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
use crate::names::Ino;
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
    /// Also to write.
    pub write: bool,
    /// Create it where it is missing.
    pub create: bool,
    /// With `create`: refuse one that is there.
    pub exclusive: bool,
    /// Make it empty.
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

    /// The file system that a power cut leaves now. The same seed leaves the same; this one goes
    /// on.
    pub fn cut(&self, seed: u64) -> Self {
        let medium = self.state().medium.clone();
        let habits = self.state().habits;
        Self::with(medium.crash(&mut StdRng::seed_from_u64(seed)), seed, habits)
    }

    /// Keeps every moment from now on, for [`Self::cut_at`].
    pub fn record(&self) {
        let mut state = self.state();
        let now = state.medium.clone();
        state.clock = 0;
        state.history = Some(vec![now]);
    }

    /// How many moments have been kept, and so the number of the next. The present one is the last
    /// of them.
    pub fn moments(&self) -> usize {
        self.state().history.as_ref().map_or(0, Vec::len)
    }

    /// The file system that a power cut at an earlier moment leaves.
    ///
    /// # Panics
    /// If there is no such moment.
    pub fn cut_at(&self, moment: usize, seed: u64) -> Self {
        let state = self.state();
        let recorded = state.history.as_ref().and_then(|history| history.get(moment));
        let Some(medium) = recorded else { panic!("moment {moment} was not recorded") };
        Self::with(medium.crash(&mut StdRng::seed_from_u64(seed)), seed, state.habits)
    }

    /// The file system after everybody who used it was killed at an earlier moment. All that was
    /// done is seen, and nothing of it is more durable than it was; whatever was under way has been
    /// done, in part or not at all, and has ended.
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

    /// The moments at which a power cut could have changed these bytes of a file whose name begins
    /// so.
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

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// How many bytes of blocks it has room for; without a limit at first.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.state().capacity_bytes = capacity_bytes;
    }

    /// Whether a block that is written where there was none persists whole or not at all, as it
    /// does on the file systems that are supported. At first it need not.
    pub fn set_fills_whole(&self, fills_whole: bool) {
        self.state().habits.fills_whole = fills_whole;
    }

    /// Whether a sync of a file that begins while another one of that file is under way is
    /// acknowledged and does nothing, as btrfs does at times. At first none is.
    pub fn set_skips_overlapping_syncs(&self, skips_overlapping_syncs: bool) {
        self.state().habits.skips_overlapping_syncs = skips_overlapping_syncs;
    }

    /// While it hangs, the device ends no operation of a queue.
    pub fn set_hung(&self, hung: bool) {
        self.state().hung = hung;
    }

    /// The device vanishes: what is under way fails, and so does everything until it comes back.
    pub fn vanish(&self) {
        self.state().gone = true;
    }

    /// The device is there again, with what a power cut would have left. What was open stays dead.
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
        state.names().change(vec![(parent, name.to_owned(), Some(ino))]);
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
        state.names().change(vec![(parent, name.to_owned(), None)]);
        state.tick();
        Ok(())
    }

    /// Renames, and refuses to replace (`renameat2` with `RENAME_NOREPLACE`).
    pub fn rename_no_replace(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let mut state = self.state();
        state.name_fault()?;
        let (from_directory, from_name) = state.parent(from)?;
        let (to_directory, to_name) = state.parent(to)?;
        let ino = state.medium.names.get(from_directory, from_name).ok_or(Errno::NOENT)?;
        if state.medium.names.get(to_directory, to_name).is_some() {
            return Err(Errno::EXIST);
        }
        let gone = (from_directory, from_name.to_owned(), None);
        state.names().change(vec![gone, (to_directory, to_name.to_owned(), Some(ino))]);
        state.tick();
        Ok(())
    }

    /// Whether a path leads to anything.
    pub fn exists(&self, path: &Path) -> bool {
        let state = self.state();
        state.parent(path).is_ok_and(|(parent, name)| state.medium.names.get(parent, name).is_some())
    }

    /// Whether a path leads to a directory.
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
                state.names().change(vec![(directory, name.to_owned(), Some(ino))]);
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
