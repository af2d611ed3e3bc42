//! Making a process fit to hold keys.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use strongroom_crypto::CryptoError;
use strongroom_memory::secret::{SecretBytes, SecretError};
use thiserror::Error;

/// The limit at which the kernel writes no core file, and starts no program for one either
/// (core(5): a limit of 0 does not stop a core that is piped to a program, and 1 does).
const CORE_LIMIT_BYTES: u64 = 1;

/// Why a process must not touch a key.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The kernel does not keep others from reading its memory.
    #[error("the process cannot be kept out of memory dumps: {0}; no key was touched")]
    Dumpable(rustix::io::Errno),
    /// A cipher answers wrongly.
    #[error("a cipher failed its self-test: {0}; do not use this program on this machine")]
    SelfTest(CryptoError),
    /// There is no memory for keys.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// Makes the calling process fit to hold keys; called before the first one is read.
///
/// - It is not dumpable: no core file, and no other process of the same user reads its memory or
///   attaches to it. What it starts may be dumpable again, and has the limit.
/// - Its ciphers give the known answers.
///
/// Warns where secrets cannot be locked into memory: they still work, but could be swapped out.
pub fn prepare_for_keys() -> Result<(), ProcessError> {
    close_memory()?;
    // The parent may have had less, and it takes a right to have more again.
    let most = getrlimit(Resource::Core).maximum.map_or(CORE_LIMIT_BYTES, |most| most.min(CORE_LIMIT_BYTES));
    setrlimit(Resource::Core, Rlimit { current: Some(most), maximum: Some(most) })
        .map_err(ProcessError::Dumpable)?;
    strongroom_crypto::self_test::self_test().map_err(ProcessError::SelfTest)?;
    if !SecretBytes::zeroed(1)?.is_locked() {
        tracing::warn!(
            "keys cannot be locked into memory and may be swapped out; raise the limit of locked memory \
             (ulimit -l, LimitMEMLOCK=) or turn swap off"
        );
    }
    Ok(())
}

/// Keeps other processes of the same user from reading the memory of this one, taking its
/// descriptors, or attaching to it: what it holds may be the way of a key, if not a key.
pub fn close_memory() -> Result<(), ProcessError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(ProcessError::Dumpable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prepared_process_is_not_dumpable_and_leaves_no_core() {
        prepare_for_keys().unwrap();
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        let core = rustix::process::getrlimit(Resource::Core);
        assert!(core.current <= Some(CORE_LIMIT_BYTES) && core.maximum == core.current, "{core:?}");
    }
}
