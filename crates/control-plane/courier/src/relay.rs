//! The mail relay that this machine is set up with.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_api::recipient::MailAddress;

/// Its settings, in the control plane's home.
const FILE: &str = "mail.json";
/// The longest settings, in bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// The settings of mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailRelay {
    /// The relay.
    pub relay: RelayAddress,
    /// The sender of messages.
    pub from: MailAddress,
    /// The user that it knows this site as; absent for a relay that asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The file with the user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// The file with the certificates of its authorities; by default those of this machine count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// Why there is no relay.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// None is set up.
    #[error(
        "no mail relay is set up; `strongroom recipient relay` does that, on the control plane's machine"
    )]
    None,
    /// The settings cannot be read.
    #[error("the settings of the mail relay: {0}")]
    File(io::Error),
    /// They are not understood.
    #[error("the settings of the mail relay are not understood: {0}")]
    Damaged(serde_json::Error),
}

impl MailRelay {
    /// The file of the settings in the home of a control plane.
    pub fn file(control: &Path) -> PathBuf {
        control.join(FILE)
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// [`RelayError`].
    pub fn read(file: &Path) -> Result<Self, RelayError> {
        let content = strongroom_files::read(file, BYTES_MAX).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RelayError::None,
            _ => RelayError::File(error),
        })?;
        serde_json::from_slice(&content).map_err(RelayError::Damaged)
    }

    /// Writes the settings. They count from the next message on.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let mut content = serde_json::to_vec_pretty(self)?;
        content.push(b'\n');
        strongroom_files::replace(file, &content)
    }
}

/// How a relay is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// TLS from the first byte.
    Tls,
    /// TLS after the greeting, or nothing is sent.
    StartTls,
    /// None: to a relay on this machine.
    OnMachine,
}

/// The address of a relay: `smtps://HOST[:465]`, `smtp://HOST[:587]` with STARTTLS, or
/// `smtp+plain://` for one on the loopback of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelayAddress {
    text: String,
    pub(crate) security: Security,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl TryFrom<String> for RelayAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no relay; write smtps://HOST, smtp://HOST for STARTTLS, or smtp+plain://127.0.0.1"
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (security, default) = match scheme {
            "smtps" => (Security::Tls, 465),
            "smtp" => (Security::StartTls, 587),
            "smtp+plain" => (Security::OnMachine, 25),
            _ => return Err(wrong()),
        };
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some(""))),
            None => rest.split_once(':').map_or((rest, Some("")), |(host, port)| (host, Some(port))),
        };
        let port = match port.ok_or_else(wrong)? {
            "" => default,
            port => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
        };
        let is_address = host.parse::<IpAddr>().is_ok();
        let is_name = !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.');
        if !is_address && !is_name {
            return Err(wrong());
        }
        let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback());
        if security == Security::OnMachine && !is_here {
            return Err(format!(
                "{host} is another machine, to which mail goes over TLS: smtps:// or smtp://"
            ));
        }
        let host = host.to_owned();
        Ok(Self { text, security, host, port })
    }
}

impl From<RelayAddress> for String {
    fn from(address: RelayAddress) -> Self {
        address.text
    }
}

impl std::fmt::Display for RelayAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.text)
    }
}

impl std::str::FromStr for RelayAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_read() {
        let read = |text: &str| {
            let RelayAddress { security, host, port, .. } = text.parse().unwrap();
            (security, host, port)
        };
        assert_eq!(read("smtps://mail.example.com"), (Security::Tls, "mail.example.com".to_owned(), 465));
        assert_eq!(read("smtp://10.0.0.1:25"), (Security::StartTls, "10.0.0.1".to_owned(), 25));
        assert_eq!(read("smtps://[fd00::5]:2465"), (Security::Tls, "fd00::5".to_owned(), 2465));
        assert_eq!(read("smtp+plain://localhost"), (Security::OnMachine, "localhost".to_owned(), 25));
    }

    #[test]
    fn mail_goes_to_no_other_machine_in_the_clear() {
        for wrong in [
            "smtp+plain://mail.example.com",
            "smtp+plain://10.0.0.1",
            "http://x",
            "smtps://",
            "smtps://a:0",
            "smtps://a b",
        ] {
            assert!(wrong.parse::<RelayAddress>().is_err(), "{wrong}");
        }
    }
}
