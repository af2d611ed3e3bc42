//! Makes a process fit to hold keys.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use strongroom_crypto::CryptoError;
use strongroom_memory::secret::{SecretBytes, SecretError};
use thiserror::Error;

/// The limit at which the kernel neither writes a core file nor starts a program for one (core(5):
/// a limit of 0 does not stop a core that is piped to a program, but 1 does).
const CORE_LIMIT_BYTES: u64 = 1;

/// The reasons why a process must not touch a key.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The kernel does not prevent other processes from reading its memory.
    #[error("the process cannot be kept out of memory dumps: {0}; no key was touched")]
    Dumpable(rustix::io::Errno),
    /// A cipher gives a wrong answer.
    #[error("a cipher failed its self-test: {0}; do not use this program on this machine")]
    SelfTest(CryptoError),
    /// There is no memory for keys.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// Makes the calling process fit to hold keys; called before the first one is read.
///
/// - It is not dumpable: it leaves no core file, and no other process of the same user can read its
///   memory or attach to it. Its children may be dumpable again, but inherit the core limit.
/// - Its ciphers give the known answers.
///
/// Warns if secrets cannot be locked into memory: they still work, but could be swapped out.
pub fn prepare_for_keys() -> Result<(), ProcessError> {
    close_memory()?;
    // The inherited limit may already be lower, and raising it takes a capability.
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

/// Prevents other processes of the same user from reading this one's memory, taking its
/// descriptors, or attaching to it: even without a key, it may hold a channel that keys pass
/// through.
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
