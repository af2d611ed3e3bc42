//! How this program reaches key providers.

use strongroom_keys::{Kek, KeyError, KeyRequestId, Keyring, ProviderKey, ProviderName};
use strongroom_providers::{HOME_VARIABLE, ProviderKeyring, home};

/// Whatever reaches the key providers of this machine.
pub fn configured() -> Box<dyn Keyring> {
    match home(None) {
        Some(home) => Box::new(ProviderKeyring::of_home(&home)),
        None => Box::new(Homeless),
    }
}

/// Nobody knows where the providers would be set up.
#[derive(Debug)]
struct Homeless;

impl Homeless {
    fn reason() -> String {
        format!("there is no place where key providers are set up; set {HOME_VARIABLE}")
    }
}

impl Keyring for Homeless {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        Err(KeyError::Unavailable {
            key: Box::new(key.clone()),
            reason: Self::reason(),
            may_come_back: false,
        })
    }

    fn create(&self, provider: &ProviderName, _: KeyRequestId) -> Result<Kek, KeyError> {
        Err(KeyError::NotMade { provider: provider.clone(), reason: Self::reason() })
    }
}
