//! The files in which a host's administrator says how a cluster is reached, and as whom: Ceph's own
//! `ceph.conf` and keyring.
//!
//! They are read before the process is confined. Of a `ceph.conf`, only [`PARAMETERS`] count; other
//! lines may name files and programs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes, SecretError};
use strongroom_types::{CephClient, CephUser};
use thiserror::Error;

use crate::ceph::PARAMETERS;

/// The longest configuration.
const CONF_BYTES_MAX: u64 = 256 << 10;

/// How long the monitors have to admit a client, in seconds, if the configuration does not say.
/// Ceph's own limit is five minutes.
const CONNECTS_WITHIN_S: u32 = 30;

/// Why a cluster's configuration, or a user's key, cannot be used.
#[derive(Debug, Error)]
pub enum ConfError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// It is no text.
    #[error("{path} is no configuration of Ceph", path = .0.display())]
    NoText(PathBuf),
    /// It names no monitor.
    #[error(
        "{path} names no monitor; write `mon_host = ADDRESS` to it, or copy the cluster's own file with \
         `ceph config generate-minimal-conf`",
        path = .0.display()
    )]
    NoMonitor(PathBuf),
    /// Any user of the host may read the key.
    #[error("every user of the host may read {path}; restrict it: `chmod 600 {path}`", path = .0.display())]
    OpenToAll(PathBuf),
    /// The keyring is too long for one user's.
    #[error(
        "{path} has more than {SECRET_MAX_BYTES} bytes; give {user} a keyring of its own: \
         `ceph auth get {user} -o {path}`",
        path = path.display()
    )]
    KeyringTooLong {
        /// The file.
        path: PathBuf,
        /// The user.
        user: CephUser,
    },
    /// The keyring does not have the user's key.
    #[error(
        "{path} has no key of {user}; write it there: `ceph auth get {user} -o {path}`",
        path = path.display()
    )]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The user.
        user: CephUser,
    },
    /// No memory for the key.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> ConfError {
    let path = path.to_owned();
    move |error| ConfError::Read { path, error }
}

/// How the cluster is reached, and the user's key.
pub fn read(client: &CephClient) -> Result<(BTreeMap<String, String>, SecretBytes), ConfError> {
    let CephClient { user, conf, keyring } = client;
    let text = strongroom_files::read(conf, CONF_BYTES_MAX).map_err(unreadable(conf))?;
    let text = String::from_utf8(text).map_err(|_| ConfError::NoText(conf.clone()))?;
    let parameters = parameters(&text, user);
    if !parameters.contains_key("mon_host") {
        return Err(ConfError::NoMonitor(conf.clone()));
    }
    Ok((parameters, read_key(keyring, user)?))
}

/// The parameters that count: those of all clients, and of this one.
fn parameters(text: &str, user: &CephUser) -> BTreeMap<String, String> {
    // From the general to the particular, whatever their order in the file.
    let sections = ["global", "client", user.as_str()];
    let mut found: [BTreeMap<String, String>; 3] = Default::default();
    let mut section = None;
    let whole = text.replace("\\\n", " ");
    for line in whole.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = sections.iter().position(|known| *known == name.trim());
            continue;
        }
        let (Some(section), Some((name, value))) = (section, line.split_once('=')) else { continue };
        // Ceph takes `mon host` and `mon-host` for `mon_host`.
        let name = name.trim().replace([' ', '-'], "_");
        if PARAMETERS.contains(&name.as_str()) {
            found[section].insert(name, value.trim().trim_matches(['"', '\'']).to_owned());
        }
    }
    let mut parameters: BTreeMap<String, String> = found.into_iter().flatten().collect();
    parameters.entry("client_mount_timeout".to_owned()).or_insert_with(|| CONNECTS_WITHIN_S.to_string());
    parameters
}

