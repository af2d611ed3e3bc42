//! Opens a custodian's share like the documented OpenSSL commands, for custodians with the private
//! key in a file.
//!
//! It needs no server. It runs on the custodian's own machine, which the private key never leaves.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa::{OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, PrivateDecryptingKey};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use strongroom_memory::secret::{SecretBytes, SecretError};

use super::cms::EcPrivateKey;
use super::custodian::ShareEncryption;
use super::header::{Header, ShareHolder};

/// Why a share was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpeningError {
    /// A key that this program does not support.
    #[error(
        "this is no private key that can be used here ({why}); give one as PEM without a passphrase, RSA or on P-256 or P-384, or open \
         the share with OpenSSL (docs/KEYS.md)"
    )]
    Key {
        /// The reason.
        why: &'static str,
    },
    /// No share of the backup is for this key.
    #[error("no share of backup {backup} is for this key; its custodians are {}", custodians.join(", "))]
    NoShare {
        /// The backup's id.
        backup: super::BackupId,
        /// The holders of its shares.
        custodians: Vec<String>,
    },
    /// The share does not open.
    #[error(
        "the share of {custodian} does not open with this key, although it is for it: the backup's header was changed"
    )]
    Damaged {
        /// The share's custodian.
        custodian: String,
    },
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// The private half of a custodian's key.
pub struct CustodianKey {
    private: Private,
    /// SHA-256 of the public half's SubjectPublicKeyInfo.
    public_sha256: [u8; 32],
}

enum Private {
    Rsa(OaepPrivateDecryptingKey),
    Ec(EcPrivateKey),
}

impl CustodianKey {
    /// Reads a private key as PEM: PKCS#8 (`PRIVATE KEY`) or, for elliptic curves, SEC 1
    /// (`EC PRIVATE KEY`).
    ///
    /// # Errors
    /// [`OpeningError::Key`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, OpeningError> {
        let unfit = |why| OpeningError::Key { why };
        let der = PrivateKeyDer::from_pem_slice(pem).map_err(|_| unfit("it is not in PEM, or encrypted"))?;
        if let Some(key) = EcPrivateKey::new(der.secret_der()) {
            let public = key.public_key().ok_or_else(|| unfit("its public half cannot be told"))?;
            return Ok(Self { private: Private::Ec(key), public_sha256: sha256(&public) });
        }
        let key = PrivateDecryptingKey::from_pkcs8(der.secret_der())
            .map_err(|_| unfit("it is neither RSA in PKCS#8 nor on P-256 or P-384"))?;
        let public = AsDer::<PublicKeyX509Der<'_>>::as_der(&key.public_key())
            .map_err(|_| unfit("its public half cannot be told"))?;
        let public_sha256 = sha256(public.as_ref());
        let key = OaepPrivateDecryptingKey::new(key).map_err(|_| unfit("the library refuses it"))?;
        Ok(Self { private: Private::Rsa(key), public_sha256 })
    }

    /// Opens this key's share of a backup: returns its holder and the line of text for a restore.
    ///
    /// # Errors
    /// [`OpeningError::NoShare`], [`OpeningError::Damaged`].
    pub fn open_share<'h>(&self, header: &'h Header) -> Result<(&'h ShareHolder, SecretBytes), OpeningError> {
        let holder = header.custodians.iter().find(|holder| holder.key_sha256 == self.public_sha256);
        let holder = holder.ok_or_else(|| OpeningError::NoShare {
            backup: header.id,
            custodians: header.custodians.iter().map(|holder| holder.name.to_string()).collect(),
        })?;
        let damaged = || OpeningError::Damaged { custodian: holder.name.to_string() };
        let share = match (&self.private, holder.encryption) {
            (Private::Rsa(key), ShareEncryption::RsaOaepSha256) => {
                let mut text = SecretBytes::zeroed(key.min_output_size())?;
                let length = key
                    .decrypt(&OAEP_SHA256_MGF1SHA256, &holder.share, text.expose_mut(), None)
                    .map_err(|_| damaged())?
                    .len();
                let mut share = SecretBytes::zeroed(length)?;
                share.expose_mut().copy_from_slice(&text.expose()[..length]);
                share
            }
            (Private::Ec(key), ShareEncryption::Cms) => key.decrypt(&holder.share).ok_or_else(damaged)?,
            _ => return Err(damaged()),
        };
        Ok((holder, share))
    }
}

impl fmt::Debug for CustodianKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CustodianKey(redacted)")
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sha256
}
