//! Places for the connections of a listener, so that unknown peers cannot keep out known ones.
//!
//! A connection begins as a stranger's, because its peer has not been verified yet. Strangers have
//! their own places, and a new one always gets one. If all are taken, the oldest stranger of the
//! address with the most places loses its own. So idle connections displace each other, and a
//! client whose handshake takes milliseconds is known long before it is the oldest. Known peers
//! have other places, and each of them has a share.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The least time between two log lines about displaced strangers.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The counts of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For strangers; at least one.
    pub strangers: usize,
    /// For known peers together.
    pub known: usize,
    /// For one known peer.
    pub of_one: usize,
}

/// The reasons why a known peer gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The places of known peers are taken.
    #[error("all {0} places for connections are taken")]
    All(usize),
    /// This peer's share is taken.
    #[error("one client may have {0} connections")]
    OfOne(usize),
}

/// The places of one listener. `Peer` identifies known peers.
#[derive(Debug)]
pub struct Places<Peer> {
    shared: Arc<Shared<Peer>>,
}

impl<Peer> Clone for Places<Peer> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<Peer> {
    listener: &'static str,
    limits: Limits,
    state: Mutex<State<Peer>>,
}

#[derive(Debug)]
struct State<Peer> {
    next: u64,
    /// In the order of arrival.
    strangers: BTreeMap<u64, Stranger>,
    by_address: HashMap<IpAddr, usize>,
    known: usize,
    by_peer: HashMap<Peer, usize>,
    displaced: u64,
    told: Option<Instant>,
}

#[derive(Debug)]
struct Stranger {
    address: IpAddr,
    displaced: watch::Sender<bool>,
}

impl<Peer: Clone + Eq + Hash> Places<Peer> {
    /// Makes the places of a listener, which log lines call `listener`.
    pub fn new(listener: &'static str, limits: Limits) -> Self {
        let state = State {
            next: 0,
            strangers: BTreeMap::new(),
            by_address: HashMap::new(),
            known: 0,
            by_peer: HashMap::new(),
            displaced: 0,
            told: None,
        };
        Self { shared: Arc::new(Shared { listener, limits, state: Mutex::new(state) }) }
    }

    /// Takes a place for a connection from this address.
    pub fn enter(&self, from: IpAddr) -> Place<Peer> {
        let address = network_of(from);
        let (displaced, watched) = watch::channel(false);
        let mut state = self.shared.state.lock();
        while state.strangers.len() >= self.shared.limits.strangers.max(1) {
            state.displace_one();
        }
        state.tell(self.shared.listener);
        let number = state.next;
        state.next += 1;
        state.strangers.insert(number, Stranger { address, displaced });
        *state.by_address.entry(address).or_default() += 1;
        drop(state);
        Place { shared: Arc::clone(&self.shared), number, displaced: watched, peer: Mutex::new(None) }
    }

    /// The count of connections that have a place.
    pub fn taken(&self) -> usize {
        let state = self.shared.state.lock();
        state.strangers.len() + state.known
    }
}

impl<Peer> Shared<Peer> {}

impl<Peer> State<Peer> {
    fn displace_one(&mut self) {
        let most = self.by_address.values().max().copied().unwrap_or(0);
        let of_most = |address: &IpAddr| self.by_address.get(address).is_some_and(|count| *count == most);
        let oldest = self.strangers.iter().find(|(_, stranger)| of_most(&stranger.address));
        if let Some(number) = oldest.map(|(number, _)| *number)
            && let Some(stranger) = self.forget_stranger(number)
        {
            stranger.displaced.send_replace(true);
            self.displaced += 1;
        }
    }

    fn forget_stranger(&mut self, number: u64) -> Option<Stranger> {
        let stranger = self.strangers.remove(&number)?;
        take_one(&mut self.by_address, &stranger.address);
        Some(stranger)
    }

    /// Limits a flood of connections to one log line per [`TOLD_EVERY`].
    fn tell(&mut self, listener: &str) {
        let is_due = self.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY);
        if self.displaced > 0 && is_due {
            tracing::warn!(
                count = self.displaced,
                "{listener}: connections of unknown clients were closed for newer ones"
            );
            (self.displaced, self.told) = (0, Some(Instant::now()));
        }
    }
}

fn take_one<Key: Eq + Hash>(counts: &mut HashMap<Key, usize>, key: &Key) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The network of an address. The owner of an IPv6 address usually has 2^64 of them.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub struct Place<Peer: Eq + Hash> {
    shared: Arc<Shared<Peer>>,
    number: u64,
    displaced: watch::Receiver<bool>,
    peer: Mutex<Option<Peer>>,
}

impl<Peer: Clone + Eq + Hash> Place<Peer> {
    /// Returns when another connection has taken the place; never for a known peer.
    pub async fn displaced(&self) {
        let mut displaced = self.displaced.clone();
        if displaced.wait_for(|displaced| *displaced).await.is_err() {
            // The peer is known, and can no longer be displaced.
            std::future::pending::<()>().await;
        }
    }

