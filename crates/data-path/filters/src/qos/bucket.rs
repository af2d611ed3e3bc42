//! A token bucket without a drift.
//!
//! Two numbers only grow: the tokens that were *earned*, a function of the time, and those that
//! were *spent*. Their difference is what the bucket holds. A request spends its cost when its turn
//! comes, and starts when as much is earned as was spent with it: its [`Position`]. A position is
//! a count of tokens and not a time, so it stays right when the rate changes.
//!
//! Nothing is added up from intervals: what is earned is computed from the moment of the last
//! change of the rate, so no rounding accumulates.

const NS_PER_S: u128 = 1_000_000_000;

/// What must be earned before a request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

/// How a bucket fills since its last change. Any numbers are possible: a worker of the same VM may
/// have written them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Tokens a second; without any the bucket limits nothing.
    pub per_second: u64,
    /// The most that it holds.
    pub burst: u64,
    /// What was earned until `since_ns`.
    pub earned: u64,
    /// When the rate began, in ns of the clock.
    pub since_ns: u64,
}

impl Rate {
    /// Whether there is a limit.
    pub const fn is_limited(&self) -> bool {
        self.per_second > 0
    }

    /// What is earned until `now_ns`, in whole tokens.
    pub fn earned_at(&self, now_ns: u64) -> u64 {
        let passed_ns = u128::from(now_ns.saturating_sub(self.since_ns));
        let tokens = passed_ns * u128::from(self.per_second) / NS_PER_S;
        self.earned.saturating_add(u64::try_from(tokens).unwrap_or(u64::MAX))
    }

    /// The position of a request of this cost, after which as much is spent. What the full bucket
    /// could not take any more is lost first.
    pub fn position(&self, spent: u64, cost: u64, now_ns: u64) -> Position {
        Position(self.at_least_spent(spent, now_ns).saturating_add(cost))
    }

    /// What counts as spent: no more than a full bucket is left.
    pub fn at_least_spent(&self, spent: u64, now_ns: u64) -> u64 {
        spent.max(self.earned_at(now_ns).saturating_sub(self.burst))
    }

    /// The first moment at which a position is reached.
    pub fn reaches_at_ns(&self, position: Position) -> u64 {
        let missing = u128::from(position.0.saturating_sub(self.earned));
        let per_second = u128::from(self.per_second);
        if per_second == 0 || missing == 0 {
            return 0;
        }
        let wait_ns = (missing * NS_PER_S).div_ceil(per_second);
        self.since_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }

    /// The rate that follows this one now. Nothing that was earned or spent is lost; a bucket that
    /// was unlimited begins full.
    #[must_use]
    pub fn followed_by(&self, per_second: u64, burst: u64, spent: u64, now_ns: u64) -> Self {
        let earned = match self.is_limited() {
            true => self.earned_at(now_ns),
            false => spent.saturating_add(burst),
        };
        Self { per_second, burst, earned, since_ns: now_ns }
    }
}
