//! Loop devices over the files of devices, by util-linux's losetup; and who uses one.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, major, minor};

use crate::error::DeviceError;
use crate::record::DeviceName;

/// The longest name of a process.
const COMM_BYTES_MAX: u64 = 64;

/// A loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopDevice(PathBuf);

/// A program that has a device open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A process, by its id and name.
    Process(u32, String),
    /// A mounted file system, LVM, or another driver of the kernel's.
    Kernel(String),
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(pid, name) => write!(f, "{name} (process {pid})"),
            Self::Kernel(what) => f.write_str(what),
        }
    }
}

impl LoopDevice {
    /// Makes one over `file`: direct I/O, and blocks of the volume's size.
    pub fn over(file: &Path, name: &DeviceName) -> Result<Self, DeviceError> {
        let refused = |why: String| DeviceError::Loop { name: name.clone(), why };
        let file_word = file.to_string_lossy();
        let words = ["--find", "--show", "--nooverlap", "--direct-io=on", "--sector-size=4096", &file_word];
        let made = Self(PathBuf::from(losetup(&words).map_err(refused)?.trim()));
        let uses_direct_io = made.attribute("loop/dio").is_some_and(|dio| dio == "1");
        if !made.is_over(file) || !uses_direct_io {
            made.detach();
            return Err(refused(format!(
                "{} has no direct I/O over {}; this kernel would keep its content twice in memory",
                made.0.display(),
                file.display()
            )));
        }
        Ok(made)
    }

    /// This one, if it is over `file` still.
    pub fn left(path: &Path, file: &Path) -> Option<Self> {
        Some(Self(path.to_owned())).filter(|device| device.is_over(file))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let path = Path::new("/sys/block").join(self.0.file_name()?).join(name);
        std::fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
    }

    /// Whether it is over this file. After an unmount the kernel writes "(deleted)" behind, or "/".
    pub fn is_over(&self, file: &Path) -> bool {
        self.attribute("loop/backing_file")
            .is_some_and(|backing| backing.trim_end_matches(" (deleted)") == file.to_string_lossy())
    }

    /// Whether it has a file.
    pub fn is_bound(&self) -> bool {
        self.attribute("loop/backing_file").is_some()
    }

    /// Takes it from its file; while a program has it open, when that closes it.
    pub fn detach(&self) {
        if let Err(why) = losetup(&["--detach", &self.0.to_string_lossy()]) {
            tracing::warn!("{} is not detached: {why}", self.0.display());
        }
    }

    /// The programs that use it.
    pub fn users(&self) -> Vec<User> {
        let mut users: Vec<User> = self.processes();
        let holders = Path::new("/sys/block").join(self.0.file_name().unwrap_or_default()).join("holders");
        let names = std::fs::read_dir(holders).into_iter().flatten().flatten();
        let held = names.map(|name| format!("block device {}", name.file_name().to_string_lossy()));
        users.extend(held.map(User::Kernel));
        users.extend(self.mounts().into_iter().map(|at| User::Kernel(format!("a mount at {at}"))));
        // A mount of another namespace is found so.
        let exclusive =
            File::options().read(true).custom_flags(OFlags::EXCL.bits().cast_signed()).open(&self.0);
        if users.is_empty() && exclusive.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
            users.push(User::Kernel("a mount of another namespace, or a driver".to_owned()));
        }
        users
    }

    fn processes(&self) -> Vec<User> {
        let Ok(device) = std::fs::metadata(&self.0).map(|metadata| metadata.rdev()) else {
            return Vec::new();
        };
        let is_it = |path: PathBuf| {
            std::fs::metadata(path)
                .is_ok_and(|metadata| metadata.file_type().is_block_device() && metadata.rdev() == device)
        };
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let using = processes.filter_map(|process| {
            let pid: u32 = process.file_name().to_str()?.parse().ok()?;
            let mut files = std::fs::read_dir(process.path().join("fd")).ok()?.flatten();
            files.any(|file| is_it(file.path())).then_some(())?;
            let name =
                strongroom_files::read(&process.path().join("comm"), COMM_BYTES_MAX).unwrap_or_default();
            Some(User::Process(pid, String::from_utf8_lossy(&name).trim().to_owned()))
        });
        using.collect()
    }

    fn mounts(&self) -> Vec<String> {
        let Ok(device) = std::fs::metadata(&self.0).map(|metadata| metadata.rdev()) else {
            return Vec::new();
        };
        let number = format!("{}:{}", major(device), minor(device));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let at = |line: &str| {
            let mut words = line.split(' ').skip(2);
            (words.next()? == number).then(|| words.nth(1).map(str::to_owned)).flatten()
        };
        mounts.lines().filter_map(at).collect()
    }
}

/// What losetup says that succeeds, or why it fails.
fn losetup(words: &[&str]) -> Result<String, String> {
    let told = Command::new("losetup").args(words).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let told = told.map_err(|error| format!("losetup does not start: {error}"))?;
    if told.status.success() {
        return Ok(String::from_utf8_lossy(&told.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&told.stderr).trim().to_owned())
}
