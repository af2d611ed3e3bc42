//! The number and duration of measurements.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::StudyError;

/// The fewest rounds for a verdict: with five, a signed-rank test finds no p-value below 0.06.
pub(super) const ROUNDS_FOR_A_VERDICT: u32 = 6;
/// The default warm-up, as a part of the counted time.
const WARM_UP_PART: u32 = 4;

/// The number and duration of measurements of each subject at each workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Rounds. An even number, so that each has its mirror image.
    pub rounds: u32,
    /// The uncounted beginning of each measurement.
    pub warm_up: Duration,
    /// The counted time.
    pub duration: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rounds: 10, warm_up: Duration::from_secs(1), duration: Duration::from_secs(4) }
    }
}

/// The limits for choosing a pace.
#[derive(Clone, Copy, Debug)]
pub struct PaceLimits {
    /// The fewest rounds.
    pub rounds_min: u32,
    /// The most rounds.
    pub rounds_max: u32,
    /// The shortest measurement, without its warm-up.
    pub duration_min: Duration,
    /// The duration above which more rounds are worth more than longer ones.
    pub duration_enough: Duration,
    /// The overhead of each measurement: a subject's start and end.
    pub open: Duration,
}

impl Default for PaceLimits {
    fn default() -> Self {
        Self {
            rounds_min: ROUNDS_FOR_A_VERDICT,
            rounds_max: 20,
            duration_min: Duration::from_secs(1),
            duration_enough: Duration::from_secs(4),
            open: Duration::from_secs(1),
        }
    }
}

impl Pace {
    /// The best pace within `budget`, with this many measurements in each round.
    pub fn within(budget: Duration, per_round: usize, limits: &PaceLimits) -> Result<Self, StudyError> {
        let per_round = u32::try_from(per_round.max(1)).unwrap_or(u32::MAX);
        let least = Self::of(limits.rounds_min, limits.duration_min);
        let needed = least.time(limits.open).saturating_mul(per_round);
        if needed > budget {
            let measurements = least.rounds as usize * per_round as usize;
            return Err(StudyError::Budget { measurements, least: needed, budget });
        }
        let mut pace = Self::of(limits.rounds_min, limits.duration_min);
        for rounds in (limits.rounds_min..=limits.rounds_max.max(limits.rounds_min)).step_by(2) {
            let each = (budget / per_round / rounds).saturating_sub(limits.open);
            let duration = each * WARM_UP_PART / (WARM_UP_PART + 1);
            if rounds > limits.rounds_min && duration < limits.duration_enough {
                break;
            }
            pace = Self::of(rounds, duration);
        }
        Ok(pace)
    }

    fn of(rounds: u32, duration: Duration) -> Self {
        Self { rounds, warm_up: duration / WARM_UP_PART, duration }
    }

    /// The time of all rounds of one subject at one workload, with `open` for its start and end.
    pub fn time(&self, open: Duration) -> Duration {
        (self.warm_up + self.duration + open).saturating_mul(self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_pace_makes_the_most_of_its_budget_and_keeps_to_it() {
        let limits = PaceLimits::default();
        for minutes in [4, 7, 10, 25, 60, 240] {
            for per_round in [2_usize, 12, 17] {
                let budget = MINUTE * minutes;
                let pace = Pace::within(budget, per_round, &limits).unwrap();
                let time = pace.time(limits.open) * per_round as u32;
                assert!(time <= budget && time > budget * 9 / 10, "{pace:?} takes {time:?} of {budget:?}");
                assert!(pace.rounds.is_multiple_of(2) && pace.rounds >= 6);
                assert!(pace.rounds == 6 || pace.duration >= limits.duration_enough, "{pace:?}");
            }
        }
        assert_eq!(Pace::within(MINUTE * 300, 2, &limits).unwrap().rounds, limits.rounds_max);
    }

    #[test]
    fn a_budget_that_is_too_small_is_refused_with_the_least_that_is_needed() {
        let error = Pace::within(MINUTE, 60, &PaceLimits::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "360 measurements need 14 min at least, and there are 60 s; allow more time, or choose fewer subjects or \
             workloads"
        );
        assert!(Pace::within(MINUTE * 14, 60, &PaceLimits::default()).is_ok());
    }
}
