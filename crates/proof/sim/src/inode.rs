//! One file: its visible content, its durable content, and the changes between the two.
//!
//! ```text
//! submitted ---> under way ---> done: seen by readers, pending ---> covered by a sync: durable
//! ```
//!
//! A power cut leaves the durable content, and on top of it any part of the changes pending or in
//! flight: in their order of completion if that is known, otherwise in any order.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use strongroom_types::Extent;

use crate::change::Change;
use crate::content::Content;

/// A count of events of a simulated file system.
pub(crate) type Tick = u64;

/// The id of a queue's operation.
pub(crate) type OperationId = u64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    /// The content that readers see.
    pub(crate) current: Content,
    durable: Content,
    /// Completed and not durable, in order of completion.
    pending: Vec<Pending>,
    /// Submitted and not completed.
    under_way: Vec<UnderWay>,
}

#[derive(Clone, Debug)]
struct Pending {
    operation: OperationId,
    change: Change,
    /// When its submitter learnt of its completion.
    told: Option<Tick>,
    /// A sync that should have covered it failed; no later one will cover it.
    abandoned: bool,
}

#[derive(Clone, Debug)]
struct UnderWay {
    operation: OperationId,
    changes: Vec<Change>,
}

impl Inode {
    /// A file whose whole content is durable.
    pub(crate) fn durable(content: Content) -> Self {
        Self { current: content.clone(), durable: content, ..Self::default() }
    }

    /// Submits an operation: from now on a power cut may leave any part of it.
    pub(crate) fn submit(&mut self, operation: OperationId, changes: Vec<Change>) {
        self.under_way.push(UnderWay { operation, changes });
    }

    /// Completes an operation with its final changes; if `durably`, with all metadata needed to
    /// read it back.
    pub(crate) fn execute(&mut self, operation: OperationId, changes: Vec<Change>, durably: bool) {
        self.under_way.retain(|other| other.operation != operation);
        for change in changes {
            change.apply(&mut self.current);
            let pending = Pending { operation, change, told: None, abandoned: false };
            if durably {
                // Durable with the metadata needed to read it, including the length, whatever set
                // that.
                let length = pending.change.end().min(self.current.length()).max(self.durable.length());
                self.fold(pending);
                self.durable.set_length(length.max(self.durable.length()));
            } else {
                self.pending.push(pending);
            }
        }
    }

    /// Records that the submitter of an operation has learnt of its completion.
    pub(crate) fn tell(&mut self, operation: OperationId, now: Tick) {
        for pending in self.pending.iter_mut().filter(|pending| pending.operation == operation) {
            pending.told = Some(now);
        }
    }

    /// Makes durable the changes that their submitters knew to be complete at `horizon`. The rest
    /// may or may not become durable.
    pub(crate) fn sync(&mut self, horizon: Tick) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.is_covered(horizon) {
                self.fold(pending);
            } else {
                self.pending.push(pending);
            }
        }
    }

    /// Fails a sync: the kernel marks the uncovered content clean and never writes it, and a length
    /// from writing waits for that content. Metadata operations, such as setting a length, are in
    /// the journal, in order. A file system that cannot write its journal stops, and no later sync
    /// succeeds there.
    pub(crate) fn fail_sync(&mut self, horizon: Tick) {
        for pending in self.pending.iter_mut().filter(|pending| pending.is_covered(horizon)) {
            pending.abandoned = pending.change.follows_content();
        }
    }

    /// Makes a change durable. Earlier non-durable changes can reappear only outside its ranges.
    fn fold(&mut self, covered: Pending) {
        covered.change.apply(&mut self.durable);
        for earlier in &mut self.pending {
            earlier.change.replace_by(&covered.change);
        }
    }

    /// Whether a block is data to a reader, and would be after any power cut, so that an overwrite
    /// is visible then.
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

    /// The file after its user was killed: all completed changes, operations in flight done or not,
    /// and nothing more durable than before. Nothing is in flight, because the kernel releases the
    /// lock only when the last operation ends.
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

    /// The content after a power cut.
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

/// How a cut treats non-durable changes. Independent coin flips alone would almost never keep all
/// or none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    Nothing,
    Everything,
    /// Each change with its own probability.
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
