//! `host.json`: what this host is told to use.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_types::DatastoreId;

use crate::checks::crypto_safe::CryptoSafeRule;

/// The format of the file.
const FORMAT: u32 = 1;
/// The longest one, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// The most datastores of a host.
pub const DATASTORES_MAX: usize = 256;

/// What this host is told to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    format: u32,
    /// What it is called.
    pub name: String,
    /// Where volumes are.
    #[serde(default)]
    pub datastores: Vec<DatastoreConfig>,
    /// Where kernels, initial ram disks and CD-ROM images may be that VMs start from.
    pub boot_directories: Vec<PathBuf>,
    /// The bridges and tap devices that network cards may be on; where it is left out, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Vec<String>>,
    /// QEMU.
    #[serde(default = "default_qemu")]
    pub qemu: PathBuf,
    /// Whether VMs with encrypted disks start where memory does not stay in memory.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub crypto_safe: CryptoSafeRule,
}

/// A datastore that is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatastoreConfig {
    /// Its directory.
    pub path: PathBuf,
    /// The mark that it bore when it was added: what is mounted there later may be something else.
    pub id: DatastoreId,
}

/// What is usual is left out: the former version, which does not know it, reads the file then.
fn is_usual(rule: &CryptoSafeRule) -> bool {
    *rule == CryptoSafeRule::default()
}

fn default_qemu() -> PathBuf {
    strongroom_hypervisor::qemu::DEFAULT_PROGRAM.into()
}

impl HostConfig {
    /// What `host.json` in hostd's home says, or what is usual if there is none.
    ///
    /// # Errors
    /// If it cannot be read or understood.
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

    /// Where boot files may be if nobody says otherwise.
    pub fn usual_boot_directory(home: &Path) -> PathBuf {
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
        }
    }

    /// Writes it, durably.
    ///
    /// # Errors
    /// For want of room or permission.
    pub fn write(&self, home: &Path) -> io::Result<()> {
        let file = file_of(home);
        std::fs::create_dir_all(strongroom_files::directory_of(&file))?;
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        strongroom_files::replace(&file, &text)
    }

    /// The datastore at this path.
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
        config.datastores.push(DatastoreConfig { path: "/srv/ds".into(), id: DatastoreId::random() });
        config.write(home.path()).unwrap();
        assert_eq!(HostConfig::of_home(home.path()).unwrap(), config);
        std::fs::write(file_of(home.path()), "{}").unwrap();
        assert!(HostConfig::of_home(home.path()).is_err());
    }
}
