//! The external providers for which a key server is the broker: those of this machine's registry
//! that it was started with.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use strongroom_keyserver::broker::{Upstream, UpstreamError, UpstreamState};
use strongroom_memory::secret::SecretBytes;
use strongroom_providers::{
    KeyProvider, KeyState, ProviderError, ProviderKeyring, Registry, SourceConfig, UnseenKey,
};

use crate::error::CliError;

/// Some providers of the registry.
pub struct BrokeredProviders {
    keyring: ProviderKeyring,
    names: Vec<ProviderName>,
}

impl BrokeredProviders {
    /// These providers of a home. Each must be set up; this connects to none.
    ///
    /// # Errors
    /// If one is not set up, or is this key server itself.
    pub fn new(home: &Path, names: Vec<ProviderName>) -> Result<Self, CliError> {
        let registry = Registry::of_home(home);
        for name in &names {
            if let SourceConfig::Embedded(_) = registry.get(name)?.source {
                return Err(CliError::Usage(format!(
                    "key provider {name} is this machine's own key server; --broker is for external ones"
                )));
            }
        }
        Ok(Self { keyring: ProviderKeyring::of_home(home), names })
    }

    fn provider(&self, name: &ProviderName) -> Result<Arc<dyn KeyProvider>, UpstreamError> {
        if !self.names.contains(name) {
            let reason = format!(
                "this key server is not the broker of key provider {name}; start it with `strongroom keyserver run --broker {name}`"
            );
            return Err(UpstreamError::Refused { reason });
        }
        self.keyring.provider(name).map_err(upstream_error)
    }
}

impl Upstream for BrokeredProviders {
    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, UpstreamError> {
        self.provider(&key.provider)?.fetch_for_rekey(key).map_err(upstream_error)
    }

    fn state(&self, key: &ProviderKey) -> Result<UpstreamState, UpstreamError> {
        match self.provider(&key.provider)?.facts(key).map_err(upstream_error)?.state {
            KeyState::Active => Ok(UpstreamState::Active),
            KeyState::Deactivated => Ok(UpstreamState::Deactivated),
            KeyState::Compromised => Ok(UpstreamState::Compromised),
            KeyState::PreActive => Err(upstream_error(ProviderError::NotActivated)),
            KeyState::Destroyed => Err(upstream_error(ProviderError::Destroyed)),
        }
    }

    fn create(&self, provider: &ProviderName, request: KeyRequestId) -> Result<ProviderKey, UpstreamError> {
        let UnseenKey { key, wrapped } =
            self.provider(provider)?.create_unseen(request).map_err(upstream_error)?;
        Ok(ProviderKey { provider: provider.clone(), key, wrapped })
    }

    fn providers(&self) -> Vec<ProviderName> {
        self.names.clone()
    }
}

impl fmt::Debug for BrokeredProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BrokeredProviders").field(&self.names).finish()
    }
}

fn upstream_error(error: ProviderError) -> UpstreamError {
    let reason = error.to_string();
    match error {
        ProviderError::Unavailable { .. } => UpstreamError::Unavailable { reason },
        ProviderError::NoSuchKey | ProviderError::Destroyed => UpstreamError::Gone { reason },
        _ => UpstreamError::Refused { reason },
    }
}
