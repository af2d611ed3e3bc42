//! The binding of librados and librbd: the room of the crate that has `unsafe`.
//!
//! Calls block until the cluster has answered, which it may never do; only the asynchronous ones of
//! an [`Image`] return at once. No call is made while a lock of this crate is held that another
//! thread needs to make progress.
#![allow(unsafe_code, reason = "calls C libraries")]

mod change;
mod cluster;
mod image;
mod library;
mod object;
mod redundancy;
mod requests;
mod space;

use std::ffi::{CString, c_int};

use rustix::io::Errno;
use thiserror::Error;

pub use change::{Change, Step};
pub use cluster::{Cluster, ClusterConf, ClusterOptions, GivenConf, PARAMETERS};
pub use image::{
    Image, ImageAccess, ImageShape, OBJECT_BYTES, create_image, make_namespace, make_trash, remove_image,
};
pub use library::load;
pub use object::{LockKind, Pool};
pub use requests::{Ended, Refused, Requests, Submission};

/// Why a cluster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CephError {
    /// A library of Ceph is missing, or too old.
    #[error("cannot load {library}: {reason}; install librbd1 of Ceph 16 or newer")]
    Library {
        /// The library's file name.
        library: &'static str,
        /// The loader's message.
        reason: String,
    },
    /// This host's user was fenced.
    #[error(
        "this host, which is {user} to the cluster, was declared lost, and the cluster refuses it; restart \
         its machine, then let it in again: `strongroom host admit HOST`"
    )]
    Fenced {
        /// The user.
        user: String,
    },
    /// The process cannot be told from others.
    #[error("this process cannot read its boot id and its start; mount /proc for it")]
    Nameless,
    /// A call failed.
    #[error("cannot {action}: {errno}")]
    Call {
        /// What was to be done.
        action: String,
        /// The error of the library.
        errno: Errno,
    },
}

impl CephError {
    fn call(action: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        let action = action.into();
        move |errno| Self::Call { action, errno }
    }
}

/// The result of a call that returns zero or a count, or an error number below zero.
fn checked(returned: c_int) -> Result<u32, Errno> {
    u32::try_from(returned).map_err(|_| Errno::from_raw_os_error(returned.saturating_neg()))
}

/// As [`checked`], for a call that returns a count of bytes.
fn checked_size(returned: isize) -> Result<usize, Errno> {
    let failed = |_| Errno::from_raw_os_error(i32::try_from(returned.saturating_neg()).unwrap_or(5));
    usize::try_from(returned).map_err(failed)
}

/// A C string, or `EINVAL` for a text with a zero byte.
fn c_string(text: &str) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno::INVAL)
}
