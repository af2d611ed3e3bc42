//! The place where Strongroom keeps its files, and the clock.

use std::path::Path;
use strongroom_types::unix_seconds_now;

use super::{Finding, Root};

/// With less free space than this, in bytes, a home directory soon has no room for the audit log
/// and the inventory.
const HOME_FREE_BYTES_MIN: u64 = 1 << 30;
/// 2025-01-01 00:00 UTC. A clock before this is wrong.
const LATER_THAN_UNIX_SECONDS: u64 = 1_735_689_600;

/// The clock, on which certificates, grants and cryptoperiods depend.
pub fn clock(root: &Root) -> Finding {
    const CHECK: &str = "clock";
    let why = "certificates and grants are good for a time: grants allow 30 s of difference";
    let next = "keep it by NTP: `timedatectl set-ntp true`, or chrony";
    let now = unix_seconds_now();
    if now < LATER_THAN_UNIX_SECONDS {
        return Finding::refused(CHECK, "the clock is years behind", why, next);
    }
    // The mark of systemd-timesyncd; chrony and ntpd have files that exist as long as they run.
    let kept = ["/run/systemd/timesync/synchronized", "/run/chrony/chronyd.pid", "/run/ntpd.pid"];
    if kept.iter().any(|path| root.has(path)) {
        return Finding::ok(CHECK, "the clock is kept by NTP");
    }
    Finding::warning(CHECK, "nothing is known to keep the clock right", why, next)
}

/// Free space for a directory, which may not exist yet.
pub fn space(directory: &Path) -> Finding {
    const CHECK: &str = "space";
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let free = rustix::fs::statvfs(there).map(|space| space.f_bavail.saturating_mul(space.f_frsize));
    let place = directory.display();
    match free {
        Ok(free) if free < HOME_FREE_BYTES_MIN => Finding::warning(
            CHECK,
            format!("{} MiB are free for {place}", free >> 20),
            "a key server whose audit log cannot be written gives out no key",
            format!("make room, at least {} MiB", HOME_FREE_BYTES_MIN >> 20),
        ),
        Ok(free) => Finding::ok(CHECK, format!("{} GiB are free for {place}", free >> 30)),
        Err(errno) => Finding::refused(
            CHECK,
            format!("{place} cannot be used: {errno}"),
            "keys, inventory and logs are kept there",
            "mount it, or name another with --home",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_clock_that_is_kept_is_known_by_who_keeps_it() {
        assert_eq!(clock(&tree(&[]).1).verdict, Verdict::Warning);
        let (_kept, root) = tree(&[("/run/systemd/timesync/synchronized", "")]);
        assert_eq!(clock(&root).verdict, Verdict::Ok);
    }

    #[test]
    fn space_is_that_of_the_nearest_directory_there_is() {
        let scratch = tempfile::tempdir().unwrap();
        assert_ne!(space(&scratch.path().join("a/b")).verdict, Verdict::Refused);
    }
}
