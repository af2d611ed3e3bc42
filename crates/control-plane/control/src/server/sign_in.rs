//! Slows sign-ins down that fail, and never locks an account.
//!
//! Comparing a password takes a processor for about a second, so only a few are compared at a time.
//! Networks from which a user has signed in have a place of their own there: strangers neither
//! exhaust it nor slow it down. Everyone else waits the longer, the more sign-ins of the account
//! have failed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_api::{ErrorCode, Problem};
use strongroom_serving::network_of;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(8);
/// The delay after the first failure; each further one doubles it.
const DELAY_FIRST: Duration = Duration::from_millis(250);
/// How long a failure counts.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(15 * 60);
/// The most accounts and networks that are remembered.
const REMEMBERED_MAX: usize = 10_000;
/// The most sign-ins that wait.
const WAITING_MAX: usize = 64;

/// A network and an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pair {
    network: IpAddr,
    account: String,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

#[derive(Debug, Default)]
struct Remembered {
    /// Of a network for an account.
    own: HashMap<Pair, Failures>,
    /// Of strangers for an account.
    strangers: HashMap<String, Failures>,
    /// Networks from which an account has signed in.
    known: HashMap<Pair, Instant>,
    waiting: HashMap<IpAddr, u32>,
}

/// The sign-ins of a server.
#[derive(Debug)]
pub(crate) struct SignIns {
    remembered: Mutex<Remembered>,
    known: Semaphore,
    strangers: Semaphore,
}

impl Default for SignIns {
    fn default() -> Self {
        Self::with_room(1)
    }
}

/// A sign-in that may be tried now.
pub(super) struct Turn<'all> {
    all: &'all SignIns,
    pair: Pair,
    _permit: Option<SemaphorePermit<'all>>,
}

impl SignIns {
    /// Sign-ins of which so many are tried at a time, of known networks and of others.
    pub fn with_room(at_a_time: usize) -> Self {
        let (known, strangers) = (Semaphore::new(at_a_time), Semaphore::new(at_a_time));
        Self { remembered: Mutex::default(), known, strangers }
    }

    /// Waits for the turn of a sign-in.
    ///
    /// # Errors
    /// `too_many` if the same network has one already, or too many wait.
    pub async fn turn(&self, from: IpAddr, account: &str) -> Result<Turn<'_>, Problem> {
        let pair = Pair { network: network_of(from), account: account.to_owned() };
        let (delay, is_known) = {
            let mut remembered = self.remembered.lock();
            if remembered.waiting.len() >= WAITING_MAX || remembered.waiting.contains_key(&pair.network) {
                return Err(Problem::new(
                    ErrorCode::TooMany,
                    "another sign-in of this network is being tried",
                )
                .next("try again when it is answered"));
            }
            remembered.waiting.insert(pair.network, 1);
            remembered.delay(&pair)
        };
        // From here on, dropping it frees the network.
        let mut turn = Turn { all: self, pair, _permit: None };
        tokio::time::sleep(delay).await;
        let room = if is_known { &self.known } else { &self.strangers };
        turn._permit = room.acquire().await.ok();
        Ok(turn)
    }
}

impl Remembered {
    /// The delay of a sign-in, and whether its network is known.
    fn delay(&mut self, pair: &Pair) -> (Duration, bool) {
        let is_known = self.known.contains_key(pair);
        let counts = |failures: &&Failures| failures.last.elapsed() < FAILURE_COUNTS_FOR;
        let own = self.own.get(pair).filter(counts).map_or(0, |failures| failures.count);
        let strangers = self.strangers.get(&pair.account).filter(counts).map_or(0, |failures| failures.count);
        let count = if is_known { own } else { own.max(strangers) };
        let delay = match count {
            0 => Duration::ZERO,
            count => DELAY_FIRST.saturating_mul(1 << (count - 1).min(16)).min(DELAY_MAX),
        };
        (delay, is_known)
    }

    fn forget_old(&mut self) {
        if self.own.len() >= REMEMBERED_MAX {
            self.own.retain(|_, failures| failures.last.elapsed() < FAILURE_COUNTS_FOR);
        }
        if self.own.len() >= REMEMBERED_MAX {
            self.own.clear();
        }
        if self.strangers.len() >= REMEMBERED_MAX {
            self.strangers.clear();
        }
        if self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
        }
    }
}

impl Turn<'_> {
    /// The sign-in has failed.
    pub fn failed(self) {
        let mut remembered = self.all.remembered.lock();
        remembered.forget_old();
        let more = |before: Option<&Failures>| {
            let before = before.filter(|failures| failures.last.elapsed() < FAILURE_COUNTS_FOR);
            Failures {
                count: before.map_or(1, |before| before.count.saturating_add(1)),
                last: Instant::now(),
            }
        };
        let own = more(remembered.own.get(&self.pair));
        remembered.own.insert(self.pair.clone(), own);
        if !remembered.known.contains_key(&self.pair) {
            let all = more(remembered.strangers.get(&self.pair.account));
            remembered.strangers.insert(self.pair.account.clone(), all);
        }
    }

    /// The user has signed in.
    pub fn succeeded(self) {
        let mut remembered = self.all.remembered.lock();
        remembered.forget_old();
        remembered.own.remove(&self.pair);
        remembered.known.insert(self.pair.clone(), Instant::now());
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.all.remembered.lock().waiting.remove(&self.pair.network);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(network: &str) -> Pair {
        Pair { network: network.parse().unwrap(), account: "ada".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_strangers_do_not_slow_down_the_network_of_the_user() {
        let all = SignIns::default();
        let home: IpAddr = "192.0.2.1".parse().unwrap();
        let elsewhere: IpAddr = "198.51.100.7".parse().unwrap();
        let Ok(turn) = all.turn(home, "ada").await else { panic!("no turn") };
        turn.succeeded();
        for _ in 0..20 {
            let Ok(turn) = all.turn(elsewhere, "ada").await else { panic!("no turn") };
            turn.failed();
        }
        let mut remembered = all.remembered.lock();
        assert_eq!(remembered.delay(&pair("192.0.2.1")), (Duration::ZERO, true));
        assert_eq!(remembered.delay(&pair("198.51.100.7")), (DELAY_MAX, false));
        assert_eq!(remembered.delay(&pair("203.0.113.9")), (DELAY_MAX, false));
        assert!(remembered.waiting.is_empty());
    }

    #[tokio::test]
    async fn one_network_tries_one_at_a_time() {
        let all = SignIns::default();
        let from = "192.0.2.1".parse().unwrap();
        let first = all.turn(from, "ada").await;
        assert!(first.is_ok());
        assert_eq!(all.turn(from, "bob").await.err().map(|problem| problem.code), Some(ErrorCode::TooMany));
        drop(first);
        assert!(all.turn(from, "bob").await.is_ok());
    }
}
