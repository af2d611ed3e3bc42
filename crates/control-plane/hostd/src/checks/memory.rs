//! Ways in which the memory of guests and keys can reach a disk: swap, crash dumps of the kernel,
//! hibernation. Also two that are often suspected: piped core dumps, and merged memory.

use std::path::Path;

use super::storage::{BlockDevice, Sealing, Support, support};
use super::{Finding, Root, Verdict};

const WHY: &str = "memory of guests and keys can come to a disk, where whoever gets at the disk later reads them without any key";

/// All of these checks.
pub fn findings(root: &Root) -> Vec<Finding> {
    let mut findings = leaks(root);
    findings.extend([core_dumps(root), merged_memory(root)]);
    findings
}

/// The checks that decide whether this machine is crypto-safe.
pub(super) fn leaks(root: &Root) -> Vec<Finding> {
    vec![swap(root), crash_dumps(root), hibernation(root)]
}

/// The devices and files that memory is swapped out to.
fn swaps(root: &Root) -> Option<Vec<(String, Sealing)>> {
    let told = root.read("/proc/swaps")?;
    let swap = |line: &str| {
        let (name, kind) = (line.split_whitespace().next()?, line.split_whitespace().nth(1)?);
        // The kernel writes a space in a path as an octal number. A swap file is encrypted if its
        // file system is.
        let path = Path::new(name);
        let under = match kind {
            "file" => support(root, path),
            _ => BlockDevice::of_path(root, path)
                .map_or_else(|| Support::Other(name.to_owned()), Support::Device),
        };
        Some((name.to_owned(), under.sealing(root)))
    };
    Some(told.lines().skip(1).filter_map(swap).collect())
}

fn swap(root: &Root) -> Finding {
    const CHECK: &str = "swap";
    let next = "`swapoff -a`, and take its line out of /etc/fstab; or have it on dm-crypt with a random key (crypttab(5): `swap`), or in \
                zram without a backing device";
    let Some(swaps) = swaps(root) else {
        return Finding::refused(CHECK, "/proc/swaps cannot be read, so there may be swap", WHY, next);
    };
    let clear: Vec<_> = swaps
        .iter()
        .filter_map(|(name, sealing)| match sealing {
            Sealing::Clear(device) if name.ends_with(device.as_str()) => Some(name.clone()),
            Sealing::Clear(device) => Some(format!("{name} on {device}")),
            Sealing::Memory | Sealing::Sealed => None,
        })
        .collect();
    match (swaps.is_empty(), clear.is_empty()) {
        (true, _) => Finding::ok(CHECK, "there is no swap"),
        (false, true) => Finding::ok(CHECK, "all swap is encrypted, or memory"),
        (false, false) => {
            let found = format!("memory is swapped out to {}, which is not encrypted", clear.join(", "));
            Finding::refused(CHECK, found, WHY, next)
        }
    }
}

fn crash_dumps(root: &Root) -> Finding {
    const CHECK: &str = "kdump";
    let next =
        "`systemctl disable --now kdump-tools` (Debian) or `kdump` (Fedora), or `kexec -p -u`; keep it off";
    if root.read("/sys/kernel/kexec_crash_loaded").as_deref() == Some("1") {
        let found = "a kernel for crash dumps is loaded: one that crashes writes all memory out";
        return Finding::refused(CHECK, found, WHY, next);
    }
    // Debian enables it for the next boot in a settings file, Fedora by a unit.
    let debian = root.read("/etc/default/kdump-tools").is_some_and(|settings| {
        settings
            .lines()
            .filter(|line| line.trim_start().starts_with("USE_KDUMP="))
            .any(|line| line.contains('1'))
    });
    let fedora = root.path("/etc/systemd/system/multi-user.target.wants/kdump.service").is_symlink();
    let reserved = root.read("/proc/cmdline").is_some_and(|line| line.contains("crashkernel="));
    if (debian || fedora) && reserved {
        let found = "kdump is set up, and takes effect at the next boot";
        return Finding::warning(CHECK, found, WHY, next);
    }
    Finding::ok(CHECK, "the kernel writes no crash dumps")
}

