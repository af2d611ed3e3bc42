//! The providers of this machine: one file each in `<home>/key-providers`.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use strongroom_keys::ProviderName;
use thiserror::Error;

use crate::config::ProviderConfig;
use crate::error::ProviderError;

/// What this machine's own key server is called among its key providers.
pub const EMBEDDED: &str = "embedded";

/// The directory in the home.
const DIRECTORY: &str = "key-providers";

/// The extension of a provider's file.
const ENDING: &str = ".json";

/// The longest file, in bytes: all fields at their longest need a quarter of it.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The providers of this machine.
#[derive(Clone, Debug)]
pub struct Registry {
    directory: PathBuf,
}

/// A provider in a list, or an invalid file.
#[derive(Debug)]
pub struct Registered {
    /// Its name.
    pub name: ProviderName,
    /// Its configuration, or why it cannot be read.
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
    /// A provider of that name exists.
    #[error("a key provider '{name}' is set up already; choose another name, or remove it first")]
    Exists {
        /// The name.
        name: ProviderName,
    },
    /// A file or directory cannot be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The attempted action, as in "read".
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is writable by other users, who could redirect the creation of our keys.
    #[error("{path} can be written by others than its owner (mode {mode:o}); run: chmod 600 {path}")]
    Mode {
        /// The path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file is invalid.
    #[error("{path} does not set up a key provider: {reason}")]
    Content {
        /// The path.
        path: PathBuf,
        /// The reason.
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

    /// Adds a provider atomically; it is durable when this returns.
    ///
    /// # Errors
    /// [`RegistryError::Exists`] if there is one of that name; nothing has changed then.
    pub fn add(&self, name: &ProviderName, config: &ProviderConfig) -> Result<(), RegistryError> {
        let path = self.path(name);
        config.check().map_err(|error| content(&path, error))?;
        let mut text = serde_json::to_vec_pretty(config).map_err(|error| content(&path, error))?;
        text.push(b'\n');
        self.make_directory()?;
        strongroom_files::create(&path, &text).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => RegistryError::Exists { name: name.clone() },
            _ => RegistryError::Io { action: "create", path, source },
        })
    }

    /// Removes a provider. Its keys stay where they are.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] if there is none of that name.
    pub fn remove(&self, name: &ProviderName) -> Result<(), RegistryError> {
        let path = self.path(name);
        match strongroom_files::remove(&path) {
            Ok(true) => Ok(()),
            Ok(false) => Err(RegistryError::Unknown { name: name.clone() }),
            Err(source) => Err(RegistryError::Io { action: "remove", path, source }),
        }
    }

    /// A provider's configuration.
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
        let text =
            strongroom_files::read_open(&file, FILE_BYTES_MAX).map_err(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => content(&path, error),
                _ => unreadable(error),
            })?;
        let config: ProviderConfig = serde_json::from_slice(&text).map_err(|error| content(&path, error))?;
        config.check().map_err(|error| content(&path, error))?;
        Ok(config)
    }

    /// The directories that a process that fetches keys must read: the registry's own, and those of
    /// the files that its providers name. Directories, because files are replaced, for example when
    /// a certificate is renewed.
    pub fn directories(&self) -> Vec<PathBuf> {
        let registered = self.list().unwrap_or_default();
        let configs = registered.iter().filter_map(|provider| provider.config.as_ref().ok());
        let files = configs.flat_map(|config| config.files()).filter_map(Path::parent);
        std::iter::once(self.directory.as_path()).chain(files).map(Path::to_owned).collect()
    }

    /// All providers, by name.
    ///
    /// # Errors
    /// [`RegistryError::Io`] if the directory is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Registered>, RegistryError> {
        let unreadable = |source| RegistryError::Io { action: "read", path: self.directory.clone(), source };
        let files = strongroom_files::list(&self.directory, ENDING).map_err(unreadable)?;
        let name_of = |file: &PathBuf| file.file_stem().and_then(|stem| stem.to_str())?.parse().ok();
        let mut names: Vec<ProviderName> = files.iter().filter_map(name_of).collect();
        names.sort();
        Ok(names.into_iter().map(|name| Registered { config: self.get(&name), name }).collect())
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
    use std::fs;
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
