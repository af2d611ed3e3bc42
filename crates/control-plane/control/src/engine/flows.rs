//! Sign-ins by identity providers that have begun and are not finished. Strangers begin them, so
//! there are few of each network, and one that begins many displaces its own.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use uuid::Uuid;

/// How long a sign-in may take, in milliseconds: a person looks for a second factor.
pub(super) const FLOW_LIFE_MS: u64 = 10 * 60_000;
/// The most of one network: an office behind one address.
const OF_ONE_MAX: usize = 32;
/// The most of all.
const FLOWS_MAX: usize = 8192;

/// A sign-in that has begun.
#[derive(Clone)]
pub(super) struct Flow {
    pub provider: Uuid,
    pub redirect: String,
    pub state: String,
    pub nonce: String,
    pub verifier: String,
    pub network: IpAddr,
    pub begun_unix_ms: u64,
}

/// All of them, by SHA-256 of the secret with which each is finished.
#[derive(Default)]
pub(super) struct Flows(Mutex<HashMap<String, Flow>>);

impl Flows {
    /// Begins one.
    pub fn begin(&self, key: String, flow: Flow) {
        let mut all = self.0.lock();
        let now = flow.begun_unix_ms;
        all.retain(|_, one| is_current(one, now));
        if let Some(displaced) = displaced(&all, flow.network) {
            all.remove(&displaced);
        }
        all.insert(key, flow);
    }

    /// Takes one that is not too late, once.
    pub fn take(&self, key: &str, now_unix_ms: u64) -> Option<Flow> {
        self.0.lock().remove(key).filter(|flow| is_current(flow, now_unix_ms))
    }
}

fn is_current(flow: &Flow, now_unix_ms: u64) -> bool {
    now_unix_ms.abs_diff(flow.begun_unix_ms) < FLOW_LIFE_MS
}

/// The one that makes room for another one of a network: its own oldest, or the oldest of the
/// network that has the most.
fn displaced(all: &HashMap<String, Flow>, network: IpAddr) -> Option<String> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for flow in all.values() {
        *counts.entry(flow.network).or_default() += 1;
    }
    let crowded = if counts.get(&network).is_some_and(|count| *count >= OF_ONE_MAX) {
        network
    } else if all.len() >= FLOWS_MAX {
        counts.into_iter().max_by_key(|(_, count)| *count)?.0
    } else {
        return None;
    };
    let own = all.iter().filter(|(_, flow)| flow.network == crowded);
    own.min_by_key(|(_, flow)| flow.begun_unix_ms).map(|(key, _)| key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(network: &str, begun_unix_ms: u64) -> Flow {
        Flow {
            provider: Uuid::nil(),
            redirect: String::new(),
            state: String::new(),
            nonce: String::new(),
            verifier: String::new(),
            network: network.parse().unwrap(),
            begun_unix_ms,
        }
    }

    #[test]
    fn one_that_begins_many_displaces_its_own() {
        let flows = Flows::default();
        flows.begin("innocent".to_owned(), flow("192.0.2.1", 0));
        for number in 0..2 * OF_ONE_MAX {
            flows.begin(format!("flood-{number}"), flow("198.51.100.7", 1 + number as u64));
        }
        assert_eq!(flows.0.lock().len(), 1 + OF_ONE_MAX);
        assert!(flows.take("flood-0", 100).is_none());
        assert!(flows.take("innocent", 100).is_some());
        assert!(flows.take("innocent", 100).is_none(), "once");
    }

    #[test]
    fn many_networks_displace_the_one_that_has_most() {
        let flows = Flows::default();
        flows.begin("innocent".to_owned(), flow("192.0.2.1", 0));
        for number in 0..FLOWS_MAX {
            let network = format!("10.{}.{}.1", number / 1024, number / 4 % 256);
            flows.begin(format!("flood-{number}"), flow(&network, 1));
        }
        assert_eq!(flows.0.lock().len(), FLOWS_MAX);
        assert!(flows.take("innocent", 100).is_some());
    }

    #[test]
    fn one_that_is_too_late_is_none() {
        let flows = Flows::default();
        flows.begin("late".to_owned(), flow("192.0.2.1", 0));
        assert!(flows.take("late", FLOW_LIFE_MS).is_none());
    }
}
