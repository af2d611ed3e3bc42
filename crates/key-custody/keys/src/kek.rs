//! Key-encryption keys, and their source as a descriptor records it.

use std::fmt;

use serde::{Deserialize, Serialize};
use strongroom_crypto::kdf::{self, Argon2idParams, NEW_PASSPHRASE_MIN_BYTES};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{KekId, ProviderKey, hex};

use crate::error::KeyError;

/// Bytes of a KEK: an AES-256 key.
pub const KEK_BYTES: usize = 32;

/// The longest passphrase, in bytes: far beyond what a person types, and small enough to lock in
/// memory.
pub const PASSPHRASE_BYTES_MAX: usize = 1024;

const SALT_BYTES: usize = 32;

/// A key-encryption key, and where it came from. It is wiped when it is dropped; `Debug` shows its
/// id.
pub struct Kek {
    id: KekId,
    source: KekSource,
    secret: SecretBytes,
}

/// Where a volume's KEK comes from. Nothing here is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KekSource {
    /// Argon2id of a passphrase.
    Passphrase(PassphraseParameters),
    /// A file that holds the key itself.
    KeyFile {},
    /// A key provider keeps it.
    Provider(ProviderKey),
}

/// How a passphrase becomes a KEK: Argon2id (RFC 9106), version 0x13, 32 bytes out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassphraseParameters {
    /// Random bytes that make equal passphrases give different keys.
    #[serde(with = "hex")]
    salt: Vec<u8>,
    /// Memory in KiB.
    memory_kib: u32,
    /// Passes over the memory.
    passes: u32,
    /// Independent lanes.
    lanes: u32,
}

impl KekSource {
    /// The provider's key, if a provider has it.
    pub fn provider_key(&self) -> Option<&ProviderKey> {
        match self {
            Self::Provider(key) => Some(key),
            Self::Passphrase(_) | Self::KeyFile {} => None,
        }
    }

    /// Passphrase parameters of this cost, with a new salt.
    fn new_passphrase(cost: Argon2idParams) -> Result<Self, KeyError> {
        let salt = SecretBytes::random(SALT_BYTES)?.expose().to_vec();
        let Argon2idParams { memory_kib, passes, lanes } = cost;
        Ok(Self::Passphrase(PassphraseParameters { salt, memory_kib, passes, lanes }))
    }

    /// The source's name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::KeyFile {} => "key file",
            Self::Provider(_) => "key provider",
        }
    }

    /// The KEK that `input` (a passphrase, or a key file's key) gives. That of a provider is
    /// fetched by a [`Keyring`](crate::Keyring).
    pub fn kek(&self, input: &SecretBytes) -> Result<Kek, KeyError> {
        match self {
            Self::Provider(_) => {
                Err(KeyError::WrongSource { given: "passphrase or key file", wanted: self.name() })
            }
            Self::KeyFile {} => Kek::new(input.duplicate()?, self.clone()),
            Self::Passphrase(parameters) => {
                if input.is_empty() || input.len() > PASSPHRASE_BYTES_MAX {
                    return Err(KeyError::PassphraseLength(input.len()));
                }
                let PassphraseParameters { memory_kib, passes, lanes, .. } = *parameters;
                let cost = Argon2idParams { memory_kib, passes, lanes };
                cost.check().map_err(KeyError::Parameters)?;
                Kek::new(kdf::argon2id(input, &parameters.salt, cost, KEK_BYTES)?, self.clone())
            }
        }
    }
}

/// "passphrase", "key file", or "key provider corp, key 4711".
impl fmt::Display for KekSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(key) => key.fmt(f),
            other => f.write_str(other.name()),
        }
    }
}

/// Refuses a new passphrase that is too short. Volumes with a shorter one still open.
///
/// # Errors
/// [`KeyError::PassphraseTooShort`]; [`KeyError::PassphraseLength`] for one that is too long.
pub fn check_new_passphrase(passphrase: &SecretBytes) -> Result<(), KeyError> {
    match passphrase.len() {
        length if length < NEW_PASSPHRASE_MIN_BYTES => Err(KeyError::PassphraseTooShort(length)),
        length if length > PASSPHRASE_BYTES_MAX => Err(KeyError::PassphraseLength(length)),
        _ => Ok(()),
    }
}