    /// Declares the verified peer of the connection, which gets a known peer's place. A later call
    /// does not change the peer.
    ///
    /// # Errors
    /// [`Full`]; the connection then remains a stranger's.
    pub fn known_as(&self, peer: &Peer) -> Result<(), Full> {
        let mut known = self.peer.lock();
        if known.is_some() {
            return Ok(());
        }
        let Limits { known: all, of_one, .. } = self.shared.limits;
        let mut state = self.shared.state.lock();
        if state.by_peer.get(peer).is_some_and(|count| *count >= of_one) || of_one == 0 {
            return Err(Full::OfOne(of_one));
        }
        if state.known >= all {
            return Err(Full::All(all));
        }
        // A connection that was displaced a moment ago and is known now gets its place
        // nevertheless, unless it is already being ended.
        state.forget_stranger(self.number);
        state.known += 1;
        *state.by_peer.entry(peer.clone()).or_default() += 1;
        *known = Some(peer.clone());
        Ok(())
    }
}

impl<Peer: Eq + Hash> Drop for Place<Peer> {
    fn drop(&mut self) {
        let peer = self.peer.get_mut().take();
        let mut state = self.shared.state.lock();
        match peer {
            Some(peer) => {
                state.known -= 1;
                take_one(&mut state.by_peer, &peer);
            }
            None => {
                state.forget_stranger(self.number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { strangers: 4, known: 3, of_one: 2 };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_displaced(place: &Place<u8>) -> bool {
        *place.displaced.borrow()
    }

    #[test]
    fn a_new_stranger_displaces_the_oldest_of_the_address_that_has_most() {
        let places = Places::new("test", LIMITS);
        let lone = places.enter(address(1));
        let crowd: Vec<_> = (0..3).map(|_| places.enter(address(2))).collect();
        let next = places.enter(address(2));
        assert!(is_displaced(&crowd[0]) && !is_displaced(&lone) && !is_displaced(&crowd[1]));
        let other = places.enter(address(3));
        assert!(is_displaced(&crowd[1]) && !is_displaced(&lone) && !is_displaced(&next));
        assert_eq!(places.taken(), 4);
        drop((lone, other, next, crowd));
        assert_eq!(places.taken(), 0);
        assert!(places.shared.state.lock().by_address.is_empty());
    }

    #[test]
    fn all_from_one_address_displace_the_oldest_and_known_ones_stay() {
        let places = Places::new("test", LIMITS);
        let known = places.enter(address(1));
        known.known_as(&7).unwrap();
        let strangers: Vec<_> = (0..100).map(|_| places.enter(address(1))).collect();
        assert!(!is_displaced(&known));
        assert_eq!(strangers.iter().filter(|place| !is_displaced(place)).count(), LIMITS.strangers);
        assert!(!is_displaced(&strangers[99]));
        // Another client connects during the flood, and is known before 4 more have connected.
        let late = places.enter(address(1));
        let _more = [places.enter(address(1)), places.enter(address(1))];
        late.known_as(&8).unwrap();
        let _flood: Vec<_> = (0..100).map(|_| places.enter(address(1))).collect();
        assert!(!is_displaced(&late));
    }

    #[test]
    fn known_peers_have_their_places_and_each_its_share() {
        let places = Places::new("test", LIMITS);
        let of = |peer: u8| {
            let place = places.enter(address(1));
            place.known_as(&peer).map(|()| place)
        };
        let (one, _two) = (of(1).unwrap(), of(1).unwrap());
        assert_eq!(of(1).unwrap_err(), Full::OfOne(2));
        let _three = of(2).unwrap();
        assert_eq!(of(3).unwrap_err(), Full::All(3));
        // A second call does not change the peer.
        one.known_as(&9).unwrap();
        drop(one);
        of(1).unwrap();
        assert_eq!(places.taken(), 2);
    }

    #[tokio::test]
    async fn a_displaced_connection_hears_it_and_a_known_one_never_does() {
        let places = Places::new("test", Limits { strangers: 1, ..LIMITS });
        let first = places.enter(address(1));
        let second = places.enter(address(1));
        first.displaced().await;
        second.known_as(&1).unwrap();
        let _third = places.enter(address(1));
        let waited = tokio::time::timeout(Duration::from_millis(50), second.displaced()).await;
        assert!(waited.is_err());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        assert_eq!(network_of("2001:db8::1".parse().unwrap()), network_of("2001:db8::ffff".parse().unwrap()));
        assert_eq!(network_of("::ffff:192.0.2.1".parse().unwrap()), address(1));
        assert_ne!(
            network_of("2001:db8::1".parse().unwrap()),
            network_of("2001:db8:0:1::1".parse().unwrap())
        );
    }
}
