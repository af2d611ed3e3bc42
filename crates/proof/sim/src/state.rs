//! The whole state of a simulated file system, behind one lock.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;
use strongroom_types::{BLOCK_BYTES, Extent, SECTOR_BYTES};

use crate::change::{Change, Length};
use crate::content::SpaceChange;
use crate::faults::{Faults, strikes};
use crate::inode::{Inode, OperationId, Tick};
use crate::names::{Ino, Names, ROOT};

/// The id of an open file description.
pub(crate) type HandleId = u64;

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Directory,
    File(Inode),
}

/// All state that survives, or may survive, a power cut.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    pub(crate) nodes: BTreeMap<Ino, Arc<Node>>,
    pub(crate) names: Arc<Names>,
}

/// Behaviour in which file systems differ.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habits {
    /// A new block persists whole or not at all, as on the supported file systems.
    pub(crate) fills_whole: bool,
    /// A sync that begins during another of the same file is acknowledged without effect, as btrfs
    /// does at times.
    pub(crate) skips_overlapping_syncs: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) medium: Medium,
    /// Count of open handles of each file.
    pub(crate) open: BTreeMap<Ino, usize>,
    /// The holders of locks, and whether each is exclusive.
    pub(crate) locks: BTreeMap<Ino, Vec<(HandleId, bool)>>,
    next_id: u64,
    pub(crate) clock: Tick,
    pub(crate) random: StdRng,
    pub(crate) faults: Faults,
    pub(crate) capacity_bytes: Option<u64>,
    /// The number of times the device came back; earlier handles are dead.
    pub(crate) mount: u32,
    pub(crate) gone: bool,
    pub(crate) hung: bool,
    pub(crate) habits: Habits,
    /// Syncs in flight, tracked only if overlapping ones are skipped.
    syncs_under_way: Vec<(Ino, OperationId)>,
    /// The medium after each tick, while it is recorded.
    pub(crate) history: Option<Vec<Medium>>,
}

impl Medium {
    pub(crate) fn empty() -> Self {
        let nodes = BTreeMap::from([(ROOT, Arc::new(Node::Directory))]);
        Self { nodes, names: Arc::default() }
    }

    /// The medium after a power cut.
    pub(crate) fn crash(&self, random: &mut StdRng) -> Self {
        let names = self.names.crash(random);
        let mut nodes = BTreeMap::from([(ROOT, Arc::new(Node::Directory))]);
        // In the order of their numbers, which is that of creation, because names may be random.
        let reached: std::collections::BTreeSet<Ino> = names.files().collect();
        for ino in reached {
            let Some(node) = self.nodes.get(&ino) else { continue };
            let left = match &**node {
                Node::Directory => Arc::clone(node),
                Node::File(file) if file.is_durable() => Arc::clone(node),
                Node::File(file) => Arc::new(Node::File(Inode::durable(file.crash(random)))),
            };
            nodes.insert(ino, left);
        }
        Self { nodes, names: Arc::new(names) }
    }

    /// The medium after all its users were killed.
    pub(crate) fn killed(&self, random: &mut StdRng) -> Self {
        let mut left = |node: &Arc<Node>| match &**node {
            Node::File(file) if !file.is_durable() => Arc::new(Node::File(file.killed(random))),
            Node::File(_) | Node::Directory => Arc::clone(node),
        };
        let nodes = self.nodes.iter().map(|(ino, node)| (*ino, left(node))).collect();
        Self { nodes, names: Arc::clone(&self.names) }
    }
}

impl State {
    pub(crate) fn new(medium: Medium, seed: u64) -> Self {
        let next_id = medium.nodes.keys().next_back().map_or(ROOT, |last| *last) + 1;
        Self {
            medium,
            open: BTreeMap::new(),
            locks: BTreeMap::new(),
            next_id,
            clock: 0,
            random: StdRng::seed_from_u64(seed),
            faults: Faults::default(),
            capacity_bytes: None,
            mount: 0,
            gone: false,
            hung: false,
            habits: Habits::default(),
            syncs_under_way: Vec::new(),
            history: None,
        }
    }

    /// Records an event: a power cut can happen between this and the next.
    pub(crate) fn tick(&mut self) {
        self.clock += 1;
        if let Some(history) = &mut self.history {
            history.push(self.medium.clone());
        }
    }

