//! The ends of leases. The tables hold the leases; their ends are kept only here, so reopening an
//! engine gives each lease its whole life again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::entry::LeaseId;
use crate::error::StoreError;
use crate::limits::{LEASE_MAX_TTL, LEASE_MIN_TTL, LEASES_MAX};

#[derive(Debug)]
struct Life {
    ttl: Duration,
    ends: Instant,
}

/// All leases and their ends.
#[derive(Debug)]
pub(super) struct Leases(HashMap<LeaseId, Life>);

impl Leases {
    pub(super) fn begin(leases: Vec<(LeaseId, Duration)>) -> Self {
        let now = Instant::now();
        Self(leases.into_iter().map(|(lease, ttl)| (lease, Life { ttl, ends: now + ttl })).collect())
    }

    pub(super) fn keep_alive(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let life = self.0.get_mut(&lease).ok_or(StoreError::UnknownLease { lease })?;
        life.ends = Instant::now() + life.ttl;
        Ok(())
    }

    pub(super) fn add(&mut self, lease: LeaseId, ttl: Duration) {
        self.0.insert(lease, Life { ttl, ends: Instant::now() + ttl });
    }

    pub(super) fn remove(&mut self, lease: LeaseId) {
        self.0.remove(&lease);
    }

    /// Refuses a further lease beyond the limit; `granted` leases are not in the table yet.
    pub(super) fn room(&self, granted: usize) -> Result<(), StoreError> {
        let asked = self.0.len() + granted + 1;
        if asked > LEASES_MAX {
            return Err(StoreError::TooLarge { what: "leases", asked, most: LEASES_MAX });
        }
        Ok(())
    }

    /// When the next one ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.0.values().map(|life| life.ends).min()
    }

    /// Removes the leases that have ended, which can no longer be kept alive.
    pub(super) fn take_ended(&mut self, now: Instant) -> Vec<(LeaseId, Duration)> {
        let ended = self.0.extract_if(|_, life| life.ends <= now);
        ended.map(|(lease, life)| (lease, life.ttl)).collect()
    }
}

pub(super) fn check_ttl(ttl: Duration) -> Result<(), StoreError> {
    if (LEASE_MIN_TTL..=LEASE_MAX_TTL).contains(&ttl) {
        Ok(())
    } else {
        Err(StoreError::LeaseTtl { asked: ttl, least: LEASE_MIN_TTL, most: LEASE_MAX_TTL })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_lease_ends_after_its_life_and_one_kept_alive_begins_it_anew() {
        let began = Instant::now();
        let mut leases = Leases::begin(vec![(LeaseId(1), HOUR)]);
        leases.add(LeaseId(2), 2 * HOUR);
        assert!(leases.next_end().unwrap() >= began + HOUR);
        assert_eq!(leases.take_ended(began + HOUR - Duration::from_secs(1)), []);

        let kept = Instant::now();
        leases.keep_alive(LeaseId(1)).unwrap();
        assert!(leases.next_end().unwrap() >= kept + HOUR);
        assert_eq!(leases.take_ended(Instant::now() + HOUR), [(LeaseId(1), HOUR)]);
        assert_eq!(leases.keep_alive(LeaseId(1)), Err(StoreError::UnknownLease { lease: LeaseId(1) }));
    }

    #[test]
    fn there_is_room_for_so_many_leases_and_those_being_granted_count() {
        let mut leases = Leases::begin((1..LEASES_MAX as u64 - 1).map(|id| (LeaseId(id), HOUR)).collect());
        assert_eq!(leases.room(1), Ok(()));
        let asked = LEASES_MAX + 1;
        let refused = Err(StoreError::TooLarge { what: "leases", asked, most: LEASES_MAX });
        assert_eq!(leases.room(2), refused);
        leases.add(LeaseId(0), HOUR);
        assert_eq!((leases.room(0), leases.room(1)), (Ok(()), refused));
    }
}
