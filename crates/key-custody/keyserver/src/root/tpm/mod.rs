//! The root under this machine's TPM 2.0 (TCG TPM 2.0 Library, revision 1.59).
//!
//! The root is a sealed data object under the storage root key (SRK) of the owner hierarchy. The
//! TPM derives the SRK each time from its seed and a fixed template, so it stores nothing. The
//! object has no password: it opens on this machine or, with PCRs, on this machine in that boot
//! state. No operation counts towards the TPM's lock-out.
//!
//! The bus is not trusted. Each exchange that carries the root runs in a session whose key is
//! salted to the SRK's public key, and its parameter is encrypted (Part 1, 21). The SRK's name is
//! recorded, so that a later attacker on the bus cannot substitute another key for the SRK.
//!
//! We implement the protocol's seven commands ourselves: the usual library is in C, would be needed
//! on every machine that runs any part of the program, and keeps the root in memory that is never
//! wiped.
//!
//! `transport` carries bytes; `command` builds and reads messages; `session` has the cryptography;
//! `sealed_object` seals and unseals.

mod command;
mod error;
mod sealed_object;
mod session;
mod transport;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;

pub use error::TpmError;

use super::error::RootError;
use super::{RootKey, hex};
use command::Tpm;
use sealed_object::SealedObject;

/// How to seal by a TPM.
#[derive(Clone, Debug)]
pub struct TpmWay {
    /// Which TPM.
    pub device: TpmDevice,
    /// The PCRs of the SHA-256 bank that must keep their present values; empty for any boot state.
    pub pcrs: PcrSelection,
}

/// The device or socket of a TPM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TpmDevice {
    /// A character device; [`TpmDevice::kernel`] is the usual one.
    Device {
        /// Its path.
        path: PathBuf,
    },
    /// A unix socket that carries plain TPM commands, as `swtpm socket --server type=unixio`
    /// serves.
    Socket {
        /// Its path.
        path: PathBuf,
    },
}

impl TpmDevice {
    /// `/dev/tpmrm0`: the kernel's resource manager, which lets several programs use the TPM.
    pub fn kernel() -> Self {
        Self::Device { path: PathBuf::from("/dev/tpmrm0") }
    }
}

impl fmt::Display for TpmDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { path } => write!(formatter, "{}", path.display()),
            Self::Socket { path } => write!(formatter, "socket {}", path.display()),
        }
    }
}

/// Highest PCR that a PC's TPM has (TCG PC Client Platform TPM Profile, 4.6): 0 to 23.
pub const PCR_MAX: u8 = 23;

/// A set of PCRs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct PcrSelection(Vec<u8>);

impl PcrSelection {
    /// The given PCRs, in any order.
    ///
    /// # Errors
    /// [`TpmError::NoSuchPcr`] above [`PCR_MAX`].
    pub fn new(pcrs: impl IntoIterator<Item = u8>) -> Result<Self, TpmError> {
        let mut pcrs: Vec<u8> = pcrs.into_iter().collect();
        pcrs.sort_unstable();
        pcrs.dedup();
        match pcrs.last() {
            Some(&pcr) if pcr > PCR_MAX => Err(TpmError::NoSuchPcr { pcr }),
            _ => Ok(Self(pcrs)),
        }
    }

    /// Whether the set is empty, so that any boot state is accepted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bit map of TPMS_PCR_SELECTION.
    fn bit_map(&self) -> [u8; 3] {
        let mut map = [0; 3];
        for pcr in &self.0 {
            map[usize::from(pcr / 8)] |= 1 << (pcr % 8);
        }
        map
    }
}

impl TryFrom<Vec<u8>> for PcrSelection {
    type Error = TpmError;

    fn try_from(pcrs: Vec<u8>) -> Result<Self, TpmError> {
        Self::new(pcrs)
    }
}

impl From<PcrSelection> for Vec<u8> {
    fn from(selection: PcrSelection) -> Self {
        selection.0
    }
}

impl fmt::Display for PcrSelection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pcrs: Vec<String> = self.0.iter().map(u8::to_string).collect();
        formatter.write_str(&pcrs.join("+"))
    }
}

/// The record of a seal by a TPM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TpmSeal {
    device: TpmDevice,
    pub pcrs: PcrSelection,
    /// The SRK's name, by which the TPM is recognised.
    #[serde(with = "hex")]
    parent_name: Vec<u8>,
    /// TPMT_PUBLIC of the sealed object.
    #[serde(with = "hex")]
    public: Vec<u8>,
    /// Its private part, encrypted by the TPM.
    #[serde(with = "hex")]
    private: Vec<u8>,
}

impl fmt::Display for TpmSeal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TPM {}", self.device)?;
        if self.pcrs.is_empty() { Ok(()) } else { write!(formatter, ", PCRs {}", self.pcrs) }
    }
}

pub(super) fn seal(root: &RootKey, way: &TpmWay) -> Result<TpmSeal, RootError> {
    let mut tpm = Tpm::open(&way.device)?;
    let parent = tpm.storage_root()?;
    let object = tpm.seal(&parent, &way.pcrs, &root.secret)?;
    Ok(TpmSeal {
        device: way.device.clone(),
        pcrs: way.pcrs.clone(),
        parent_name: parent.name,
        public: object.public,
        private: object.private,
    })
}

pub(super) fn unseal(seal: &TpmSeal) -> Result<SecretBytes, RootError> {
    let mut tpm = Tpm::open(&seal.device)?;
    let parent = tpm.storage_root()?;
    if parent.name != seal.parent_name {
        return Err(TpmError::OtherTpm { device: seal.device.clone() }.into());
    }
    let object = SealedObject { public: seal.public.clone(), private: seal.private.clone() };
    tpm.unseal(&parent, &seal.pcrs, &object)
}

#[cfg(test)]
mod swtpm;
#[cfg(test)]
mod tests;
