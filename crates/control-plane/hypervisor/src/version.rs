//! Versions of QEMU, on which its arguments and commands depend.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The year of the release, as a count.
    pub major: u32,
    /// The release within the year.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