fn read_key(path: &Path, user: &CephUser) -> Result<SecretBytes, ConfError> {
    let mut file = File::open(path).map_err(unreadable(path))?;
    let facts = file.metadata().map_err(unreadable(path))?;
    if facts.permissions().mode() & 0o007 != 0 {
        return Err(ConfError::OpenToAll(path.to_owned()));
    }
    if facts.len() > SECRET_MAX_BYTES as u64 {
        return Err(ConfError::KeyringTooLong { path: path.to_owned(), user: user.clone() });
    }
    let mut text = SecretBytes::zeroed(facts.len() as usize)?;
    file.read_exact(text.expose_mut()).map_err(unreadable(path))?;
    let key = key_of(text.expose(), user).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| ConfError::NoKey { path: path.to_owned(), user: user.clone() })?;
    let mut copy = SecretBytes::zeroed(key.len())?;
    copy.expose_mut().copy_from_slice(key);
    Ok(copy)
}

/// The key in the section of `user`. Works on bytes: a copy of the text would not be wiped.
fn key_of<'text>(text: &'text [u8], user: &CephUser) -> Option<&'text [u8]> {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let is_section = |line: &&[u8]| line.first() == Some(&b'[');
    let is_users = |line: &[u8]| {
        let name = line.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
        name.is_some_and(|name| name.trim_ascii() == user.as_str().as_bytes())
    };
    lines.find(|line| is_users(line))?;
    lines.take_while(|line| !is_section(line)).find_map(|line| {
        let value = line.strip_prefix(b"key")?.trim_ascii_start().strip_prefix(b"=")?;
        Some(value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    const CONF: &str = "# of the site\n[client.host1]\nms client mode = secure\n[global]\nfsid = 1234\n\
                        mon-host = [v2:10.0.0.1:3300,v1:10.0.0.1:6789] \\\n 10.0.0.2 ; two\n\
                        log_file = /etc/passwd\nms_client_mode = crc\n[osd]\nmon_host = 10.9.9.9\n\
                        [client.host2]\nfsid = other\n";

    fn user() -> CephUser {
        "client.host1".parse().unwrap()
    }

    #[test]
    fn a_configuration_says_how_the_cluster_is_reached_and_nothing_else() {
        let found = parameters(CONF, &user());
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            found,
            [
                ("client_mount_timeout", "30"),
                ("fsid", "1234"),
                ("mon_host", "[v2:10.0.0.1:3300,v1:10.0.0.1:6789]   10.0.0.2"),
                ("ms_client_mode", "secure"),
            ]
        );
    }

    #[test]
    fn a_keyring_gives_the_key_of_its_user_alone() {
        let text = b"[client.host2]\n\tkey = BBBB\n[client.host1]\n\tcaps mon = \"profile rbd\"\n\tkey=AAAA==\n[mon.]\nkey = C\n";
        assert_eq!(key_of(text, &user()), Some(b"AAAA==".as_slice()));
        for without in [
            "",
            "[client.host1]\ncaps = x\n[client.host2]\nkey = B\n",
            "key = A\n",
            "[client.host10]\nkey = A",
        ] {
            assert_eq!(key_of(without.as_bytes(), &user()), None, "{without}");
        }
    }

    #[test]
    fn an_error_names_the_file_and_the_next_step() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let put = |name: &str, text: &str, mode: u32| {
            std::fs::write(path(name), text).unwrap();
            std::fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        };
        let refused = |conf: &str, keyring: &str| {
            let client = CephClient { user: user(), conf: path(conf), keyring: path(keyring) };
            let message = read(&client).unwrap_err().to_string();
            assert!(!message.contains("AAAA"), "{message}");
            message
        };
        put("conf", CONF, 0o644);
        put("empty", "[global]\n", 0o644);
        put("keyring", "[client.host1]\nkey = AAAA\n", 0o600);
        put("open", "[client.host1]\nkey = AAAA\n", 0o604);
        put("others", "[client.host2]\nkey = AAAA\n", 0o600);
        put("long", &"[client.host1]\n".repeat(300), 0o600);
        assert!(refused("none", "keyring").contains("/none: No such file"));
        assert!(refused("empty", "keyring").contains("mon_host"));
        assert!(refused("conf", "none").contains("/none: No such file"));
        assert!(refused("conf", "open").contains("chmod 600"));
        assert!(refused("conf", "others").contains("ceph auth get client.host1"));
        assert!(refused("conf", "long").contains("keyring of its own"));
        let client = CephClient { user: user(), conf: path("conf"), keyring: path("keyring") };
        assert_eq!(read(&client).unwrap().1.expose(), b"AAAA");
    }
}
