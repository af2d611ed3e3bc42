//! How a clone is stored, if otherwise than its origin.

use clap::Args;
use strongroom_api::Name;

/// The arguments for how a full clone is stored.
#[derive(Debug, Args)]
pub struct SealingArguments {
    /// Encrypt the clone, whether or not its origin is encrypted
    #[arg(long, conflicts_with_all = ["linked", "unencrypted"])]
    encrypt: bool,

    /// Do not encrypt the clone: anyone who can read the datastore can read it
    #[arg(long, conflicts_with = "linked")]
    unencrypted: bool,

    /// Store a keyed tag for each block of the clone, whether or not its origin has them
    #[arg(long, conflicts_with_all = ["linked", "unencrypted"])]
    integrity: bool,

    /// Key provider of the clone [default: that of its origin]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["linked", "unencrypted"])]
    key_provider: Option<Name>,
}

impl SealingArguments {
    /// Whether the clone is encrypted, if that was said.
    pub fn encrypted(&self) -> Option<bool> {
        (self.encrypt || self.unencrypted).then_some(self.encrypt)
    }

    /// Whether the clone has tags, if that was said.
    pub fn integrity(&self) -> Option<bool> {
        self.integrity.then_some(true)
    }

    /// The provider of the clone's key.
    pub fn key_provider(&self) -> Option<Name> {
        self.key_provider.clone()
    }
}
