//! Disk images of other programs, read and written without trusting them.
//!
//! Raw images are copied by [`strongroom_worker::transfer`]. Other formats are complex, were not
//! designed for hostile input, and can name further files to read, so they are left to `qemu-img`,
//! in a [`sandbox`] that contains only the one image and a socket. Guest data passes through that
//! socket ([`socket`]) and never through a file of ours. An image that is no file here is served to
//! the sandbox at another socket.
//!
//! - [`format`](mod@format): which format an image has, and when it must be given. `container`:
//!   other files that hold a disk and are not imported, and how to convert them.
//! - [`references`]: an image's references to other files, read by us before any other program
//!   opens the image.
//! - `place`: where an image's bytes are.
//! - [`source`]: examines an image, and copies its content into a disk. [`qemu_img`]: the commands
//!   of `qemu-img` that are used, and how its answers are read.
#![forbid(unsafe_code)]

mod container;
pub mod format;
mod place;
pub mod qemu_img;
mod references;
mod sandbox;
mod socket;
mod source;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_frontend::listen::ListenError;
use strongroom_frontend::nbd::{StartError, StopError};
use strongroom_ring::RingError;
use strongroom_types::SizeError;
use strongroom_worker::TransferError;
use thiserror::Error;

pub use format::{Format, FormatChoice};
pub use place::{ImageBytes, RemoteImage};
pub use socket::ServedDisk;
pub use source::ImageSource;

/// How the caller of a copy cancels it.
#[derive(Clone, Copy, Debug)]
pub struct Stop<'a> {
    /// Set when the copy is cancelled.
    pub flag: &'a AtomicBool,
    /// Readable when the copy is cancelled, after the flag is set.
    pub wake: BorrowedFd<'a>,
}

impl Stop<'_> {
    fn came(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

/// The reasons why an image is not read or written.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The format is not certain.
    #[error(
        "cannot tell the format of {path} for certain: {reason}; say it with --format raw, qcow2, vmdk or vhdx"
    )]
    UnknownFormat {
        /// The image.
        path: PathBuf,
        /// Why it is not guessed.
        reason: String,
    },
    /// It holds a disk in a form that is not imported.
    #[error("{path} {advice}")]
    NotImported {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do with it.
        advice: String,
    },
    /// As [`Self::NotImported`], or a raw image that its guest has made look like that.
    #[error(
        "by its content {path} {advice}; if it is a disk's own bytes, whose guest wrote that, say --format raw"
    )]
    LooksContained {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do with it.
        advice: String,
    },
    /// The image does not have the stated format.
    #[error(
        "{path} is not a {format} image: {reason}; name its format with --format, or get another copy of it"
    )]
    OtherFormat {
        /// The image.
        path: PathBuf,
        /// The stated format.
        format: Format,
        /// What is wrong.
        reason: String,
    },
    /// The image refers to other files.
    #[error(
        "{path} refers to another file, '{name}' ({role}), which could be any file of this machine; nothing was read \
         from it. Make one that refers to none, where you trust it: qemu-img convert -O qcow2 {path} WHOLE.qcow2"
    )]
    Refers {
        /// The image.
        path: PathBuf,
        /// The name of the other file.
        name: String,
        /// Its role.
        role: &'static str,
    },
    /// The image itself is encrypted.
    #[error("{path} is encrypted itself; decrypt it first with the program that made it")]
    Encrypted {
        /// The image.
        path: PathBuf,
    },
    /// The image is truncated or damaged.
    #[error("{path} is damaged or incomplete; get another copy of it. qemu-img check says: {message}")]
    Damaged {
        /// The image.
        path: PathBuf,
        /// What was found, shortened.
        message: String,
    },
    /// A required program is missing.
    #[error("{program} is missing; install it with: apt install {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// Debian's package that has it.
        package: &'static str,
    },
    /// `qemu-img` or its sandbox failed.
    #[error("qemu-img cannot {action} {path}: {message}{}", next_of_qemu_img(action))]
    QemuImg {
        /// What was tried, as in "read".
        action: &'static str,
        /// The image.
        path: PathBuf,
        /// Its message, shortened.
        message: String,
    },
    /// There is no room for the output.
    #[error("no space left on device")]
    NoSpace,
    /// The sandbox cannot be set up.
    #[error("cannot {action}: {error}")]
    Sandbox {
        /// What was tried, as in "start bwrap".
        action: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// The image cannot be read.
    #[error("cannot {action} {path}: {error}")]
    File {
        /// What was tried, as in "examine".
        action: &'static str,
        /// The image.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// No volume can have the size of its disk.
    #[error("{path} cannot become a volume: {error}{next}")]
    Size {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        error: SizeError,
        /// What to do about it, if anything.
        next: String,
    },
    /// The disk that is read or written failed.
    #[error("the volume failed: {0}")]
    Disk(TransferError),
    /// The disk cannot be served to `qemu-img`.
    #[error("cannot serve the volume to qemu-img: {0}")]
    Serve(#[from] ServeError),
    /// It was cancelled.
    #[error("interrupted")]
    Interrupted,
}

/// The reasons why a disk cannot be served to `qemu-img`, or is not durable afterwards.
#[derive(Debug, Error)]
pub enum ServeError {
    /// There is no socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There are no threads.
    #[error(transparent)]
    Lanes(#[from] RingError),
    /// The server does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The written data is not durable.
    #[error(transparent)]
    Stop(#[from] StopError),
}

fn next_of_qemu_img(action: &str) -> &'static str {
    match action {
        "read" => "; if the image should be whole, get another copy of it",
        _ => "",
    }
}

impl ImageError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownFormat { .. } => "image_format_unknown",
            Self::NotImported { .. } | Self::LooksContained { .. } => "image_not_imported",
            Self::OtherFormat { .. } => "image_format",
            Self::Refers { .. } => "image_refers_to_other_file",
            Self::Encrypted { .. } => "image_encrypted",
            Self::Damaged { .. } => "image_damaged",
            Self::Missing { .. } => "program_missing",
            Self::QemuImg { .. } => "qemu_img",
            Self::NoSpace => "full",
            Self::Sandbox { .. } => "sandbox",
            Self::File { .. } => "file",
            Self::Size { .. } => "size",
            Self::Disk(_) => "transfer",
            Self::Serve(_) => "start",
            Self::Interrupted => "interrupted",
        }
    }
}
