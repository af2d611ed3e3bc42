//! Custodians: people who each hold the private half of a key, in a file, a smart card or an HSM.
//!
//! Custodians must be able to open a share with common tools. For RSA keys a share is encrypted by
//! RSA-OAEP with SHA-256; for keys on P-256 and P-384, the strongest curves of many smart cards, as
//! a CMS message. OpenSSL opens both.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rsa::{OAEP_SHA256_MGF1SHA256, OaepPublicEncryptingKey, PublicEncryptingKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;

use super::cms::EcKey;
use super::error::BackupError;

/// Most custodians: more than any ceremony needs, and few enough for a small header.
pub const CUSTODIANS_MAX: usize = 16;
/// Least number of custodians to open a backup: one alone could open it without anyone's consent.
const THRESHOLD_MIN: usize = 2;
/// Least RSA modulus: 128 bits of security (NIST SP 800-57 part 1, table 2).
pub const RSA_BITS_MIN: usize = 3072;
/// Largest RSA modulus: the library's limit.
pub const RSA_BITS_MAX: usize = 8192;

const NAME_BYTES_MAX: usize = 64;

/// A custodian's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CustodianName(String);

impl CustodianName {
    /// Checks a name: 1 to 64 ASCII letters, digits or one of `. _ @ + -`.
    ///
    /// # Errors
    /// [`BackupError::CustodianName`].
    pub fn new(name: impl Into<String>) -> Result<Self, BackupError> {
        let name = name.into();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
        if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) {
            return Ok(Self(name));
        }
        Err(BackupError::CustodianName { name })
    }
}

impl TryFrom<String> for CustodianName {
    type Error = BackupError;

    fn try_from(name: String) -> Result<Self, BackupError> {
        Self::new(name)
    }
}

impl From<CustodianName> for String {
    fn from(name: CustodianName) -> Self {
        name.0
    }
}

impl fmt::Display for CustodianName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A custodian and the key that shares are encrypted to.
pub struct Custodian {
    name: CustodianName,
    key: PublicKey,
    /// SubjectPublicKeyInfo, DER.
    public: Vec<u8>,
    key_sha256: [u8; 32],
}

enum PublicKey {
    Rsa(OaepPublicEncryptingKey),
    Ec(EcKey),
}

/// How a share is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareEncryption {
    /// RSA-OAEP, SHA-256 for digest and mask, no label: `openssl pkeyutl -decrypt` opens it.
    RsaOaepSha256,
    /// A CMS message (DER) for an elliptic-curve key: `openssl cms -decrypt` opens it.
    Cms,
}

impl Custodian {
    /// Reads a public key or a certificate as PEM.
    ///
    /// # Errors
    /// [`BackupError::CustodianKey`] unless it is RSA of [`RSA_BITS_MIN`] to [`RSA_BITS_MAX`] bits,
    /// or on P-256 or P-384.
    pub fn new(name: CustodianName, pem: &[u8]) -> Result<Self, BackupError> {
        let unfit = |why| BackupError::CustodianKey { name: name.to_string(), why };
        let public = match SubjectPublicKeyInfoDer::from_pem_slice(pem) {
            Ok(public) => public.to_vec(),
            Err(_) => public_key_of_certificate(pem).map_err(unfit)?,
        };
        Self::of_public_key(name, &public)
    }

    /// Reads a SubjectPublicKeyInfo.
    pub(super) fn of_public_key(name: CustodianName, public: &[u8]) -> Result<Self, BackupError> {
        let unfit = |why| BackupError::CustodianKey { name: name.to_string(), why };
        let key = match EcKey::new(public) {
            Some(key) => PublicKey::Ec(key),
            None => PublicKey::Rsa(rsa_key(public).map_err(unfit)?),
        };
        let mut key_sha256 = [0; 32];
        key_sha256.copy_from_slice(digest(&SHA256, public).as_ref());
        Ok(Self { name, key, public: public.to_vec(), key_sha256 })
    }

    /// The custodian's name.
    pub fn name(&self) -> &CustodianName {
        &self.name
    }

    /// SHA-256 of the public key's SubjectPublicKeyInfo, by which a custodian recognises it.
    pub fn key_sha256(&self) -> [u8; 32] {
        self.key_sha256
    }

    /// The public key as PEM, without the rest of its file.
    pub fn public_key_pem(&self) -> String {
        let line_ending = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        pem::encode_config(&pem::Pem::new("PUBLIC KEY", self.public.as_slice()), line_ending)
    }

    /// How this custodian's share is encrypted.
    pub fn encryption(&self) -> ShareEncryption {
        match self.key {
            PublicKey::Rsa(_) => ShareEncryption::RsaOaepSha256,
            PublicKey::Ec(_) => ShareEncryption::Cms,
        }
    }

    /// Encrypts `share` so that only this custodian can open it.
    pub(super) fn encrypt(&self, share: &SecretBytes) -> Result<Vec<u8>, BackupError> {
        let key = match &self.key {
            PublicKey::Rsa(key) => key,
            PublicKey::Ec(key) => return key.encrypt(share),
        };
        let mut sealed = vec![0; key.ciphertext_size()];
        let sealed = key
            .encrypt(&OAEP_SHA256_MGF1SHA256, share.expose(), &mut sealed, None)
            .map_err(|_| BackupError::Library { call: "RSA-OAEP encryption" })?;
        Ok(sealed.to_vec())
    }
}

