//! What datastores had in the past, and when they will be full.
//!
//! Once an hour, the last report of one of a datastore's hosts becomes a sample; of each day that
//! is over, the last one is kept. A report that cannot be true is none. The trend is estimated from
//! samples by Theil and Sen: the median of the changes between all pairs of days. A day on which
//! much was deleted, and a report that was wrong, do not move it. If the changes do not agree on a
//! direction, there is none, and nothing is foreseen.

use strongroom_api::datastore::{
    CapacitySample, CapacityTrend, DatastoreCapacity, DatastoreState, TrendDirection,
};
use strongroom_api::limits::{CAPACITY_DAYS_KEPT, CAPACITY_HOURS_KEPT};
use strongroom_api::{ObjectKind, Problem};
use strongroom_types::DatastoreId;

use super::Control;
use super::views::SeenMount;
use crate::inventory::{Draft, Facet, Failure, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{CapacityDaysRecord, CapacityHoursRecord, DatastoreRecord};

const HOUR_S: u64 = 60 * 60;
const DAY_S: u64 = 24 * HOUR_S;
/// The largest size of a datastore that is believed: an exbibyte.
const PLAUSIBLE_MAX_BYTES: u64 = 1 << 60;
/// The time that a trend is from, in days: long enough for what a month's end does.
const TREND_DAYS_MAX: u64 = 30;
/// The shortest history that has a trend, in days: a week, because weekends differ.
const TREND_DAYS_MIN: u64 = 7;
/// The fewest samples that have a trend.
const TREND_SAMPLES_MIN: usize = 5;
/// The age of the last sample from which on there is no trend: the present is not known.
const STALE_AFTER_S: u64 = DAY_S;
/// By how much the pairs of days that agree with a direction outnumber those that do not, as a part
/// of all pairs (Kendall's tau).
const AGREEMENT_MIN: f64 = 0.5;
/// The furthest day that is foreseen.
const FORESEEN_DAYS_MAX: f64 = 3650.0;

impl Control {
    /// Writes down what datastores have, if that was not done in this hour.
    ///
    /// # Errors
    /// [`Failure`]: the rest is written down the next time.
    pub fn note_capacity(&self) -> Result<(), Failure> {
        let now_s = self.now_unix_ms() / 1000;
        let up = self.hosts.iter().filter(|seat| seat.is_up());
        let states: Vec<_> = up.map(|seat| (seat.id, seat.seen().state.clone())).collect();
        let due: Vec<Draft> = {
            let index = self.inventory.read();
            let sampled = index.datastores.iter().filter_map(|datastore| {
                let mut seen = datastore.mounts().map(|mount| SeenMount::of(datastore, mount, &states));
                let (total_bytes, used_bytes) = seen.find_map(|seen| believed(&seen))?;
                let provisioned = index.sums(&Facet::Datastore(datastore.id)).disk_bytes;
                let provisioned_bytes = u64::try_from(provisioned).unwrap_or(u64::MAX);
                let sample =
                    CapacitySample { at_unix_seconds: now_s, total_bytes, used_bytes, provisioned_bytes };
                self.with_sample(&index, datastore, sample)
            });
            sampled.collect()
        };
        for draft in due {
            match self.inventory.commit(draft) {
                // The datastore was removed at the same time.
                Ok(()) | Err(Failure::Raced) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// The records with a new sample; `None` if there is one of the same hour.
    fn with_sample(
        &self,
        index: &Index,
        datastore: &Row<DatastoreRecord>,
        sample: CapacitySample,
    ) -> Option<Draft> {
        let id = datastore.id;
        let mut hours = hours_of(index, id).to_vec();
        // One that was made in the future was made with a wrong clock.
        hours.retain(|kept| kept.at_unix_seconds <= sample.at_unix_seconds);
        let last = hours.last().copied();
        if last.is_some_and(|last| last.at_unix_seconds / HOUR_S == sample.at_unix_seconds / HOUR_S) {
            return None;
        }
        let mut draft = self.draft();
        let is_over = |last: &CapacitySample| last.at_unix_seconds / DAY_S < sample.at_unix_seconds / DAY_S;
        if let Some(last) = last.filter(is_over) {
            let mut days = days_of(index, id).to_vec();
            days.retain(|kept| kept.at_unix_seconds / DAY_S < last.at_unix_seconds / DAY_S);
            days.push(last);
            let samples = newest(days, CAPACITY_DAYS_KEPT);
            draft = draft.put(&CapacityDaysRecord { datastore: id, samples });
        }
        hours.push(sample);
        let samples = newest(hours, CAPACITY_HOURS_KEPT);
        Some(draft.put(&CapacityHoursRecord { datastore: id, samples }).present(datastore))
    }

    /// What a datastore had in the past.
    ///
    /// # Errors
    /// [`Problem`] if it does not exist.
    pub fn datastore_capacity(&self, named: &str) -> Result<DatastoreCapacity, Problem> {
        let index = self.inventory.read();
        let found = by_name_or_id(&index.datastores, named);
        let found = found.ok_or_else(|| problems::not_found(ObjectKind::Datastore, named))?;
        Ok(DatastoreCapacity {
            datastore: found.id,
            hours: hours_of(&index, found.id).to_vec(),
            days: days_of(&index, found.id).to_vec(),
            trend: self.capacity_trend(&index, found.id),
        })
    }

    /// The trend of what is used of a datastore.
    pub(super) fn capacity_trend(&self, index: &Index, datastore: DatastoreId) -> CapacityTrend {
        let days = days_of(index, datastore);
        let last = hours_of(index, datastore).last();
        trend(days, last, self.now_unix_ms() / 1000)
    }
}

/// The size of a datastore and what is used of it, in bytes, if a host says what can be true.
fn believed(seen: &SeenMount<'_>) -> Option<(u64, u64)> {
    if !matches!(seen.state, DatastoreState::Available | DatastoreState::Full) {
        return None;
    }
    let told = seen.told?;
    let is_plausible = (1..=PLAUSIBLE_MAX_BYTES).contains(&told.total_bytes);
    let used_bytes = told.total_bytes.checked_sub(told.free_bytes)?;
    is_plausible.then_some((told.total_bytes, used_bytes))
}

fn hours_of(index: &Index, datastore: DatastoreId) -> &[CapacitySample] {
    index.capacity_hours.get(&datastore.to_string()).map_or(&[], |row| &row.record.samples)
}

fn days_of(index: &Index, datastore: DatastoreId) -> &[CapacitySample] {
    index.capacity_days.get(&datastore.to_string()).map_or(&[], |row| &row.record.samples)
}

fn newest(mut samples: Vec<CapacitySample>, most: usize) -> Vec<CapacitySample> {
    samples.drain(..samples.len().saturating_sub(most));
    samples
}

/// The trend of the samples of days that are over, and of the last one of the present day.
fn trend(days: &[CapacitySample], last: Option<&CapacitySample>, now_s: u64) -> CapacityTrend {
    let Some(last) = last.filter(|last| last.at_unix_seconds.abs_diff(now_s) <= STALE_AFTER_S) else {
        return CapacityTrend::default();
    };
    let from = last.at_unix_seconds.saturating_sub(TREND_DAYS_MAX * DAY_S);
    let is_used = |day: &&CapacitySample| (from..last.at_unix_seconds).contains(&day.at_unix_seconds);
    let samples: Vec<&CapacitySample> = days.iter().filter(is_used).chain([last]).collect();
    let span_s = last.at_unix_seconds - samples[0].at_unix_seconds;
    let days = u32::try_from(span_s / DAY_S).unwrap_or(u32::MAX);
    if samples.len() < TREND_SAMPLES_MIN || u64::from(days) < TREND_DAYS_MIN {
        return CapacityTrend { days, ..CapacityTrend::default() };
    }
    let mut changes = changes_per_day(&samples);
    changes.sort_unstable_by(f64::total_cmp);
    let median = changes[changes.len() / 2];
    let count = |is_of: fn(&f64) -> bool| changes.iter().filter(|change| is_of(change)).count() as f64;
    let agreement = (count(|change| *change > 0.0) - count(|change| *change < 0.0)) / changes.len() as f64;
    let direction = match agreement {
        _ if agreement >= AGREEMENT_MIN => TrendDirection::Growing,
        _ if agreement <= -AGREEMENT_MIN => TrendDirection::Shrinking,
        _ => return CapacityTrend { direction: TrendDirection::Unclear, days, ..CapacityTrend::default() },
    };
    let free = last.total_bytes.saturating_sub(last.used_bytes) as f64;
    let full_in = free / median;
    let is_foreseen = direction == TrendDirection::Growing && full_in <= FORESEEN_DAYS_MAX;
    CapacityTrend {
        direction,
        days,
        bytes_per_day: Some(median as i64),
        full_in_days: is_foreseen.then_some(full_in as u32),
    }
}

/// The changes of what is used between all pairs of samples, in bytes a day.
fn changes_per_day(samples: &[&CapacitySample]) -> Vec<f64> {
    let pairs = samples.iter().enumerate().flat_map(|(at, later)| {
        samples[..at].iter().map(move |earlier| {
            let seconds = (later.at_unix_seconds - earlier.at_unix_seconds) as f64;
            (later.used_bytes as f64 - earlier.used_bytes as f64) * DAY_S as f64 / seconds
        })
    });
    pairs.filter(|change| change.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const NOW_S: u64 = 20_000 * DAY_S + HOUR_S;

    /// The trend of what was used on each of the last days, today's last, of 1000 GiB.
    fn of(used_gib: impl IntoIterator<Item = u64>) -> CapacityTrend {
        let used: Vec<u64> = used_gib.into_iter().collect();
        let samples: Vec<_> = used
            .iter()
            .rev()
            .enumerate()
            .map(|(ago, used)| CapacitySample {
                at_unix_seconds: NOW_S - ago as u64 * DAY_S,
                total_bytes: 1000 * GIB,
                used_bytes: used * GIB,
                provisioned_bytes: 0,
            })
            .rev()
            .collect();
        let (last, days) = samples.split_last().unwrap();
        trend(days, Some(last), NOW_S)
    }

    #[test]
    fn a_datastore_that_grows_is_full_when_its_free_space_is_used() {
        let grows = of((0..40).map(|day| 100 + day * 10));
        assert_eq!((grows.direction, grows.days), (TrendDirection::Growing, 30));
        assert_eq!((grows.bytes_per_day, grows.full_in_days), (Some(10 * GIB as i64), Some(51)));
        // A day with 300 GiB more, and one with nothing at all, do not move it.
        let odd = |day| match day {
            11 => 600,
            23 => 0,
            _ => 100 + day * 10,
        };
        let disturbed = of((0..40).map(odd));
        assert_eq!((disturbed.bytes_per_day, disturbed.full_in_days), (grows.bytes_per_day, Some(51)));
    }

    #[test]
    fn little_history_and_changes_without_a_direction_foresee_nothing() {
        let unknown = |trend: CapacityTrend| {
            assert_eq!((trend.bytes_per_day, trend.full_in_days), (None, None), "{trend:?}");
            trend.direction
        };
        assert_eq!(unknown(of([100])), TrendDirection::Unknown);
        assert_eq!(unknown(of((0..7).map(|day| 100 + day * 10))), TrendDirection::Unknown);
        assert_eq!(of((0..8).map(|day| 100 + day * 10)).direction, TrendDirection::Growing);
        assert_eq!(unknown(of((0..30).map(|_| 100))), TrendDirection::Unclear);
        assert_eq!(unknown(of((0..30).map(|day| 100 + (day * 7) % 5))), TrendDirection::Unclear);
        // Its hosts were last heard of two days ago.
        let old = CapacitySample {
            at_unix_seconds: NOW_S - 2 * DAY_S,
            total_bytes: GIB,
            used_bytes: 0,
            provisioned_bytes: 0,
        };
        assert_eq!(unknown(trend(&[], Some(&old), NOW_S)), TrendDirection::Unknown);
        assert_eq!(unknown(trend(&[], None, NOW_S)), TrendDirection::Unknown);
    }

    #[test]
    fn a_datastore_that_shrinks_or_hardly_grows_is_not_said_to_become_full() {
        let shrinks = of((0..20).map(|day| 500 - day));
        assert_eq!((shrinks.direction, shrinks.full_in_days), (TrendDirection::Shrinking, None));
        assert_eq!(shrinks.bytes_per_day, Some(-(GIB as i64)));
        let hardly =
            CapacitySample { at_unix_seconds: 0, total_bytes: 1 << 50, used_bytes: 0, provisioned_bytes: 0 };
        let days: Vec<_> = (0..20u64)
            .map(|day| CapacitySample {
                at_unix_seconds: NOW_S - (19 - day) * DAY_S,
                used_bytes: day,
                ..hardly
            })
            .collect();
        let hardly = trend(&days[..19], days.last(), NOW_S);
        assert_eq!((hardly.direction, hardly.bytes_per_day), (TrendDirection::Growing, Some(1)));
        assert_eq!(hardly.full_in_days, None);
    }
}
