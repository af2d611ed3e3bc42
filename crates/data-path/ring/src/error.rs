//! The errors of making a ring.

use rustix::io::Errno as Raw;
use strongroom_io::{Errno, IoError};
use thiserror::Error;

/// The reasons why a ring cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// The kernel does not offer io_uring to this process (ENOSYS, EPERM, EACCES).
    #[error(
        "io_uring is not available to this process ({0}). Usual reasons: the sysctl kernel.io_uring_disabled is not \
         0, or a container's seccomp profile forbids io_uring_setup. Allow one or the other and start again"
    )]
    Forbidden(Errno),
    /// The kernel's io_uring lacks a feature that has no substitute.
    #[error("the kernel's io_uring is too old: it lacks {0}. Linux 5.11 is the least, 6.1 is recommended")]
    TooOld(&'static str),
    /// Out of locked memory or file descriptors (ENOMEM, EMFILE, ENFILE).
    #[error(
        "no room for an io_uring of {entries} entries ({errno}): raise RLIMIT_MEMLOCK (ulimit -l, \
         LimitMEMLOCK=; all of a user's processes share it) or RLIMIT_NOFILE, or use a smaller depth"
    )]
    NoRoom {
        /// Requested submission entries.
        entries: u32,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel refused for another reason.
    #[error("io_uring cannot be set up: {0}")]
    Refused(Errno),
    /// Its thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(Errno),
    /// The waker of the thread could not be made.
    #[error("no event for waking the thread: {0}")]
    Waker(#[source] IoError),
}

impl RingError {
    /// Converts the error of a failed setup with `entries` entries.
    pub(crate) fn of_setup(entries: u32, error: &std::io::Error) -> Self {
        let raw = Raw::from_io_error(error).unwrap_or(Raw::IO);
        let errno = Errno(raw.raw_os_error());
        match raw {
            Raw::NOSYS | Raw::PERM | Raw::ACCESS => RingError::Forbidden(errno),
            Raw::NOMEM | Raw::MFILE | Raw::NFILE => RingError::NoRoom { entries, errno },
            _ => RingError::Refused(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_ring_names_the_sysctl_and_seccomp() {
        for raw in [Raw::NOSYS, Raw::PERM] {
            let error = RingError::of_setup(8, &raw.into());
            assert_eq!(error, RingError::Forbidden(Errno(raw.raw_os_error())));
            let text = error.to_string();
            assert!(text.contains("kernel.io_uring_disabled") && text.contains("seccomp"), "{text}");
        }
    }

    #[test]
    fn a_lack_of_memory_names_the_limit() {
        let text = RingError::of_setup(4096, &Raw::NOMEM.into()).to_string();
        assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("4096"), "{text}");
    }
}
