//! What a person says of a VM that serves a key provider, where it cannot be seen.

use std::str::FromStr;

use strongroom_keys::ProviderName;

/// A VM that serves a key provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvidesKeys {
    /// Its name.
    pub vm: String,
    /// The provider.
    pub provider: ProviderName,
}

impl FromStr for ProvidesKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (vm, provider) = text.split_once('=').ok_or("write VM=PROVIDER, as in vault1=corp")?;
        let provider = provider.trim().parse().map_err(|error| format!("{error}"))?;
        Ok(Self { vm: vm.trim().to_owned(), provider })
    }
}
