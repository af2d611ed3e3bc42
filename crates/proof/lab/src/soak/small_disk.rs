//! A file system that can be filled and emptied: a tmpfs in a mount namespace of its own, which is
//! nobody else's and ends with whoever holds it.

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
    /// Makes one, over the empty directory `below`. Who is not root is root in a user namespace
    /// there.
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
        // Where others see it (proc(5)).
        let root = format!("/proc/{}/root", holder.id());
        let place = Path::new(&root).join(below.strip_prefix("/").unwrap_or(below));
        let disk = Self { holder, place, below: below.to_owned() };
        if line.trim() == "mounted" {
            Ok(disk)
        } else {
            Err(SoakError::Mount("unshare or mount failed".to_owned()))
        }
    }

    /// Where it is.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Words before a command that is to run where it is mounted.
    pub fn enter(&self) -> Vec<String> {
        let mut words =
            vec!["nsenter".to_owned(), format!("--target={}", self.holder.id()), "--mount".to_owned()];
        if !rustix::process::geteuid().is_root() {
            words.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        words.push("--".to_owned());
        words
    }

    /// What a path of it is called there.
    pub fn inside(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.place).map_or_else(|_| path.to_owned(), |rest| self.below.join(rest))
    }

    /// Takes all the room that is left.
    pub fn fill(&self) -> Result<(), SoakError> {
        let path = self.ballast();
        let filled = || -> io::Result<()> {
            let file = File::options().create(true).append(true).open(&path)?;
            let free = statvfs(&self.place)?.f_bavail * statvfs(&self.place)?.f_frsize;
            if free == 0 {
                return Ok(());
            }
            match fallocate(&file, FallocateFlags::empty(), file.metadata()?.len(), free) {
                // Somebody else was there first; the next one tries again.
                Ok(()) | Err(rustix::io::Errno::NOSPC) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        };
        filled().map_err(|error| SoakError::file("fill the file system with", &path, error))
    }

    /// Gives it back.
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
        // It may have ended by itself, which is as good.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
