//! The server's settings.

use strongroom_kmip::protocol::Operation;

/// The enabled features.
///
/// Using keys in the server needs more trust in it than fetching them: it sees the data, and acts
/// as an oracle for keys that it does not release. Strongroom does not need it, so it is off by
/// default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Encrypt and Decrypt.
    pub encrypt: bool,
    /// MAC and MAC Verify.
    pub mac: bool,
    /// Hash.
    pub hash: bool,
    /// RNG Retrieve and RNG Seed.
    pub random: bool,
    /// Whether the control plane and administrators destroy only through
    /// [`Destructions`](crate::objects::destruction::Destructions), after a delay and with a second
    /// person. KMIP clients destroy their own objects at once, regardless of this.
    pub delayed_destruction: bool,
}

impl Settings {
    /// Every operation on.
    pub fn all() -> Self {
        Self { encrypt: true, mac: true, hash: true, random: true, delayed_destruction: false }
    }

    /// Whether the operation is on.
    pub fn offers(&self, operation: Operation) -> bool {
        match operation {
            Operation::Encrypt | Operation::Decrypt => self.encrypt,
            Operation::Mac | Operation::MacVerify => self.mac,
            Operation::Hash => self.hash,
            Operation::RngRetrieve | Operation::RngSeed => self.random,
            _ => true,
        }
    }
}
