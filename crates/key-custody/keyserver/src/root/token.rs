//! The root under an AES-256 key that lives in a PKCS#11 token and never leaves it (PKCS #11 3.0,
//! `CKM_AES_GCM`).
//!
//! The token's vendor supplies the module, a library that is loaded at run time and runs inside the
//! key server. The operator chooses the module's path, and only root or the server's user can write
//! it into the record.
//!
//! The root itself passes through the module for a moment, when it is sealed and at each start. A
//! wrong PIN uses up one of a token's tries; [`login`] refuses to try when that would do harm.

use std::fmt;
use std::path::{Path, PathBuf};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error as Pkcs11Error, RvError};
use cryptoki::mechanism::aead::GcmParams;
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::RawAuthPin;
use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;
use thiserror::Error;

use super::error::RootError;
use super::secret_source::SecretSource;
use super::wrapped::associated_data;
use super::{Access, Attempt, RootId, RootKey, hex};

const WAY: &str = "token";
/// The label of wrapping keys, for a person who inspects the token; keys are found by their random
/// id.
const KEY_LABEL: &[u8] = b"strongroom key server root";
const KEY_ID_BYTES: usize = 16;
const KEY_BYTES: u64 = 32;
const IV_BYTES: usize = 12;
const TAG_BITS: u64 = 128;

/// How to seal by a token.
#[derive(Clone, Debug)]
pub struct TokenWay {
    /// The vendor's module; an absolute path.
    pub module: PathBuf,
    /// The token's label.
    pub label: String,
    /// The source of the PIN, now and at each start.
    pub pin: SecretSource,
}

/// The record of this seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenSeal {
    module: PathBuf,
    label: String,
    serial: String,
    #[serde(with = "hex::array")]
    key_id: [u8; KEY_ID_BYTES],
    pub pin: SecretSource,
    #[serde(with = "hex::array")]
    iv: [u8; IV_BYTES],
    #[serde(with = "hex")]
    sealed: Vec<u8>,
}

impl fmt::Display for TokenSeal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "token '{}' (serial {}), PIN {}", self.label, self.serial, self.pin)
    }
}

/// Errors of a token.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The module's path is relative, and could name another file at another start.
    #[error("the PKCS#11 module {module} is no absolute path")]
    RelativeModule {
        /// The path as given.
        module: PathBuf,
    },
    /// The module cannot be loaded.
    #[error("cannot load the PKCS#11 module {module}: {error}; install the package of the token's maker")]
    Module {
        /// The module.
        module: PathBuf,
        /// The module's error.
        error: Pkcs11Error,
    },
    /// The token is not there.
    #[error("no token '{label}'{} is plugged in; there are: {present}", serial.as_ref().map(|s| format!(" with serial {s}")).unwrap_or_default())]
    NoToken {
        /// Its label.
        label: String,
        /// Its serial number, once it is known.
        serial: Option<String>,
        /// The tokens that are present.
        present: String,
    },
    /// Two tokens have the label.
    #[error(
        "several tokens have the label '{label}'; unplug the others while the root is sealed, or rename one"
    )]
    SeveralTokens {
        /// The label.
        label: String,
    },
    /// The token cannot do AES-GCM.
    #[error(
        "token '{label}' offers no {what}, by which the root would be sealed; use another token or another way"
    )]
    Unable {
        /// The token.
        label: String,
        /// The missing mechanism.
        what: &'static str,
    },
    /// The PIN was not tried because of its length.
    #[error("a PIN of token '{label}' has {least} to {most} bytes, this one has {actual}; it was not tried")]
    PinLength {
        /// The token.
        label: String,
        /// Fewest bytes.
        least: usize,
        /// Most bytes.
        most: usize,
        /// The length of this one.
        actual: usize,
    },
    /// The PIN is wrong.
    #[error(
        "token '{label}' refuses the PIN ({source_name}); that used up one of its tries. Correct the PIN before the next start"
    )]
    WrongPin {
        /// The token.
        label: String,
        /// The source of the PIN.
        source_name: String,
    },
    /// Not tried: an earlier PIN was wrong, and the process is unattended.
    #[error(
        "token '{label}' says that a wrong PIN was entered since the last right one, so this start does not try it, to \
         leave the remaining tries. Correct the PIN, then open the root by hand once"
    )]
    PinWasWrong {
        /// The token.
        label: String,
    },
    /// Not tried: it would be the last try.
    #[error(
        "token '{label}' has one try left before it locks; it was not used. Be sure of the PIN, then allow the last try"
    )]
    LastTry {
        /// The token.
        label: String,
    },
    /// The token is locked.
    #[error(
        "token '{label}' is locked after too many wrong PINs; its security officer sets a new PIN (SO PIN, or PUK)"
    )]
    Locked {
        /// The token.
        label: String,
    },
    /// The wrapping key is gone.
    #[error(
        "token '{label}' no longer holds the root's wrapping key {key_id}; it was deleted or the token was initialised anew. Restore the server from a backup"
    )]
    NoKey {
        /// The token.
        label: String,
        /// The key's id.
        key_id: String,
    },
    /// The wrapping key could be read out of the token.
    #[error(
        "the wrapping key in token '{label}' can be read out of it (not sensitive, or extractable); seal the root anew"
    )]
    Extractable {
        /// The token.
        label: String,
    },
    /// The seal does not open.
    #[error(
        "token '{label}' holds the wrapping key, but the sealed root does not open under it: the record was changed"
    )]
    NotAuthentic {
        /// The token.
        label: String,
    },
    /// Any other refusal of the module.
    #[error("token '{label}': cannot {what}: {error}")]
    Refused {
        /// The token.
        label: String,
        /// The attempted action.
        what: &'static str,
        /// The module's error.
        error: Pkcs11Error,
    },
}

