//! Making images with qemu-img whose key is derived from a passphrase.

use std::process::Command;

use crate::programs::{ProgramError, run};

/// The hash of an image's key derivation where that is not measured. qemu-img calibrates the
/// derivation, and gives up ("unable to get accurate CPU usage") if it is too fast for the kernel's
/// clock of processor time: with SHA-256 in hardware it often or always fails. SHA-512 is slow
/// enough, and is used for nothing else.
pub const KEY_HASH: &str = "hash-alg=sha512";

/// How often making an image is tried, because the first attempt may fail.
const CREATE_ATTEMPTS: u32 = 10;

/// Makes an image with this command, which may be repeated.
pub fn create(command: &mut Command) -> Result<(), ProgramError> {
    for _ in 1..CREATE_ATTEMPTS {
        if run(command).is_ok() {
            return Ok(());
        }
    }
    run(command).map(drop)
}
