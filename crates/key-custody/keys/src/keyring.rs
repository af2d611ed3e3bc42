//! What is asked of whoever reaches the key providers.
//!
//! This room has no network. What fetches keys implements [`Keyring`] elsewhere; what needs one
//! takes a `&dyn Keyring`, and does not know a key server from a cluster or a test.

use std::fmt;

use strongroom_types::{KeyRequestId, ProviderKey, ProviderName};

use crate::error::KeyError;
use crate::kek::Kek;

/// Whoever reaches the key providers. Calls block, and end: each has a deadline of the provider's
/// own.
pub trait Keyring: Send + Sync + fmt::Debug {
    /// The KEK that a provider keeps.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`] while it cannot be had, which damages nothing and may be over by
    /// itself.
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError>;

    /// The KEK of a volume that is moved to another one: given also if it was revoked as
    /// compromised, which is when moving matters most.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    fn fetch_to_leave(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.fetch(key)
    }

    /// The KEK that something new is to be sealed under: only while it may protect.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch), and for a key that was taken out of use: it opens what it sealed
    /// and seals nothing new.
    fn fetch_to_seal(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.fetch(key)
    }

    /// Makes a KEK at a provider; its source says where it is. Asked twice with the same request,
    /// the provider has one key and gives that one, where it can find keys by such a mark at all.
    ///
    /// # Errors
    /// [`KeyError::NotMade`].
    fn create(&self, provider: &ProviderName, request: KeyRequestId) -> Result<Kek, KeyError>;
}