fn hibernation(root: &Root) -> Finding {
    const CHECK: &str = "hibernation";
    let next = "boot with `nohibernate`, or without `resume=` and with no swap that is not encrypted; \
                `systemctl mask hibernate.target hybrid-sleep.target suspend-then-hibernate.target`";
    let states = root.read("/sys/power/state").unwrap_or_default();
    let modes = root.read("/sys/power/disk").unwrap_or_default();
    let offered = states.split_whitespace().any(|state| state == "disk") && !modes.contains("[disabled]");
    let forbidden = root
        .read("/proc/cmdline")
        .is_some_and(|line| line.split_whitespace().any(|word| word == "nohibernate" || word == "noresume"));
    if !offered || forbidden {
        return Finding::ok(CHECK, "this kernel does not hibernate");
    }
    let clear_swap =
        swaps(root).is_none_or(|swaps| swaps.iter().any(|(_, sealing)| matches!(sealing, Sealing::Clear(_))));
    let resumes_from = root.read("/sys/power/resume").filter(|device| device != "0:0" && !device.is_empty());
    let resumes_clear = resumes_from.as_ref().is_some_and(|device| {
        let device = BlockDevice::of_path(root, Path::new(&format!("/sys/dev/block/{device}")));
        let device = device.map_or_else(|| Support::Other("?".to_owned()), Support::Device);
        matches!(device.sealing(root), Sealing::Clear(_))
    });
    if clear_swap && resumes_from.is_some() || resumes_clear {
        let found = "this machine can hibernate, to a disk that is not encrypted";
        return Finding::refused(CHECK, found, WHY, next);
    }
    if clear_swap {
        let found = "this kernel can hibernate, and there is swap that is not encrypted; nothing says that it would resume from there";
        return Finding::warning(CHECK, found, WHY, next);
    }
    Finding::ok(CHECK, "hibernation has no disk to go to, or an encrypted one")
}

