//! Requirements of each VM of this host for its next start that the host does not meet: the start
//! would fail, or the guest would have no network.

use std::path::PathBuf;

use strongroom_host::protocol::{Firmware, Network, Programs, VmSpec};

use super::{Finding, Root, interfaces};
use crate::boot_files;

const CHECK: &str = "vms";

/// The resources of this host for VMs.
#[derive(Debug)]
pub struct Stock<'host> {
    /// The root of the kernel's files.
    pub root: &'host Root,
    /// The installed programs.
    pub programs: &'host Programs,
    /// The directories that VMs may boot from.
    pub boot_directories: &'host [PathBuf],
    /// The bridges and tap devices that network cards may use, if the configuration lists them.
    pub interfaces: Option<&'host [String]>,
}

/// Returns a finding for each VM and missing resource, or a single one if nothing is missing.
pub fn findings(vms: &[VmSpec], stock: &Stock<'_>) -> Vec<Finding> {
    let missing: Vec<Finding> = vms.iter().flat_map(|vm| of_vm(vm, stock)).collect();
    match (missing.is_empty(), vms.len()) {
        (false, _) => missing,
        (true, 0) => Vec::new(),
        (true, count) => {
            vec![Finding::ok(CHECK, format!("this host has all that its VMs ({count}) start with"))]
        }
    }
}

fn of_vm(vm: &VmSpec, stock: &Stock<'_>) -> Vec<Finding> {
    let name = &vm.name;
    let programs = stock.programs;
    let (mut found, why) = (Vec::new(), "it does not start");
    let mut lacks = |what: String, next: &str| {
        found.push(Finding::warning(CHECK, format!("VM {name} {what}"), why, next));
    };
    if vm.firmware == Firmware::Uefi && programs.uefi.is_none() {
        lacks("has UEFI, which is not installed".to_owned(), "install it (Debian: ovmf)");
    }
    if vm.tpm && programs.swtpm.is_none() {
        lacks("has a TPM, and swtpm is not installed".to_owned(), "install it (Debian: swtpm)");
    }
    for file in vm.boot_files() {
        if let Err(problem) = boot_files::check([file], stock.boot_directories) {
            let next = problem.next_step.as_deref().unwrap_or("put it there");
            lacks(format!("starts from {}: {}", file.display(), problem.message), next);
        }
    }
    for nic in &vm.nics {
        if let Err(problem) = interfaces::check(stock.root, stock.interfaces, &nic.network) {
            let next = problem.next_step.as_deref().unwrap_or("make it");
            let next = format!("{next}; `strongroom vm set VM --net ...` gives the VM another network");
            lacks(format!("has a network card: {}", problem.message), &next);
        }
    }
    if programs.passt.is_none() && vm.nics.iter().any(|nic| nic.network == Network::User) {
        found.push(Finding::warning(
            CHECK,
            format!("VM {name} has the network user, and passt is not installed"),
            "its guest reaches nothing",
            "install it (Debian: passt), and restart the VM",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn what_a_vm_lacks_is_named_with_the_vm_and_the_package() {
        let text = r#"{"id":"018f3c6e-0000-4000-8000-000000000001","name":"web1","datastore":"/srv/ds","memory_bytes":33554432,
            "firmware":"uefi","tpm":true,"cdrom":"/nonexistent/debian.iso","disks":[{"name":"disk0","size_bytes":1048576,"key":"unencrypted"}],
            "nics":[{"mac":"52:54:00:00:00:01","network":"user"},{"mac":"52:54:00:00:00:02","network":{"bridge":{"bridge":"br0"}}}]}"#;
        let vm: VmSpec = serde_json::from_str(text).unwrap();
        let (_directory, root) = tree(&[]);
        let boot = [PathBuf::from("/srv/boot")];
        let programs = Programs::default();
        let stock = Stock { root: &root, programs: &programs, boot_directories: &boot, interfaces: None };
        let found = findings(std::slice::from_ref(&vm), &stock);
        let told: String =
            found.iter().map(|finding| format!("{} {:?}\n", finding.found, finding.next_step)).collect();
        for word in ["VM web1", "ovmf", "swtpm", "debian.iso", "/srv/boot", "bridge br0", "Debian: passt"] {
            assert!(told.contains(word), "{word}: {told}");
        }
        assert_eq!(found.len(), 5, "{told}");

        let (_directory, root) = tree(&[("/sys/class/net/br0/bridge/bridge_id", "8000")]);
        let here = Some(PathBuf::from("/usr/bin/x"));
        let programs = Programs { qemu: None, uefi: here.clone(), passt: here.clone(), swtpm: here };
        let stock = Stock { root: &root, programs: &programs, boot_directories: &boot, interfaces: None };
        let vm = VmSpec { cdrom: None, ..vm };
        let found = findings(&[vm], &stock);
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Ok), "{found:?}");
        assert_eq!(findings(&[], &stock), []);
    }
}
