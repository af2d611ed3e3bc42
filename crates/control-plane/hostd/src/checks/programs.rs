//! The external programs that VMs need: whether they are installed, and in which version.

use std::path::Path;
use std::process::{Command, Stdio};

use strongroom_hypervisor::firmware::Ovmf;
use strongroom_hypervisor::qemu::QemuProgram;

use super::Finding;

/// A program that some feature needs.
struct Wanted {
    check: &'static str,
    path: &'static str,
    package: &'static str,
    /// The feature that is missing without it.
    why: &'static str,
}

const WANTED: [Wanted; 5] = [
    Wanted {
        check: "qemu-img",
        path: "/usr/bin/qemu-img",
        package: "qemu-utils",
        why: "images of other formats than raw cannot be read or written",
    },
    Wanted {
        check: "bubblewrap",
        path: "/usr/bin/bwrap",
        package: "bubblewrap",
        why: "qemu-img is run in its sandbox alone",
    },
    Wanted { check: "swtpm", path: "/usr/bin/swtpm", package: "swtpm", why: "VMs with a TPM do not start" },
    Wanted {
        check: "passt",
        path: "/usr/bin/passt",
        package: "passt",
        why: "VMs with the network `user`, which is what they get where none is named, reach nobody",
    },
    Wanted {
        check: "iproute2",
        path: "/usr/sbin/ip",
        package: "iproute2",
        why: "VMs on bridges do not start",
    },
];

/// All of these checks. Each program is asked for its version. QEMU runs a guest that ends at once,
/// to test whether KVM works.
pub fn findings(qemu: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    match QemuProgram::probe(qemu) {
        Ok(program) => {
            findings.push(Finding::ok(
                "qemu",
                format!("QEMU {}, {}", program.version(), program.path().display()),
            ));
            findings.push(kvm(&program));
        }
        Err(error) => findings.push(Finding::refused(
            "qemu",
            error.to_string(),
            "no VM starts without it",
            "install it (Debian: qemu-system-x86), or name another in host.json as `qemu`",
        )),
    }
    findings.push(match Ovmf::find() {
        Ok(found) => Finding::ok("ovmf", format!("UEFI for guests, {}", found.code.display())),
        Err(error) => Finding::warning(
            "ovmf",
            error.to_string(),
            "VMs with UEFI do not start",
            "install it (Debian: ovmf)",
        ),
    });
    findings.extend(WANTED.iter().map(look));
    findings
}

fn kvm(program: &QemuProgram) -> Finding {
    const CHECK: &str = "kvm";
    match program.kvm() {
        Ok(()) => Finding::ok(CHECK, "KVM works: a guest with paging was run"),
        Err(reason) if reason == strongroom_hypervisor::kvm::NOT_SHARED => Finding::warning(
            CHECK,
            format!("KVM is not used: {reason}"),
            "guests are emulated, which is many times slower",
            "give it to the group kvm, as udev does: `chown root:kvm /dev/kvm && chmod 660 /dev/kvm`",
        ),
        Err(reason) => Finding::warning(
            CHECK,
            format!("KVM does not work: {reason}"),
            "guests are emulated, which is many times slower",
            "switch virtualisation on in the firmware, or nesting on in the outer hypervisor; `modprobe kvm_intel` or `kvm_amd`; be root, \
             or in the group kvm",
        ),
    }
}

fn look(wanted: &Wanted) -> Finding {
    let Wanted { check, path, package, why } = wanted;
    match version(path) {
        Some(version) => Finding::ok(check, version),
        None => Finding::warning(
            check,
            format!("{path} is not there, or does not run"),
            *why,
            format!("install it (Debian: {package})"),
        ),
    }
}

/// The first line of a program's `--version` output; `ip` only takes `-Version`.
fn version(path: &str) -> Option<String> {
    let question = if path.ends_with("/ip") { "-Version" } else { "--version" };
    let output = Command::new(path).arg(question).env_clear().stdin(Stdio::null()).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    said.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_package() {
        let findings = findings(Path::new("/nonexistent/qemu"));
        let qemu = findings.iter().find(|finding| finding.check == "qemu").unwrap();
        assert_eq!(qemu.verdict, Verdict::Refused);
        assert!(qemu.next_step.as_ref().unwrap().contains("qemu-system-x86"), "{qemu:?}");
        let missing = Wanted { check: "x", path: "/nonexistent/x", package: "x-tools", why: "nothing works" };
        assert!(look(&missing).next_step.unwrap().contains("x-tools"));
        assert!(version("/bin/ls").unwrap().contains("ls"));
    }
}
