//! Files in memory for two processes, which neither of them can truncate: an access to a mapping
//! never faults, whatever the other side does.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use thiserror::Error;

/// The seals that fix the size, and themselves.
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// The reasons why shared memory cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum SealedFileError {
    /// The file's size is not sealed, or differs.
    #[error("the file for shared memory is not {bytes} bytes with a sealed size")]
    NotSealed {
        /// The size that was expected.
        bytes: u64,
    },
    /// A system call failed.
    #[error("cannot {action} the file for shared memory: {errno}")]
    System {
        /// The call's purpose.
        action: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl SealedFileError {
    pub(crate) fn failed(action: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { action, errno }
    }
}

/// Makes a file of zeroes.
pub(crate) fn make_sealed_file(name: &str, bytes: u64) -> Result<OwnedFd, SealedFileError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(name, flags).map_err(SealedFileError::failed("make"))?;
    ftruncate(&file, bytes).map_err(SealedFileError::failed("size"))?;
    fcntl_add_seals(&file, SEALS).map_err(SealedFileError::failed("seal"))?;
    Ok(file)
}

/// Refuses a file that has another size, or whose size can change.
pub(crate) fn check_sealed_file(file: impl AsFd, bytes: u64) -> Result<(), SealedFileError> {
    let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
    let size = fstat(&file).map_err(SealedFileError::failed("look at"))?.st_size;
    match sealed && u64::try_from(size) == Ok(bytes) && bytes > 0 {
        true => Ok(()),
        false => Err(SealedFileError::NotSealed { bytes }),
    }
}
