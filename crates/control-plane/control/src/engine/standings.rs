//! Caches the states of VMs' keys.
//!
//! Alarms are reviewed every few seconds, and a review of ten thousand VMs must not query ten
//! thousand keys each time.

use std::collections::HashMap;

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
pub struct Standings(Mutex<HashMap<ProviderKey, Known>>);

#[derive(Clone, Debug)]
struct Known {
    standing: KeyStanding,
    asked_unix_ms: u64,
}

impl Standings {
    /// Returns the state of each of these keys, and forgets all others.
    pub fn of(
        &self,
        keys: &dyn VmKeys,
        wanted: &[ProviderKey],
        now_unix_ms: u64,
    ) -> HashMap<ProviderKey, KeyStanding> {
        let before = std::mem::take(&mut *self.0.lock());
        let is_fresh = |known: &Known| {
            // A failed query is repeated at once. After the clock was set back, no answer is valid.
            let age_ms = now_unix_ms.checked_sub(known.asked_unix_ms);
            known.standing.state != KeyState::Unavailable && age_ms.is_some_and(|age| age < BELIEVED_FOR_MS)
        };
        let mut now_known = HashMap::with_capacity(wanted.len());
        let mut unasked = Vec::new();
        for key in wanted {
            match before.get(key).filter(|known| is_fresh(known)) {
                Some(known) => drop(now_known.insert(key.clone(), known.clone())),
                None => unasked.push(key.clone()),
            }
        }
        for some in unasked.chunks(KEYS_AT_A_TIME) {
            for (key, standing) in some.iter().zip(keys.states(some)) {
                now_known.insert(key.clone(), Known { standing, asked_unix_ms: now_unix_ms });
            }
        }
        let told = now_known.iter().map(|(key, known)| (key.clone(), known.standing.clone())).collect();
        *self.0.lock() = now_known;
        told
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use strongroom_api::access::AccessLogHead;
    use strongroom_api::key::KeyProvider;
    use strongroom_host::protocol::{Grant, VmGeneration};
    use strongroom_types::{KeyRequestId, ProviderName, VmId};

    use super::*;
    use crate::keys::{KeyProblem, MovedVm};

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
            _: &str,
            _: &[ProviderKey],
        ) -> Result<Vec<Grant>, KeyProblem> {
            Err(KeyProblem::Refused("it grants none".to_owned()))
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
        for second in 0..60 {
            assert_eq!(standings.of(&up, &keys, second * 1000).len(), 1000);
        }
        assert_eq!(up.0.load(Ordering::Relaxed), 1000);
        standings.of(&up, &[keys.clone(), vec![key(1000)]].concat(), 59_999);
        assert_eq!(up.0.load(Ordering::Relaxed), 1001);
        standings.of(&up, &keys[..1], 60_000);
        assert_eq!(up.0.load(Ordering::Relaxed), 1002);
        standings.of(&up, &keys[..1], 1);
        assert_eq!(up.0.load(Ordering::Relaxed), 1003, "the clock was set back");
        let away = Counted(AtomicUsize::new(0), KeyState::Unavailable);
        let standings = Standings::default();
        for second in 0..5 {
            standings.of(&away, &keys, second * 1000);
        }
        assert_eq!(away.0.load(Ordering::Relaxed), 5000);
    }
}
