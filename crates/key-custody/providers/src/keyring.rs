//! The providers of this machine as the keyring of its volumes.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_keys::{Kek, KeyError, KeyRequestId, Keyring, ProviderKey, ProviderName};
use strongroom_memory::secret::SecretBytes;

use crate::config::{ProviderConfig, SourceConfig, misconfigured};
use crate::error::ProviderError;
use crate::grants::GrantSource;
use crate::kmip::KmipProvider;
use crate::provider::KeyProvider;
use crate::registry::{Registry, RegistryError};
use crate::vault::VaultProvider;

/// Opens the provider of a configuration. It does not connect yet; health checks of clusters begin.
///
/// # Errors
/// [`ProviderError::Misconfigured`], for example if TLS files cannot be read.
pub fn open(config: &ProviderConfig) -> Result<Arc<dyn KeyProvider>, ProviderError> {
    open_with_grants(config, None)
}

/// The same, and sends a grant with each fetch of a key that has one. Providers without grants
/// ignore them.
///
/// # Errors
/// As [`open`].
pub fn open_with_grants(
    config: &ProviderConfig,
    grants: Option<Arc<dyn GrantSource>>,
) -> Result<Arc<dyn KeyProvider>, ProviderError> {
    config.check()?;
    Ok(match &config.source {
        SourceConfig::Kmip(kmip) | SourceConfig::Embedded(kmip) => {
            let provider = KmipProvider::new(kmip)?.with_grants(grants);
            provider
                .cluster()
                .watch()
                .map_err(|error| misconfigured(format!("no thread can be started: {error}")))?;
            Arc::new(provider)
        }
        SourceConfig::Vault(vault) => Arc::new(VaultProvider::new(vault)?),
    })
}

/// Every provider of a registry, opened when it is first needed and kept.
pub struct ProviderKeyring {
    registry: Registry,
    grants: Option<Arc<dyn GrantSource>>,
    open: Mutex<HashMap<ProviderName, Opened>>,
}

struct Opened {
    config: ProviderConfig,
    provider: Arc<dyn KeyProvider>,
}

impl ProviderKeyring {
    /// The providers of a home.
    pub fn of_home(home: &Path) -> Self {
        Self { registry: Registry::of_home(home), grants: None, open: Mutex::default() }
    }

    /// The same, with providers that send grants from this source.
    #[must_use]
    pub fn with_grants(self, grants: Option<Arc<dyn GrantSource>>) -> Self {
        Self { grants, ..self }
    }

    /// The provider of that name in its current configuration.
    ///
    /// # Errors
    /// If there is none, or its configuration cannot work.
    pub fn provider(&self, name: &ProviderName) -> Result<Arc<dyn KeyProvider>, ProviderError> {
        let config = self.config(name)?;
        let mut open = self.open.lock();
        if let Some(opened) = open.get(name).filter(|opened| opened.config == config) {
            return Ok(Arc::clone(&opened.provider));
        }
        let provider = open_with_grants(&config, self.grants.clone())?;
        open.insert(name.clone(), Opened { config, provider: Arc::clone(&provider) });
        Ok(provider)
    }

    /// The current configuration of the provider of that name.
    ///
    /// # Errors
    /// If there is none, or its file is invalid.
    pub fn config(&self, name: &ProviderName) -> Result<ProviderConfig, ProviderError> {
        self.registry.get(name).map_err(|error| match error {
            // A provider may be registered again; volumes that wait for its keys then continue by
            // themselves.
            RegistryError::Unknown { .. } => ProviderError::Unavailable { reason: error.to_string() },
            error => error.into(),
        })
    }

    fn kek(
        &self,
        key: &ProviderKey,
        fetch: impl FnOnce(&dyn KeyProvider) -> Result<SecretBytes, ProviderError>,
    ) -> Result<Kek, KeyError> {
        let secret =
            self.provider(&key.provider).and_then(|provider| fetch(&*provider)).map_err(|error| {
                KeyError::Unavailable {
                    key: Box::new(key.clone()),
                    absence: error.absence(),
                    reason: error.to_string(),
                }
            })?;
        Kek::from_provider(secret, key.clone())
    }
}

impl Keyring for ProviderKeyring {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.kek(key, |provider| provider.fetch(key))
    }

    fn fetch_to_leave(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.kek(key, |provider| provider.fetch_for_rekey(key))
    }

    fn fetch_to_seal(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.kek(key, |provider| provider.fetch_to_seal(key))
    }

    fn create(&self, name: &ProviderName, request: KeyRequestId) -> Result<Kek, KeyError> {
        let made = self
            .provider(name)
            .and_then(|provider| provider.create(request))
            .map_err(|error| KeyError::NotMade { provider: name.clone(), reason: error.to_string() })?;
        let key = ProviderKey { provider: name.clone(), key: made.key, wrapped: made.wrapped };
        Kek::from_provider(made.secret, key)
    }
}

impl fmt::Debug for ProviderKeyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderKeyring({})", self.registry.directory().display())
    }
}