pub(super) fn seal(root: &RootKey, way: &TokenWay, access: &Access<'_>) -> Result<TokenSeal, RootError> {
    let token = Token::find(&way.module, &way.label, None)?;
    token.check_mechanisms()?;
    let session = token.login(&way.pin, access, true)?;
    let mut key_id = [0; KEY_ID_BYTES];
    key_id.copy_from_slice(SecretBytes::random(KEY_ID_BYTES)?.expose());
    let mut iv = [0; IV_BYTES];
    iv.copy_from_slice(SecretBytes::random(IV_BYTES)?.expose());
    let key = token.generate_key(&session, &key_id)?;
    token.check_kept(&session, key)?;
    let associated = associated_data(root.id, WAY);
    let mut used_iv = iv;
    let gcm = GcmParams::new(&mut used_iv, associated.as_bytes(), TAG_BITS.into())
        .map_err(token.refused("seal the root"))?;
    let sealed = session
        .encrypt(&Mechanism::AesGcm(gcm), key, root.secret.expose())
        .map_err(token.refused("seal the root"))?;
    Ok(TokenSeal {
        module: way.module.clone(),
        label: way.label.clone(),
        serial: token.info.serial_number().to_owned(),
        key_id,
        pin: way.pin.clone(),
        // A token that insists on making its own IV writes it here.
        iv: used_iv,
        sealed,
    })
}

pub(super) fn unseal(seal: &TokenSeal, id: RootId, access: &Access<'_>) -> Result<SecretBytes, RootError> {
    let token = Token::find(&seal.module, &seal.label, Some(&seal.serial))?;
    let session = token.login(&seal.pin, access, false)?;
    let key = token.find_key(&session, &seal.key_id)?;
    token.check_kept(&session, key)?;
    let associated = associated_data(id, WAY);
    let mut iv = seal.iv;
    let gcm = GcmParams::new(&mut iv, associated.as_bytes(), TAG_BITS.into())
        .map_err(token.refused("unseal the root"))?;
    let mut root =
        session.decrypt(&Mechanism::AesGcm(gcm), key, &seal.sealed).map_err(|error| match error {
            // Modules report a wrong tag differently; SoftHSM reports a general error.
            Pkcs11Error::Pkcs11(
                RvError::EncryptedDataInvalid | RvError::EncryptedDataLenRange | RvError::GeneralError,
                _,
            ) => TokenError::NotAuthentic { label: token.label.clone() },
            error => token.refused("unseal the root")(error),
        })?;
    Ok(SecretBytes::from_slice_and_wipe(&mut root)?)
}

/// A present token. Dropping it finalises the module.
struct Token {
    label: String,
    slot: Slot,
    info: TokenInfo,
    module: Pkcs11,
}

impl Token {
    fn find(path: &Path, label: &str, serial: Option<&str>) -> Result<Self, TokenError> {
        if !path.is_absolute() {
            return Err(TokenError::RelativeModule { module: path.to_owned() });
        }
        let broken = |error| TokenError::Module { module: path.to_owned(), error };
        let module = Pkcs11::new(path).map_err(broken)?;
        match module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
            // Another part of this process uses the module; it may be shared.
            Ok(()) | Err(Pkcs11Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
            Err(error) => return Err(broken(error)),
        }
        let (mut found, mut present) = (Vec::new(), Vec::new());
        for slot in module.get_slots_with_initialized_token().map_err(broken)? {
            let Ok(info) = module.get_token_info(slot) else { continue };
            if info.label() == label && serial.is_none_or(|serial| info.serial_number() == serial) {
                found.push((slot, info));
            } else {
                present.push(format!("'{}' (serial {})", info.label(), info.serial_number()));
            }
        }
        if found.len() > 1 {
            return Err(TokenError::SeveralTokens { label: label.to_owned() });
        }
        let Some((slot, info)) = found.pop() else {
            let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
            return Err(TokenError::NoToken {
                label: label.to_owned(),
                serial: serial.map(str::to_owned),
                present,
            });
        };
        Ok(Self { label: label.to_owned(), slot, info, module })
    }

