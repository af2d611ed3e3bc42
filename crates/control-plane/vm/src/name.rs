//! What VMs and their disks are called.

use strongroom_types::name_type;

name_type! {
    /// What people call a VM, and its directory in a datastore ([`check_name`]).
    VmName
}
name_type! {
    /// What a disk of a VM is called, and its volume in the VM's directory ([`check_name`]). A
    /// guest sees the first 20 bytes as the disk's serial number (virtio 1.2, 5.2.6).
    DiskName
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        assert_eq!("web1".parse::<VmName>().unwrap().as_str(), "web1");
        assert!("../web1".parse::<VmName>().is_err());
        assert!(serde_json::from_str::<DiskName>("\"../disk\"").is_err());
    }
}
