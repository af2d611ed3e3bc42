//! Key providers: the sources of KEKs, and holders that survive their outages.
//!
//! - [`KeyProvider`] is the interface of every provider; [`kmip`] is a cluster of KMIP servers (the
//!   embedded key server is a cluster of one), [`vault`] the transit engine of a HashiCorp Vault or
//!   OpenBao.
//! - [`Registry`] holds the configuration of this machine's providers: one file each, with paths
//!   and names and no secret.
//! - [`ProviderKeyring`] makes them the keyring of this machine's volumes.
//! - [`GrantSource`] supplies the grants under which a host fetches keys that it does not own.
//! - [`Holder`] keeps KEKs in memory under a lease, and reports outages, expiry and revocation;
//!   [`ProviderLeases`] has a holder for every provider.
//!
//! A key exists only at its provider and in
//! [`SecretBytes`](strongroom_memory::secret::SecretBytes). Which key protects which volume, and
//! who may fetch it, is decided elsewhere.
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
    CONFIG_FORMAT, CRYPTOPERIOD_DAYS_MAX, DEFAULT_REQUEST_TIMEOUT_MS, KmipConfig, LEASE_SECONDS, LeaseConfig,
    OUTAGE_ALLOWANCE_SECONDS_MAX, ProviderConfig, RENEW_SECONDS, REQUEST_TIMEOUT_MS, SERVERS_MAX,
    SourceConfig, VaultConfig, VaultLogin,
};
pub use error::{FailedProvider, ProviderError};
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

/// The longest time of a call to a provider: one server's request time-out, and time for the next
/// one to answer.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);
