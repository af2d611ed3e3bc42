//! When snapshots of a rule are due.
//!
//! The times of a rule repeat, counted from 1970, with an offset that is the VM's own: the VMs of a
//! site do not all begin at the same second, and a VM's times never move.

use strongroom_api::limits::SNAPSHOT_PERIOD_MIN_S;
use strongroom_api::vm::SnapshotRule;
use strongroom_types::VmId;

/// The seconds of a day.
pub(super) const DAY_S: u64 = 86_400;
/// How far the VMs of rules with the same time of day are spread after it, in seconds: 15 minutes,
/// in which 10,000 VMs are eleven a second.
const AT_SPREAD_S: u64 = 15 * 60;

/// The times at which snapshots of a rule are due, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueTimes {
    every_s: u64,
    offset_s: u64,
}

impl DueTimes {
    /// The times of a VM's rule.
    pub fn of(rule: &SnapshotRule, vm: VmId) -> Self {
        let every_s = u64::from(rule.every_s.max(SNAPSHOT_PERIOD_MIN_S));
        // The id is random.
        let own = vm.as_bytes().iter().fold(0_u64, |all, byte| all.rotate_left(8) ^ u64::from(*byte));
        let offset_s = match rule.at_minutes {
            None => own % every_s,
            Some(minutes) => {
                let days = (every_s / DAY_S).max(1);
                own % days * DAY_S + u64::from(minutes) * 60 + own / days % AT_SPREAD_S
            }
        };
        Self { every_s, offset_s }
    }

    /// The last time that is not later than this one; zero if there is none.
    pub fn latest(self, now: u64) -> u64 {
        let since = now.checked_sub(self.offset_s);
        since.map_or(0, |since| since / self.every_s * self.every_s + self.offset_s)
    }

    /// The first time that is later than this one.
    pub fn next(self, now: u64) -> u64 {
        if now < self.offset_s { self.offset_s } else { self.latest(now) + self.every_s }
    }

    /// How many times lie after one and before another one.
    pub fn between(self, earlier: u64, later: u64) -> u64 {
        (later.saturating_sub(earlier) / self.every_s).saturating_sub(1)
    }

    /// The time before this one.
    pub fn before(self, due: u64) -> u64 {
        due.saturating_sub(self.every_s)
    }

    /// Whether the clock cannot have been right when this time was dealt with: it lies further
    /// ahead than a clock is corrected.
    pub fn is_beyond(self, settled: u64, now: u64) -> bool {
        settled > now.saturating_add(self.every_s + DAY_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_680_000;

    fn rule(every_s: u32, at_minutes: Option<u32>) -> SnapshotRule {
        SnapshotRule { every_s, at_minutes, keep: 1, quiesce_within_s: None }
    }

    #[test]
    fn times_repeat_and_a_vm_keeps_its_own() {
        for (every_s, at_minutes) in [(300, None), (3600, None), (604_800, Some(120)), (86_400, Some(1439))] {
            let vm = VmId::random();
            let times = DueTimes::of(&rule(every_s, at_minutes), vm);
            let latest = times.latest(NOW);
            assert!(latest <= NOW && NOW - latest < u64::from(every_s));
            assert_eq!((times.latest(latest), times.latest(latest - 1)), (latest, times.before(latest)));
            assert_eq!(times.next(latest), latest + u64::from(every_s));
            assert_eq!(times.between(latest, times.next(latest)), 0);
            assert_eq!(times.between(latest, latest + 4 * u64::from(every_s)), 3);
            let again = DueTimes::of(&rule(every_s, at_minutes), vm);
            assert_eq!(again.latest(NOW + 1_000_000), times.latest(NOW + 1_000_000));
        }
        assert_eq!(DueTimes::of(&rule(86_400, Some(1439)), VmId::random()).latest(0), 0);
    }

    #[test]
    fn a_time_of_day_is_followed_by_at_most_a_quarter_of_an_hour() {
        for days in [1, 2, 7] {
            let times = DueTimes::of(&rule(days * 86_400, Some(120)), VmId::random());
            let in_day = times.latest(NOW) % DAY_S;
            assert!((7200..7200 + AT_SPREAD_S).contains(&in_day), "{in_day}");
        }
    }

    #[test]
    fn ten_thousand_vms_are_spread_over_the_hour() {
        let mut by_second = vec![0; 3600];
        for _ in 0..10_000 {
            let due = DueTimes::of(&rule(3600, None), VmId::random()).latest(NOW);
            by_second[usize::try_from(due % 3600).unwrap()] += 1;
        }
        // Three a second on average; that one has 24 happens once in 10^12 runs.
        assert!(by_second.iter().all(|vms| *vms < 24), "{:?}", by_second.iter().max());
    }
}
