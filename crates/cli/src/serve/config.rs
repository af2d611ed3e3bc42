//! The configuration file of `serve`: one option per line.
//!
//! ```text
//! # a comment
//! listen = 10.0.0.5:5690
//! datastore = vms=/srv/vms
//! ```
//!
//! The names are those of the options of `strongroom serve`, without dashes. The command line takes
//! precedence; repeatable options are added up.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use strongroom_api::Name;
use strongroom_doctor::ProvidesKeys;
use strongroom_files::FileError;
use strongroom_hostd::checks::crypto_safe::CryptoSafeRule;

use super::backups::{BackupSettings, parse_access_log, parse_directory, parse_every, parse_keep};
use super::{NamedDatastore, parse_crypto_safe, parse_datastore, parse_guests};
use crate::error::CliError;
use crate::keyserver::parse_address;

/// The default path.
const DEFAULT_PATH: &str = "/etc/strongroom/strongroom.conf";

/// The longest file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeConfig {
    pub listen: Option<SocketAddr>,
    pub name: Option<Name>,
    pub datastores: Vec<NamedDatastore>,
    pub run: Option<PathBuf>,
    pub listen_kmip: Option<SocketAddr>,
    pub listen_enrolment: Option<SocketAddr>,
    pub listen_guests: Option<SocketAddr>,
    pub backups: BackupSettings,
    pub crypto_safe: Option<CryptoSafeRule>,
    /// Which VM provides which key provider; `doctor` cannot find this out itself.
    pub provides_keys: Vec<ProvidesKeys>,
}

impl ServeConfig {
    /// Reads a file. A missing file is an error only if a person named it.
    pub fn read(named: Option<&Path>) -> Result<Self, CliError> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let content = match strongroom_files::read(path, BYTES_MAX) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(CliError::File(FileError { action: "read", path: path.to_owned(), error }));
            }
        };
        let text = String::from_utf8(content)
            .map_err(|_| CliError::Usage(format!("{}: it is not UTF-8 text", path.display())))?;
        Self::parse(&text)
            .map_err(|(line, wrong)| CliError::Usage(format!("{}:{line}: {wrong}", path.display())))
    }

    /// Parses a text. An error has its line number, counted from 1.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut config = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            config.take(line).map_err(|wrong| (number + 1, wrong))?;
        }
        Ok(config)
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let (name, value) = line.split_once('=').ok_or_else(|| {
            format!("'{line}' is no setting; write NAME = VALUE, or begin a comment with #")
        })?;
        let (name, value) = (name.trim(), value.trim());
        if value.is_empty() {
            return Err(format!("'{name}' has no value; give it one, or take the line out"));
        }
        let taken = match name {
            "listen" => once(&mut self.listen, value, parse_address),
            "listen-kmip" => once(&mut self.listen_kmip, value, parse_address),
            "listen-enrolment" => once(&mut self.listen_enrolment, value, parse_address),
            "listen-guests" => once(&mut self.listen_guests, value, parse_guests),
            "name" => once(&mut self.name, value, |text| Name::new(text).map_err(text_of)),
            "run" => once(&mut self.run, value, absolute),
            "crypto-safe" => once(&mut self.crypto_safe, value, parse_crypto_safe),
            "backup-directory" => once(&mut self.backups.directory, value, parse_directory),
            "backup-every" => once(&mut self.backups.every_s, value, parse_every),
            "backup-keep" => once(&mut self.backups.keep, value, parse_keep),
            "backup-threshold" => {
                once(&mut self.backups.threshold, value, |text| text.parse().map_err(text_of))
            }
            "backup-access-log" => once(&mut self.backups.access_log, value, parse_access_log),
            "backup-custodian" => value.parse().map(|custodian| self.backups.custodians.push(custodian)),
            "datastore" => parse_datastore(value).map(|datastore| self.datastores.push(datastore)),
            "provides-keys" => value.parse().map(|provides| self.provides_keys.push(provides)),
            "home" => {
                return Err("'home' is for all commands and not for serve alone: set STRONGROOM_HOME, for the service in \
                            /etc/default/strongroom"
                    .to_owned());
            }
            _ => {
                return Err(format!(
                    "there is no setting '{name}'; there are listen, listen-kmip, listen-enrolment, listen-guests, name, run, datastore, backup-directory, \
                     backup-every, backup-keep, backup-custodian, backup-threshold, backup-access-log, crypto-safe and provides-keys"
                ));
            }
        };
        taken.map_err(|wrong| format!("'{name}': {wrong}"))
    }
}

/// Sets an option that is not repeatable.
fn once<T>(
    place: &mut Option<T>,
    value: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<(), String> {
    if place.is_some() {
        return Err("it is said twice; take one of the lines out".to_owned());
    }
    *place = Some(parse(value)?);
    Ok(())
}

fn text_of(error: impl Display) -> String {
    error.to_string()
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("'{text}' is not an absolute path")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_comments_are_not() {
        let config = ServeConfig::parse(
            "# Strongroom\n\nlisten = [fd00::5]:5690\n  datastore=vms=/srv/vms\ndatastore = fast=/srv/nvme\ncrypto-safe = advised\n\
             provides-keys = vault1=corp\n",
        )
        .unwrap();
        assert_eq!(config.listen, Some("[fd00::5]:5690".parse().unwrap()));
        assert_eq!(config.datastores.len(), 2);
        assert_eq!(config.crypto_safe, Some(CryptoSafeRule::Advised));
        assert_eq!(config.provides_keys[0].vm, "vault1");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_would_be_right() {
        for (text, line, says) in [
            ("listen = 1.2.3.4", 1, "'listen': '1.2.3.4' is no ADDRESS:PORT"),
            ("listen-guests = 0.0.0.0:5691", 1, "clients on other machines"),
            ("listen-kmip = 1.2.3.4:0", 1, "'listen-kmip': port 0 of '1.2.3.4:0' is any port"),
            ("\n\nlisen = 1.2.3.4:5", 3, "there is no setting 'lisen'"),
            ("name = a\nname = b", 2, "said twice"),
            ("datastore = /srv", 1, "NAME=DIR"),
            ("crypto-safe = yes", 1, "required or advised"),
            ("nonsense", 1, "NAME = VALUE"),
            ("run =", 1, "no value"),
            ("run = x", 1, "absolute"),
            ("home = /x", 1, "STRONGROOM_HOME"),
            ("provides-keys = x", 1, "VM=PROVIDER"),
            ("backup-directory = x", 1, "absolute"),
            ("backup-every = 5s", 1, "less than a minute"),
            ("backup-keep = 0", 1, "from 1 to"),
            ("backup-custodian = ada", 1, "NAME=FILE"),
        ] {
            let (number, wrong) = ServeConfig::parse(text).unwrap_err();
            assert_eq!(number, line, "{text}");
            assert!(wrong.contains(says), "{text}: {wrong}");
        }
    }

    #[test]
    fn the_documented_file_is_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/strongroom.conf");
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(ServeConfig::parse(&text), Ok(ServeConfig::default()), "everything in it is a comment");
        // The examples in the comments are valid too.
        let shown: String = text
            .lines()
            .filter_map(|line| line.strip_prefix("#"))
            .filter(|line| line.starts_with(char::is_lowercase))
            .fold(String::new(), |all, line| all + line + "\n");
        let shown = ServeConfig::parse(&shown).unwrap();
        assert!(
            shown.listen.is_some()
                && shown.crypto_safe.is_some()
                && !shown.provides_keys.is_empty()
                && shown.backups.custodians.len() == 2
        );
    }
}
