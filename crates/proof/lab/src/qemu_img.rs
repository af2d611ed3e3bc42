//! How qemu-img is asked for images whose key is derived from a passphrase.

use std::process::Command;

use crate::programs::{ProgramError, run};

/// What an image's key is derived with where deriving it is not what is measured. qemu-img finds
/// out how fast it derives keys, and gives up ("unable to get accurate CPU usage") where that takes
/// less than the kernel's clock of processor time can tell: with SHA-256 in hardware that is every
/// other time, or each. SHA-512 is slow enough, and nothing else is hashed with it.
pub const KEY_HASH: &str = "hash-alg=sha512";

/// How often an image is tried to be made, as some are not at the first.
const CREATE_ATTEMPTS: u32 = 10;

/// Makes an image by this command, which can be given again.
pub fn create(command: &mut Command) -> Result<(), ProgramError> {
    for _ in 1..CREATE_ATTEMPTS {
        if run(command).is_ok() {
            return Ok(());
        }
    }
    run(command).map(drop)
}
