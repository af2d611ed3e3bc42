//! How far a VM grows while it runs.

use serde::{Deserialize, Serialize};
use strongroom_types::display_bytes;
use thiserror::Error;

use crate::limits::{CPUS_MAX, MEMORY_STEP_BYTES};
use crate::{Cpus, MemorySize};

/// How many processors and how much memory a VM may have while it runs. Without a number, it has
/// what it was started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// The most processors.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 240))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cpus: Option<u32>,
    /// The most memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory_bytes: Option<MemorySize>,
}

/// Why a VM cannot grow so far.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GrowthError {
    /// Too many processors.
    #[error("a VM cannot grow to {0} CPUs; it has at most {CPUS_MAX}")]
    Cpus(u32),
    /// Fewer than it has.
    #[error("a VM with {has} CPUs cannot be limited to {most}")]
    FewerCpus {
        /// The processors that it has.
        has: u32,
        /// The most that it may have.
        most: u32,
    },
    /// Processors of several sockets or with several threads.
    #[error("only processors of one socket and with one thread can be plugged in")]
    Topology,
    /// Less than it has.
    #[error("a VM with {has} of memory cannot be limited to {most}")]
    LessMemory {
        /// The memory that it has.
        has: MemorySize,
        /// The most that it may have.
        most: MemorySize,
    },
    /// No multiple of the unit.
    #[error(
        "memory grows by multiples of {}, and {has} does not grow to {most} by these",
        display_bytes(MEMORY_STEP_BYTES)
    )]
    Step {
        /// The memory that it has.
        has: MemorySize,
        /// The memory that it is to have.
        most: MemorySize,
    },
}

impl Growth {
    /// Whether it says nothing.
    pub const fn is_none(&self) -> bool {
        self.max_cpus.is_none() && self.max_memory_bytes.is_none()
    }

    /// The most processors of a VM that is started with these.
    pub fn cpus_max(&self, cpus: Cpus) -> u32 {
        self.max_cpus.unwrap_or_default().max(cpus.count())
    }

    /// The most memory of a VM that is started with this.
    pub fn memory_max(&self, memory: MemorySize) -> MemorySize {
        self.max_memory_bytes.map_or(memory, |most| most.max(memory))
    }

    /// Checks that a VM with these processors and this memory can grow so far.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(&self, cpus: Cpus, memory: MemorySize) -> Result<(), GrowthError> {
        let Self { max_cpus, max_memory_bytes } = *self;
        if let Some(most) = max_cpus {
            let has = cpus.count();
            match most {
                _ if most > CPUS_MAX => return Err(GrowthError::Cpus(most)),
                _ if most < has => return Err(GrowthError::FewerCpus { has, most }),
                _ if most > has && (cpus.sockets, cpus.threads) != (1, 1) => {
                    return Err(GrowthError::Topology);
                }
                _ => {}
            }
        }
        match max_memory_bytes {
            Some(most) if most < memory => Err(GrowthError::LessMemory { has: memory, most }),
            Some(most) => steps(memory, most),
            None => Ok(()),
        }
    }
}

/// Checks that memory can grow from one size to another while its VM runs.
///
/// # Errors
/// [`GrowthError::Step`].
pub fn steps(has: MemorySize, most: MemorySize) -> Result<(), GrowthError> {
    match most.bytes().saturating_sub(has.bytes()).is_multiple_of(MEMORY_STEP_BYTES) {
        true => Ok(()),
        false => Err(GrowthError::Step { has, most }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_grows_within_the_limits_and_by_steps() {
        let memory = |text: &str| text.parse::<MemorySize>().unwrap();
        let to = |max_cpus, max_memory_bytes: Option<&str>| Growth {
            max_cpus,
            max_memory_bytes: max_memory_bytes.map(memory),
        };
        let check = |growth: Growth| growth.check(Cpus::of_cores(2), memory("256M"));
        for good in [to(None, None), to(Some(2), Some("256M")), to(Some(CPUS_MAX), Some("1G"))] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        let refused = |growth| check(growth).unwrap_err();
        assert_eq!(refused(to(Some(CPUS_MAX + 1), None)), GrowthError::Cpus(CPUS_MAX + 1));
        assert_eq!(refused(to(Some(1), None)), GrowthError::FewerCpus { has: 2, most: 1 });
        assert!(matches!(refused(to(None, Some("128M"))), GrowthError::LessMemory { .. }));
        let text = refused(to(None, Some("300M"))).to_string();
        assert_eq!(text, "memory grows by multiples of 128M, and 256M does not grow to 300M by these");
        let threads = Cpus { sockets: 1, cores: 1, threads: 2 };
        assert_eq!(to(Some(4), None).check(threads, memory("256M")), Err(GrowthError::Topology));
        assert_eq!(to(Some(2), None).check(threads, memory("256M")), Ok(()));
        assert_eq!(to(Some(8), None).cpus_max(Cpus::of_cores(2)), 8);
        assert_eq!(to(None, None).memory_max(memory("256M")), memory("256M"));
    }
}
