//! Caches the states of VMs' keys.
//!
//! Alarms are reviewed every few seconds, and a review of ten thousand VMs must not query ten
//! thousand keys each time.

use std::collections::{HashMap, HashSet, VecDeque};

use parking_lot::Mutex;
use strongroom_api::key::{KeyStanding, KeyState};
use strongroom_types::ProviderKey;

use crate::keys::VmKeys;

/// The lifetime of an answer, in milliseconds. An alarm can be this late.
const BELIEVED_FOR_MS: u64 = 60_000;
/// The most keys in one query.
const KEYS_AT_A_TIME: usize = 256;

/// The providers' answers.
#[derive(Debug, Default)]
pub struct Standings(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    answers: HashMap<ProviderKey, KeyStanding>,
    /// The keys to ask for now: new ones, and those whose provider was away.
    unasked: HashSet<ProviderKey>,
    /// The others, with the time of their answer in milliseconds since 1970. Answers are believed
    /// for the same time, so they fall due in this order.
    asked: VecDeque<(u64, ProviderKey)>,
    last_look_unix_ms: u64,
}

impl Standings {
    /// Has keys asked for that were not yet.
    pub fn want(&self, keys: impl IntoIterator<Item = ProviderKey>) {
        let mut known = self.0.lock();
        for key in keys {
            if !known.answers.contains_key(&key) {
                known.unasked.insert(key);
            }
        }
    }

    /// The last known state of a key.
    pub fn of(&self, key: &ProviderKey) -> Option<KeyStanding> {
        self.0.lock().answers.get(key).cloned()
    }

    /// Asks for the keys that are due, and forgets those that are not used any more. Returns those
    /// whose state has changed. Blocks until providers answer.
    pub fn refresh(
        &self,
        keys: &dyn VmKeys,
        is_used: impl Fn(ProviderKey) -> bool,
        now_unix_ms: u64,
    ) -> Vec<ProviderKey> {
        let due = self.take_due(is_used, now_unix_ms);
        let mut changed = Vec::new();
        for some in due.chunks(KEYS_AT_A_TIME) {
            let told = keys.states(some);
            let mut known = self.0.lock();
            for (key, standing) in some.iter().zip(told) {
                match standing.state {
                    KeyState::Unavailable => drop(known.unasked.insert(key.clone())),
                    _ => known.asked.push_back((now_unix_ms, key.clone())),
                }
                let before = known.answers.insert(key.clone(), standing.clone());
                if before.is_none_or(|before| before != standing) {
                    changed.push(key.clone());
                }
            }
        }
        changed
    }