    /// Makes sure that no number of `other` is issued again.
    pub(crate) fn number_after(&mut self, other: &Self) {
        self.next_id = self.next_id.max(other.next_id);
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Fails if the device is gone, or was gone since the handle was opened.
    pub(crate) fn alive(&self, mount: u32) -> Result<(), Errno> {
        if self.gone || self.mount != mount { Err(Errno::IO) } else { Ok(()) }
    }

    /// Fails a change or look-up of names, as the faults demand.
    pub(crate) fn name_fault(&mut self) -> Result<(), Errno> {
        if self.gone || strikes(self.faults.name_error_one_in, &mut self.random) {
            return Err(Errno::IO);
        }
        Ok(())
    }

    pub(crate) fn names(&mut self) -> &mut Names {
        Arc::make_mut(&mut self.medium.names)
    }

    pub(crate) fn node(&self, ino: Ino) -> Result<&Node, Errno> {
        self.medium.nodes.get(&ino).map(|node| &**node).ok_or(Errno::STALE)
    }

    pub(crate) fn is_directory(&self, ino: Ino) -> bool {
        matches!(self.node(ino), Ok(Node::Directory))
    }

    pub(crate) fn file(&self, ino: Ino) -> Result<&Inode, Errno> {
        match self.node(ino)? {
            Node::File(file) => Ok(file),
            Node::Directory => Err(Errno::ISDIR),
        }
    }

    pub(crate) fn file_mut(&mut self, ino: Ino) -> Result<&mut Inode, Errno> {
        let node = self.medium.nodes.get_mut(&ino).ok_or(Errno::STALE)?;
        match Arc::make_mut(node) {
            Node::File(file) => Ok(file),
            Node::Directory => Err(Errno::ISDIR),
        }
    }

    /// The directory that holds a path's last name, and that name.
    pub(crate) fn parent<'a>(&self, path: &'a Path) -> Result<(Ino, &'a str), Errno> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(Errno::INVAL)?;
        Ok((self.directory(path.parent().unwrap_or(Path::new("")))?, name))
    }

