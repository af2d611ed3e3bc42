//! The providers of this machine: one file each in `<home>/key-providers`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::RenameFlags;
use strongroom_keys::ProviderName;
use thiserror::Error;

use crate::config::ProviderConfig;
use crate::error::ProviderError;

/// The directory in the home.
const DIRECTORY: &str = "key-providers";

/// What the name of a provider's file ends with.
const ENDING: &str = ".json";

/// The longest file, in bytes: every field at its longest has a quarter of it.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The providers of this machine.
#[derive(Clone, Debug)]
pub struct Registry {
    directory: PathBuf,
}

/// A provider in a list, or a file that is none.
#[derive(Debug)]
pub struct Registered {
    /// Its name.
    pub name: ProviderName,
    /// How it is set up, or why that cannot be told.
    pub config: Result<ProviderConfig, RegistryError>,
}

/// Why the registry cannot be used.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// There is no such provider.
    #[error("no key provider '{name}' is set up here; add it with `strongroom key-provider add {name}`")]
    Unknown {
        /// The name.
        name: ProviderName,
    },
    /// There is one of that name.
    #[error("a key provider '{name}' is set up already; choose another name, or remove it first")]
    Exists {
        /// The name.
        name: ProviderName,
    },
    /// A file or directory cannot be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as in "read".
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others than its owner can change a file: they could have our keys made elsewhere.
    #[error("{path} can be written by others than its owner (mode {mode:o}); run: chmod 600 {path}")]
    Mode {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file says nothing that makes sense.
    #[error("{path} does not set up a key provider: {reason}")]
    Content {
        /// Which.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

impl RegistryError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "no_such_key_provider",
            Self::Exists { .. } => "exists",
            Self::Io { .. } => "file",
            Self::Mode { .. } => "file_mode",
            Self::Content { .. } => "key_provider_file",
        }
    }
}

impl Registry {
    /// The registry of a home.
    pub fn of_home(home: &Path) -> Self {
        Self { directory: home.join(DIRECTORY) }
    }

    /// Where the files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds a provider: the whole file or none, durable when this returns.
    ///
    /// # Errors
    /// [`RegistryError::Exists`] if there is one of that name; nothing is changed then.
    pub fn add(&self, name: &ProviderName, config: &ProviderConfig) -> Result<(), RegistryError> {
        let path = self.path(name);
        config.check().map_err(|error| content(&path, error))?;
        let mut text = serde_json::to_vec_pretty(config).map_err(|error| content(&path, error))?;
        text.push(b'\n');
        self.make_directory()?;
        // Not a name that a provider can have, and each process has its own.
        let temporary = self.directory.join(format!(".{name}.{}", std::process::id()));
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| RegistryError::Io { action, path, source }
        };
        let outcome = write_new(&temporary, &text).map_err(io("write", &temporary)).and_then(|()| {
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                &temporary,
                rustix::fs::CWD,
                &path,
                RenameFlags::NOREPLACE,
            )
            .map_err(|errno| match errno {
                rustix::io::Errno::EXIST => RegistryError::Exists { name: name.clone() },
                errno => io("create", &path)(errno.into()),
            })
        });
        if outcome.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        outcome.and_then(|()| self.sync())
    }

    /// Removes a provider. Its keys stay where they are.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] if there is none of that name.
    pub fn remove(&self, name: &ProviderName) -> Result<(), RegistryError> {
        let path = self.path(name);
        fs::remove_file(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => RegistryError::Unknown { name: name.clone() },
            _ => RegistryError::Io { action: "remove", path, source },
        })?;
        self.sync()
    }

    /// How a provider is set up.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] if there is none of that name.
    pub fn get(&self, name: &ProviderName) -> Result<ProviderConfig, RegistryError> {
        let path = self.path(name);
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => RegistryError::Unknown { name: name.clone() },
            _ => RegistryError::Io { action: "read", path: path.clone(), source },
        };
        let file = File::open(&path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let mode = metadata.mode() & 0o7777;
        if mode & 0o022 != 0 {
            return Err(RegistryError::Mode { path, mode });
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(content(&path, format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
        let config: ProviderConfig = serde_json::from_str(&text).map_err(|error| content(&path, error))?;
        config.check().map_err(|error| content(&path, error))?;
        Ok(config)
    }

    /// All providers, by name.
    ///
    /// # Errors
    /// [`RegistryError::Io`] if the directory is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Registered>, RegistryError> {
        let unreadable = |source| RegistryError::Io { action: "read", path: self.directory.clone(), source };
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let file_name = entry.map_err(unreadable)?.file_name();
            let name = file_name.to_str().and_then(|name| name.strip_suffix(ENDING)).map(str::parse);
            if let Some(Ok(name)) = name {
                names.push(name);
            }
        }
        names.sort();
        Ok(names.into_iter().map(|name: ProviderName| Registered { config: self.get(&name), name }).collect())
    }

    fn path(&self, name: &ProviderName) -> PathBuf {
        self.directory.join(format!("{name}{ENDING}"))
    }

    fn make_directory(&self) -> Result<(), RegistryError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(|source| RegistryError::Io { action: "create", path: self.directory.clone(), source })
    }

    fn sync(&self) -> Result<(), RegistryError> {
        let synced = File::open(&self.directory).and_then(|directory| directory.sync_all());
        synced.map_err(|source| RegistryError::Io { action: "sync", path: self.directory.clone(), source })
    }
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    // A file that a killed process of our number left behind.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn content(path: &Path, reason: impl ToString) -> RegistryError {
    RegistryError::Content { path: path.to_owned(), reason: reason.to_string() }
}

