//! KEKs under a lease: who uses one for longer than a moment keeps no copy of its own.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_types::{LeaseStatus, ProviderKey};

use crate::error::KeyError;
use crate::kek::Kek;

/// Whoever holds the KEKs of providers in memory, for as long as their providers let it. Nothing
/// here waits for a provider: keys are asked for and confirmed in the background.
pub trait Leases: Send + Sync + fmt::Debug {
    /// Holds a KEK that its provider has just handed out, from now on.
    ///
    /// # Errors
    /// If it is no provider's, or cannot be held.
    fn hold(&self, kek: Kek) -> Result<(), KeyError>;

    /// Holds a KEK as soon as its provider hands it out. Does nothing for one that is held or
    /// waited for, or was revoked.
    fn hold_when_back(&self, key: &ProviderKey);

    /// The KEK, if it is held, for one use: it is wiped when its lease has ended and whoever uses
    /// it lets go of it.
    fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>>;

    /// Wipes a KEK, or stops waiting for it.
    fn forget(&self, key: &ProviderKey);

    /// How a KEK stands; none for one that nobody asked to hold.
    fn status(&self, key: &ProviderKey) -> Option<LeaseStatus>;

    /// What becomes of a volume that is in use when its KEK is revoked.
    fn on_revocation(&self, key: &ProviderKey) -> OnRevocation;

    /// Readable from when a KEK stands otherwise than before until
    /// [`take_changes`](Self::take_changes).
    fn changed(&self) -> Option<BorrowedFd<'_>>;

    /// Whether something has changed since this was last asked.
    fn take_changes(&self) -> bool;
}

/// What becomes of a volume that is in use when its KEK is revoked as compromised, or destroyed.
/// The KEK is wiped either way, and nobody opens the volume with it any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnRevocation {
    /// It goes on, with the DEKs that it was given.
    #[default]
    KeepServing,
    /// It is closed in order.
    Stop,
}
