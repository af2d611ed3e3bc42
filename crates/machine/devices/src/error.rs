use std::io;
use std::path::PathBuf;

use strongroom_files::FileError;
use thiserror::Error;

use crate::record::DeviceName;

/// Why a device is not there, or not changed.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// There is no such record.
    #[error("there is no device {name}; `strongroom device list` shows those of this machine")]
    NotFound {
        /// The name.
        name: DeviceName,
    },
    /// The name is taken.
    #[error("there is a device {name} already; choose another name, or `strongroom device remove {name}`")]
    Exists {
        /// The name.
        name: DeviceName,
    },
    /// The record cannot be understood.
    #[error("{path} is not the record of a device: {why}; restore it from a backup, or remove it")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A program has it open.
    #[error("device {name} is in use by {users}; stop or unmount that first")]
    InUse {
        /// The device.
        name: DeviceName,
        /// Whom, as text.
        users: String,
    },
    /// The process that attaches devices does not run.
    #[error(
        "no service attaches devices: start `systemctl start strongroom-devices`, or keep `strongroom device serve` \
         running"
    )]
    NotServed,
    /// Another one does the same.
    #[error("process {pid} attaches the devices of {}; end it first", .home.display())]
    ServedAlready {
        /// The other one.
        pid: String,
        /// Whose devices.
        home: PathBuf,
    },
    /// The kernel has no loop device for it.
    #[error("{name} cannot become a block device: {why}")]
    Loop {
        /// The device.
        name: DeviceName,
        /// What losetup says.
        why: String,
    },
    /// The file system could not be mounted.
    #[error("cannot mount the file of device {name} at {}: {error}; /dev/fuse and CAP_SYS_ADMIN are needed", .at.display())]
    Mount {
        /// The device.
        name: DeviceName,
        /// Where.
        at: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A program of this machine could not be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// Why not.
        error: io::Error,
    },
    /// The process that exposes the volume does not keep to the protocol.
    #[error("the volume's worker is not understood: {0}")]
    Protocol(&'static str),
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel does not report what is waited for.
    #[error("cannot wait for events: {0}")]
    Wait(io::Error),
    /// A signal came first.
    #[error("interrupted")]
    Interrupted,
}

impl DeviceError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "device_not_found",
            Self::Exists { .. } => "device_exists",
            Self::Record { .. } => "device_record",
            Self::InUse { .. } => "device_in_use",
            Self::NotServed => "devices_not_served",
            Self::ServedAlready { .. } => "devices_served_already",
            Self::Loop { .. } => "loop_device",
            Self::Mount { .. } => "mount",
            Self::Start { .. } => "start",
            Self::Protocol(_) => "protocol",
            Self::File(_) => "file",
            Self::Wait(_) => "signals",
            Self::Interrupted => "interrupted",
        }
    }
}

/// The error of a file.
pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> DeviceError {
    let path = path.into();
    move |error| DeviceError::File(FileError { action, path, error })
}
