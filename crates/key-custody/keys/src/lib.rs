//! Keys: key server -> KEK -> DEK.
//!
//! - A [`Kek`] wraps DEKs. It lives in memory only. It comes from a key provider, a passphrase
//!   (Argon2id) or a key file; [`KekSource`] records that in a descriptor, and holds nothing
//!   secret.
//! - A [`Keyring`] reaches the key providers. It is implemented elsewhere, because this room has no
//!   network.
//! - [`Leases`] hold the KEKs of providers for long-term users. They are implemented elsewhere,
//!   too.
//! - An [`Envelope`] seals one DEK together with its context, so that it cannot be put to another
//!   use: purpose, volume, layer, epoch, cipher and unit size are authenticated with it.
//! - A [`DescriptorKey`] authenticates a volume's descriptor under its KEK.
//!
//! This room knows nothing of files' layout or of I/O. Plain keys are [`SecretBytes`] here and
//! everywhere; nothing in this room prints, serialises or logs one.
//!
//! [`SecretBytes`]: strongroom_memory::secret::SecretBytes
#![forbid(unsafe_code)]

mod descriptor_key;
mod envelope;
mod error;
mod handover;
mod kek;
mod key_file;
mod keyring;
mod lease;
mod no_providers;

pub use descriptor_key::{ConfigurationKey, DescriptorKey};
pub use envelope::{Cipher, DEK_BYTES, Envelope, EnvelopeContext, Purpose};
pub use error::{Absence, KeyError, MissingKey};
pub use kek::{KEK_BYTES, Kek, KekSource, PASSPHRASE_BYTES_MAX, PassphraseParameters, check_new_passphrase};
pub use key_file::read_key_file;
pub use keyring::Keyring;
pub use lease::{Leases, OnRevocation};
pub use no_providers::NoProviders;
// The names of keys, which rooms without keys use too.
pub use strongroom_types::{
    DESCRIPTOR_TAG_BYTES, KeyRequestId, LeaseState, LeaseStatus, PROVIDER_KEY_ID_BYTES_MAX,
    PROVIDER_NAME_BYTES_MAX, ProviderKey, ProviderKeyId, ProviderName, ProviderNameError, RevokedHow,
    WRAPPED_KEK_BYTES_MAX, WrappedKek,
};