impl From<RegistryError> for ProviderError {
    fn from(error: RegistryError) -> Self {
        Self::Misconfigured { reason: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::{KmipConfig, SourceConfig};

    fn config(server: &str) -> ProviderConfig {
        ProviderConfig::new(SourceConfig::Kmip(KmipConfig {
            servers: vec![server.to_owned()],
            ca: "/t/ca.pem".into(),
            certificate: "/t/c.pem".into(),
            key: "/t/k.pem".into(),
            server_name: None,
            request_timeout_ms: 5_000,
            named_keys: true,
        }))
    }

    #[test]
    fn providers_are_added_listed_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::of_home(&home.path().join("not/there/yet"));
        let corp: ProviderName = "corp".parse().unwrap();
        assert!(registry.list().unwrap().is_empty());
        assert!(matches!(registry.get(&corp), Err(RegistryError::Unknown { .. })));
        registry.add(&corp, &config("kms1")).unwrap();
        registry.add(&"a".parse().unwrap(), &config("kms2")).unwrap();
        assert!(matches!(registry.add(&corp, &config("kms3")), Err(RegistryError::Exists { .. })));
        assert_eq!(registry.get(&corp).unwrap(), config("kms1"));
        let names: Vec<_> = registry.list().unwrap().into_iter().map(|one| one.name.to_string()).collect();
        assert_eq!(names, ["a", "corp"]);
        let files = fs::read_dir(registry.directory())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().mode());
        assert_eq!(files.map(|mode| mode & 0o777).collect::<Vec<_>>(), [0o600, 0o600]);
        registry.remove(&corp).unwrap();
        assert!(matches!(registry.remove(&corp), Err(RegistryError::Unknown { .. })));
    }

    #[test]
    fn a_file_that_others_may_write_or_that_is_no_configuration_is_named() {
        let home = tempfile::tempdir().unwrap();
        let registry = Registry::of_home(home.path());
        let corp: ProviderName = "corp".parse().unwrap();
        registry.add(&corp, &config("kms1")).unwrap();
        let path = registry.directory().join("corp.json");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(registry.get(&corp), Err(RegistryError::Mode { mode: 0o620, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "{}").unwrap();
        let listed = registry.list().unwrap();
        assert!(matches!(listed[0].config, Err(RegistryError::Content { .. })), "{listed:?}");
        let mut wrong = config("kms1");
        wrong.cryptoperiod_days = Some(0);
        assert!(matches!(registry.add(&"b".parse().unwrap(), &wrong), Err(RegistryError::Content { .. })));
        assert_eq!(registry.list().unwrap().len(), 1);
    }
}
