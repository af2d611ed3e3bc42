//! The schedule of events, at random from a seed: each round has every event once, in random order,
//! on a random suitable volume, so that a short soak also has every event.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::kind::{Event, Kind};

/// The longest time that a worker is stopped.
const FREEZE_MAX: Duration = Duration::from_millis(1500);
/// The events that may happen while there is no room.
const WHILE_FULL: [Option<Event>; 6] = [
    None,
    Some(Event::Kill),
    Some(Event::Upgrade),
    Some(Event::Grow),
    Some(Event::Rekey),
    Some(Event::Disconnect),
];

/// One scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The volume.
    pub kind: Kind,
    /// The event.
    pub event: Event,
    /// An event during it, in a full file system.
    pub meanwhile: Option<Event>,
    /// Its duration.
    pub lasts: Duration,
    /// The pause before it.
    pub pause: Duration,
}

/// An endless sequence of steps.
#[derive(Debug)]
pub struct Schedule {
    random: StdRng,
    kinds: Vec<Kind>,
    period: Duration,
    round: Vec<Event>,
}

impl Schedule {
    /// Steps for these volumes, with a mean distance of `period`.
    pub fn new(seed: u64, kinds: &[Kind], period: Duration) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { random, kinds: kinds.to_vec(), period, round: Vec::new() }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let random = &mut self.random;
        loop {
            if self.round.is_empty() {
                self.round = Event::ALL.to_vec();
                self.round.shuffle(random);
            }
            let event = self.round.pop()?;
            let kinds: Vec<Kind> = self.kinds.iter().copied().filter(|kind| kind.suffers(event)).collect();
            let Some(kind) = kinds.choose(random).copied() else {
                if self.kinds.is_empty() {
                    return None;
                }
                continue;
            };
            let meanwhile = WHILE_FULL.choose(random).copied().flatten().filter(|_| event == Event::Full);
            let lasts = FREEZE_MAX.mul_f64(random.random_range(0.1..1.0));
            let pause = self.period.mul_f64(random.random_range(0.0..2.0));
            return Some(Step { kind, event, meanwhile, lasts, pause });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(seed: u64, kinds: &[Kind]) -> Vec<Step> {
        Schedule::new(seed, kinds, Duration::from_secs(1)).take(200).collect()
    }

    #[test]
    fn a_seed_says_everything() {
        assert_eq!(steps(7, &Kind::ALL), steps(7, &Kind::ALL));
        assert_ne!(steps(7, &Kind::ALL), steps(8, &Kind::ALL));
    }

    #[test]
    fn each_round_has_everything_once_and_nobody_suffers_what_they_may_not() {
        for round in steps(3, &Kind::ALL).chunks(Event::ALL.len()) {
            let mut events: Vec<Event> = round.iter().map(|step| step.event).collect();
            events.sort_unstable();
            assert_eq!(events, Event::ALL);
            assert!(round.iter().all(|step| step.kind.suffers(step.event)));
            assert!(round.iter().all(|step| step.event == Event::Full || step.meanwhile.is_none()));
        }
        assert!(steps(3, &[Kind::Lasting]).iter().all(|step| step.event != Event::Kill));
        assert!(steps(3, &[]).is_empty());
    }
}
