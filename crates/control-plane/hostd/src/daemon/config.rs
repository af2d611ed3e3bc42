//! `host.json`: the configuration of this host.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_types::{CephMount, DatastoreId};

use crate::checks::crypto_safe::CryptoSafeRule;

/// The format of the file.
const FORMAT: u32 = 1;
/// The longest file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// The most datastores of a host.
pub const DATASTORES_MAX: usize = 256;

/// The configuration of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    format: u32,
    /// The host's name.
    pub name: String,
    /// Its datastores.
    #[serde(default)]
    pub datastores: Vec<DatastoreConfig>,
    /// The directories that may hold kernels, initial ram disks and CD-ROM images of VMs.
    pub boot_directories: Vec<PathBuf>,
    /// The bridges and tap devices that network cards may use; all of them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Vec<String>>,
    /// The path of QEMU.
    #[serde(default = "default_qemu")]
    pub qemu: PathBuf,
    /// Whether VMs with encrypted disks start although their memory could reach a disk.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub crypto_safe: CryptoSafeRule,
    /// The most VMs whose data is re-encrypted at once: each reads and writes all of its disks.
    #[serde(default = "default_reencryptions", skip_serializing_if = "are_usual")]
    pub reencryptions_max: NonZeroUsize,
}

/// A datastore in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatastoreConfig {
    /// Its directory.
    pub path: PathBuf,
    /// The mark in it when it was added. Another file system may be mounted there later.
    pub id: DatastoreId,
    /// Where it lies, if on a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph: Option<CephMount>,
}

/// The default is left out, so that the previous version, which does not know the field, can read
/// the file.
fn is_usual(rule: &CryptoSafeRule) -> bool {
    *rule == CryptoSafeRule::default()
}

fn default_reencryptions() -> NonZeroUsize {
    const { NonZeroUsize::new(2).expect("it is not zero") }
}

fn are_usual(reencryptions_max: &NonZeroUsize) -> bool {
    *reencryptions_max == default_reencryptions()
}

fn default_qemu() -> PathBuf {
    strongroom_hypervisor::qemu::DEFAULT_PROGRAM.into()
}

impl HostConfig {
    /// Reads `host.json` in hostd's home, or returns the defaults if there is none.
    ///
    /// # Errors
    /// If it cannot be read or parsed.
    pub fn of_home(home: &Path) -> io::Result<Self> {
        let text = match strongroom_files::read(&file_of(home), BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::usual(home)),
            Err(error) => return Err(error),
        };
        let wrong = |reason: String| io::Error::other(format!("{}: {reason}", file_of(home).display()));
        let config: Self = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if config.format != FORMAT {
            return Err(wrong(format!("it is of format {}, this program reads {FORMAT}", config.format)));
        }
        Ok(config)
    }

    /// Makes the default boot directory if the configuration names no other, so that it exists when
    /// an error message points there.
    ///
    /// # Errors
    /// If the file system is full or the directory is not writable.
    pub fn make_boot_directory(&self, home: &Path) -> io::Result<()> {
        let usual = Self::usual_boot_directory(home);
        if self.boot_directories.contains(&usual) { std::fs::create_dir_all(usual) } else { Ok(()) }
    }

    /// The default boot directory.
    fn usual_boot_directory(home: &Path) -> PathBuf {
        home.join("boot")
    }

    fn usual(home: &Path) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot_directories = vec![Self::usual_boot_directory(home)];
        Self {
            format: FORMAT,
            name,
            datastores: Vec::new(),
            boot_directories,
            interfaces: None,
            qemu: default_qemu(),
            crypto_safe: CryptoSafeRule::default(),
            reencryptions_max: default_reencryptions(),
        }
    }

    /// Writes the file durably.
    ///
    /// # Errors
    /// If the file system is full or the directory is not writable.
    pub fn write(&self, home: &Path) -> io::Result<()> {
        let file = file_of(home);
        std::fs::create_dir_all(strongroom_files::directory_of(&file))?;
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        strongroom_files::replace(&file, &text)
    }

    /// Returns the directory of the datastore with this id.
    pub fn path_of(&self, id: DatastoreId) -> Option<PathBuf> {
        self.datastores.iter().find(|datastore| datastore.id == id).map(|datastore| datastore.path.clone())
    }

    /// Returns the datastore at this path.
    pub fn datastore(&self, path: &Path) -> Option<&DatastoreConfig> {
        self.datastores.iter().find(|datastore| datastore.path == path)
    }
}

fn file_of(home: &Path) -> PathBuf {
    home.join("host.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_its_file() {
        let home = tempfile::tempdir().unwrap();
        let mut config = HostConfig::of_home(home.path()).unwrap();
        assert_eq!(config.boot_directories, [home.path().join("boot")]);
        config.datastores.push(DatastoreConfig {
            path: "/srv/ds".into(),
            id: DatastoreId::random(),
            ceph: None,
        });
        config.write(home.path()).unwrap();
        assert_eq!(HostConfig::of_home(home.path()).unwrap(), config);
        let text = std::fs::read_to_string(file_of(home.path())).unwrap();
        assert!(!text.contains("reencryptions_max"), "a former program does not know it: {text}");
        std::fs::write(file_of(home.path()), text.replacen('{', r#"{"reencryptions_max": 0,"#, 1)).unwrap();
        assert!(HostConfig::of_home(home.path()).is_err());
        std::fs::write(file_of(home.path()), "{}").unwrap();
        assert!(HostConfig::of_home(home.path()).is_err());
    }
}
