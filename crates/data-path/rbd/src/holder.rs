//! Who holds a lock: a process of a machine, by its name in the lock.

use std::sync::OnceLock;

use rustix::process::getpid;
use uuid::Uuid;

/// A process, as long as its machine runs. Its text is the beginning of the cookies of its locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    boot: String,
    pid: u32,
    /// When it was started, in ticks since boot: process ids are used again.
    started: u64,
}

impl Holder {
    /// This process.
    pub(crate) fn own() -> &'static Self {
        static OWN: OnceLock<Holder> = OnceLock::new();
        OWN.get_or_init(|| {
            let pid = getpid().as_raw_nonzero().get().unsigned_abs();
            Self { boot: boot_id(), pid, started: started_at(pid).unwrap_or_default() }
        })
    }

    /// Whether it has a name of its own. Two without one would take each other's locks for their
    /// own machine's.
    pub(crate) fn is_known(&self) -> bool {
        !self.boot.is_empty() && self.started > 0
    }

    /// The boot of its machine, by the kernel's random name.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// The machine's name for itself, which no boot changes; empty if it has none.
    pub(crate) fn machine(&self) -> &str {
        static MACHINE: OnceLock<String> = OnceLock::new();
        MACHINE.get_or_init(|| {
            let read = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
            read.trim().replace([' ', '/'], "")
        })
    }

    /// A name for one of its locks that no other lock has.
    pub(crate) fn cookie(&self) -> String {
        format!("{}/{}/{}/{}", self.boot, self.pid, self.started, Uuid::new_v4().simple())
    }

    /// The process that a lock's cookie names.
    pub(crate) fn of_cookie(cookie: &str) -> Option<Self> {
        let mut parts = cookie.split('/');
        let boot = parts.next()?.to_owned();
        let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { boot, pid, started })
    }

    /// Its process id, if it runs on this machine.
    pub(crate) fn local_pid(&self) -> Option<u32> {
        (self.boot == Self::own().boot).then_some(self.pid)
    }

    /// Whether it is known to have ended: it ran on this machine since the last boot, and does not
    /// any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.local_pid().is_some_and(|pid| started_at(pid) != Some(self.started) || is_dead(pid))
    }
}

/// Whether nothing is left of a process but what its parent may ask of it: a killed one has ended,
/// whenever its parent asks.
fn is_dead(pid: u32) -> bool {
    let is_zombie = stat_of(pid).is_some_and(|fields| fields.starts_with(['Z', 'X']));
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    is_zombie && threads <= 1
}

fn boot_id() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    read.trim().to_owned()
}

/// When a process was started.
fn started_at(pid: u32) -> Option<u64> {
    stat_of(pid)?.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The fields of a process's `stat` from the third one on. The second one may contain anything.
fn stat_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_again_by_its_cookie() {
        let own = Holder::own();
        let found = Holder::of_cookie(&own.cookie()).unwrap();
        assert_eq!(&found, own);
        assert!(own.is_known() && !found.has_ended());
        assert_eq!(found.local_pid(), Some(std::process::id()));
    }

    #[test]
    fn a_process_id_that_is_used_again_is_another_process() {
        let own = Holder::own();
        assert!(Holder { started: own.started + 1, ..own.clone() }.has_ended());
    }

    #[test]
    fn a_killed_process_has_ended_before_its_parent_has_asked() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let holder = Holder { pid, started: started_at(pid).unwrap(), ..Holder::own().clone() };
        assert!(!holder.has_ended());
        child.kill().unwrap();
        while !holder.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(holder.has_ended());
    }

    #[test]
    fn nothing_is_known_of_processes_of_other_machines() {
        let other = Holder { boot: "another".to_owned(), pid: 1, started: 0 };
        assert_eq!((other.local_pid(), other.has_ended()), (None, false));
        assert_eq!(Holder::of_cookie("someone"), None);
    }
}
