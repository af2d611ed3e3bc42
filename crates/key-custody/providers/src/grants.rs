//! Grants: signed permissions to fetch keys, each good for one request.
//!
//! A host that runs VMs has no right to any key of the embedded key server. Its control plane sends
//! it a grant with each operation that needs one ([`GrantWallet::add`]), and the provider sends one
//! with each fetch. A grant's content concerns only the control plane and the server; here it is
//! bytes that are good for the keys they name.
//!
//! Reading the *state* of a key takes no grant: the server answers a host that fetched the key
//! under a grant until the VM moves to another generation. So leases are renewed
//! ([`Holder`](crate::Holder)) without grants.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use strongroom_crypto::mac::{DIGEST_BYTES, sha256};
use strongroom_keys::ProviderKeyId;
use zeroize::Zeroizing;

/// The most grants that a wallet keeps; the oldest are dropped first. A VM's start takes one, and
/// they are good for minutes.
pub const GRANTS_KEPT_MAX: usize = 4096;

/// How long after its expiry a grant is still tried: clocks differ, so the server decides whether
/// it has expired.
const KEPT_AFTER_END: Duration = Duration::from_secs(60);

/// Permission to fetch some keys, in one request.
pub struct KeyGrant {
    bytes: Zeroizing<Vec<u8>>,
    keys: BTreeSet<ProviderKeyId>,
    expires: SystemTime,
}

impl KeyGrant {
    /// A grant for these keys until `expires`. `bytes` are sent to the server unchanged.
    pub fn new(bytes: Vec<u8>, keys: impl IntoIterator<Item = ProviderKeyId>, expires: SystemTime) -> Self {
        Self { bytes: Zeroizing::new(bytes), keys: keys.into_iter().collect(), expires }
    }

    /// The bytes for the server.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it names the key.
    pub fn is_for(&self, key: &ProviderKeyId) -> bool {
        self.keys.contains(key)
    }
}

fn is_over(expires: SystemTime, now: SystemTime) -> bool {
    now.duration_since(expires).is_ok_and(|since| since > KEPT_AFTER_END)
}

impl fmt::Debug for KeyGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyGrant({} keys, redacted)", self.keys.len())
    }
}

/// A provider's source of grants.
pub trait GrantSource: Send + Sync {
    /// Takes a grant that names the key, if there is one. The caller is then its only user.
    fn take(&self, key: &ProviderKeyId) -> Option<KeyGrant>;

    /// Returns a grant that no server has used up: it certainly reached none, or the server has
    /// said so.
    fn put_back(&self, grant: KeyGrant);
}

/// Grants in memory, the oldest used first.
#[derive(Debug, Default)]
pub struct GrantWallet(Mutex<Grants>);

#[derive(Debug, Default)]
struct Grants {
    unused: VecDeque<KeyGrant>,
    /// Those that were added, by their digests. A grant that is brought again, because nobody knows
    /// whether it had come, is not taken again: it may have been used meanwhile.
    known: HashMap<[u8; DIGEST_BYTES], SystemTime>,
}

impl Grants {
    fn forget_expired(&mut self) {
        let now = SystemTime::now();
        self.unused.retain(|grant| !is_over(grant.expires, now));
        self.known.retain(|_, expires| !is_over(*expires, now));
    }
}

impl GrantWallet {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a grant, once: one that was added before is ignored.
    pub fn add(&self, grant: KeyGrant) {
        let mut grants = self.0.lock();
        grants.forget_expired();
        if grants.known.len() >= GRANTS_KEPT_MAX {
            grants.known.clear();
        }
        if grants.known.insert(sha256(grant.bytes()), grant.expires).is_some() {
            return;
        }
        if grants.unused.len() >= GRANTS_KEPT_MAX {
            grants.unused.pop_front();
        }
        grants.unused.push_back(grant);
    }
}

impl GrantSource for GrantWallet {
    fn take(&self, key: &ProviderKeyId) -> Option<KeyGrant> {
        let mut grants = self.0.lock();
        grants.forget_expired();
        let found = grants.unused.iter().position(|grant| grant.is_for(key))?;
        grants.unused.remove(found)
    }

    fn put_back(&self, grant: KeyGrant) {
        self.0.lock().unused.push_front(grant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(byte: u8, keys: &[&str], expires: SystemTime) -> KeyGrant {
        KeyGrant::new(vec![byte], keys.iter().map(|key| key.parse().unwrap()), expires)
    }

    #[test]
    fn each_grant_is_given_out_once_and_for_a_key_that_it_names() {
        let (wallet, soon) = (GrantWallet::new(), SystemTime::now() + Duration::from_secs(60));
        let take = |key: &str| wallet.take(&key.parse().unwrap()).map(|grant| grant.bytes().to_vec());
        for (byte, keys) in [(1, &["a", "b"][..]), (2, &["b"]), (3, &["a"])] {
            wallet.add(grant(byte, keys, soon));
        }
        assert_eq!((take("c"), take("b"), take("b"), take("b")), (None, Some(vec![1]), Some(vec![2]), None));
        let third = wallet.take(&"a".parse().unwrap()).unwrap();
        assert_eq!(take("a"), None);
        wallet.put_back(third);
        assert_eq!((take("a"), take("a")), (Some(vec![3]), None));
    }

    /// hostd brings the grants of an order again if it does not know whether they have come.
    #[test]
    fn a_grant_that_is_brought_again_is_not_presented_again() {
        let (wallet, soon) = (GrantWallet::new(), SystemTime::now() + Duration::from_secs(60));
        let key = "a".parse().unwrap();
        for _ in 0..3 {
            wallet.add(grant(1, &["a"], soon));
        }
        let taken = wallet.take(&key).unwrap();
        assert!(wallet.take(&key).is_none());
        // Not even after its use, of which the wallet does not hear.
        wallet.add(grant(1, &["a"], soon));
        assert!(wallet.take(&key).is_none());
        // One that was not used up is there, once.
        wallet.put_back(taken);
        wallet.add(grant(1, &["a"], soon));
        assert!(wallet.take(&key).is_some() && wallet.take(&key).is_none());
    }

    #[test]
    fn what_has_long_expired_is_dropped_and_a_wallet_has_an_end() {
        let (wallet, now) = (GrantWallet::new(), SystemTime::now());
        wallet.add(grant(1, &["a"], now - Duration::from_secs(3600)));
        assert!(wallet.take(&"a".parse().unwrap()).is_none());
        for number in 0..=GRANTS_KEPT_MAX {
            let (bytes, keys) = (number.to_be_bytes().to_vec(), ["a".parse().unwrap()]);
            wallet.add(KeyGrant::new(bytes, keys, now + Duration::from_secs(60)));
        }
        let grants = wallet.0.lock();
        assert_eq!(grants.unused.len(), GRANTS_KEPT_MAX);
        assert!(grants.known.len() <= GRANTS_KEPT_MAX);
        assert_eq!(format!("{:?}", grant(7, &["a"], now)), "KeyGrant(1 keys, redacted)");
    }
}
