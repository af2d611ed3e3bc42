//! Who serves a volume while nobody looks: an instance of `strongroom-volume@.service`, which runs
//! `volume expose` with what is written in its file under /etc. Without systemd, or without root,
//! it is a person's matter.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use strongroom_types::shell_word;

use crate::error::LibvirtError;

/// The unit of all volumes; an instance is named after a volume's path, as systemd-escape writes
/// it.
const TEMPLATE: &str = "strongroom-volume@.service";
/// What the instances are to do, a file each.
const CONFIGURATION: &str = "/etc/strongroom/volumes";
/// Where they listen: every user may pass through, to sockets that they may connect to.
const SOCKETS: &str = "/run/strongroom-volumes";
/// There while systemd is the first process (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
/// The file's only variable.
const VARIABLE: &str = "ARGUMENTS=";
/// Of the log of a service that does not start.
const LOG_LINES: &str = "4";

/// The service of one volume.
#[derive(Debug)]
pub struct Service {
    volume: PathBuf,
    /// `strongroom-volume@srv-volumes-data1.service`
    unit: String,
    file: PathBuf,
}

/// Why there is no service here.
#[derive(Debug)]
pub struct NoService(&'static str);

impl NoService {
    /// What a person runs in its place.
    pub fn explain(&self, volume: &Path, words: &[String]) -> LibvirtError {
        let mut command = String::from("strongroom volume expose");
        for word in std::iter::once(&volume.to_string_lossy().into_owned()).chain(words) {
            // Writing to a String cannot fail.
            let _ = write!(command, " {}", shell_word(word));
        }
        LibvirtError::NotServed { volume: volume.to_owned(), why: self.0.to_owned(), command }
    }
}

impl Service {
    /// Whether this process can have volumes served by systemd.
    pub(crate) fn check_available() -> Result<(), NoService> {
        if !Path::new(BOOTED).is_dir() {
            return Err(NoService("there is no systemd here to have it served"));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(NoService("only root can have systemd serve it from each start of this machine on"));
        }
        Ok(())
    }

    /// The service of the volume at this absolute path, whether or not there is one yet.
    pub(crate) fn of(volume: &Path) -> Result<Self, LibvirtError> {
        let volume_word = volume.to_string_lossy();
        let unit =
            run("systemd-escape", &["--path", "--template", TEMPLATE, &volume_word])?.trim().to_owned();
        let instance = unit.trim_start_matches("strongroom-volume@").trim_end_matches(".service");
        let file = Path::new(CONFIGURATION).join(format!("{instance}.conf"));
        Ok(Self { volume: volume.to_owned(), unit, file })
    }

    /// The unit that serves this volume with a key out of a file: no longer the right one when the
    /// volume has another.
    pub fn with_key_file(volume: &Path) -> Option<String> {
        let (service, arguments) = Self::configured(volume)?;
        arguments.contains("--key-file").then_some(service.unit)
    }

    /// The unit that serves this volume: no longer the right one when the volume lies elsewhere.
    pub fn unit_of(volume: &Path) -> Option<String> {
        Self::configured(volume).map(|(service, _)| service.unit)
    }

    /// The service that was set up for a volume, and its arguments.
    fn configured(volume: &Path) -> Option<(Self, String)> {
        if !Path::new(CONFIGURATION).is_dir() {
            return None;
        }
        Self::check_available().ok()?;
        let service = Self::of(volume).ok()?;
        let text = std::fs::read_to_string(&service.file).ok()?;
        let arguments = text.lines().find_map(|line| line.strip_prefix(VARIABLE))?.to_owned();
        Some((service, arguments))
    }

    /// Its unit.
    pub(crate) fn unit(&self) -> &str {
        &self.unit
    }

    /// Where the volume of this id is served.
    pub(crate) fn socket(volume_id: &str) -> PathBuf {
        Path::new(SOCKETS).join(format!("{volume_id}.sock"))
    }

    /// Whether it was set up.
    pub(crate) fn is_set_up(&self) -> bool {
        self.file.exists()
    }

    /// Sets it up, to do as these arguments of `volume expose` say when it starts.
    pub(crate) fn set_up(&self, words: &[String]) -> Result<(), LibvirtError> {
        let text = configuration(&self.volume, words)?;
        let failed =
            |error: io::Error| LibvirtError::File { action: "write", path: self.file.clone(), error };
        std::fs::create_dir_all(CONFIGURATION).map_err(failed)?;
        strongroom_files::replace(&self.file, text.as_bytes()).map_err(failed)
    }

    /// Starts it, now and whenever this machine starts; returns when clients can connect.
    pub(crate) fn start(&self) -> Result<(), LibvirtError> {
        if run("systemctl", &["cat", TEMPLATE]).is_err() {
            return Err(LibvirtError::Service {
                said: format!(
                    "{TEMPLATE} is not installed; it comes with the package, or copy packaging/{TEMPLATE} to /etc/systemd/system and \
                     `systemctl daemon-reload`"
                ),
            });
        }
        run("systemctl", &["enable", "--quiet", &self.unit])?;
        // One that failed for something that is mended since is tried anew, however often it has
        // been.
        let _ = run("systemctl", &["reset-failed", &self.unit]);
        run("systemctl", &["start", &self.unit]).map(drop).map_err(|error| {
            let log = run(
                "journalctl",
                &["--quiet", "--output", "cat", "--lines", LOG_LINES, "--unit", &self.unit],
            );
            let log = log.unwrap_or_default().trim().replace('\n', "; ");
            let log = if log.is_empty() { log } else { format!("; its log ends: {log}") };
            match error {
                LibvirtError::Service { said } => LibvirtError::Service { said: format!("{said}{log}") },
                error => error,
            }
        })
    }

    /// Ends it, and forgets that it was.
    pub(crate) fn remove(&self) -> Result<(), LibvirtError> {
        run("systemctl", &["disable", "--quiet", "--now", &self.unit])?;
        let failed = |error| LibvirtError::File { action: "remove", path: self.file.clone(), error };
        strongroom_files::remove(&self.file).map(drop).map_err(failed)
    }
}

/// What a program says that succeeds.
fn run(program: &'static str, words: &[&str]) -> Result<String, LibvirtError> {
    let told = Command::new(program).args(words).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let told = told.map_err(|error| LibvirtError::Start { program, error })?;
    if told.status.success() {
        return Ok(String::from_utf8_lossy(&told.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&told.stderr);
    let said = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    Err(LibvirtError::Service { said: format!("{program} {}: {said}", words.first().unwrap_or(&"")) })
}

/// The file of an instance (systemd.exec(5), EnvironmentFile=; systemd.service(5), how a variable
/// is split into words).
fn configuration(volume: &Path, words: &[String]) -> Result<String, LibvirtError> {
    let mut text = format!(
        "# How {} is served; written by `strongroom vm disk attach --libvirt`, removed by `detach`.\n\
         # Arguments of `strongroom volume expose`.\n{VARIABLE}",
        one_line(&volume.to_string_lossy())
    );
    for (number, word) in words.iter().enumerate() {
        if number > 0 {
            text.push(' ');
        }
        text.push_str(&quoted(word)?);
    }
    text.push('\n');
    Ok(text)
}

/// A word in single quotes if it needs them. What would be taken for something else within is
/// refused.
fn quoted(word: &str) -> Result<String, LibvirtError> {
    if word.is_empty() || word.contains(|odd: char| odd.is_control() || "'\"\\$`".contains(odd)) {
        return Err(LibvirtError::OddName(format!("'{}'", one_line(word))));
    }
    Ok(if word.contains(char::is_whitespace) { format!("'{word}'") } else { word.to_owned() })
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_what_systemd_splits_into_the_same_words() {
        let words =
            ["--vhost-user", "unix:/run/strongroom-volumes/1.sock", "--key-file", "/root/my keys/data1.key"];
        let words = words.map(str::to_owned);
        let text = configuration(Path::new("/srv/data1"), &words).unwrap();
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "ARGUMENTS=--vhost-user unix:/run/strongroom-volumes/1.sock --key-file '/root/my keys/data1.key'"
        );
        for odd in ["it's", "a\"b", "a\\b", "$HOME", "two\nlines", ""] {
            assert!(quoted(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn without_systemd_it_is_said_what_to_run() {
        let words = ["--nbd".to_owned(), "unix:/tmp/a b.sock".to_owned()];
        let said =
            NoService("there is no systemd here to have it served").explain(Path::new("/srv/data1"), &words);
        assert_eq!(
            said.to_string(),
            "/srv/data1 is not served, and there is no systemd here to have it served; keep this running, then call again:\n  \
             strongroom volume expose /srv/data1 --nbd 'unix:/tmp/a b.sock'"
        );
    }
}
