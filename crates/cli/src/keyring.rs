//! Access to key providers.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use strongroom_keys::{
    Kek, KekSource, KeyError, KeyRequestId, Keyring, LeaseStatus, Leases, OnRevocation, ProviderKey,
    ProviderName,
};
use strongroom_providers::{GrantSource, HOME_VARIABLE, HolderEvent, ProviderKeyring, ProviderLeases};

use crate::error::CliError;
use crate::home::HomeArguments;

/// The keyring of the providers that are set up in the home. It uses grants, if there are any.
pub fn of(home: &HomeArguments, grants: Option<Arc<dyn GrantSource>>) -> Arc<dyn Keyring> {
    match home.path() {
        Ok(home) => Arc::new(ProviderKeyring::of_home(&home).with_grants(grants)),
        Err(_) => Arc::new(Homeless),
    }
}

/// A keyring, and the leases under which its keys are held.
pub type KeyringAndLeases = (Arc<dyn Keyring>, Arc<dyn Leases>);

/// As [`of`], with leases that hold the keys while this process uses them; `on_event` is called
/// with their events.
pub fn with_leases(
    home: &HomeArguments,
    grants: Option<Arc<dyn GrantSource>>,
    on_event: impl Fn(&HolderEvent) + Send + Sync + 'static,
) -> Result<KeyringAndLeases, CliError> {
    Ok(match home.path() {
        Ok(home) => {
            let keyring = Arc::new(ProviderKeyring::of_home(&home).with_grants(grants));
            let leases = ProviderLeases::new(Arc::clone(&keyring), on_event).map_err(CliError::Leases)?;
            (keyring, Arc::new(leases))
        }
        Err(_) => (Arc::new(Homeless), Arc::new(Homeless)),
    })
}

/// The keyring without a home, and so without providers.
#[derive(Debug)]
struct Homeless;

impl Homeless {
    fn reason() -> String {
        format!("there is no place where key providers are set up: give --home DIR, or set {HOME_VARIABLE}")
    }

    fn unavailable(key: &ProviderKey) -> KeyError {
        let (key, reason) = (Box::new(key.clone()), Self::reason());
        KeyError::Unavailable { key, reason, may_come_back: false }
    }
}

impl Keyring for Homeless {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        Err(Self::unavailable(key))
    }

    fn create(&self, provider: &ProviderName, _: KeyRequestId) -> Result<Kek, KeyError> {
        Err(KeyError::NotMade { provider: provider.clone(), reason: Self::reason() })
    }
}

impl Leases for Homeless {
    fn hold(&self, kek: Kek) -> Result<(), KeyError> {
        match kek.source() {
            KekSource::Provider(key) => Err(Self::unavailable(key)),
            source => Err(KeyError::WrongSource { given: source.name(), wanted: "key provider" }),
        }
    }

    fn hold_when_back(&self, _: &ProviderKey) {}

    fn kek(&self, _: &ProviderKey) -> Option<Arc<Kek>> {
        None
    }

    fn forget(&self, _: &ProviderKey) {}

    fn status(&self, _: &ProviderKey) -> Option<LeaseStatus> {
        None
    }

    fn on_revocation(&self, _: &ProviderKey) -> OnRevocation {
        OnRevocation::default()
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn take_changes(&self) -> bool {
        false
    }
}