    /// Opens a session with the PIN, unless the token's flags show that trying would do harm.
    fn login(
        &self,
        source: &SecretSource,
        access: &Access<'_>,
        writable: bool,
    ) -> Result<Session, RootError> {
        let label = self.label.clone();
        if self.info.user_pin_locked() {
            return Err(TokenError::Locked { label }.into());
        }
        if self.info.user_pin_final_try() && access.attempt != Attempt::LastTry {
            return Err(TokenError::LastTry { label }.into());
        }
        if self.info.user_pin_count_low() && access.attempt == Attempt::Unattended {
            return Err(TokenError::PinWasWrong { label }.into());
        }
        let pin = source.read("PIN", access)?;
        let (least, most) = (self.info.min_pin_length(), self.info.max_pin_length());
        // Some modules leave the maximum at zero for "unknown".
        if pin.is_empty() || pin.len() < least || (most > 0 && pin.len() > most) {
            return Err(TokenError::PinLength { label, least, most, actual: pin.len() }.into());
        }
        let opened = if writable {
            self.module.open_rw_session(self.slot)
        } else {
            self.module.open_ro_session(self.slot)
        };
        let session = opened.map_err(self.refused("open a session"))?;
        let source_name =
            access.given.map_or_else(|| source.to_string(), |_| SecretSource::Given {}.to_string());
        // The box wipes its bytes, which have their final capacity, when it drops.
        let pin = RawAuthPin::new(Box::new(pin.expose().to_vec()));
        match session.login_with_raw(UserType::User, &pin) {
            Ok(()) | Err(Pkcs11Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(session),
            Err(Pkcs11Error::Pkcs11(RvError::PinIncorrect, _)) => {
                Err(TokenError::WrongPin { label, source_name }.into())
            }
            Err(Pkcs11Error::Pkcs11(RvError::PinLocked, _)) => Err(TokenError::Locked { label }.into()),
            Err(error) => Err(self.refused("log in")(error).into()),
        }
    }

    fn check_mechanisms(&self) -> Result<(), TokenError> {
        let offered =
            self.module.get_mechanism_list(self.slot).map_err(self.refused("ask for mechanisms"))?;
        let needed =
            [(MechanismType::AES_GCM, "CKM_AES_GCM"), (MechanismType::AES_KEY_GEN, "CKM_AES_KEY_GEN")];
        match needed.iter().find(|(mechanism, _)| !offered.contains(mechanism)) {
            Some((_, what)) => Err(TokenError::Unable { label: self.label.clone(), what }),
            None => Ok(()),
        }
    }

    fn generate_key(&self, session: &Session, id: &[u8; KEY_ID_BYTES]) -> Result<ObjectHandle, TokenError> {
        let template = [
            Attribute::Class(ObjectClass::SECRET_KEY),
            Attribute::KeyType(KeyType::AES),
            Attribute::ValueLen(KEY_BYTES.into()),
            Attribute::Token(true),
            Attribute::Private(true),
            Attribute::Sensitive(true),
            Attribute::Extractable(false),
            Attribute::Encrypt(true),
            Attribute::Decrypt(true),
            Attribute::Label(KEY_LABEL.to_vec()),
            Attribute::Id(id.to_vec()),
        ];
        session.generate_key(&Mechanism::AesKeyGen, &template).map_err(self.refused("make the wrapping key"))
    }

    fn find_key(&self, session: &Session, id: &[u8; KEY_ID_BYTES]) -> Result<ObjectHandle, TokenError> {
        let template = [Attribute::Class(ObjectClass::SECRET_KEY), Attribute::Id(id.to_vec())];
        let found = session.find_objects(&template).map_err(self.refused("look for the wrapping key"))?;
        found
            .first()
            .copied()
            .ok_or_else(|| TokenError::NoKey { label: self.label.clone(), key_id: hex::encode(id) })
    }

    /// Refuses a wrapping key that can be read out of the token.
    fn check_kept(&self, session: &Session, key: ObjectHandle) -> Result<(), TokenError> {
        let wanted = [AttributeType::Sensitive, AttributeType::Extractable];
        let attributes =
            session.get_attributes(key, &wanted).map_err(self.refused("look at the wrapping key"))?;
        if attributes.contains(&Attribute::Sensitive(true))
            && attributes.contains(&Attribute::Extractable(false))
        {
            return Ok(());
        }
        Err(TokenError::Extractable { label: self.label.clone() })
    }

    fn refused(&self, what: &'static str) -> impl Fn(Pkcs11Error) -> TokenError + use<> {
        let label = self.label.clone();
        move |error| TokenError::Refused { label: label.clone(), what, error }
    }
}
