//! How this program reaches key providers.

use strongroom_keys::{Kek, KeyError, KeyRequestId, Keyring, ProviderKey, ProviderName};

/// Whatever reaches the key providers of this machine.
pub fn configured() -> Box<dyn Keyring> {
    Box::new(NoProviders)
}

/// No provider is set up.
#[derive(Debug)]
struct NoProviders;

const NONE: &str = "no such key provider is set up here";

impl Keyring for NoProviders {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        Err(KeyError::Unavailable { key: Box::new(key.clone()), reason: NONE.to_owned() })
    }

    fn create(&self, provider: &ProviderName, _: KeyRequestId) -> Result<Kek, KeyError> {
        Err(KeyError::NotMade { provider: provider.clone(), reason: NONE.to_owned() })
    }
}
