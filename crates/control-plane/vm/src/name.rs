//! The names of VMs and their disks.

use strongroom_types::name_type;

name_type! {
    /// The name of a VM, which is also its directory in a datastore ([`check_name`]).
    VmName
}
name_type! {
    /// The name of a disk, which is also its volume's directory in the VM's directory
    /// ([`check_name`]). The guest sees its first 20 bytes as the disk's serial number (virtio 1.2,
    /// 5.2.6).
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
