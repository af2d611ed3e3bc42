//! QEMU as it is installed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use thiserror::Error;

/// The oldest QEMU that is used: Debian 12's.
pub const VERSION_OLDEST: Version = Version { major: 7, minor: 2 };
/// What QEMU is called unless the caller says otherwise.
pub const DEFAULT_PROGRAM: &str = "/usr/bin/qemu-system-x86_64";

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Version {
    /// Counts years.
    pub major: u32,
    /// Counts releases of a year.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why there is no QEMU.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// Nothing to run.
    #[error("cannot run {path}: {error}; install QEMU (Debian: qemu-system-x86)")]
    Run {
        /// Where it was looked for.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Something else.
    #[error("{path} does not say which QEMU it is")]
    NotQemu {
        /// Where it is.
        path: PathBuf,
    },
    /// Not new enough.
    #[error("{path} is QEMU {version}; the oldest that is supported is {VERSION_OLDEST}")]
    TooOld {
        /// Where it is.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
}

/// QEMU, and what version it is of.
#[derive(Clone, Debug)]
pub struct QemuProgram {
    path: PathBuf,
    version: Version,
    /// What trying KVM came to.
    kvm: Arc<OnceLock<Result<(), String>>>,
}

impl QemuProgram {
    /// The QEMU at `path` ([`DEFAULT_PROGRAM`]). It is run once to say its version.
    pub fn probe(path: &Path) -> Result<Self, ProgramError> {
        let failed = |error| ProgramError::Run { path: path.to_owned(), error };
        // As it will be found inside of the sandbox, where links may lead nowhere.
        let path = &std::fs::canonicalize(path).map_err(failed)?;
        let output =
            Command::new(path).arg("--version").env_clear().stdin(Stdio::null()).output().map_err(failed)?;
        let version = parse_version(&String::from_utf8_lossy(&output.stdout))
            .ok_or_else(|| ProgramError::NotQemu { path: path.clone() })?;
        if version < VERSION_OLDEST {
            return Err(ProgramError::TooOld { path: path.clone(), version });
        }
        Ok(Self { path: path.clone(), version, kvm: Arc::default() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether it can use KVM on this host, or why not. It is tried once ([`crate::kvm::probe`]), which takes a tenth of
    /// a second.
    pub fn kvm(&self) -> Result<(), &str> {
        self.kvm.get_or_init(|| crate::kvm::probe(self)).as_ref().map_err(String::as_str).copied()
    }
}

fn parse_version(text: &str) -> Option<Version> {
    let version = text.strip_prefix("QEMU emulator version ")?;
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some(Version { major: next()?, minor: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        let read = |text| parse_version(text).map(|version| (version.major, version.minor));
        assert_eq!(
            read("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright"),
            Some((7, 2))
        );
        assert_eq!(read("QEMU emulator version 10.1.50 (v10.1.0-1-gabc)"), Some((10, 1)));
        assert_eq!(read("QEMU emulator version 11.0"), Some((11, 0)));
        for other in ["", "qemu-img version 7.2", "QEMU emulator version x.y"] {
            assert_eq!(read(other), None);
        }
        assert!(Version { major: 10, minor: 0 } > Version { major: 9, minor: 2 });
    }
}