impl Kek {
    /// The KEK of a passphrase that is set now, with a new salt; each guess will cost `cost`
    /// ([`Argon2idParams::calibrated`] outside tests).
    ///
    /// # Errors
    /// As [`check_new_passphrase`], before anything is derived.
    pub fn of_new_passphrase(passphrase: &SecretBytes, cost: Argon2idParams) -> Result<Self, KeyError> {
        check_new_passphrase(passphrase)?;
        KekSource::new_passphrase(cost)?.kek(passphrase)
    }

    /// The same, at the cost that this machine can bear.
    ///
    /// # Errors
    /// As [`check_new_passphrase`], before anything is derived.
    pub fn of_new_passphrase_at_calibrated_cost(passphrase: &SecretBytes) -> Result<Self, KeyError> {
        check_new_passphrase(passphrase)?;
        Self::of_new_passphrase(passphrase, Argon2idParams::calibrated()?)
    }

    /// The KEK that a provider has handed out.
    ///
    /// # Errors
    /// [`KeyError::ProviderKeyLength`] for anything but the 32 bytes of an AES-256 key.
    pub fn from_provider(secret: SecretBytes, key: ProviderKey) -> Result<Self, KeyError> {
        if secret.len() != KEK_BYTES {
            return Err(KeyError::ProviderKeyLength { key: Box::new(key), bytes: secret.len() });
        }
        Self::new(secret, KekSource::Provider(key))
    }

    /// The KEK of these 32 bytes. Its id is derived from them, so that a wrong key can be told from
    /// a damaged volume.
    pub(crate) fn new(secret: SecretBytes, source: KekSource) -> Result<Self, KeyError> {
        let derived = kdf::hkdf_sha256(&secret, b"", b"strongroom kek id v1", 16)?;
        let mut id = [0; 16];
        id.copy_from_slice(derived.expose());
        Ok(Self { id: KekId::from_bytes(id), source, secret })
    }

    /// Its name: the first 16 bytes of HKDF-SHA256 over the key, one-way.
    pub fn id(&self) -> KekId {
        self.id
    }

    /// The source of the key.
    pub fn source(&self) -> &KekSource {
        &self.source
    }

    /// Refuses any KEK but the wanted one.
    pub fn expect_id(&self, wanted: KekId) -> Result<(), KeyError> {
        if self.id == wanted { Ok(()) } else { Err(KeyError::WrongKek { given: self.id, wanted }) }
    }

    pub(crate) fn secret(&self) -> &SecretBytes {
        &self.secret
    }
}