impl fmt::Debug for Custodian {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Custodian({}, {:?})", self.name, self.encryption())
    }
}

fn rsa_key(public: &[u8]) -> Result<OaepPublicEncryptingKey, &'static str> {
    let key = PublicEncryptingKey::from_der(public).map_err(|_| "it is neither RSA nor on P-256 or P-384")?;
    if !(RSA_BITS_MIN..=RSA_BITS_MAX).contains(&key.key_size_bits()) {
        return Err("it is too short or too long");
    }
    OaepPublicEncryptingKey::new(key).map_err(|_| "the library refuses it")
}

fn public_key_of_certificate(pem: &[u8]) -> Result<Vec<u8>, &'static str> {
    if PrivateKeyDer::from_pem_slice(pem).is_ok() {
        return Err("it is a private key, which its custodian should give to nobody");
    }
    let certificate = CertificateDer::from_pem_slice(pem)
        .map_err(|_| "it is neither a public key nor a certificate in PEM")?;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(&certificate).map_err(|_| "its certificate cannot be read")?;
    Ok(parsed.public_key().raw.to_vec())
}

/// The custodians of a backup, any `threshold` of whom can open it.
#[derive(Debug)]
pub struct Custody {
    threshold: u8,
    custodians: Vec<Custodian>,
}

impl Custody {
    /// Any `threshold` of `custodians`: 2 at least, [`CUSTODIANS_MAX`] at most, no two with one
    /// name or key.
    ///
    /// # Errors
    /// [`BackupError::Threshold`], [`BackupError::SameCustodian`].
    pub fn new(threshold: usize, custodians: Vec<Custodian>) -> Result<Self, BackupError> {
        let total = custodians.len();
        if total > CUSTODIANS_MAX || !(THRESHOLD_MIN..=total).contains(&threshold) {
            return Err(BackupError::Threshold { threshold, custodians: total });
        }
        for (at, first) in custodians.iter().enumerate() {
            for second in &custodians[at + 1..] {
                let what = match () {
                    () if first.name == second.name => "name",
                    () if first.key_sha256 == second.key_sha256 => "key",
                    () => continue,
                };
                let (first, second) = (first.name.to_string(), second.name.to_string());
                return Err(BackupError::SameCustodian { first, second, what });
            }
        }
        // At most CUSTODIANS_MAX, which fits.
        Ok(Self { threshold: threshold as u8, custodians })
    }

    /// How many custodians are needed.
    pub fn threshold(&self) -> u8 {
        self.threshold
    }

    /// All of them, in the order of their shares.
    pub fn custodians(&self) -> &[Custodian] {
        &self.custodians
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
    use aws_lc_rs::rsa::{KeySize, PrivateDecryptingKey};
    use rcgen::PublicKeyData as _;

    use super::*;
    use crate::backup::tests::people;

    #[test]
    fn custodians_are_several_and_each_their_own() {
        let custodian = |at: usize| people()[at].custodian();
        let named = |name: &str, at: usize| {
            Custodian::of_public_key(CustodianName::new(name).unwrap(), &people()[at].public_key()).unwrap()
        };
        for (threshold, total) in [(1, 1), (1, 3), (0, 3), (3, 2), (4, 3)] {
            let refused = Custody::new(threshold, (0..total).map(custodian).collect()).unwrap_err();
            assert!(matches!(refused, BackupError::Threshold { .. }), "{threshold} of {total}: {refused}");
        }
        let refused = Custody::new(2, vec![custodian(0), named("ada", 1)]).unwrap_err();
        assert!(matches!(refused, BackupError::SameCustodian { what: "name", .. }));
        let refused = Custody::new(2, vec![custodian(0), named("ada2", 0)]).unwrap_err();
        assert!(matches!(refused, BackupError::SameCustodian { what: "key", .. }));
        let many = (0..=CUSTODIANS_MAX).map(|at| named(&format!("c{at}"), 0)).collect();
        assert!(matches!(Custody::new(2, many), Err(BackupError::Threshold { .. })));
        for name in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(CustodianName::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn keys_that_do_not_do_are_refused() {
        let name = || CustodianName::new("ada").unwrap();
        let why = |pem: &str| match Custodian::new(name(), pem.as_bytes()) {
            Err(BackupError::CustodianKey { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        let certified = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["ada".to_owned()]).unwrap().self_signed(&certified).unwrap();
        assert_eq!(why(&certificate.pem()), "it is neither RSA nor on P-256 or P-384");
        assert_eq!(why(&certified.public_key_pem()), "it is neither RSA nor on P-256 or P-384");
        assert!(why(&certified.serialize_pem()).starts_with("it is a private key"));
        assert!(why("nonsense").starts_with("it is neither"));
        let p256 = rcgen::KeyPair::generate().unwrap().subject_public_key_info();
        Custodian::of_public_key(name(), &p256).unwrap();
        let mut off_curve = p256.clone();
        *off_curve.last_mut().unwrap() ^= 1;
        assert!(Custodian::of_public_key(name(), &off_curve).is_err());
        assert!(Custodian::of_public_key(name(), &p256[..p256.len() - 1]).is_err());
        let short = PrivateDecryptingKey::generate(KeySize::Rsa2048).unwrap();
        let public = AsDer::<PublicKeyX509Der<'_>>::as_der(&short.public_key()).unwrap();
        let refused = Custodian::of_public_key(name(), public.as_ref()).unwrap_err();
        assert!(refused.to_string().contains("too short"), "{refused}");
    }
}
