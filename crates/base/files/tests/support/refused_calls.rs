//! System calls that the kernel refuses to one thread, and to those that it starts.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// Runs `work` on a thread of its own, to which the kernel refuses this system call with `EIO`.
pub fn without<T: Send>(call: i64, work: impl FnOnce() -> T + Send) -> T {
    let refused = || {
        refuse(call);
        work()
    };
    std::thread::scope(|scope| scope.spawn(refused).join()).unwrap()
}

fn refuse(call: i64) {
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let failure = SeccompAction::Errno(libc::EIO as u32);
    let rules = BTreeMap::from([(call, Vec::new())]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, failure, architecture).unwrap();
    apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}
