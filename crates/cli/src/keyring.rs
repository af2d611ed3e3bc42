//! Access to key providers.

use std::sync::Arc;

use strongroom_keys::{Keyring, Leases, NoProviders};
use strongroom_providers::{GrantSource, HOME_VARIABLE, HolderEvent, ProviderKeyring, ProviderLeases};

use crate::error::CliError;
use crate::home::HomeArguments;

/// The keyring of the providers that are set up in the home. It uses grants, if there are any.
pub fn of(home: &HomeArguments, grants: Option<Arc<dyn GrantSource>>) -> Arc<dyn Keyring> {
    match home.path() {
        Ok(home) => Arc::new(ProviderKeyring::of_home(&home).with_grants(grants)),
        Err(_) => Arc::new(homeless()),
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
        Err(_) => (Arc::new(homeless()), Arc::new(homeless())),
    })
}

/// The keyring without a home, and so without providers.
fn homeless() -> NoProviders {
    NoProviders(format!(
        "there is no place where key providers are set up: give --home DIR, or set {HOME_VARIABLE}"
    ))
}
