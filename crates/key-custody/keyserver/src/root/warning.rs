//! Warnings about a root whose seal is weaker than it looks.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use strongroom_crypto::module::IS_FIPS_BUILD;
use strongroom_types::shell_word;

use super::record::Seal;
use super::secret_source::SecretSource;

/// A weakness of the way in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "warning", rename_all = "kebab-case")]
pub enum Warning {
    /// The root's key is beside the data.
    Unprotected {
        /// The key file.
        path: PathBuf,
    },
    /// The secret that opens the root is on the same file system as the data: a copy of one
    /// contains both.
    SameFileSystem {
        /// The kind of secret: `passphrase`, `PIN`, `credential`.
        what: &'static str,
        /// Its path.
        path: PathBuf,
    },
    /// The TPM releases the root to any system that this machine boots, from this disk or another.
    AnyBootState,
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unprotected { path } => write!(
                formatter,
                "unprotected: the root key's file {} lies on the disk that it should protect; a copy of the disk has \
                 every key. Stop the server, then run `{}`; 'keyserver root seal --help' lists the other ways",
                path.display(),
                sealing_command(path.parent().unwrap_or(path))
            ),
            Self::SameFileSystem { what, path } => write!(
                formatter,
                "the {what} {} lies on the same file system as the keys that it protects; whoever copies that file \
                 system has both. Put it elsewhere, or have systemd bring it as a credential sealed by the TPM",
                path.display()
            ),
            Self::AnyBootState => formatter.write_str(
                "the TPM opens the root for any system that this machine boots; seal it to PCRs (7, Secure Boot's \
                 state, is the usual choice) to narrow that",
            ),
        }
    }
}

/// The command by which a person seals the root of `state_directory` on any machine; in a FIPS
/// build, which derives no key from a passphrase, on one with a TPM.
pub fn sealing_command(state_directory: &Path) -> String {
    let directory = shell_word(&state_directory.to_string_lossy());
    let way = if IS_FIPS_BUILD { "--tpm" } else { "--passphrase" };
    format!("strongroom keyserver root seal --directory {directory} {way}")
}

/// The warnings of `seal`. Files that cannot be inspected cause no warning: opening the root
/// reports them.
pub(super) fn of(state_directory: &Path, seal: &Seal, credentials_directory: Option<&Path>) -> Vec<Warning> {
    let credential = |name: &super::credential::CredentialName| credentials_directory.map(|at| name.path(at));
    let source = |source: &SecretSource| match source {
        SecretSource::Given {} => None,
        SecretSource::File { path } => Some(path.clone()),
        SecretSource::Credential { name } => credential(name),
    };
    let (what, path) = match seal {
        Seal::PlainFile(seal) => {
            return vec![Warning::Unprotected { path: state_directory.join(seal.file_name()) }];
        }
        Seal::Tpm(seal) if seal.pcrs.is_empty() => return vec![Warning::AnyBootState],
        Seal::Tpm(_) => return Vec::new(),
        Seal::Passphrase(seal) => ("passphrase", source(&seal.source)),
        Seal::Token(seal) => ("PIN", source(&seal.pin)),
        Seal::Credential(seal) => ("credential", credential(&seal.name)),
    };
    let same = |path: &PathBuf| file_system(path).is_some_and(|id| Some(id) == file_system(state_directory));
    path.filter(same).map(|path| Warning::SameFileSystem { what, path }).into_iter().collect()
}

fn file_system(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|metadata| metadata.dev())
}
