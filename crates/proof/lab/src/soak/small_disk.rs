//! A file system that can be filled and emptied: a tmpfs in its own mount namespace, which ends
//! with its holder process.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::error::SoakError;

/// Its size.
const BYTES: u64 = 384 << 20;

/// A small file system.
#[derive(Debug)]
pub struct SmallDisk {
    holder: Child,
    place: PathBuf,
    below: PathBuf,
}

impl SmallDisk {
    /// Mounts one over the empty directory `below`. Without root it uses a user namespace.
    pub fn new(below: &Path) -> Result<Self, SoakError> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private"]);
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        let script = r#"mount -t tmpfs -o "size=$1,mode=0700" tmpfs "$0"; echo mounted; exec sleep infinity"#;
        command.args(["sh", "-euc", script]).arg(below).arg(BYTES.to_string());
        let failed = |error: io::Error| SoakError::Mount(error.to_string());
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut holder = spawned.map_err(failed)?;
        let mut line = String::new();
        if let Some(stdout) = holder.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
        }
        // The path for other processes (proc(5)).
        let root = format!("/proc/{}/root", holder.id());
        let place = Path::new(&root).join(below.strip_prefix("/").unwrap_or(below));
        let disk = Self { holder, place, below: below.to_owned() };
        if line.trim() == "mounted" {
            Ok(disk)
        } else {
            Err(SoakError::Mount("unshare or mount failed".to_owned()))
        }
    }

    /// Its path.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// The prefix of a command that must run in its namespace.
    pub fn enter(&self) -> Vec<String> {
        let mut words =
            vec!["nsenter".to_owned(), format!("--target={}", self.holder.id()), "--mount".to_owned()];
        if !rustix::process::geteuid().is_root() {
            words.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        words.push("--".to_owned());
        words
    }

    /// The path in its namespace of one of its files.
    pub fn inside(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.place).map_or_else(|_| path.to_owned(), |rest| self.below.join(rest))
    }

    /// Fills all remaining room.
    pub fn fill(&self) -> Result<(), SoakError> {
        let path = self.ballast();
        let filled = || -> io::Result<()> {
            let file = File::options().create(true).append(true).open(&path)?;
            let free = statvfs(&self.place)?.f_bavail * statvfs(&self.place)?.f_frsize;
            if free == 0 {
                return Ok(());
            }
            match fallocate(&file, FallocateFlags::empty(), file.metadata()?.len(), free) {
                // Another process took the room first; the next attempt tries again.
                Ok(()) | Err(rustix::io::Errno::NOSPC) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        };
        filled().map_err(|error| SoakError::file("fill the file system with", &path, error))
    }

    /// Frees the room.
    pub fn make_room(&self) -> Result<(), SoakError> {
        let path = self.ballast();
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SoakError::file("delete", path, error))
            }
            _ => Ok(()),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.place.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // It may already have ended by itself.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
