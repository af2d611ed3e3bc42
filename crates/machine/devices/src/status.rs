//! What a device is now: a file in the run directory, which its process writes.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{DeviceError, file};
use crate::record::DeviceName;

/// The devices' directory in the run directory.
const DIRECTORY: &str = "devices";
/// The ending of a status's name.
const ENDING: &str = ".json";
/// The longest status: an error of a key provider, and a path.
const STATUS_BYTES_MAX: u64 = 64 << 10;
/// Where devices have their names.
const LINKS: &str = "/dev/strongroom";

/// What a device is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Its volume is being exposed.
    Starting,
    /// Its key is not available.
    WaitingForKey {
        /// Why.
        reason: String,
    },
    /// It can be used.
    Attached,
    /// The process that exposes its volume has ended and is started again. Requests wait.
    Interrupted {
        /// What that process said last.
        reason: String,
    },
    /// It is being detached; programs have it open.
    Detaching {
        /// Which ones.
        users: String,
    },
}

/// The status of a device that has a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The device process.
    pub pid: u32,
    /// The block device, as in `/dev/loop0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_device: Option<PathBuf>,
    /// What it is now.
    #[serde(flatten)]
    pub state: State,
}

/// The run-time files of the devices of a home.
#[derive(Clone, Debug)]
pub struct RunFiles {
    directory: PathBuf,
}

impl RunFiles {
    /// Those in this run directory.
    pub fn of_run(run: &Path) -> Self {
        Self { directory: run.join(DIRECTORY) }
    }

    /// Their directory, which is made if it is missing.
    ///
    /// # Errors
    /// [`DeviceError::File`].
    pub fn directory(&self) -> Result<&Path, DeviceError> {
        std::fs::create_dir_all(&self.directory).map_err(file("create", &self.directory))?;
        Ok(&self.directory)
    }

    /// A device's file of this kind, such as `sock`.
    pub(crate) fn file(&self, name: &DeviceName, kind: &str) -> PathBuf {
        self.directory.join(format!("{name}.{kind}"))
    }

    /// A device's name under /dev.
    pub fn link(name: &DeviceName) -> PathBuf {
        Path::new(LINKS).join(name.as_str())
    }

    /// What is said of a device; `None` if it has no process, or none that lives.
    ///
    /// # Errors
    /// [`DeviceError::File`].
    pub fn status(&self, name: &DeviceName) -> Result<Option<Status>, DeviceError> {
        let Some(holder) = Lock::holder(&self.file(name, "lock"))? else { return Ok(None) };
        // What a killed predecessor said is said until its successor says something, and so long
        // the lock's file may have its id, too.
        let holder = holder.parse().unwrap_or_default();
        let is_its_own =
            |status: &Status| status.pid == holder && Path::new(&format!("/proc/{}", status.pid)).exists();
        let status = self.last_status(name)?.filter(is_its_own);
        Ok(Some(status.unwrap_or(Status { pid: holder, block_device: None, state: State::Starting })))
    }

    /// As [`status`](Self::status), even if its process was killed.
    pub(crate) fn last_status(&self, name: &DeviceName) -> Result<Option<Status>, DeviceError> {
        let path = self.file(name, "json");
        match strongroom_files::read(&path, STATUS_BYTES_MAX) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file("read", path)(error)),
        }
    }

    pub(crate) fn say(&self, name: &DeviceName, status: &Status) -> Result<(), DeviceError> {
        let path = self.file(name, ENDING.trim_start_matches('.'));
        let text = serde_json::to_vec(status).unwrap_or_default();
        strongroom_files::replace(&path, &text).map_err(file("write", path))
    }

    pub(crate) fn forget(&self, name: &DeviceName) {
        // They say nothing without the lock.
        for kind in ["json", "sock", "notify"] {
            let _ = std::fs::remove_file(self.file(name, kind));
        }
    }

    /// The id of the process that attaches these devices.
    ///
    /// # Errors
    /// [`DeviceError::File`].
    pub fn served_by(&self) -> Result<Option<String>, DeviceError> {
        Lock::holder(&self.service_lock())
    }

    pub(crate) fn service_lock(&self) -> PathBuf {
        // No name begins so.
        self.directory.join(".service.lock")
    }
}

/// A lock that the kernel releases with its process. The file has the process's id.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "held")] File);

impl Lock {
    /// Takes it, if nobody has it.
    pub fn try_take(path: &Path) -> Result<Option<Self>, DeviceError> {
        let failed = || file("lock", path);
        let mut options = File::options();
        let mut lock =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed())?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(failed()(errno.into())),
        }
        lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())).map_err(failed())?;
        Ok(Some(Self(lock)))
    }

    /// The id of the process that has it.
    pub fn holder(path: &Path) -> Result<Option<String>, DeviceError> {
        let mut lock = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(file("open", path))?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(None),
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                lock.read_to_string(&mut pid).map_err(file("read", path))?;
                Ok(Some(pid))
            }
            Err(errno) => Err(file("lock", path)(errno.into())),
        }
    }
}