    pub(crate) fn directory(&self, path: &Path) -> Result<Ino, Errno> {
        let mut at = ROOT;
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(Errno::INVAL)?;
                    at = self.medium.names.get(at, name).ok_or(Errno::NOENT)?;
                    if !self.is_directory(at) {
                        return Err(Errno::NOTDIR);
                    }
                }
                Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL),
            }
        }
        Ok(at)
    }

    /// Bytes that are still free, if there is a limit.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let capacity = self.capacity_bytes?;
        let takes_space = |ino: &Ino| self.medium.names.lead_to(*ino) || self.open.contains_key(ino);
        let used: u64 = self
            .medium
            .nodes
            .iter()
            .filter(|(ino, _)| takes_space(ino))
            .map(|(_, node)| match &**node {
                Node::File(file) => file.current.allocated_bytes(),
                Node::Directory => 0,
            })
            .sum();
        Some(capacity.saturating_sub(used))
    }

    /// The end of the part of `extent` for which there is space, in whole blocks.
    fn room_for(&self, ino: Ino, extent: Extent) -> Result<u64, Errno> {
        let Some(free) = self.free_bytes() else { return Ok(extent.end()) };
        let mut left = free / BLOCK_BYTES;
        let widened = extent.widened_to(BLOCK_BYTES);
        let content = &self.file(ino)?.current;
        let mut at = widened.offset();
        while at < widened.end() {
            let needed = content.holes_in(Extent::between(at, at + BLOCK_BYTES));
            if needed > left {
                break;
            }
            left -= needed;
            at += BLOCK_BYTES;
        }
        Ok(at.min(extent.end()))
    }

    /// Writes whole sectors, with the injected faults.
    pub(crate) fn write(
        &mut self,
        ino: Ino,
        operation: OperationId,
        extent: Extent,
        change: Change,
        durably: bool,
    ) -> Result<(), Errno> {
        let room = self.room_for(ino, extent)?;
        let before = self.file(ino)?.current.length();
        let mut change = change;
        let mut result = Ok(());
        let mut reached = extent.end();
        if strikes(self.faults.write_error_one_in, &mut self.random) {
            change.lose_some(&mut self.random);
            (result, reached) = (Err(Errno::IO), extent.offset());
        } else if room < extent.end() {
            change.cut_short(room);
            (result, reached) = (Err(Errno::NOSPC), room);
        } else if strikes(self.faults.corrupt_one_in, &mut self.random) {
            change.corrupt(&mut self.random);
        } else if strikes(self.faults.misdirect_one_in, &mut self.random) {
            change.misdirect(before / SECTOR_BYTES, &mut self.random);
        }
        let mut changes = vec![change];
        if reached > before {
            changes.push(Change::length(Length::AtLeast(reached)));
        }
        let durably = durably && result.is_ok();
        self.file_mut(ino)?.execute(operation, changes, durably);
        self.tick();
        result
    }

    /// Changes space, with the injected faults.
    pub(crate) fn change_space(
        &mut self,
        ino: Ino,
        operation: OperationId,
        extent: Extent,
        space: SpaceChange,
        changes: Vec<Change>,
    ) -> Result<(), Errno> {
        let failed = if strikes(self.faults.write_error_one_in, &mut self.random) {
            Some(Errno::IO)
        } else if space != SpaceChange::Free && self.room_for(ino, extent)? < extent.end() {
            Some(Errno::NOSPC)
        } else {
            None
        };
        let done = if failed.is_some() { Vec::new() } else { changes };
        self.file_mut(ino)?.execute(operation, done, false);
        self.tick();
        failed.map_or(Ok(()), Err)
    }

    /// Begins a sync of a file, which ends with [`Self::end_sync`]. Returns whether it will have an
    /// effect.
    pub(crate) fn begin_sync(&mut self, ino: Ino, operation: OperationId) -> bool {
        let is_first = !self.is_syncing(ino);
        self.syncs_under_way.push((ino, operation));
        is_first || !self.habits.skips_overlapping_syncs
    }

    pub(crate) fn end_sync(&mut self, operation: OperationId) {
        self.syncs_under_way.retain(|(_, other)| *other != operation);
    }

    /// A synchronous sync of a file.
    pub(crate) fn sync_at_once(&mut self, ino: Ino) -> Result<(), Errno> {
        if self.habits.skips_overlapping_syncs && self.is_syncing(ino) {
            self.tick();
            return Ok(());
        }
        self.sync(ino, Tick::MAX)
    }

    fn is_syncing(&self, ino: Ino) -> bool {
        self.syncs_under_way.iter().any(|(other, _)| *other == ino)
    }

    /// Makes durable the changes that submitters knew to be complete at `horizon`.
    pub(crate) fn sync(&mut self, ino: Ino, horizon: Tick) -> Result<(), Errno> {
        let fails = strikes(self.faults.sync_error_one_in, &mut self.random);
        let file = self.file_mut(ino)?;
        if fails {
            file.fail_sync(horizon);
        } else {
            file.sync(horizon);
        }
        self.tick();
        if fails { Err(Errno::IO) } else { Ok(()) }
    }

    /// Makes all completed changes durable, including names.
    pub(crate) fn sync_all(&mut self) -> Result<(), Errno> {
        if strikes(self.faults.sync_error_one_in, &mut self.random) {
            return Err(Errno::IO);
        }
        let nodes: Vec<Ino> = self.medium.nodes.keys().copied().collect();
        for ino in nodes {
            match self.is_directory(ino) {
                true => self.names().sync(ino),
                false => self.file_mut(ino)?.sync(Tick::MAX),
            }
        }
        self.tick();
        Ok(())
    }

    /// Splits a punch or zeroing into its transactions: some number of runs of blocks.
    pub(crate) fn transactions(&mut self, extent: Extent, space: SpaceChange) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut at = extent.offset();
        while at < extent.end() {
            let blocks = (extent.end() - at).div_ceil(BLOCK_BYTES);
            let taken = if self.random.random() { blocks } else { self.random.random_range(1..=blocks) };
            let end = extent.end().min(at / BLOCK_BYTES * BLOCK_BYTES + taken * BLOCK_BYTES);
            changes.push(Change::space(Extent::between(at, end), space));
            at = end;
        }
        changes
    }
}
