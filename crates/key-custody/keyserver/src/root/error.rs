//! Why the root cannot be had, and what to do next.

use std::io;
use std::path::PathBuf;

use strongroom_crypto::CryptoError;
use strongroom_crypto::kdf::NEW_PASSPHRASE_MIN_BYTES;
use strongroom_memory::secret::SecretError;
use thiserror::Error;

use super::credential::CredentialName;
use super::secret_source::SECRET_BYTES_MAX;
use super::token::TokenError;
use super::tpm::TpmError;
use super::{ROOT_BYTES, RootId};

/// Why the root cannot be had, and what to do next.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RootError {
    /// There is no root key.
    #[error(
        "there is no root key: {path} does not exist; this is no state directory of a key server, or a new one"
    )]
    Missing {
        /// The expected path.
        path: PathBuf,
    },
    /// A root key exists already.
    #[error("there is a root key already: {path}; making another would lose every key under it")]
    Exists {
        /// The record.
        path: PathBuf,
    },
    /// Another process is using it.
    #[error(
        "another process opens or seals the root key in {directory} right now; try again when it is done"
    )]
    Busy {
        /// The state directory.
        directory: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {what} {path}: {error}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The record is damaged.
    #[error(
        "{path} is damaged ({why}); restore it from a copy of the state directory, or the server from a backup"
    )]
    Damaged {
        /// The record.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The record was written by a newer program.
    #[error(
        "{path} has format {format}, which this program does not know; use the newer program that wrote it"
    )]
    Newer {
        /// The record.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// A file of secrets cannot be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file of secrets that other users may read.
    #[error("{path} can be read or changed by others (mode {mode:04o}); run: chmod 600 {path}")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file of secrets that belongs to another user.
    #[error(
        "{path} belongs to user {uid}, neither to root nor to the user of this process; run: chown it to one of them"
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// A path that would name another file when the server is started elsewhere.
    #[error("{path} is no absolute path; it would name another file at the next start")]
    RelativePath {
        /// The path as given.
        path: PathBuf,
    },
    /// A passphrase or PIN was needed and none given.
    #[error("the root key needs its {what}, which is given at each start, and none was given")]
    NotGiven {
        /// `passphrase` or `PIN`.
        what: &'static str,
    },
    /// A secret is too short for its use, or too long.
    #[error("a secret of {actual_bytes} bytes does not do here: it has {least_bytes} to {SECRET_BYTES_MAX}")]
    SecretLength {
        /// Fewest bytes.
        least_bytes: usize,
        /// Its length; a secret that is too long was not read to its end.
        actual_bytes: usize,
    },
    /// A new passphrase is too easily guessed.
    #[error(
        "a new passphrase has at least {NEW_PASSPHRASE_MIN_BYTES} bytes; this one has {actual_bytes}: take several words"
    )]
    PassphraseTooShort {
        /// Its length.
        actual_bytes: usize,
    },
    /// The passphrase does not open the root.
    #[error(
        "the passphrase ({source_name}) is wrong; the root key stays closed. Try again, nothing counts the tries; if it is lost, \
         `strongroom keyserver restore` sets the key server up from a backup"
    )]
    WrongPassphrase {
        /// The passphrase's source.
        source_name: String,
    },
    /// A key file beside the data does not open the root.
    #[error("{path} is not the key of this root; it was replaced or damaged. Put the right one back")]
    WrongKeyFile {
        /// The key file.
        path: PathBuf,
    },
    /// An invalid name of a credential.
    #[error("'{name}' is no name of a credential: printable ASCII without '/' and ':', up to 255 bytes")]
    CredentialName {
        /// The name as given.
        name: String,
    },
    /// systemd passed no credentials to this process.
    #[error(
        "systemd gave this process no credentials ($CREDENTIALS_DIRECTORY is not set), and the root key needs {name}; \
         add LoadCredentialEncrypted={name} to the service's unit"
    )]
    NoCredentials {
        /// Which one is needed.
        name: CredentialName,
    },
    /// systemd did not pass this credential.
    #[error(
        "there is no credential {name} in {directory}; add LoadCredentialEncrypted={name} to the service's unit"
    )]
    NoCredential {
        /// Which one is needed.
        name: CredentialName,
        /// Where systemd puts them.
        directory: PathBuf,
    },
    /// The credential does not open the root.
    #[error(
        "credential {name} is not the one that the root key was sealed under; give the service the former one"
    )]
    WrongCredential {
        /// Which one.
        name: CredentialName,
    },
    /// The unsealed root is another one.
    #[error(
        "this is root key {unsealed}, and the keys here need {expected}; another server's files are mixed in"
    )]
    OtherRoot {
        /// The unsealed root.
        unsealed: RootId,
        /// The expected root.
        expected: RootId,
    },
    /// The unsealed data is not a root.
    #[error("what was unsealed has {actual_bytes} bytes, and a root key has {ROOT_BYTES}")]
    RootLength {
        /// Its length.
        actual_bytes: usize,
    },
    /// The TPM.
    #[error(transparent)]
    Tpm(#[from] TpmError),
    /// The token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A cipher refused.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}
