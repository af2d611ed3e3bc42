//! Sources of a passphrase, a PIN or a credential: never arguments or the environment, which others
//! can read. Every source is read straight into secret memory.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;

use super::Access;
use super::credential::CredentialName;
use super::error::RootError;

/// Longest passphrase, PIN or credential, in bytes: longer than any in practice, and small enough
/// to lock in memory.
pub const SECRET_BYTES_MAX: usize = 1024;

/// The source of a passphrase or PIN at each start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecretSource {
    /// A person types it, or a file descriptor supplies it: [`Access::given`].
    Given {},
    /// A file that only its owner can read. One line end after the secret is ignored.
    File {
        /// Absolute, so that it names the same file at each start.
        path: PathBuf,
    },
    /// A systemd credential. One line end after the secret is ignored.
    Credential {
        /// Its name in the credentials directory.
        name: CredentialName,
    },
}

impl SecretSource {
    /// Reads the secret; `what` is its name in messages. A secret in `access` takes precedence.
    pub(super) fn read(&self, what: &'static str, access: &Access<'_>) -> Result<SecretBytes, RootError> {
        if let Some(given) = access.given {
            return Ok(given.duplicate()?);
        }
        let content = match self {
            Self::Given {} => return Err(RootError::NotGiven { what }),
            Self::File { path } if !path.is_absolute() => {
                return Err(RootError::RelativePath { path: path.clone() });
            }
            Self::File { path } => read_file(path, Reader::Owner)?,
            Self::Credential { name } => name.read(access)?,
        };
        without_line_end(content)
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given {} => formatter.write_str("given at each start"),
            Self::File { path } => write!(formatter, "from file {}", path.display()),
            Self::Credential { name } => write!(formatter, "from systemd credential {name}"),
        }
    }
}

/// Reads a passphrase or PIN from file descriptor `number`, to its end; one line end after it is
/// ignored.
///
/// # Errors
/// [`RootError::Unreadable`]; [`RootError::SecretLength`] above [`SECRET_BYTES_MAX`].
pub fn read_descriptor(number: u32) -> Result<SecretBytes, RootError> {
    let path = PathBuf::from(format!("/proc/self/fd/{number}"));
    let unreadable = |error| RootError::Unreadable { path: path.clone(), error };
    let file = File::open(&path).map_err(unreadable)?;
    without_line_end(read_to_end(file, &path)?)
}

/// The permitted readers of a file of secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// Only the file's owner.
    Owner,
    /// A file in a credentials directory: there the group's read bit is the mask of the access list
    /// through which systemd lets the service read root's file.
    SystemdService,
}

/// Reads a file of secrets. Refuses links, other kinds of files, files of other users, and files
/// that others may read.
pub(super) fn read_file(path: &Path, reader: Reader) -> Result<SecretBytes, RootError> {
    let unreadable = |error| RootError::Unreadable { path: path.to_owned(), error };
    // Otherwise a FIFO would block the start until a process writes to it.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(io::Error::other("it is not a regular file")));
    }
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(RootError::Owner { path: path.to_owned(), uid: owner });
    }
    let forbidden = match reader {
        Reader::Owner => 0o077,
        Reader::SystemdService => 0o037,
    };
    let mode = metadata.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(RootError::Mode { path: path.to_owned(), mode });
    }
    read_to_end(file, path)
}

fn read_to_end(mut file: File, path: &Path) -> Result<SecretBytes, RootError> {
    // Room for a line end, and one byte more, so that a longer secret is detected without reading
    // it all.
    let mut content = SecretBytes::zeroed(SECRET_BYTES_MAX + 3)?;
    let mut length = 0;
    while length < content.len() {
        match file.read(&mut content.expose_mut()[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(RootError::Unreadable { path: path.to_owned(), error }),
        }
    }
    if length == content.len() {
        return Err(RootError::SecretLength { least_bytes: 1, actual_bytes: length });
    }
    first_bytes(&content, length)
}

fn without_line_end(content: SecretBytes) -> Result<SecretBytes, RootError> {
    let bytes = content.expose();
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let length = bytes.strip_suffix(b"\r").unwrap_or(bytes).len();
    first_bytes(&content, length)
}

fn first_bytes(content: &SecretBytes, length_bytes: usize) -> Result<SecretBytes, RootError> {
    let mut secret = SecretBytes::zeroed(length_bytes)?;
    secret.expose_mut().copy_from_slice(&content.expose()[..length_bytes]);
    Ok(secret)
}

/// Refuses a secret that is too short for its use, or too long.
pub(super) fn check_length(secret: &SecretBytes, least_bytes: usize) -> Result<(), RootError> {
    if (least_bytes..=SECRET_BYTES_MAX).contains(&secret.len()) {
        return Ok(());
    }
    Err(RootError::SecretLength { least_bytes, actual_bytes: secret.len() })
}
