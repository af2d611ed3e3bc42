//! The processor time and memory of a server's processes, as counted by the kernel.

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::ClockId;
use serde::Serialize;

/// A process's id.
pub type ProcessId = u32;

/// A process and its descendants, itself first.
pub fn family(root: ProcessId) -> io::Result<Vec<ProcessId>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<ProcessId>().ok()) else {
            continue;
        };
        // A process that has ended meanwhile has no children.
        if let Some(parent) =
            fs::read_to_string(format!("/proc/{id}/stat")).ok().and_then(|stat| parent_in(&stat))
        {
            parents.push((id, parent));
        }
    }
    let mut family = vec![root];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(id, _)| *id));
        next += 1;
    }
    Ok(family)
}

/// The parent in a `/proc/PID/stat` (proc(5)). The name before it may contain anything, including
/// parentheses.
fn parent_in(stat: &str) -> Option<ProcessId> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Processor time of a process so far, in user mode and in the kernel, of all its threads,
/// including ended ones and io_uring's. In nanoseconds, whereas utime and stime of `/proc/PID/stat`
/// count ticks of 10 ms.
pub fn processor_time(id: ProcessId) -> io::Result<Duration> {
    let process = nix::unistd::Pid::from_raw(id.cast_signed());
    let time = ClockId::pid_cpu_clock_id(process).and_then(ClockId::now)?;
    Ok(Duration::new(time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs() as u32))
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident (RSS), including the guest's memory that it has touched.
    pub resident_bytes: u64,
    /// Its share (PSS): memory shared by two processes counts half for each.
    pub proportional_bytes: u64,
    /// Its private memory: anonymous memory, including huge pages.
    pub anonymous_bytes: u64,
}

impl Memory {
    /// The sum with another process's.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            resident_bytes: self.resident_bytes + other.resident_bytes,
            proportional_bytes: self.proportional_bytes + other.proportional_bytes,
            anonymous_bytes: self.anonymous_bytes + other.anonymous_bytes,
        }
    }

    /// The memory of an existing process.
    pub fn of(id: ProcessId) -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?))
    }

    /// Parses `/proc/PID/smaps_rollup`. Missing fields are zero.
    fn parse(text: &str) -> Self {
        let field = |name| {
            let kib = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
            kib.map_or(0, |kib: u64| kib << 10)
        };
        // The kernel's sums do not include hugetlbfs pages.
        let huge_bytes = field("Private_Hugetlb:") + field("Shared_Hugetlb:");
        Self {
            resident_bytes: field("Rss:") + huge_bytes,
            proportional_bytes: field("Pss:") + huge_bytes,
            anonymous_bytes: field("Pss_Anon:") + huge_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent_in("12 (a) b) (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12 (a"), None);
        assert_eq!(parent_in("12 (a) S"), None);
    }

    #[test]
    fn children_are_of_the_family() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let family = family(std::process::id()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(family[0], std::process::id());
        assert!(family.contains(&child.id()));
    }

    #[test]
    fn processor_time_counts_threads_that_have_ended() {
        let before = processor_time(std::process::id()).unwrap();
        let worked =
            std::thread::spawn(|| (0..4_000_000_u64).fold(1, |all, one| std::hint::black_box(all ^ one)));
        assert!(worked.join().is_ok());
        let after = processor_time(std::process::id()).unwrap();
        assert!(after - before >= Duration::from_micros(100), "{before:?} {after:?}");
        // No process has so high an id (PID_MAX_LIMIT).
        assert!(processor_time(1 << 22).is_err());
    }

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let text = "55a0-7ff0 ---p 00000000 00:00 0    [rollup]\nRss:                1024 kB\nPss:    512 kB\n\
                    Pss_Anon:            100 kB\nShared_Hugetlb:        0 kB\nPrivate_Hugetlb:    2048 kB\n";
        let memory = Memory::parse(text);
        assert_eq!(memory.resident_bytes, 3072 << 10);
        assert_eq!((memory.proportional_bytes, memory.anonymous_bytes), (2560 << 10, 2148 << 10));
        assert_eq!(Memory::parse(""), Memory::default());
        assert!(Memory::of(std::process::id()).unwrap().resident_bytes > 100 << 10);
    }
}
