//! OVMF: UEFI for guests, as distributions install it.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The 4 MiB builds of OVMF, code and variables template, where Debian and Ubuntu, Fedora, and Arch
/// install them.
const PLACES: [(&str, &str); 3] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE_4M.fd", "/usr/share/edk2/ovmf/OVMF_VARS_4M.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
];

/// UEFI's two flash memories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ovmf {
    /// The code image, which all machines share read-only.
    pub code: PathBuf,
    /// The template of the variables: the size and first content of a new NVRAM volume.
    pub variables: PathBuf,
}

/// Why there is no UEFI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FirmwareError {
    /// OVMF is in none of the known places.
    #[error("OVMF, the UEFI firmware for guests, is not installed (Debian: ovmf)")]
    NotInstalled,
}

impl Ovmf {
    /// Finds the installed OVMF.
    pub fn find() -> Result<Self, FirmwareError> {
        let installed = PLACES
            .iter()
            .find(|(code, variables)| [code, variables].iter().all(|file| Path::new(file).is_file()));
        let (code, variables) = installed.ok_or(FirmwareError::NotInstalled)?;
        Ok(Self { code: PathBuf::from(code), variables: PathBuf::from(variables) })
    }
}
