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
