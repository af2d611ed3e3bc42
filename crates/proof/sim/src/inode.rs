//! One file: what a reader sees, what is durable, and what lies between the two.
//!
//! ```text
//! submitted ---> under way ---> done: seen by readers, pending ---> covered by a sync: durable
//! ```
//!
//! A power cut finds the durable content, and on top of it any part of what is pending or under
//! way: in the order in which it was done where that is known, in any order otherwise.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use strongroom_types::Extent;

use crate::change::Change;
use crate::content::Content;

/// Counts what happens to a simulated file system.
pub(crate) type Tick = u64;

/// Names an operation of a queue.
pub(crate) type OperationId = u64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    /// What a reader sees.
    pub(crate) current: Content,
    durable: Content,
    /// Done and not durable, in the order in which it was done.
    pending: Vec<Pending>,
    /// Submitted and not done.
    under_way: Vec<UnderWay>,
}

#[derive(Clone, Debug)]
struct Pending {
    operation: OperationId,
    change: Change,
    /// When its submitter was told that it is done.
    told: Option<Tick>,
    /// A sync that should have covered it failed: no later one will.
    abandoned: bool,
}

#[derive(Clone, Debug)]
struct UnderWay {
    operation: OperationId,
    changes: Vec<Change>,
}

impl Inode {
    /// A file that has been as it is for ever.
    pub(crate) fn durable(content: Content) -> Self {
        Self { current: content.clone(), durable: content, ..Self::default() }
    }

    /// An operation is on its way: a power cut may leave any part of it from now on.
    pub(crate) fn submit(&mut self, operation: OperationId, changes: Vec<Change>) {
        self.under_way.push(UnderWay { operation, changes });
    }

    /// The operation is done, as it turned out in the end; if `durably`, with all that is needed to
    /// read it back.
    pub(crate) fn execute(&mut self, operation: OperationId, changes: Vec<Change>, durably: bool) {
        self.under_way.retain(|other| other.operation != operation);
        for change in changes {
            change.apply(&mut self.current);
            let pending = Pending { operation, change, told: None, abandoned: false };
            if durably {
                // Durable with what it takes to read it: the length too, wherever it came from.
                let length = pending.change.end().min(self.current.length()).max(self.durable.length());
                self.fold(pending);
                self.durable.set_length(length.max(self.durable.length()));
            } else {
                self.pending.push(pending);
            }
        }
    }

    /// The submitter of an operation has been told its end.
    pub(crate) fn tell(&mut self, operation: OperationId, now: Tick) {
        for pending in self.pending.iter_mut().filter(|pending| pending.operation == operation) {
            pending.told = Some(now);
        }
    }

    /// Makes durable what its submitters knew to be done at `horizon`. The rest may become so, and
    /// need not.
    pub(crate) fn sync(&mut self, horizon: Tick) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.is_covered(horizon) {
                self.fold(pending);
            } else {
                self.pending.push(pending);
            }
        }
    }

    /// A sync failed: content that it should have covered is marked clean by the kernel and written
    /// by nobody, and a length that came of writing waits for that content. What was asked of the
    /// file system by itself, such as a length that was set, is in its journal, in order; one that
    /// cannot write its journal does not go on, and no later sync succeeds there.
    pub(crate) fn fail_sync(&mut self, horizon: Tick) {
        for pending in self.pending.iter_mut().filter(|pending| pending.is_covered(horizon)) {
            pending.abandoned = pending.change.follows_content();
        }
    }

    /// Makes a change durable. What was done before it and is not durable can come back only where
    /// it does not reach.
    fn fold(&mut self, covered: Pending) {
        covered.change.apply(&mut self.durable);
        for earlier in &mut self.pending {
            earlier.change.replace_by(&covered.change);
        }
    }

    /// Whether a block is data to a reader, and would be after any power cut: what is written over
    /// it now is seen then.
    pub(crate) fn is_data(&self, block: u64) -> bool {
        let may_be_freed = || self.pending.iter().any(|pending| pending.change.frees(block));
        self.current.is_data(block) && self.durable.is_data(block) && !may_be_freed()
    }

    /// Whether a power cut could change it.
    pub(crate) fn is_durable(&self) -> bool {
        self.pending.is_empty() && self.under_way.is_empty()
    }

    /// Whether a power cut could change these bytes.
    pub(crate) fn is_unsettled(&self, within: Extent) -> bool {
        let under_way = self.under_way.iter().flat_map(|operation| &operation.changes);
        let mut changes = self.pending.iter().map(|pending| &pending.change).chain(under_way);
        changes.any(|change| change.touches(within))
    }

    /// What is left of it when its user was killed: all that was done, whatever was in flight done
    /// or not, and nothing more durable than it was. Nothing is under way: the kernel gives the
    /// lock back with the last operation's end, so a successor knows that.
    pub(crate) fn killed(&self, random: &mut StdRng) -> Self {
        let mut left = self.clone();
        let mut under_way = std::mem::take(&mut left.under_way);
        under_way.shuffle(random);
        let mood = Mood::draw(random);
        for UnderWay { operation, mut changes } in under_way {
            let chance = mood.chance(random);
            if !random.random_bool(chance) {
                continue;
            }
            if random.random_ratio(1, 4) {
                changes.iter_mut().for_each(|change| change.interrupt(random));
            }
            left.execute(operation, changes, false);
        }
        for pending in &mut left.pending {
            pending.told = Some(0);
        }
        left
    }

    /// What a power cut leaves.
    pub(crate) fn crash(&self, random: &mut StdRng) -> Content {
        let mut content = self.durable.clone();
        let mood = Mood::draw(random);
        for pending in &self.pending {
            let chance = mood.chance(random);
            pending.change.apply_torn(&mut content, || random.random_bool(chance));
        }
        let mut under_way: Vec<&Change> =
            self.under_way.iter().flat_map(|operation| &operation.changes).collect();
        under_way.shuffle(random);
        for change in under_way {
            let chance = mood.chance(random);
            change.apply_torn(&mut content, || random.random_bool(chance));
        }
        content
    }
}

impl Pending {
    fn is_covered(&self, horizon: Tick) -> bool {
        !self.abandoned && self.told.is_some_and(|told| told <= horizon)
    }
}

/// How a cut treats what is not durable. Independent coins alone would hardly ever leave all or
/// nothing of anything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    Nothing,
    Everything,
    /// Each change with a chance of its own.
    Mixed,
}

impl Mood {
    pub(crate) fn draw(random: &mut StdRng) -> Self {
        match random.random_range(0..8) {
            0 => Self::Nothing,
            1 => Self::Everything,
            _ => Self::Mixed,
        }
    }

    pub(crate) fn chance(self, random: &mut StdRng) -> f64 {
        match self {
            Self::Nothing => 0.0,
            Self::Everything => 1.0,
            Self::Mixed => [0.0, 0.25, 0.5, 0.75, 1.0][random.random_range(0..5)],
        }
    }
}
