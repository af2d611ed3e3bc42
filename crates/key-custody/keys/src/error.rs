//! Errors of keys and their use.

use std::path::PathBuf;

use strongroom_crypto::CryptoError;
use strongroom_memory::secret::SecretError;
use strongroom_types::{KekId, KeyEpoch, ProviderKey, ProviderName};
use thiserror::Error;

/// What makes an unavailable key available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Nothing: it was destroyed, for example.
    ForGood,
    /// Its provider, when it can be reached again, or no longer refuses it.
    ForNow,
    /// This provider, of which the key's own is the broker.
    Upstream(ProviderName),
    /// Another grant: it was fetched without one, or with one that is of no use any more.
    Ungranted,
}

impl Absence {
    /// The provider behind the key's own that is unavailable.
    pub fn upstream(&self) -> Option<&ProviderName> {
        match self {
            Self::Upstream(upstream) => Some(upstream),
            Self::ForGood | Self::ForNow | Self::Ungranted => None,
        }
    }
}

/// A key that is not available and may come back.
#[derive(Clone, Copy, Debug)]
pub struct MissingKey<'a> {
    /// The provider and the key's name there.
    pub key: &'a ProviderKey,
    /// Why it is not available, and what to do.
    pub reason: &'a str,
    /// What makes it available.
    pub absence: &'a Absence,
}

/// Why a key is not available or cannot be used.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The KEK at hand is not the one that the volume names.
    #[error("this key is not the volume's: it has id {given}, the volume's key has id {wanted}")]
    WrongKek {
        /// Id of the KEK at hand.
        given: KekId,
        /// Id that the descriptor names.
        wanted: KekId,
    },
    /// The volume's KEK has another source.
    #[error("the volume's key comes from a {wanted}, not from a {given}")]
    WrongSource {
        /// The source at hand.
        given: &'static str,
        /// The source that the descriptor names.
        wanted: &'static str,
    },
    /// The volume's KEK cannot be fetched now: the volume is *key-unavailable*.
    #[error("key-unavailable: {key}: {reason}")]
    Unavailable {
        /// The provider and the key's name there.
        key: Box<ProviderKey>,
        /// Why not, and what to do.
        reason: String,
        /// What makes it available, if anything does.
        absence: Absence,
    },
    /// A provider made no key.
    #[error("key provider {provider} made no key: {reason}")]
    NotMade {
        /// The provider.
        provider: ProviderName,
        /// Why not, and what to do.
        reason: String,
    },
    /// The key at a provider is not a KEK.
    #[error("{key}, is no AES-256 key: it has {bytes} bytes instead of {}", crate::KEK_BYTES)]
    ProviderKeyLength {
        /// The provider and the key's name there.
        key: Box<ProviderKey>,
        /// Its length.
        bytes: usize,
    },
    /// An envelope does not open: edited, or moved from elsewhere.
    #[error(
        "the envelope of key epoch {epoch} does not open under KEK {kek}: it was edited, or belongs elsewhere"
    )]
    Envelope {
        /// Which DEK.
        epoch: KeyEpoch,
        /// Under which KEK.
        kek: KekId,
    },
    /// Another process did not hand over its key.
    #[error("the new key was not handed over: {0}")]
    NotHandedOver(std::io::Error),
    /// An empty passphrase, or one that no person types.
    #[error("a passphrase has 1 to {max} bytes; this one has {0}", max = crate::PASSPHRASE_BYTES_MAX)]
    PassphraseLength(usize),
    /// A new passphrase is too easily guessed.
    #[error(
        "a new passphrase has at least {least} bytes; this one has {0}: take several words",
        least = strongroom_crypto::kdf::NEW_PASSPHRASE_MIN_BYTES
    )]
    PassphraseTooShort(usize),
    /// A key file cannot be read.
    #[error("cannot read key file {path}: {error}")]
    KeyFileUnreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A key file that others may read.
    #[error("key file {path} can be read by others (mode {mode:04o}); run: chmod 600 {path}")]
    KeyFileMode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A key file of another form.
    #[error(
        "key file {path} holds no key: it must have 32 bytes, or 64 hexadecimal digits; \
         make one with: (umask 077; head -c 32 /dev/urandom > {path})"
    )]
    KeyFileForm {
        /// The file.
        path: PathBuf,
    },
    /// Key derivation parameters out of range.
    #[error("the passphrase parameters are out of range: {0}")]
    Parameters(CryptoError),
    /// A cipher refused.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl KeyError {
    /// Whether waiting may help: the volume is *key-unavailable* until its key is back.
    pub fn may_come_back(&self) -> bool {
        self.missing_key().is_some()
    }

    /// The key that is missing, if it may come back.
    pub fn missing_key(&self) -> Option<MissingKey<'_>> {
        match self {
            Self::Unavailable { absence: Absence::ForGood, .. } => None,
            Self::Unavailable { key, reason, absence } => Some(MissingKey { key, reason, absence }),
            _ => None,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::WrongKek { .. } => "wrong_key",
            Self::WrongSource { .. } => "wrong_key_source",
            Self::Unavailable { .. } => "key_unavailable",
            Self::NotMade { .. } => "key_not_made",
            Self::ProviderKeyLength { .. } => "key_length",
            Self::Envelope { .. } => "not_authentic",
            Self::NotHandedOver(_) => "key_not_handed_over",
            Self::PassphraseLength(_) => "passphrase_length",
            Self::PassphraseTooShort(_) => "passphrase_too_short",
            Self::KeyFileUnreadable { .. } | Self::KeyFileMode { .. } | Self::KeyFileForm { .. } => {
                "key_file"
            }
            Self::Parameters(_) => "damaged",
            Self::Crypto(_) => "cipher",
            Self::Secret(_) => "no_secret_memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_away_may_come_back_if_its_provider_says_so() {
        let upstream = Absence::Upstream("corp".parse().unwrap());
        for absence in [Absence::ForGood, Absence::ForNow, upstream, Absence::Ungranted] {
            let (provider, key) = ("kms".parse().unwrap(), "4711".parse().unwrap());
            let key = Box::new(ProviderKey { provider, key, wrapped: None });
            let error = KeyError::Unavailable { key, reason: String::new(), absence: absence.clone() };
            let may_come_back = absence != Absence::ForGood;
            assert_eq!((error.may_come_back(), error.code()), (may_come_back, "key_unavailable"));
            assert_eq!(
                error.missing_key().map(|missing| missing.absence),
                Some(&absence).filter(|_| may_come_back)
            );
        }
        let error = KeyError::PassphraseTooShort(1);
        assert_eq!((error.may_come_back(), error.code()), (false, "passphrase_too_short"));
    }
}
