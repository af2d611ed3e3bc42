//! The session of a person who has signed in, in a file that other commands find.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_api::access::ShownOnce;
use strongroom_files::FileError;
use strongroom_memory::secret::SecretBytes;
use strongroom_types::unix_milliseconds_now;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::{Bearer, FILE_BYTES_MAX};
use crate::error::CliError;
use crate::output::utc;

/// The code of the error for a session that has ended.
pub const SESSION_ENDED: &str = "session_ended";

/// The file in the home.
const SESSION_FILE: &str = "session.json";

/// The format of the file.
const FORMAT: u32 = 1;

/// The permission bits of a home that is made for it.
const HOME_MODE: u32 = 0o700;

/// A session: its token, and the control plane that it is sent to, the only one.
#[derive(Serialize, Deserialize)]
pub struct SavedSession {
    format: u32,
    /// Its id.
    pub id: Uuid,
    /// Who has signed in.
    pub user: String,
    /// The control plane's URL.
    pub url: String,
    /// The control plane's certificate, as PEM.
    pub certificate: String,
    /// When it ends, in seconds since 1970.
    pub expires_unix_seconds: u64,
    token: ShownOnce,
}

/// The file that `strongroom login` writes in a home.
pub fn saved_session_file(home: &Path) -> PathBuf {
    home.join(SESSION_FILE)
}

impl SavedSession {
    /// A session that has just begun.
    pub fn new(
        begun: strongroom_api::access::NewSession,
        url: &str,
        certificate: &[u8],
    ) -> Result<Self, CliError> {
        let certificate = String::from_utf8(certificate.to_vec())
            .map_err(|_| CliError::Usage("the control plane's certificate is not PEM".to_owned()))?;
        let strongroom_api::access::NewSession { session, token } = begun;
        Ok(Self {
            format: FORMAT,
            id: session.id,
            user: session.user,
            url: url.to_owned(),
            certificate,
            expires_unix_seconds: session.expires_unix_seconds,
            token,
        })
    }

    /// Reads a session; `None` if there is no such file, or if it holds something else, such as the
    /// token of a program.
    pub fn read(path: &Path) -> Result<Option<Self>, CliError> {
        let content = match strongroom_files::read(path, FILE_BYTES_MAX) {
            Ok(content) => Zeroizing::new(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(CliError::File(FileError { action: "read", path: path.to_owned(), error }));
            }
        };
        if !content.starts_with(b"{") {
            return Ok(None);
        }
        let read = serde_json::from_slice::<Self>(&content).ok().filter(|read| read.format == FORMAT);
        let damaged = || {
            CliError::Usage(format!(
                "{} holds no session that this version can read; remove it, and sign in again with `strongroom login`",
                path.display()
            ))
        };
        read.map(Some).ok_or_else(damaged)
    }

    /// Writes it to a file that only its owner can read. A missing home is made.
    pub fn write(&self, path: &Path) -> Result<(), CliError> {
        let failed = |error| CliError::File(FileError { action: "write", path: path.to_owned(), error });
        let directory = strongroom_files::directory_of(path);
        if !directory.exists() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(HOME_MODE).create(directory);
            made.map_err(failed)?;
        }
        let content = serde_json::to_vec_pretty(self).map_err(|error| CliError::Output(error.into()))?;
        strongroom_files::replace(path, &Zeroizing::new(content)).map_err(failed)
    }

    /// What requests authenticate with.
    pub fn bearer(&self) -> Result<Bearer, CliError> {
        let mut token = Zeroizing::new(self.token.expose().as_bytes().to_vec());
        Ok(Bearer::Session { token: SecretBytes::from_slice_and_wipe(&mut token)?, user: self.user.clone() })
    }

    /// Whether its time is over.
    pub fn is_over(&self) -> bool {
        self.expires_unix_seconds <= unix_milliseconds_now() / 1000
    }

    /// Refuses a session whose time is over.
    pub fn expect_current(&self) -> Result<(), CliError> {
        if !self.is_over() {
            return Ok(());
        }
        let Self { user, url, .. } = self;
        let ended = utc(self.expires_unix_seconds);
        let message = format!(
            "the session of {user} at {url} ended on {ended}; `{}` begins another, and `strongroom logout` goes on without one",
            login_of(user)
        );
        Err(CliError::Api { code: SESSION_ENDED.to_owned(), message })
    }

    /// Refuses to send its token to another control plane.
    pub fn expect_url(&self, url: &str) -> Result<(), CliError> {
        if self.url == url.trim_end_matches('/') {
            return Ok(());
        }
        let Self { user, url: own, .. } = self;
        Err(CliError::Usage(format!(
            "the session of {user} is at {own}, and {url} does not get its token; give another one with --api-token-file FILE, or sign in there: \
             `{} --api {url}`",
            login_of(user)
        )))
    }
}

/// The command that begins another session of somebody.
pub fn login_of(user: &str) -> String {
    match user.split_once(':') {
        // An emergency credential is used once; what comes next is an ordinary sign-in.
        Some(("emergency", _)) => "strongroom login USER".to_owned(),
        Some((provider, _)) => format!("strongroom login --provider {provider}"),
        None => format!("strongroom login {user}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use strongroom_api::access::{NewSession, Session};

    use super::*;

    fn session(expires_unix_seconds: u64) -> SavedSession {
        let session = Session {
            id: Uuid::new_v4(),
            user: "ada".to_owned(),
            created_unix_seconds: 1,
            expires_unix_seconds,
            groups: Vec::new(),
        };
        let begun = NewSession { session, token: "s3cret".to_owned().into() };
        SavedSession::new(begun, "https://127.0.0.1:5690", b"PEM").unwrap()
    }

    #[test]
    fn a_session_is_kept_for_its_owner_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = saved_session_file(&home.path().join("state"));
        session(u64::MAX).write(&file).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let directory = file.parent().unwrap();
        assert_eq!(std::fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
        let read = SavedSession::read(&file).unwrap().unwrap();
        assert!(
            matches!(read.bearer().unwrap(), Bearer::Session { token, .. } if token.expose() == b"s3cret")
        );
        std::fs::write(&file, "the-token-of-a-program\n").unwrap();
        assert!(SavedSession::read(&file).unwrap().is_none());
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(SavedSession::read(&file).map(|_| ()).unwrap_err().code(), "usage");
    }

    #[test]
    fn a_token_goes_to_its_own_control_plane_while_it_counts() {
        let current = session(u64::MAX);
        assert!(current.expect_current().is_ok() && current.expect_url("https://127.0.0.1:5690/").is_ok());
        let elsewhere = current.expect_url("https://evil.example:5690").unwrap_err().to_string();
        assert!(elsewhere.contains("evil.example") && !elsewhere.contains("s3cret"), "{elsewhere}");
        let over = session(86_400).expect_current().unwrap_err();
        assert_eq!(over.code(), SESSION_ENDED);
        assert!(over.to_string().contains("1970-01-02"), "{over}");
    }
}
