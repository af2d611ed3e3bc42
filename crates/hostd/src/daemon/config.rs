//! `host.json`: what this host is told to use.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_types::DatastoreId;

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
    /// Where kernels may be that are started without a boot loader.
    pub boot_directories: Vec<PathBuf>,
    /// QEMU.
    #[serde(default = "default_qemu")]
    pub qemu: PathBuf,
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

fn default_qemu() -> PathBuf {
    strongroom_hypervisor::qemu::DEFAULT_PROGRAM.into()
}

impl HostConfig {
    /// What `host.json` in hostd's home says, or what is usual if there is none.
    ///
    /// # Errors
    /// If it cannot be read or understood.
    pub fn of_home(home: &Path) -> io::Result<Self> {
        let file = match File::open(file_of(home)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::usual(home)),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        let wrong = |reason: String| io::Error::other(format!("{}: {reason}", file_of(home).display()));
        let config: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if config.format != FORMAT {
            return Err(wrong(format!("it is of format {}, this program reads {FORMAT}", config.format)));
        }
        Ok(config)
    }

    fn usual(home: &Path) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot_directories = vec![home.join("boot")];
        Self { format: FORMAT, name, datastores: Vec::new(), boot_directories, qemu: default_qemu() }
    }

    /// Writes it, durably.
    ///
    /// # Errors
    /// For want of room or permission.
    pub fn write(&self, home: &Path) -> io::Result<()> {
        let file = file_of(home);
        let new = file.with_extension("json.new");
        if let Some(directory) = file.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        let mut written =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        written.write_all(&text)?;
        written.sync_all()?;
        std::fs::rename(&new, &file)?;
        file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
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
