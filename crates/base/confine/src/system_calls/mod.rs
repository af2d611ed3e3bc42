//! The denial of every system call that a process does not need, on all its threads.
//!
//! Two filters, of which the kernel takes the stricter answer:
//! - A table of what is let through, with the arguments that it says. The rest is refused with an
//!   error: a library that asks for something unforeseen gets no for an answer, and a guest's I/O
//!   goes on.
//! - [`DEADLY`] ends the process. What is in it no line of the program and no library of it calls,
//!   so a process that makes one runs foreign code, and gets no second try. The kernel logs it
//!   (SIGSYS, `type=1326`).
//!
//! What is not ours, qemu-img, has the first alone: what its libraries try is not ours to know.

mod deadly;
mod monitor;
mod qemu_img;
mod supervisor;
mod worker;

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use self::deadly::DEADLY;
use super::SandboxError;

/// The architecture whose numbers the table has.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
/// The architecture whose numbers the table has.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

/// What a call's arguments, counted from 0, must be.
enum Arguments {
    /// Anything.
    Any,
    /// None of the bits.
    Without(u8, u64),
    /// All of the bits.
    With(u8, u64),
    /// One of the values, of those bits.
    Masked(u8, u64, &'static [u64]),
    /// One of the values.
    OneOf(u8, &'static [u64]),
    /// One of these options (level, name), of a socket.
    Options(&'static [(c_int, c_int)]),
    /// No pointer.
    Null(u8),
    /// The first argument is this process.
    OwnProcess,
}

/// What a process may call.
struct Table {
    allowed: &'static [(c_long, Arguments)],
    /// How the rest is refused.
    refusal: c_int,
}

/// Denies every system call that a worker does not need, on all threads of the process, for good.
/// To be called after [`super::confine`], when all threads and their rings are there: none can be
/// made any more.
///
/// On an error no guest must be served.
pub fn deny_system_calls() -> Result<(), SandboxError> {
    deny(&worker::TABLE)
}

/// The same of what the supervisor of a VM, or of a volume, does not need once others start its
/// processes. It makes threads still.
///
/// On an error no key must be touched.
pub(super) fn deny_to_supervisor() -> Result<(), SandboxError> {
    deny(&supervisor::TABLE)
}

/// The same of what a process does not need that speaks with QEMU over a socket that it has, for
/// another process at the other end of another one: nearly everything. Its threads are there.
///
/// # Errors
/// It must not read then.
pub fn deny_to_monitor() -> Result<(), SandboxError> {
    deny(&monitor::TABLE)
}

/// The filter of a qemu-img that is about to be executed, as bubblewrap reads it (`--seccomp`).
///
/// # Errors
/// If it does not compile, which a test has seen.
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
    // In this order: the second leaves no way to install another.
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

/// The rules, of which one must hold; none if all arguments will do.
fn rules_for(arguments: &Arguments) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |condition| SeccompRule::new(vec![condition]);
    let one = |argument: &u8, operator, value| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Qword, operator, value).and_then(rule)
    };
    // Where the kernel takes 32 bits of an argument, it does not look at the rest of the register.
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

    const OURS: [&Table; 3] = [&worker::TABLE, &supervisor::TABLE, &monitor::TABLE];

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
