//! Tags over a VM's configuration, under its keys ([`strongroom_host::attestation`]).

use strongroom_host::attestation::Attested;
use strongroom_keys::{ConfigurationKey, DESCRIPTOR_TAG_BYTES, Kek, KeyError};

/// Returns the tag under one of the VM's keys.
///
/// # Errors
/// If there is no secure memory for keys.
pub fn tag(what: &Attested<'_>, kek: &Kek) -> Result<[u8; DESCRIPTOR_TAG_BYTES], KeyError> {
    ConfigurationKey::derive(kek, what.vm())?.tag(what.message())
}

/// Whether this is the tag under one of the VM's keys.
///
/// # Errors
/// As [`tag`].
pub fn is_tag(what: &Attested<'_>, kek: &Kek, tag: &[u8; DESCRIPTOR_TAG_BYTES]) -> Result<bool, KeyError> {
    Ok(ConfigurationKey::derive(kek, what.vm())?.verify(what.message(), tag))
}