impl fmt::Debug for Kek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kek({}, redacted)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(bytes: &[u8]) -> SecretBytes {
        SecretBytes::from_slice_and_wipe(&mut bytes.to_vec()).unwrap()
    }

    #[test]
    fn the_same_input_gives_the_same_key_and_another_another() {
        let source = KekSource::new_passphrase(Argon2idParams::RECOMMENDED).unwrap();
        let text = serde_json::to_string(&source).unwrap();
        let reread: KekSource = serde_json::from_str(&text).unwrap();
        let kek = source.kek(&secret(b"correct horse")).unwrap();
        assert_eq!(reread.kek(&secret(b"correct horse")).unwrap().id(), kek.id());
        assert_ne!(source.kek(&secret(b"correct horsf")).unwrap().id(), kek.id());
        assert_ne!(
            KekSource::new_passphrase(Argon2idParams::RECOMMENDED)
                .unwrap()
                .kek(&secret(b"correct horse"))
                .unwrap()
                .id(),
            kek.id()
        );
        let id = kek.id();
        assert!(kek.expect_id(id).is_ok());
        assert!(matches!(kek.expect_id(KekId::random()), Err(KeyError::WrongKek { .. })));
    }

    #[test]
    fn the_longest_passphrase_is_taken_and_a_longer_one_is_not() {
        let (longest, longer) =
            (secret(&[b'x'; PASSPHRASE_BYTES_MAX]), secret(&[b'x'; PASSPHRASE_BYTES_MAX + 1]));
        check_new_passphrase(&longest).unwrap();
        assert!(matches!(check_new_passphrase(&longer), Err(KeyError::PassphraseLength(1025))));
        let source = KekSource::new_passphrase(Argon2idParams::RECOMMENDED).unwrap();
        source.kek(&longest).unwrap();
        assert!(matches!(source.kek(&longer), Err(KeyError::PassphraseLength(1025))));
    }

    #[test]
    fn hostile_parameters_are_refused_before_memory_is_taken() {
        for change in [r#""memory_kib":4294967295"#, r#""passes":4294967295"#, r#""lanes":16777216"#] {
            let name = change.split(':').next().unwrap();
            let text =
                serde_json::to_string(&KekSource::new_passphrase(Argon2idParams::RECOMMENDED).unwrap())
                    .unwrap();
            let at = text.find(name).unwrap();
            let end = at + text[at..].find([',', '}']).unwrap();
            let edited = format!("{}{change}{}", &text[..at], &text[end..]);
            let source: KekSource = serde_json::from_str(&edited).unwrap();
            assert!(matches!(source.kek(&secret(b"x")), Err(KeyError::Parameters(_))), "{edited}");
        }
    }

    #[test]
    fn empty_and_endless_passphrases_are_refused() {
        let source = KekSource::new_passphrase(Argon2idParams::RECOMMENDED).unwrap();
        assert!(matches!(source.kek(&secret(b"")), Err(KeyError::PassphraseLength(0))));
        assert!(matches!(source.kek(&secret(&[b'x'; 1025])), Err(KeyError::PassphraseLength(1025))));
    }

    #[test]
    fn a_short_passphrase_opens_what_it_opened_and_is_not_set_anew() {
        let set = |bytes: &[u8]| Kek::of_new_passphrase(&secret(bytes), Argon2idParams::RECOMMENDED);
        for short in [&b""[..], b"x", b"eleven byte"] {
            let refused = set(short).unwrap_err();
            assert!(matches!(refused, KeyError::PassphraseTooShort(length) if length == short.len()));
            assert!(refused.to_string().contains("at least 12 bytes"), "{refused}");
        }
        assert!(matches!(set(&[b'x'; 1025]), Err(KeyError::PassphraseLength(1025))));
        let set = set(b"twelve bytes").unwrap();
        assert_eq!(set.source().kek(&secret(b"twelve bytes")).unwrap().id(), set.id());
        let former = KekSource::new_passphrase(Argon2idParams::RECOMMENDED).unwrap();
        assert!(former.kek(&secret(b"x")).is_ok());
    }

    #[test]
    fn a_providers_key_is_named_and_has_its_length() {
        let text = r#"{"kind":"provider","provider":"corp","key":"4711","wrapped":null}"#;
        let source: KekSource = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&source).unwrap(), text);
        assert_eq!(
            (source.name(), source.to_string().as_str()),
            ("key provider", "key provider corp, key 4711")
        );
        assert!(matches!(source.kek(&secret(&[1; 32])), Err(KeyError::WrongSource { .. })));
        let KekSource::Provider(key) = source.clone() else { panic!("{source}") };
        let kek = Kek::from_provider(secret(&[1; 32]), key.clone()).unwrap();
        assert_eq!(kek.source(), &source);
        // The same bytes are the same key, wherever they come from.
        assert_eq!(kek.id(), KekSource::KeyFile {}.kek(&secret(&[1; 32])).unwrap().id());
        let short = Kek::from_provider(secret(&[1; 16]), key).unwrap_err();
        assert_eq!(
            short.to_string(),
            "key provider corp, key 4711, is no AES-256 key: it has 16 bytes instead of 32"
        );
        let stranger = text.replace("null", "null,\"x\":1");
        assert!(serde_json::from_str::<KekSource>(&stranger).is_err());
    }

    #[test]
    fn debug_shows_no_key() {
        let kek = KekSource::KeyFile {}.kek(&secret(b"0123456789abcdef0123456789abcdef")).unwrap();
        let shown = format!("{kek:?}");
        assert!(shown.contains(&kek.id().to_string()) && !shown.contains("0123456789abcdef0123"));
    }
}
