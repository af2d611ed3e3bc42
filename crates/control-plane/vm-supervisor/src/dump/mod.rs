//! Dumps of a VM's guest: its memory as a core file, which gdb and crash read, sealed in a volume
//! of the VM's own for each.
//!
//! ```text
//! made      guest stands still > QEMU writes into a pipe > sealed, its end marked > the dump is there (`strongroom_host::dumps`) > guest goes on
//! opened    volume open > record after record verified and given to a client
//! ```
//!
//! Whoever is killed while it is made, the guest goes on: QEMU has nobody to write to any more and
//! gives up, and the supervisor that takes over waits for that. What was written has no end, and no
//! name of a dump.

mod give;
mod save;

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strongroom_host::protocol::Problem;
use strongroom_hypervisor::qmp::Transfer;
use strongroom_hypervisor::{Monitor, QmpError};
use strongroom_types::VmId;

pub use self::give::{GivenDump, give};
pub use self::save::Dumping;

/// The format of what is said of a dump.
const FORMAT: u32 = 1;
/// What a QEMU whose pipe was closed may take to give up, or to say that all is through.
const SAYS_WITHIN: Duration = Duration::from_secs(60);
/// Before it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// What is sealed with a dump, before its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    format: u32,
    /// Of which VM.
    vm: VmId,
    /// Which dump of it.
    number: u32,
    /// Since when the guest stood still for it, in seconds since 1970.
    at_unix_seconds: u64,
    /// Which QEMU wrote it.
    qemu: String,
    /// How its content is written: [`PACKED`].
    content: String,
}

/// An ELF core file, without its zeroes.
const PACKED: &str = "elf, packed";

/// Waits until QEMU dumps nothing: a machine whose dump is under way cannot go on.
///
/// # Errors
/// If it does not end.
pub fn await_none(monitor: &Monitor) -> Result<Transfer, Problem> {
    let until = Instant::now() + SAYS_WITHIN;
    loop {
        match monitor.dumped().map_err(qmp_problem)? {
            Transfer::UnderWay if Instant::now() > until => {
                return Err(Problem::new("qemu", "QEMU does not say that its dump is over"));
            }
            Transfer::UnderWay => thread::sleep(ASK_AGAIN),
            over => return Ok(over),
        }
    }
}

fn qmp_problem(error: QmpError) -> Problem {
    Problem::new("qemu", error.to_string())
}