    fn take_due(&self, is_used: impl Fn(ProviderKey) -> bool, now_unix_ms: u64) -> Vec<ProviderKey> {
        let mut known = self.0.lock();
        // After the clock was set back, no answer is valid.
        let was_set_back = now_unix_ms < known.last_look_unix_ms;
        known.last_look_unix_ms = now_unix_ms;
        let mut due: Vec<ProviderKey> = known.unasked.drain().collect();
        while let Some((asked, _)) = known.asked.front()
            && (was_set_back || asked.saturating_add(BELIEVED_FOR_MS) <= now_unix_ms)
        {
            due.extend(known.asked.pop_front().map(|(_, key)| key));
        }
        let (used, gone) = due.into_iter().partition::<Vec<_>, _>(|key| is_used(key.clone()));
        for key in gone {
            known.answers.remove(&key);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use strongroom_api::access::AccessLogHead;
    use strongroom_api::key::KeyProvider;
    use strongroom_host::protocol::{Grant, MigrationPermit, VmGeneration};
    use strongroom_types::{KeyRequestId, ProviderName, VmId};

    use super::*;
    use crate::keys::{GrantFor, KeyProblem, LiveMoveOf, MovedVm};

    /// Counts the queried keys, and returns this state for each.
    struct Counted(AtomicUsize, KeyState);

    impl VmKeys for Counted {
        fn create_key(&self, _: &ProviderName, _: KeyRequestId, _: VmId) -> Result<ProviderKey, KeyProblem> {
            Err(KeyProblem::Refused("it makes none".to_owned()))
        }

        fn hand_over(&self, _: &ProviderKey, _: VmId, _: VmId) -> Result<(), KeyProblem> {
            Ok(())
        }

        fn grant(
            &self,
            _: VmId,
            _: VmGeneration,
            _: GrantFor,
            _: &str,
            _: &[ProviderKey],
        ) -> Result<Vec<Grant>, KeyProblem> {
            Err(KeyProblem::Refused("it grants none".to_owned()))
        }

        fn permit_move(&self, _: &LiveMoveOf<'_>) -> Result<MigrationPermit, KeyProblem> {
            Err(KeyProblem::Refused("it permits none".to_owned()))
        }

        fn fence(&self, _: VmId, _: VmGeneration) -> Result<(), KeyProblem> {
            Ok(())
        }

        fn void_prepared(&self, _: VmId, _: VmGeneration) -> Result<(), KeyProblem> {
            Ok(())
        }

        fn retire(&self, _: &ProviderKey) -> Result<(), KeyProblem> {
            Ok(())
        }

        fn record_move(&self, _: &MovedVm) -> Result<(), KeyProblem> {
            Ok(())
        }

        fn record_use(&self, _: VmId, _: &str, _: &str) -> Result<(), KeyProblem> {
            Ok(())
        }

        fn record_access_head(&self, _: &AccessLogHead) -> Result<(), KeyProblem> {
            Ok(())
        }

        fn states(&self, keys: &[ProviderKey]) -> Vec<KeyStanding> {
            self.0.fetch_add(keys.len(), Ordering::Relaxed);
            let standing = |key: &ProviderKey| KeyStanding {
                provider: key.provider.to_string(),
                key: key.key.to_string(),
                state: self.1,
                reason: None,
                expires_unix_seconds: None,
            };
            keys.iter().map(standing).collect()
        }

        fn providers(&self) -> Vec<KeyProvider> {
            Vec::new()
        }
    }

    fn key(number: usize) -> ProviderKey {
        serde_json::from_value(
            serde_json::json!({ "provider": "corp", "key": number.to_string(), "wrapped": null }),
        )
        .unwrap()
    }

    #[test]
    fn a_key_is_asked_for_once_a_minute_a_new_one_at_once_and_what_is_away_each_time() {
        let keys: Vec<_> = (0..1000).map(key).collect();
        let (standings, up) = (Standings::default(), Counted(AtomicUsize::new(0), KeyState::Active));
        let asked = || up.0.load(Ordering::Relaxed);
        let all = |_| true;
        standings.want(keys.clone());
        for second in 0..60 {
            let changed = standings.refresh(&up, all, second * 1000);
            assert_eq!(changed.len(), if second == 0 { 1000 } else { 0 });
        }
        assert_eq!(asked(), 1000);
        standings.want([keys[0].clone(), key(1000)]);
        assert_eq!(standings.refresh(&up, all, 59_999), [key(1000)]);
        assert_eq!(asked(), 1001);
        // From then on only one of them is used.
        assert!(standings.refresh(&up, |used| used == keys[0], 60_000).is_empty());
        assert_eq!(asked(), 1002);
        assert!(standings.of(&keys[0]).is_some() && standings.of(&keys[1]).is_none());
        standings.refresh(&up, all, 1);
        assert_eq!(asked(), 1004, "the clock was set back");
        let away = Counted(AtomicUsize::new(0), KeyState::Unavailable);
        let standings = Standings::default();
        standings.want(keys);
        for second in 0..5 {
            standings.refresh(&away, all, second * 1000);
        }
        assert_eq!(away.0.load(Ordering::Relaxed), 5000);
    }
}