fn core_dumps(root: &Root) -> Finding {
    const CHECK: &str = "core-dumps";
    let pattern = root.read("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let ours = "Strongroom's processes and QEMU leave none";
    match pattern.strip_prefix('|') {
        Some(pipe) => {
            let program = pipe.split_whitespace().next().unwrap_or("a program");
            let found = format!(
                "cores are piped to {program}, which no size limit of 0 keeps from it; {ours}: they are not dumpable, or have a limit of 1 \
                 (core(5))"
            );
            Finding::ok(CHECK, found)
        }
        None => Finding::ok(CHECK, format!("cores are files; {ours}")),
    }
}

fn merged_memory(root: &Root) -> Finding {
    let on = root.read("/sys/kernel/mm/ksm/run").as_deref() == Some("1");
    let found = if on {
        "equal memory is merged (KSM), but not that of Strongroom's guests, who ask not to"
    } else {
        "equal memory is not merged (KSM)"
    };
    Finding::ok("ksm", found)
}

/// The failed findings, as reasons.
pub(super) fn reasons(findings: &[Finding]) -> Vec<String> {
    let refused = findings.iter().filter(|finding| finding.verdict == Verdict::Refused);
    refused.map(|finding| finding.found.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{link, tree};
    use super::*;

    const NO_SWAPS: &str = "Filename\tType\tSize\tUsed\tPriority\n";

    fn swaps_of(lines: &str) -> (tempfile::TempDir, Root) {
        let (directory, root) = tree(&[
            ("/proc/swaps", &format!("{NO_SWAPS}{lines}")),
            ("/proc/self/mountinfo", "27 1 254:0 / / rw - ext4 /dev/vda rw\n"),
            ("/sys/class/block/vda/size", "1"),
            ("/sys/class/block/dm-0/dm/uuid", "CRYPT-PLAIN-swap"),
            ("/sys/class/block/zram0/backing_dev", "none"),
            ("/sys/class/block/zram1/backing_dev", "/dev/vda"),
        ]);
        link(&root, &[("/sys/dev/block/254:0", "/sys/class/block/vda")]);
        (directory, root)
    }

    #[test]
    fn swap_is_refused_unless_it_is_sealed_or_memory() {
        for (lines, verdict) in [
            ("", Verdict::Ok),
            ("/dev/dm-0 partition 100 0 -2\n/dev/zram0 partition 100 0 -2\n", Verdict::Ok),
            ("/dev/vda partition 100 0 -2\n", Verdict::Refused),
            ("/dev/dm-0 partition 100 0 -2\n/swapfile file 100 0 -2\n", Verdict::Refused),
            ("/dev/zram1 partition 100 0 -2\n", Verdict::Refused),
            ("/dev/gone partition 100 0 -2\n", Verdict::Refused),
        ] {
            let (_directory, root) = swaps_of(lines);
            assert_eq!(swap(&root).verdict, verdict, "{lines}: {:?}", swap(&root));
        }
        let (_directory, root) = swaps_of("/swapfile file 100 0 -2\n");
        assert!(swap(&root).found.contains("/swapfile on vda"), "{:?}", swap(&root));
    }

    #[test]
    fn a_loaded_crash_kernel_is_refused_and_one_for_the_next_boot_is_told() {
        let verdict = |files: &[(&str, &str)]| crash_dumps(&tree(files).1).verdict;
        assert_eq!(verdict(&[]), Verdict::Ok);
        // The tree is removed when its directory is dropped, so the directory is kept here.
        let (_kept, root) = tree(&[("/sys/kernel/kexec_crash_loaded", "1\n")]);
        assert_eq!(crash_dumps(&root).verdict, Verdict::Refused);
        let settings = ("/etc/default/kdump-tools", "# USE_KDUMP=0\nUSE_KDUMP=1\n");
        let (_kept, root) = tree(&[settings, ("/proc/cmdline", "quiet crashkernel=384M")]);
        assert_eq!(crash_dumps(&root).verdict, Verdict::Warning);
        let (_kept, root) = tree(&[settings, ("/proc/cmdline", "quiet")]);
        assert_eq!(crash_dumps(&root).verdict, Verdict::Ok);
    }

    #[test]
    fn hibernation_is_refused_where_it_goes_to_a_clear_disk() {
        let state = ("/sys/power/state", "freeze mem disk\n");
        let modes = ("/sys/power/disk", "[platform] shutdown reboot\n");
        let clear = ("/proc/swaps", "Filename\n/dev/vda partition 1 0 -2\n");
        let resume = ("/sys/power/resume", "254:0\n");
        for (files, verdict) in [
            (vec![], Verdict::Ok),
            (vec![state, modes, ("/proc/swaps", "Filename\n")], Verdict::Ok),
            (vec![state, ("/sys/power/disk", "[disabled]\n"), clear, resume], Verdict::Ok),
            (vec![state, modes, clear, resume, ("/proc/cmdline", "quiet nohibernate")], Verdict::Ok),
            (vec![state, modes, clear], Verdict::Warning),
            (vec![state, modes, clear, resume], Verdict::Refused),
        ] {
            let (_kept, root) = tree(&files);
            assert_eq!(hibernation(&root).verdict, verdict, "{files:?}");
        }
    }

    #[test]
    fn piped_cores_are_explained() {
        let (_kept, root) =
            tree(&[("/proc/sys/kernel/core_pattern", "|/lib/systemd/systemd-coredump %P %u")]);
        let found = core_dumps(&root);
        assert!(found.verdict == Verdict::Ok && found.found.contains("systemd-coredump"), "{found:?}");
    }
}
