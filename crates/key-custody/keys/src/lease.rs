//! KEKs under a lease, so that long-term users keep no copy of their own.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_types::{LeaseStatus, ProviderKey};

use crate::error::KeyError;
use crate::kek::Kek;

/// Holds the KEKs of providers in memory, for as long as the providers allow. No call waits for a
/// provider: keys are fetched and confirmed in the background.
pub trait Leases: Send + Sync + fmt::Debug {
    /// Begins to hold a KEK that its provider has just handed out.
    ///
    /// # Errors
    /// If the KEK does not come from a provider, or cannot be held.
    fn hold(&self, kek: Kek) -> Result<(), KeyError>;

    /// Holds a KEK as soon as its provider hands it out. Does nothing if it is held, awaited or
    /// revoked.
    fn hold_when_back(&self, key: &ProviderKey);

    /// The KEK for one use, if it is held. It is wiped when its lease has ended and the last user
    /// has dropped it.
    fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>>;

    /// Wipes a KEK, or stops waiting for it.
    fn forget(&self, key: &ProviderKey);

    /// A KEK's lease status; `None` if nobody asked to hold it.
    fn status(&self, key: &ProviderKey) -> Option<LeaseStatus>;

    /// The policy for a volume in use when its KEK is revoked.
    fn on_revocation(&self, key: &ProviderKey) -> OnRevocation;

    /// Readable after a KEK's status changes, until [`take_changes`](Self::take_changes).
    fn changed(&self) -> Option<BorrowedFd<'_>>;

    /// Whether a status has changed since the last call.
    fn take_changes(&self) -> bool;
}

/// The policy for a volume in use when its KEK is revoked as compromised, or destroyed. The KEK is
/// wiped either way, and no longer opens the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnRevocation {
    /// The volume stays open, with the DEKs it already has.
    #[default]
    KeepServing,
    /// The volume is closed in order.
    Stop,
}
