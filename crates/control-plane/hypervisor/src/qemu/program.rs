//! The installed QEMU.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use strongroom_vm::Capabilities;
use thiserror::Error;

use crate::version::Version;

/// The oldest supported QEMU: that of Debian 12.
pub const VERSION_OLDEST: Version = Version { major: 7, minor: 2 };
/// The default path of QEMU.
pub const DEFAULT_PROGRAM: &str = "/usr/bin/qemu-system-x86_64";

/// Why QEMU cannot be used.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// It cannot be run.
    #[error("cannot run {path}: {error}; install QEMU (Debian: qemu-system-x86)")]
    Run {
        /// The path.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The program is not QEMU.
    #[error("{path} does not say which QEMU it is")]
    NotQemu {
        /// The path.
        path: PathBuf,
    },
    /// It is too old.
    #[error("{path} is QEMU {version}; the oldest that is supported is {VERSION_OLDEST}")]
    TooOld {
        /// The path.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
}

/// An installed QEMU, with its version.
#[derive(Clone, Debug)]
pub struct QemuProgram {
    path: PathBuf,
    version: Version,
    /// The result of the KVM test.
    kvm: Arc<OnceLock<Result<(), String>>>,
    /// What it can give to guests.
    capabilities: Arc<OnceLock<Result<Capabilities, String>>>,
}

/// The probed properties of a QEMU, and the state of the files that they depend on.
#[derive(Debug, Serialize, Deserialize)]
pub struct Findings {
    path: PathBuf,
    /// The program's file, and the KVM device.
    of: [Option<FileIdentity>; 2],
    version: Version,
    /// The version of the KVM test.
    #[serde(default)]
    trial: u32,
    kvm: Result<(), String>,
    capabilities: Result<Capabilities, String>,
}

/// Identifies a file and its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl FileIdentity {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Self { device: found.dev(), inode: found.ino(), size: found.size(), changed })
    }
}

impl QemuProgram {
    /// As [`probe`](Self::probe), with the KVM test and what it can give. Uses the result in
    /// `memory`, a file in a directory of Strongroom's own, if QEMU has not changed since: the test
    /// runs take longer than the rest of a machine's start.
    pub fn probe_once(path: &Path, memory: &Path) -> Result<Self, ProgramError> {
        let failed = |error| ProgramError::Run { path: path.to_owned(), error };
        let path = &std::fs::canonicalize(path).map_err(failed)?;
        let of = identities(path);
        let known =
            std::fs::read(memory).ok().and_then(|text| serde_json::from_slice::<Findings>(&text).ok());
        let holds =
            |known: &Findings| known.path == *path && known.of == of && known.trial == crate::kvm::TRIAL;
        if let Some(known) = known.filter(holds) {
            return Ok(Self::found(known));
        }
        let program = Self::probe(path)?;
        // If this fails, the next start probes again.
        let _ = program.findings().write(memory);
        Ok(program)
    }

    /// The probed properties, for another process.
    pub fn findings(&self) -> Findings {
        let of = identities(&self.path);
        let kvm = self.kvm().map_err(str::to_owned);
        let capabilities = self.capabilities().cloned().map_err(str::to_owned);
        let (path, trial) = (self.path.clone(), crate::kvm::TRIAL);
        Findings { path, of, version: self.version, trial, kvm, capabilities }
    }

    /// A QEMU from the findings of another process.
    pub fn found(findings: Findings) -> Self {
        let Findings { path, version, kvm, capabilities, .. } = findings;
        let capabilities = Arc::new(OnceLock::from(capabilities));
        Self { path, version, kvm: Arc::new(OnceLock::from(kvm)), capabilities }
    }

    /// Probes the QEMU at `path` ([`DEFAULT_PROGRAM`]), which is run once for its version.
    pub fn probe(path: &Path) -> Result<Self, ProgramError> {
        let failed = |error| ProgramError::Run { path: path.to_owned(), error };
        // The resolved path is the one that exists in the sandbox, where links may be dangling.
        let path = &std::fs::canonicalize(path).map_err(failed)?;
        let output =
            Command::new(path).arg("--version").env_clear().stdin(Stdio::null()).output().map_err(failed)?;
        let version = parse_version(&String::from_utf8_lossy(&output.stdout))
            .ok_or_else(|| ProgramError::NotQemu { path: path.clone() })?;
        if version < VERSION_OLDEST {
            return Err(ProgramError::TooOld { path: path.clone(), version });
        }
        Ok(Self { path: path.clone(), version, kvm: Arc::default(), capabilities: Arc::default() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns why machines cannot use KVM on this host, if they cannot. KVM is tested once
    /// ([`crate::kvm::probe`]), in a tenth of a second.
    pub fn kvm(&self) -> Result<(), &str> {
        crate::kvm::is_shared()?;
        self.tried_kvm()
    }

    /// What it can give to guests here, or why that is not known. It is asked once
    /// ([`crate::capabilities::probe`]), in a fifth of a second.
    pub fn capabilities(&self) -> Result<&Capabilities, &str> {
        let asked = self.capabilities.get_or_init(|| crate::capabilities::probe(self));
        asked.as_ref().map_err(String::as_str)
    }

    /// The result of the test as this process's own user.
    fn tried_kvm(&self) -> Result<(), &str> {
        self.kvm.get_or_init(|| crate::kvm::probe(self)).as_ref().map_err(String::as_str).copied()
    }
}

impl Findings {
    /// Writes the file atomically, since several machines may start at once.
    fn write(&self, memory: &Path) -> std::io::Result<()> {
        let new = memory.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&new, serde_json::to_vec(self)?)?;
        std::fs::rename(&new, memory)
    }
}

fn identities(path: &Path) -> [Option<FileIdentity>; 2] {
    [path, Path::new(crate::kvm::DEVICE)].map(FileIdentity::of)
}

fn parse_version(text: &str) -> Option<Version> {
    let version = text.strip_prefix("QEMU emulator version ")?;
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some(Version { major: next()?, minor: next()? })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_known_of_a_qemu_holds_as_long_as_it_is_that_one() {
        let scratch = tempfile::tempdir().unwrap();
        let (qemu, memory) = (scratch.path().join("qemu"), scratch.path().join("memory"));
        let install = |version: &str| {
            let script = format!(
                "#!/bin/sh\necho x >>{0}/runs\necho QEMU emulator version {version}\n",
                scratch.path().display()
            );
            let mut file = tempfile::NamedTempFile::new_in(scratch.path()).unwrap();
            file.write_all(script.as_bytes()).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            file.as_file().set_permissions(mode).unwrap();
            file.into_temp_path().persist(&qemu).unwrap();
        };
        let found = || {
            let program = QemuProgram::probe_once(&qemu, &memory).unwrap();
            (program.version().major, program.kvm().is_ok())
        };
        let runs = || std::fs::read_to_string(scratch.path().join("runs")).unwrap().lines().count();
        install("7.2");
        assert_eq!(found(), (7, false));
        let first = runs();
        assert_eq!((found(), runs()), ((7, false), first), "it was run once more");
        install("8.1");
        assert_eq!(found().0, 8);
        std::fs::write(&memory, "no JSON").unwrap();
        assert_eq!(found().0, 8);
    }

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
