//! The interface to the key providers.
//!
//! This room has no network. [`Keyring`] is implemented elsewhere; code that needs a key takes a
//! `&dyn Keyring`, and cannot tell a key server from a cluster or a test.

use std::fmt;

use strongroom_types::{KeyRequestId, ProviderKey, ProviderName};

use crate::error::KeyError;
use crate::kek::Kek;

/// Reaches the key providers. Calls block, and always end: each provider sets its own deadline.
pub trait Keyring: Send + Sync + fmt::Debug {
    /// The KEK that a provider keeps.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`] while it cannot be fetched; nothing is damaged, and it may pass by
    /// itself.
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError>;

    /// The KEK of a volume that moves to another KEK. Also returned if it was revoked as
    /// compromised, which is when moving matters most.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    fn fetch_to_leave(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.fetch(key)
    }

    /// The KEK to seal new data under; returned only while the key may protect.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch), and for a key that was taken out of use: it still opens envelopes
    /// but seals no new ones.
    fn fetch_to_seal(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.fetch(key)
    }

    /// Makes a KEK at a provider; its source says where it is. A second call with the same request
    /// returns the same key, if the provider can find keys by such a mark.
    ///
    /// # Errors
    /// [`KeyError::NotMade`].
    fn create(&self, provider: &ProviderName, request: KeyRequestId) -> Result<Kek, KeyError>;
}
