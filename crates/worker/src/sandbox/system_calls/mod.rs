//! The denial of every system call that a worker does not need, on all its threads.
//!
//! Two filters, of which the kernel takes the stricter answer:
//! - [`table::ALLOWED`] lets through what is in it, with the arguments that it says. The rest is answered EPERM: a
//!   library that asks for something unforeseen gets an error, and a guest's I/O goes on.
//! - [`table::DEADLY`] ends the process. What is in it no line of the program and no library of it calls, so whoever
//!   does runs code that is not ours, and gets no second try. The kernel logs it (SIGSYS, `type=1326`).

mod table;

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use self::table::{ALLOWED, Arguments, DEADLY};
use super::SandboxError;

/// The architecture whose numbers the table has.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
/// The architecture whose numbers the table has.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

/// Denies every system call that a worker does not need, on all threads of the process, for good. To be called after
/// [`super::confine`], when all threads and their rings are there: none can be made any more.
///
/// On an error no guest must be served.
pub fn deny_system_calls() -> Result<(), SandboxError> {
    let (deadly, allowed) = (deadly()?, allowed()?);
    // In this order: the second leaves no way to install another.
    apply_filter_all_threads(&deadly)?;
    apply_filter_all_threads(&allowed)?;
    Ok(())
}

fn deadly() -> Result<BpfProgram, Error> {
    let rules = DEADLY.iter().map(|call| (*call, Vec::new())).collect();
    compile(rules, SeccompAction::Allow, SeccompAction::KillProcess)
}

fn allowed() -> Result<BpfProgram, Error> {
    let mut rules = BTreeMap::new();
    for (call, arguments) in ALLOWED {
        rules.insert(*call, rules_for(arguments)?);
    }
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
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

    #[test]
    fn both_filters_compile() {
        assert!(deadly().unwrap().len() < libc::BPF_MAXINSNS as usize);
        assert!(allowed().unwrap().len() < libc::BPF_MAXINSNS as usize);
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut calls: Vec<_> = ALLOWED.iter().map(|(call, _)| *call).chain(DEADLY.iter().copied()).collect();
        let count = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), count);
    }
}
