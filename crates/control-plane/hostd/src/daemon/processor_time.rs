//! The processor time of a guest: what the kernel counts for the threads of its QEMU that run
//! virtual processors.
//!
//! QEMU names these threads (`debug-threads=on`). One that is owned can give any of its threads
//! such a name; that makes the figures of its own VM wrong, and no others.

use std::fs;
use std::path::Path;

use strongroom_host::process::ProcessIdentity;
use strongroom_host::protocol::ProcessorStatistics;
use strongroom_types::unix_milliseconds_now;

/// The most threads of a QEMU that are looked at: those of the largest VM, and as many again that
/// serve it.
const THREADS_MAX: usize = 512;

/// The processor time of the guest of a QEMU; `None` if it has ended, or if the kernel does not
/// say.
pub fn of(qemu: ProcessIdentity) -> Option<ProcessorStatistics> {
    let counted = of_threads(Path::new(&format!("/proc/{}/task", qemu.pid)))?;
    // Otherwise they may have been another process's.
    qemu.is_alive().then_some(counted)
}

fn of_threads(threads: &Path) -> Option<ProcessorStatistics> {
    let mut sum =
        ProcessorStatistics { read_unix_ms: unix_milliseconds_now(), vcpus: 0, run_ns: 0, wait_ns: 0 };
    for thread in fs::read_dir(threads).ok()?.take(THREADS_MAX).flatten() {
        let of = |file: &str| fs::read_to_string(thread.path().join(file)).ok();
        // One that has just ended has no files.
        if !of("comm").is_some_and(|name| is_vcpu(&name)) {
            continue;
        }
        let Some((run_ns, wait_ns)) = of("schedstat").as_deref().and_then(times) else { continue };
        sum.vcpus += 1;
        sum.run_ns = sum.run_ns.saturating_add(run_ns);
        sum.wait_ns = sum.wait_ns.saturating_add(wait_ns);
    }
    // A kernel that does not count says 0 of each.
    (sum.run_ns > 0).then_some(sum)
}

/// Whether a thread runs a virtual processor: `CPU 0/KVM`, `CPU 0/TCG`.
fn is_vcpu(name: &str) -> bool {
    let number = name.trim_end().strip_prefix("CPU ").and_then(|rest| rest.split_once('/'));
    number.is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// For how long a thread has run, and for how long it has waited for a processor, in nanoseconds
/// (`schedstat`, Documentation/scheduler/sched-stats.rst of the kernel).
fn times(schedstat: &str) -> Option<(u64, u64)> {
    let mut fields = schedstat.split_ascii_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(threads: &Path, id: u32, name: &str, schedstat: Option<&str>) {
        let thread = threads.join(id.to_string());
        fs::create_dir(&thread).unwrap();
        fs::write(thread.join("comm"), name).unwrap();
        schedstat.into_iter().for_each(|text| fs::write(thread.join("schedstat"), text).unwrap());
    }

    #[test]
    fn the_times_of_virtual_processors_are_added_up_and_no_others() {
        let threads = tempfile::tempdir().unwrap();
        let at = threads.path();
        thread(at, 1, "qemu-system-x86\n", Some("900 800 7\n"));
        thread(at, 2, "CPU 0/KVM\n", Some("100 20 3\n"));
        thread(at, 3, "CPU 11/KVM\n", Some("50 5 3\n"));
        thread(at, 4, "CPU x/KVM\n", Some("7000 0 0\n"));
        thread(at, 5, "CPU 2/KVM\n", Some("none"));
        thread(at, 6, "CPU 3/KVM\n", None);
        let told = of_threads(at).unwrap();
        assert_eq!((told.vcpus, told.run_ns, told.wait_ns), (2, 150, 25));
    }

    #[test]
    fn a_kernel_that_does_not_count_and_a_process_that_is_gone_say_nothing() {
        let threads = tempfile::tempdir().unwrap();
        thread(threads.path(), 2, "CPU 0/KVM\n", Some("0 0 0\n"));
        assert_eq!(of_threads(threads.path()), None);
        let own = ProcessIdentity::own().unwrap();
        assert_eq!(of(ProcessIdentity { start_ticks: own.start_ticks + 1, ..own }), None);
        // This process has no virtual processors.
        assert_eq!(of(own), None);
    }

    #[test]
    fn a_thread_that_is_busy_is_counted() {
        let busy = std::thread::Builder::new().name("CPU 0/TCG".to_owned());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let busy = busy.spawn(move || while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {});
        let own = ProcessIdentity::own().unwrap();
        let mut before = 0;
        // Until it has grown twice.
        for _ in 0..2 {
            before = loop {
                match of(own) {
                    Some(now) if now.run_ns > before => break now.run_ns,
                    _ => std::thread::yield_now(),
                }
            };
        }
        drop(end);
        busy.unwrap().join().unwrap();
    }
}
