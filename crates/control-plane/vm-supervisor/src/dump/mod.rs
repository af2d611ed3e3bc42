//! Dumps of a guest: its memory as a core file for gdb and crash, each sealed in one of the VM's
//! own volumes.
//!
//! ```text
//! made      guest stands still > QEMU writes into a pipe > sealed, its end marked > the dump is there (`strongroom_host::dumps`) > guest goes on
//! opened    volume open > record after record verified and given to a client
//! ```
//!
//! If a process is killed meanwhile, the guest continues: QEMU's dump fails because its pipe has no
//! reader, and the supervisor that takes over waits for that. The unfinished volume has no end
//! mark, and no dump's name.

mod give;
mod save;

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strongroom_host::protocol::Problem;
use strongroom_hypervisor::Monitor;
use strongroom_hypervisor::qmp::Transfer;
use strongroom_types::VmId;

pub use self::give::{GivenDump, give};
pub use self::save::Dumping;
use crate::transfer::qmp_problem;

/// The format of a dump's description.
const FORMAT: u32 = 1;
/// How long a QEMU whose pipe was closed may take to fail or complete its dump.
const SAYS_WITHIN: Duration = Duration::from_secs(60);
/// The interval between queries.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// The description that is sealed in front of a dump's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    format: u32,
    /// The VM.
    vm: VmId,
    /// The dump's number.
    number: u32,
    /// When the guest was paused for it, in seconds since 1970.
    at_unix_seconds: u64,
    /// The version of the QEMU that wrote it.
    qemu: String,
    /// The encoding of its content: [`PACKED`].
    content: String,
}

/// An ELF core file without its zeroes.
const PACKED: &str = "elf, packed";

/// Waits until QEMU is not dumping: a machine cannot resume during a dump.
///
/// # Errors
/// If the dump does not end in time.
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
