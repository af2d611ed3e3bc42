//! Key providers: where KEKs come from, and how a holder rides out their outages.
//!
//! - [`KeyProvider`] is what every provider does; [`kmip`] is a cluster of KMIP servers (the
//!   embedded key server is one of one server), [`vault`] the transit engine of a HashiCorp Vault
//!   or OpenBao.
//! - [`Registry`] holds how the providers of this machine are set up: one file each, with paths and
//!   names and no secret.
//! - [`ProviderKeyring`] is all of them as the keyring that volumes take their KEKs from.
//! - [`GrantSource`] has the grants under which a host fetches keys that are not its own.
//! - [`Holder`] keeps KEKs in memory under a lease, and tells of outages, expiry and revocation;
//!   [`ProviderLeases`] is a holder for every provider, for whoever uses a volume.
//!
//! A key is nowhere but at its provider and in
//! [`SecretBytes`](strongroom_memory::secret::SecretBytes). What protects what, and who may have a
//! key, is decided elsewhere.
#![forbid(unsafe_code)]

mod check;
mod config;
mod error;
mod grants;
mod holder;
mod home;
mod keyring;
pub mod kmip;
mod leases;
mod provider;
mod registry;
pub mod vault;

use std::time::Duration;

pub use check::{ServerCheck, Step, check};
pub use config::{
    CONFIG_FORMAT, CRYPTOPERIOD_DAYS_MAX, KmipConfig, LEASE_SECONDS, LeaseConfig,
    OUTAGE_ALLOWANCE_SECONDS_MAX, ProviderConfig, RENEW_SECONDS, REQUEST_TIMEOUT_MS, SERVERS_MAX,
    SourceConfig, VaultConfig, VaultLogin,
};
pub use error::ProviderError;
pub use grants::{GRANTS_KEPT_MAX, GrantSource, GrantWallet, KeyGrant};
pub use holder::{Holder, HolderEvent, LeaseTerms, RENEW_PERIOD, RETRY_PERIOD, REVOCATION_NOTICE_MAX};
pub use home::{HOME_VARIABLE, home};
pub use keyring::{ProviderKeyring, open, open_with_grants};
pub use leases::ProviderLeases;
pub use provider::{
    KeyFacts, KeyProvider, KeyState, LISTED_KEYS_MAX, ListedKey, NewKey, Revocation, ServerHealth,
    ServerState, UnseenKey,
};
pub use registry::{EMBEDDED, Registered, Registry, RegistryError};

/// The longest that a call to a provider takes: a server's own time for a request, and room for the
/// next one to answer.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);
