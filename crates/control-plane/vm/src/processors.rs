//! Virtual processors.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::CPUS_MAX;

/// Virtual processors: sockets × cores × threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Cpus {
    /// The number of sockets.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 240))]
    #[serde(default = "one")]
    pub sockets: u32,
    /// Cores in each socket.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 240))]
    #[serde(default = "one")]
    pub cores: u32,
    /// Threads in each core.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 240))]
    #[serde(default = "one")]
    pub threads: u32,
}

/// Too many processors, or none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a VM cannot have {0} CPUs; give it 1 to {CPUS_MAX}")]
pub struct CpuError(pub u32);

const fn one() -> u32 {
    1
}

impl Cpus {
    /// One socket with this many cores.
    pub const fn of_cores(cores: u32) -> Self {
        Self { sockets: 1, cores, threads: 1 }
    }

    /// The number of processors that the guest sees; saturates at the greatest number.
    pub const fn count(self) -> u32 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }

    /// Checks that a VM can have these processors.
    ///
    /// # Errors
    /// If there are none, or more than [`CPUS_MAX`].
    pub const fn check(self) -> Result<(), CpuError> {
        match self.count() {
            1..=CPUS_MAX => Ok(()),
            count => Err(CpuError(count)),
        }
    }
}

impl Default for Cpus {
    fn default() -> Self {
        Self::of_cores(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_has_one_processor_to_the_most() {
        assert_eq!(Cpus::of_cores(CPUS_MAX).check(), Ok(()));
        assert_eq!(Cpus { sockets: 2, cores: 10, threads: 12 }.check(), Ok(()));
        for (cpus, count) in [
            (Cpus::of_cores(0), 0),
            (Cpus::of_cores(CPUS_MAX + 1), CPUS_MAX + 1),
            (Cpus { sockets: u32::MAX, cores: 2, threads: u32::MAX }, u32::MAX),
        ] {
            assert_eq!(cpus.check(), Err(CpuError(count)));
        }
    }

    #[test]
    fn what_is_not_said_is_one() {
        assert_eq!(serde_json::from_str::<Cpus>(r#"{"cores":4}"#).unwrap(), Cpus::of_cores(4));
        assert!(serde_json::from_str::<Cpus>(r#"{"core":4}"#).is_err());
    }
}
