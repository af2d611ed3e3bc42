//! The control plane's interface to keys and grants. It names keys, requests new ones and lets
//! hosts fetch them, but never sees one.

use strongroom_api::access::AccessLogHead;
use strongroom_api::key::{KeyProvider, KeyStanding};
use strongroom_host::protocol::{Grant, MigrationPermit, VmGeneration};
use strongroom_types::{KeyRequestId, ProviderKey, ProviderName, Secrecy, VmId, VolumeId};

/// Why a key or grant was not obtained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// It is unavailable at present; the request should be repeated.
    #[error("{0}")]
    Unavailable(String),
    /// It will not become available: the provider does not exist, or the key is gone.
    #[error("{0}")]
    Refused(String),
}

/// A VM that has moved to another key with all of its volumes, or has some encrypted or decrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedVm {
    /// The VM; absent if it has volumes beside these under data keys of before, whose ids the
    /// inventory may not know.
    pub vm: Option<VmId>,
    /// The volumes concerned that the inventory knows by their ids.
    pub volumes: Vec<VolumeId>,
    /// The keys that they have left; none if they were clear.
    pub from: Vec<ProviderKey>,
    /// The key that they are under; none if they are clear.
    pub to: Option<ProviderKey>,
    /// Whether all data was rewritten under new data keys.
    pub renewed: bool,
    /// Whether other VMs may share layers with it, which stay under the former data keys.
    pub is_shared: bool,
}

/// Which generation of a VM a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantFor {
    /// The one that runs or starts: the use of the grant ends earlier ones.
    Current,
    /// One that is prepared on another host beside the one that runs.
    Prepared,
}

/// A VM that is to move to another host while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveMoveOf<'a> {
    /// The VM.
    pub vm: VmId,
    /// The generation that runs.
    pub running: VmGeneration,
    /// The generation that is prepared.
    pub prepared: VmGeneration,
    /// The name of the host where it runs.
    pub source: &'a str,
    /// The name of the host where it is to go on.
    pub target: &'a str,
    /// Whether its memory passes encrypted.
    pub secrecy: Secrecy,
}

/// Requests keys and signs grants. Calls block, with a timeout of their own.
pub trait VmKeys: Send + Sync {
    /// Has a provider make a key, unseen. A repetition of the request, even after a crash of all
    /// processes, returns the same key.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn create_key(
        &self,
        provider: &ProviderName,
        request: KeyRequestId,
        vm: VmId,
    ) -> Result<ProviderKey, KeyProblem>;

    /// Lets hosts fetch a key for the VM `to`, and no longer for `from`, which it was made for. May
    /// be repeated.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn hand_over(&self, key: &ProviderKey, from: VmId, to: VmId) -> Result<(), KeyProblem>;

    /// Returns grants for a host to fetch keys for this start of a VM; `None` if the provider needs
    /// none. Each can be used once, so every attempt needs a new one.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn grant(
        &self,
        vm: VmId,
        generation: VmGeneration,
        standing: GrantFor,
        host: &str,
        keys: &[ProviderKey],
    ) -> Result<Vec<Grant>, KeyProblem>;

    /// Permits two hosts to pass a running VM's memory on, in one attempt.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn permit_move(&self, of: &LiveMoveOf<'_>) -> Result<MigrationPermit, KeyProblem>;

    /// Ends all generations of a VM before this one: no host fetches a key for them any more. May
    /// be repeated.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn fence(&self, vm: VmId, generation: VmGeneration) -> Result<(), KeyProblem>;

    /// Ends a generation that was only prepared. May be repeated.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn void_prepared(&self, vm: VmId, generation: VmGeneration) -> Result<(), KeyProblem>;

    /// Deactivates a key, so that nothing new is sealed under it. It still opens old copies of
    /// descriptors.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn retire(&self, key: &ProviderKey) -> Result<(), KeyProblem>;

    /// Records a completed move in the audit log, durably: evidence is made of it. May be repeated.
    ///
    /// # Errors
    /// [`KeyProblem`]: nothing is on record.
    fn record_move(&self, moved: &MovedVm) -> Result<(), KeyProblem>;

    /// Records an access to guest data in the audit log, durably.
    ///
    /// # Errors
    /// [`KeyProblem`]: nothing is on record.
    fn record_use(&self, vm: VmId, what: &str, by: &str) -> Result<(), KeyProblem>;

    /// Records the head of the access log in the audit log, durably.
    ///
    /// # Errors
    /// [`KeyProblem`]: nothing is on record.
    fn record_access_head(&self, head: &AccessLogHead) -> Result<(), KeyProblem>;

    /// Returns the states of keys, in the given order.
    fn states(&self, keys: &[ProviderKey]) -> Vec<KeyStanding>;

    /// Returns the providers of this machine, with their states.
    fn providers(&self) -> Vec<KeyProvider>;
}
