//! The measured products: command lines of programs that make disks and serve them over vhost-user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::error::StudyError;
use crate::programs::{line_of, option_value, run};
use crate::qemu_img;

/// A program that makes and serves disks.
pub trait Product {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Makes an empty disk of `bytes` at `place`.
    fn create(&self, place: &Path, bytes: u64) -> Result<(), StudyError>;

    /// The command that serves the disk at `place` to one guest at a time, until it is ended.
    fn serve(&self, place: &Path, socket: &Path, queues: u16) -> Command;

    /// Whether acknowledged but unflushed writes survive the killing of its processes.
    fn outlives_kill(&self) -> bool;

    /// Its first-write log, if it has one and reports it.
    fn log(&self, place: &Path) -> Result<Option<LogFacts>, StudyError>;

    /// Deletes the disk.
    fn delete(&self, place: &Path) -> Result<(), StudyError>;
}

/// The first-write log in the output of `strongroom volume info --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct LogFacts {
    /// Its capacity in bytes.
    pub size_bytes: u64,
    /// The bytes not yet destaged; `None` if not reported.
    pub used_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Info {
    log: Option<LogFacts>,
}

/// Volumes of `strongroom`, encrypted.
pub struct Strongroom {
    /// Its name in reports.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// The key of all volumes.
    pub key_file: PathBuf,
    /// Whether space is allocated on creation.
    pub thick: bool,
}

impl Strongroom {
    fn volume(&self, verb: &str, place: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["volume", verb]).arg(place);
        command
    }
}

impl Product for Strongroom {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, place: &Path, bytes: u64) -> Result<(), StudyError> {
        let mut command = self.volume("create", place);
        command.args(["--size", &bytes.to_string()]).arg("--key-file").arg(&self.key_file);
        command.args(self.thick.then_some("--thick"));
        Ok(run(&mut command).map(drop)?)
    }

    fn serve(&self, place: &Path, socket: &Path, _: u16) -> Command {
        let mut command = self.volume("expose", place);
        command.arg("--key-file").arg(&self.key_file);
        command.arg("--vhost-user").arg(format!("unix:{}", socket.display()));
        command
    }

    fn outlives_kill(&self) -> bool {
        true
    }

    fn log(&self, place: &Path) -> Result<Option<LogFacts>, StudyError> {
        let mut command = self.volume("info", place);
        command.arg("--json");
        let line = line_of(&command);
        let answer = run(&mut command)?;
        let info = serde_json::from_slice::<Info>(&answer);
        Ok(info.map_err(|error| StudyError::Answer { command: line, error })?.log)
    }

    fn delete(&self, place: &Path) -> Result<(), StudyError> {
        let mut command = self.volume("delete", place);
        command.arg("--yes");
        Ok(run(&mut command).map(drop)?)
    }
}

/// The format of a QEMU image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// qcow2 with LUKS.
    Qcow2Luks,
    /// Raw, sparse.
    Raw,
}

/// Images of QEMU's, served by its storage daemon with O_DIRECT and io_uring.
pub struct StorageDaemon {
    /// Its name in reports.
    pub name: String,
    /// The format of images.
    pub format: ImageFormat,
    /// The passphrase of all images.
    pub passphrase_file: PathBuf,
}

impl StorageDaemon {
    fn secret(&self) -> String {
        format!("secret,id=passphrase,file={}", option_value(&self.passphrase_file))
    }
}

impl Product for StorageDaemon {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, place: &Path, bytes: u64) -> Result<(), StudyError> {
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q"]);
        match self.format {
            ImageFormat::Raw => command.args(["-f", "raw"]),
            // A cheaper key derivation, which is not measured.
            ImageFormat::Qcow2Luks => {
                let key = format!(
                    "encrypt.key-secret=passphrase,encrypt.iter-time=100,encrypt.{}",
                    qemu_img::KEY_HASH
                );
                command
                    .args(["-f", "qcow2", "--object", &self.secret()])
                    .args(["-o", &format!("encrypt.format=luks,{key}")])
            }
        };
        command.arg(place).arg(bytes.to_string());
        Ok(qemu_img::create(&mut command)?)
    }

    fn serve(&self, place: &Path, socket: &Path, queues: u16) -> Command {
        let mut command = Command::new("qemu-storage-daemon");
        let (image, socket) = (option_value(place), option_value(socket));
        let file =
            format!("driver=file,node-name=file,filename={image},cache.direct=on,aio=io_uring,discard=unmap");
        let disk = match self.format {
            ImageFormat::Raw => "driver=raw,node-name=disk,file=file".to_owned(),
            ImageFormat::Qcow2Luks => {
                command.args(["--object", &self.secret()]);
                "driver=qcow2,node-name=disk,file=file,cache.direct=on,encrypt.format=luks,encrypt.key-secret=passphrase"
                    .to_owned()
            }
        };
        let export = format!(
            "vhost-user-blk,id=export,node-name=disk,writable=on,num-queues={queues},addr.type=unix,addr.path={socket}"
        );
        command.args(["--blockdev", &file, "--blockdev", &disk, "--export", &export]);
        command
    }

    /// A qcow2's tables are in the process's memory until a flush.
    fn outlives_kill(&self) -> bool {
        self.format == ImageFormat::Raw
    }

    fn log(&self, _: &Path) -> Result<Option<LogFacts>, StudyError> {
        Ok(None)
    }

    fn delete(&self, place: &Path) -> Result<(), StudyError> {
        fs::remove_file(place).map_err(|error| StudyError::File {
            action: "delete",
            path: place.to_owned(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_found_where_info_tells_of_one() {
        let log = |text: &str| serde_json::from_str::<Info>(text).unwrap().log;
        assert_eq!(log(r#"{"size_bytes": 4096}"#), None);
        assert_eq!(log(r#"{"log": null}"#), None);
        let told = LogFacts { size_bytes: 16 << 20, used_bytes: None };
        assert_eq!(log(r#"{"log": {"size_bytes": 16777216}}"#), Some(told));
        let used = LogFacts { used_bytes: Some(4096), ..told };
        assert_eq!(log(r#"{"log": {"size_bytes": 16777216, "used_bytes": 4096, "x": 1}}"#), Some(used));
    }
}
