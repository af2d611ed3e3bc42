//! Denies every system call that a process does not need, on all its threads.
//!
//! There are two filters, and the kernel applies the stricter result:
//! - A table of allowed calls, with conditions on their arguments. All others fail with an error: a
//!   library that makes an unforeseen call gets an error, and a guest's I/O continues.
//! - [`DEADLY`] ends the process. Neither the program nor its libraries make these calls, so a
//!   process that makes one runs foreign code, and gets no second attempt. The kernel logs it
//!   (SIGSYS, `type=1326`).
//!
//! qemu-img, a foreign program, has only the first filter: we do not know what its libraries try.

mod client;
mod deadly;
mod monitor;
mod qemu_img;
mod supervisor;
mod tpm_gate;
mod worker;

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use self::deadly::DEADLY;
use super::SandboxError;

/// The architecture of the table's numbers.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
/// The architecture of the table's numbers.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

/// Conditions on a call's arguments, which are counted from 0.
enum Arguments {
    /// No condition.
    Any,
    /// None of these bits is set.
    Without(u8, u64),
    /// All of these bits are set.
    With(u8, u64),
    /// These bits have one of the values.
    Masked(u8, u64, &'static [u64]),
    /// The argument has one of the values.
    OneOf(u8, &'static [u64]),
    /// One of these socket options (level, name).
    Options(&'static [(c_int, c_int)]),
    /// A null pointer.
    Null(u8),
    /// The first argument is this process.
    OwnProcess,
}

/// The calls that a process may make.
struct Table {
    allowed: &'static [(c_long, Arguments)],
    /// The error number of all other calls.
    refusal: c_int,
}

/// Permanently denies every system call that a worker does not need, on all threads of the process.
/// Call it after [`super::confine`], when all threads and their rings exist: no more can be made.
///
/// On an error the worker must serve no guest.
pub fn deny_system_calls() -> Result<(), SandboxError> {
    deny(&worker::TABLE)
}

/// Denies the calls that the supervisor of a VM or of a volume does not need once another process
/// starts its children. It can still make threads.
///
/// On an error the supervisor must touch no key.
pub(super) fn deny_to_supervisor() -> Result<(), SandboxError> {
    deny(&supervisor::TABLE)
}

/// Denies the calls that a client of other machines does not need: that of a storage cluster, or
/// the relay of guest data. It can still make threads, and connect.
///
/// On an error the process must not connect.
pub(super) fn deny_to_client() -> Result<(), SandboxError> {
    deny(&client::TABLE)
}

/// Denies nearly all calls to a process that relays between QEMU, over one open socket, and another
/// process, over a second one. Its threads must exist already.
///
/// # Errors
/// On an error the process must not read from QEMU.
pub fn deny_to_monitor() -> Result<(), SandboxError> {
    deny(&monitor::TABLE)
}

/// Denies nearly all calls to a process that passes bytes between QEMU and swtpm, over sockets that
/// exist already. It has one thread.
///
/// # Errors
/// On an error the process must not read from QEMU.
pub fn deny_to_tpm_gate() -> Result<(), SandboxError> {
    deny(&tpm_gate::TABLE)
}

/// The filter for executing qemu-img, as bubblewrap reads it (`--seccomp`).
///
/// # Errors
/// If it does not compile; a test checks that it does.
pub fn qemu_img_filter() -> Result<Vec<u8>, SandboxError> {
    let program = allowed(&qemu_img::TABLE)?;
    let bytes = program.iter().flat_map(|instruction| {
        let [code_low, code_high] = instruction.code.to_ne_bytes();
        let k = instruction.k.to_ne_bytes();
        [code_low, code_high, instruction.jt, instruction.jf, k[0], k[1], k[2], k[3]]
    });
    Ok(bytes.collect())
}

fn deny(table: &Table) -> Result<(), SandboxError> {
    let (deadly, allowed) = (deadly()?, allowed(table)?);
    // The order matters: after the second, no filter can be installed.
    apply_filter_all_threads(&deadly)?;
    apply_filter_all_threads(&allowed)?;
    Ok(())
}

fn deadly() -> Result<BpfProgram, Error> {
    let rules = DEADLY.iter().map(|call| (*call, Vec::new())).collect();
    compile(rules, SeccompAction::Allow, SeccompAction::KillProcess)
}

fn allowed(table: &Table) -> Result<BpfProgram, Error> {
    let mut rules = BTreeMap::new();
    for (call, arguments) in table.allowed {
        rules.insert(*call, rules_for(arguments)?);
    }
    let refuse = SeccompAction::Errno(table.refusal.cast_unsigned());
    compile(rules, refuse, SeccompAction::Allow)
}

fn compile(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, Error> {
    let filter = SeccompFilter::new(rules, otherwise, listed, ARCHITECTURE)?;
    Ok(BpfProgram::try_from(filter)?)
}

/// The rules, one of which must match; none if all arguments are allowed.
fn rules_for(arguments: &Arguments) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |condition| SeccompRule::new(vec![condition]);
    let one = |argument: &u8, operator, value| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Qword, operator, value).and_then(rule)
    };
    // If the kernel uses 32 bits of an argument, it ignores the rest of the register.
    let equal = |argument: u8, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    };
    match arguments {
        Arguments::Any => Ok(Vec::new()),
        Arguments::Without(argument, bits) => Ok(vec![one(argument, SeccompCmpOp::MaskedEq(*bits), 0)?]),
        Arguments::With(argument, bits) => Ok(vec![one(argument, SeccompCmpOp::MaskedEq(*bits), *bits)?]),
        Arguments::Masked(argument, bits, values) => {
            values.iter().map(|value| one(argument, SeccompCmpOp::MaskedEq(*bits), *value)).collect()
        }
        Arguments::OneOf(argument, values) => {
            values.iter().map(|value| equal(*argument, *value).and_then(rule)).collect()
        }
        Arguments::Options(options) => options
            .iter()
            .map(|(level, name)| {
                let (level, name) =
                    (equal(1, u64::from(level.cast_unsigned()))?, equal(2, u64::from(name.cast_unsigned()))?);
                SeccompRule::new(vec![level, name])
            })
            .collect(),
        Arguments::Null(argument) => Ok(vec![one(argument, SeccompCmpOp::Eq, 0)?]),
        Arguments::OwnProcess => Ok(vec![equal(0, u64::from(std::process::id())).and_then(rule)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [&Table; 5] =
        [&worker::TABLE, &supervisor::TABLE, &monitor::TABLE, &tpm_gate::TABLE, &client::TABLE];

    #[test]
    fn every_filter_compiles() {
        assert!(deadly().unwrap().len() < libc::BPF_MAXINSNS as usize);
        for table in OURS.into_iter().chain([&qemu_img::TABLE]) {
            assert!(allowed(table).unwrap().len() < libc::BPF_MAXINSNS as usize);
        }
        assert_eq!(qemu_img_filter().unwrap().len() % 8, 0);
    }

    #[test]
    fn no_call_is_listed_twice() {
        let listed = |table: &Table| table.allowed.iter().map(|(call, _)| *call).collect::<Vec<_>>();
        let ours = OURS.map(|table| listed(table).into_iter().chain(DEADLY.iter().copied()).collect());
        for mut calls in ours.into_iter().chain([listed(&qemu_img::TABLE)]) {
            let count = calls.len();
            calls.sort_unstable();
            calls.dedup();
            assert_eq!(calls.len(), count);
        }
    }
}
