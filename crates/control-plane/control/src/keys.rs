//! The seam to keys and grants. The control plane names keys, has them made and lets hosts fetch
//! them; it never sees one.

use strongroom_api::key::{KeyProvider, KeyStanding};
use strongroom_host::protocol::{Grant, VmGeneration};
use strongroom_types::{KeyRequestId, ProviderKey, ProviderName, VmId};

/// Why there is no key or grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// It cannot be had now; ask again.
    #[error("{0}")]
    Unavailable(String),
    /// It cannot be had, now or later: there is no such provider, or the key is gone.
    #[error("{0}")]
    Refused(String),
}

/// Whoever has keys made and signs grants. Calls block, and end: each has a deadline of its own.
pub trait VmKeys: Send + Sync {
    /// Has a key made at a provider, unseen. Asked again with the same request, also after a crash
    /// of everybody, it is the same key.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn create_key(
        &self,
        provider: &ProviderName,
        request: KeyRequestId,
        vm: VmId,
    ) -> Result<ProviderKey, KeyProblem>;

    /// Leave for a host to fetch keys for this start of a VM; none for providers that want none.
    /// Each is good once, so a new one is asked for each time.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn grant(
        &self,
        vm: VmId,
        generation: VmGeneration,
        host: &str,
        keys: &[ProviderKey],
    ) -> Result<Vec<Grant>, KeyProblem>;

    /// Takes a key out of use that nothing is to be sealed under any more. It opens what it has
    /// sealed: old copies of descriptors.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn retire(&self, key: &ProviderKey) -> Result<(), KeyProblem>;

    /// Puts on the audit log that somebody gets at what a guest keeps, durably.
    ///
    /// # Errors
    /// [`KeyProblem`]: nothing is on record.
    fn record_use(&self, vm: VmId, what: &str, by: &str) -> Result<(), KeyProblem>;

    /// How keys stand, in the order in which they are named.
    fn states(&self, keys: &[ProviderKey]) -> Vec<KeyStanding>;

    /// The providers of this machine and how they are.
    fn providers(&self) -> Vec<KeyProvider>;
}
